import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from moewatch.clock import SystemClock
from moewatch.demo import model, squeeze
from moewatch.demo.script import ALL_TOPICS, SCRIPT, Demo, Step
from moewatch.errors import MoewatchError
from moewatch.linux.root import KernelRoot
from moewatch.server.discovery import inspect_pid
from moewatch.server.slots import parse_slots

QUIET = (Step(0, "Works", ALL_TOPICS),)


def until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def get(demo: Demo, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{demo.port}{path}", timeout=2) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def decoded(demo: Demo) -> int:
    status, body = get(demo, "/slots")
    return parse_slots(body)[0].decoded if status == 200 else 0


def read_bytes(pid: int) -> int:
    found = re.search(r"^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def groups() -> set[Path]:
    return {p for parent in squeeze.parents() for p in parent.glob(f"{squeeze.PREFIX}{os.getpid()}")}


def test_the_whole_script_shows_its_states_within_two_minutes() -> None:
    assert sum(step.seconds for step in SCRIPT) < 118
    squeezed = [step for step in SCRIPT if step.expert_ratio is not None]
    assert squeezed
    assert all(step.seconds > 2 * 12 for step in squeezed)  # a verdict is due within 12 s


def test_the_server_loads_answers_and_generates_as_a_llama_server_does(disk_dir: Path, small: model.Geometry) -> None:
    said: list[str] = []
    with Demo(SystemClock(), disk_dir, script=QUIET, geometry=small, on_notice=said.append) as demo:
        pid = demo.start()
        status, body = get(demo, "/health")
        assert status == 503
        assert json.loads(body)["error"]["message"] == "Loading model"
        assert until(lambda: get(demo, "/health") == (200, b'{"status": "ok"}'))
        assert until(lambda: decoded(demo) > 3)
        first = decoded(demo)
        assert until(lambda: decoded(demo) > first)
        slot = parse_slots(get(demo, "/slots")[1])[0]
        assert slot.is_processing
        assert slot.n_prompt_tokens > slot.n_prompt_tokens_processed > 0
        assert get(demo, "/metrics")[0] == 404
        server = inspect_pid(KernelRoot.system(), pid)
        assert server.model_paths == (demo.path,)
        assert server.port == demo.port
        demo.command("pause")
        assert until(lambda: not parse_slots(get(demo, "/slots")[1])[0].is_processing)
        anonymous = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert anonymous is not None
        assert int(anonymous[1]) < 24 * 1024
    assert said[-1] == "Works"
    assert str(disk_dir / model.FILE_NAME) in said[0]


@pytest.mark.parametrize("may_limit", [True, False])
def test_a_squeeze_makes_it_read_again_and_stop_leaves_nothing(
    disk_dir: Path, small: model.Geometry, *, may_limit: bool
) -> None:
    script = (Step(3, "Fits", ALL_TOPICS), Step(60, "Squeezed", ALL_TOPICS, 0.3))
    demo = Demo(SystemClock(), disk_dir, script=script, geometry=small, may_limit=may_limit)
    pid = demo.start()
    try:
        assert demo.path is not None
        whole = demo.path.stat().st_size
        # Far more than the file: what was read had left and came back.
        assert until(lambda: read_bytes(pid) > 3 * whole, 40), f"{read_bytes(pid)} of {whole} by: {demo.squeeze_words}"
        if not may_limit:
            assert "MADV_PAGEOUT" in demo.squeeze_words
            assert groups() == set()
        port = demo.port
    finally:
        demo.stop()
    demo.stop()  # once more does no harm
    assert not Path(f"/proc/{pid}").exists()
    assert groups() == set()
    assert [p.name for p in disk_dir.iterdir()] == [model.FILE_NAME]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port or 0)) != 0


def test_a_server_that_cannot_start_is_one_sentence(
    disk_dir: Path, small: model.Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        squeeze.PageOut, "wrap", lambda _self, argv: [argv[0], "-c", "raise SystemExit('no such luck')"]
    )
    demo = Demo(SystemClock(), disk_dir, script=QUIET, geometry=small, may_limit=False)
    with pytest.raises(MoewatchError, match=r"^The demo's server did not start: no such luck$"):
        demo.start()


def test_a_demo_that_was_stopped_does_not_start(disk_dir: Path, small: model.Geometry) -> None:
    model.ensure(lambda _: None, disk_dir, small)
    demo = Demo(SystemClock(), disk_dir, script=QUIET, geometry=small)
    demo.stop()
    with pytest.raises(MoewatchError, match="ended before it began"):
        demo.start()
    assert groups() == set()


def test_a_second_demo_starts_cold(disk_dir: Path, small: model.Geometry) -> None:
    for _ in range(2):
        with Demo(SystemClock(), disk_dir, script=QUIET, geometry=small) as demo:
            pid = demo.start()
            assert until(lambda: decoded(demo) > 3)
            assert read_bytes(pid) > 10 << 20


def test_beside_another_demo_no_cold_start_is_claimed(disk_dir: Path, small: model.Geometry) -> None:
    said: list[str] = []
    with Demo(SystemClock(), disk_dir, script=QUIET, geometry=small) as first:
        first.start()
        assert until(lambda: decoded(first) > 3)
        with Demo(SystemClock(), disk_dir, on_notice=said.append, script=QUIET, geometry=small) as second:
            second.start()
            assert until(lambda: any("Not a cold start" in text for text in said))
    assert QUIET[0].text not in said


def test_the_server_ends_when_its_parent_is_killed(disk_dir: Path, small: model.Geometry) -> None:
    model.ensure(lambda _: None, disk_dir, small)
    source = (
        "import sys, time; from pathlib import Path\n"
        "from moewatch.clock import SystemClock; from moewatch.demo import model; from moewatch.demo.script import Demo\n"
        f"g = model.Geometry(n_layer={small.n_layer}, n_expert={small.n_expert}, dim={small.dim}, ff={small.ff}, n_word={small.n_word})\n"
        "print(Demo(SystemClock(), Path(sys.argv[1]), geometry=g, may_limit=False).start(), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(disk_dir)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as parent:
        assert parent.stdout is not None
        assert select.select([parent.stdout], [], [], 20)[0]
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
        parent.wait(10)

    def has_ended() -> bool:
        with contextlib.suppress(OSError):
            return (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            )  # nobody reaps it in a container
        return True

    assert until(has_ended, 10)
