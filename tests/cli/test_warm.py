"""`moewatch warm` as scripts use it, on a real GGUF file of a real disk, without a server."""

import fcntl
import json
import mmap
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moewatch.cache.hotset import Seen
from moewatch.cache.hotset_keeper import keep, take_hotset
from moewatch.cache.lock import lock_name
from moewatch.linux.pagecache import SystemPageCache
from moewatch.modelfile.layout import read_layout
from tests.support.model_disk import evict

FEW_BYTES, NEARLY_ALL = 1 << 18, 0.98  # a kernel with DAMON takes idle pages away, also from tests


@pytest.fixture(autouse=True)
def cold(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    evict(model)


def warm(*arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moewatch", "warm", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
    )


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_dry_run_is_the_plan_and_reads_nothing(model: Path) -> None:
    done = warm(model, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    (plan,) = objects(done)
    assert plan["planned_bytes"] == sum(each["length"] for each in plan["ranges"])
    assert {each["file"] for each in plan["ranges"]} == {str(model)}
    classes = [each["class"] for each in plan["ranges"]]
    assert classes == sorted(classes), "dense before expert"
    assert set(classes) == {"dense", "expert"}
    assert plan["left_cold_bytes"] == plan["classes"]["embedding"]["left_cold_bytes"] > 0
    assert objects(warm(model, "--dry-run", "--json"))[0]["planned_bytes"] == plan["planned_bytes"]


def test_a_budget_is_kept_and_dense_comes_first(model: Path) -> None:
    (plan,) = objects(warm(model, "--dry-run", "--json", "--budget", "12M"))
    assert 11 << 20 < plan["planned_bytes"] <= 12 << 20
    assert plan["classes"]["dense"]["left_cold_bytes"] == 0
    (plan,) = objects(warm(model, "--dry-run", "--json", "--budget", "1M"))
    assert plan["planned_bytes"] == 1 << 20
    assert {each["class"] for each in plan["ranges"]} == {"dense"}


def test_it_reads_what_was_planned_proves_it_and_has_nothing_left_to_do(model: Path) -> None:
    (plan,) = objects(warm(model, "--dry-run", "--json"))
    done = warm(model, "--json")
    assert done.returncode == 0, done.stderr
    *progress, last = objects(done)
    assert last["schema"] == "moewatch-warm/1"
    assert last["planned_bytes"] == last["read_bytes"] == plan["planned_bytes"]
    assert last["stopped"] is None
    assert last["ready"] is True
    assert last["before"]["dense_ratio"] < 0.1
    for ratio in (last["after"]["dense_ratio"], last["later"]["dense_ratio"], last["after"]["expert_ratio"]):
        assert ratio > NEARLY_ALL
    assert progress[-1]["read_bytes"] == last["read_bytes"]
    (plan,) = objects(warm(model, "--dry-run", "--json"))
    assert plan["planned_bytes"] < FEW_BYTES, "all is there"


def test_the_page_for_people(model: Path) -> None:
    done = warm(model, "--what", "dense")
    assert done.returncode == 0, done.stderr
    for words in ("PLAN", "weights every token needs", "kept for programs", "the server", "READY   looked up twice"):
        assert words in done.stdout, done.stdout
    assert "looking again" in done.stderr


def test_a_cancel_leaves_an_account_and_its_exit_code(model: Path) -> None:
    command = [sys.executable, "-m", "moewatch", "warm", str(model), "--json", "--rate", "2MB"]
    running = subprocess.Popen(
        ["env", "--default-signal=INT", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    while json.loads(running.stdout.readline())["read_bytes"] == 0:
        pass
    running.send_signal(signal.SIGINT)
    rest, said = running.communicate(timeout=20)
    last = json.loads(rest.splitlines()[-1])
    assert running.returncode == 130, said
    assert "cancelled" in last["stopped"]
    assert 0 < last["read_bytes"] < last["planned_bytes"]
    assert "Traceback" not in said


def test_a_second_run_says_who_is_at_it(model: Path, tmp_path: Path) -> None:
    lock = (tmp_path / lock_name(read_layout(model))).open("w")
    lock.write("4711")
    lock.flush()
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = warm(model)
    lock.close()
    assert done.returncode == 1
    assert "PID 4711" in done.stderr
    assert done.stdout == ""


def test_a_truncated_file_is_five(model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    with model.open("rb") as source:
        short.write_bytes(source.read(model.stat().st_size // 2))
    done = warm(short)
    assert done.returncode == 5
    assert "short.gguf" in done.stderr
    assert done.stdout == ""


def test_evict_asks_first_and_drops_all(model: Path) -> None:
    model.read_bytes()
    refused = warm(model, "--evict")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    done = warm(model, "--evict", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    (last,) = objects(done)
    assert last["evicted_bytes"] > 0
    assert last["after"]["resident_bytes"] == 0


@pytest.mark.parametrize(("answer", "code", "is_dropped"), [("y", 0, True), ("n", 130, False), ("", 130, False)])
def test_evict_does_what_is_answered(model: Path, answer: str, code: int, *, is_dropped: bool) -> None:
    model.read_bytes()
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "moewatch", "warm", str(model), "--evict"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        told = ""
        while "y/N" not in told:
            assert select.select([ours], [], [], 20)[0]
            told += os.read(ours, 1 << 12).decode()
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(timeout=20) == code
        assert select.select([ours], [], [], 0)[0]
        told += os.read(ours, 1 << 12).decode()
    os.close(ours)
    assert ("dropped" in told, "nothing was dropped" in told) == (True, not is_dropped)
    with model.open("rb") as file:
        pages = SystemPageCache().mincore(file.fileno(), 0, model.stat().st_size)
    assert (sum(each & 1 for each in pages) < len(pages) // 10) == is_dropped


def test_evict_refuses_what_a_process_maps(model: Path) -> None:
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        done = warm(model, "--evict", "--yes")
    assert done.returncode == 1
    assert f"PID {os.getpid()}" in done.stderr
    assert "mapped" in done.stderr


def test_a_saved_hot_set_comes_after_dense_and_before_the_others(model: Path) -> None:
    layout = read_layout(model)
    with model.open("rb") as file:
        file.seek(20 << 20)
        file.read(2 << 20)
    keep(take_hotset(layout, created="", seen=Seen()), 1_780_000_000_000_000_000)
    evict(model)
    (plan,) = objects(warm(model, "--dry-run", "--json"))
    steps = list(dict.fromkeys(each["step"] for each in plan["ranges"]))
    assert steps == ["dense", "hot", "experts"]
    hot = [each for each in plan["ranges"] if each["step"] == "hot"]
    assert hot[0]["offset"] == 20 << 20
    (plan,) = objects(warm(model, "--dry-run", "--json", "--what", "hot"))
    assert {each["step"] for each in plan["ranges"]} == {"dense", "hot"}
    assert 'hot set "' in warm(model, "--dry-run").stdout


def test_without_a_hot_set_hot_says_how_to_get_one(model: Path) -> None:
    done = warm(model, "--what", "hot")
    assert done.returncode == 2
    assert "hotset save" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--yes",), "--evict"), (("--rate", "1"), "1 MB"), (("--budget", "much"), "no size")],
)
def test_usage_errors(model: Path, arguments: tuple[str, ...], words: str) -> None:
    done = warm(model, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
