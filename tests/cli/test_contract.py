"""What scripts rely on: exit codes, stdout for data, stderr for talk, nothing eager, everything documented."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import msgspec.inspect
import pytest

from moewatch.cli.main import COMMANDS
from moewatch.domain.frame import ExpertMap, Frame

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests/fixtures/traces/b50-1.jsonl.gz"


def moewatch(*args: str, env: dict[str, str] | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moewatch", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        check=False,
    )


def assert_one_sentence(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_nothing_heavy_is_imported_to_say_who_we_are(flag: str) -> None:
    code = (
        "import sys\nfrom moewatch.cli.main import run\nassert run([sys.argv[1]]) == 0\n"
        "heavy = {'textual', 'rich', 'numpy', 'gguf', 'plotext', 'psutil', 'pyudev'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, flag], capture_output=True, text=True, cwd=ROOT, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "moewatch" in result.stdout


@pytest.mark.parametrize("name", ["dashboard", *sorted(COMMANDS)])
def test_every_flag_and_command_is_documented(name: str) -> None:
    documented = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    parser = importlib.import_module(f"moewatch.cli.{COMMANDS[name].module if name in COMMANDS else name}").parser()
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", parser.format_help()))
    assert flags
    assert not {flag for flag in flags if flag not in documented}
    if name in COMMANDS:
        assert f"`moewatch {name}" in documented


def keys_of(kind: object) -> set[str]:
    """All keys that a record of this type has in JSON, those of the records in it included."""
    found: set[str] = set()
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            found |= {field.encode_name} | keys_of(field.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        found = set().union(*map(keys_of, kind.types))
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        found = keys_of(kind.item_type)
    return found


def test_every_key_of_a_frame_is_documented() -> None:
    keys = keys_of(msgspec.inspect.type_info(Frame))
    assert {"reread_bytes_per_s", "levels_off", "since_wall_ns"} <= keys
    pages = [(ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") for name in ("cli", "trace")]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", pages[0]))))
    # of the header, which a Frame repeats: host, devices, the model's summary, the reasons of gaps
    named |= set(re.findall(r"`(\w+)`", pages[1]))
    assert not keys - named


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("stream", "--pid", "0"), 2, "pgrep"),
        (("stream", "--pid", "x"), 2, "no process id"),
        (("--interval", "0.01"), 2, "0.2 s to 5 s"),
        (("replay", "--speed", "0", "x"), 2, "no speed"),
        (("--json",), 2, "--once"),
        (("--for", "3"), 2, "--once"),
        (("frobnicate",), 2, "no command"),
    ],
)
def test_usage_errors_are_two(args: tuple[str, ...], code: int, words: str) -> None:
    result = moewatch(*args)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_no_such_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(20)
    for command in (("stream",), ("--once",), ("record", "-o", "never-written.jsonl"), ()):
        result = moewatch(*command, "--pid", str(child.pid))
        assert result.returncode == 3, (command, result.stderr)
        assert str(child.pid) in result.stderr
        assert "Traceback" not in result.stderr
    assert not (ROOT / "never-written.jsonl").exists()


def test_a_process_that_maps_no_model() -> None:
    result = moewatch("--once", "--pid", str(os.getpid()))
    assert_one_sentence(result, 3, str(os.getpid()), "GGUF")


def test_replay_prints_one_frame_a_sample() -> None:
    result = moewatch("replay", str(TRACE), "--json")
    assert result.returncode == 0, result.stderr
    frames = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(frames) > 100
    assert {frame["schema"] for frame in frames} == {"moewatch-frame/1"}
    assert "thrashing" in {frame["verdict"]["state"] for frame in frames}
    assert {
        "target",
        "rates",
        "residency",
        "memory",
        "server",
        "working_set",
        "progress",
        "verdict",
        "self",
        "gaps",
    } <= frames[0].keys()


def test_replay_without_a_terminal_prints_lines_and_says_so() -> None:
    result = moewatch("replay", str(TRACE))
    assert result.returncode == 0
    assert "no terminal" in result.stderr
    assert "THRASHING" in result.stdout


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.jsonl", None, "absent.jsonl"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("page.jsonl", b"<!DOCTYPE html><html></html>\n", "page.jsonl"),
        ("newer.jsonl", b'{"format":"moewatch-trace","version":2}\n', "2"),
        ("other.jsonl.gz", b"no gzip at all", "other.jsonl.gz"),
    ],
)
def test_unusable_recordings_are_five(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert_one_sentence(moewatch("replay", str(path), "--json"), 5, words)


def test_a_reader_that_leaves_is_no_error() -> None:
    result = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m moewatch replay "$1" --json | head -n 1', sys.executable, str(TRACE)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert result.stderr == ""
    assert json.loads(result.stdout)["schema"] == "moewatch-frame/1"


def test_a_full_disk_under_stdout_is_one_sentence() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, "-m", "moewatch", "replay", str(TRACE), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert result.returncode == 5
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


def test_other_systems_get_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from moewatch.cli.main import run  # noqa: PLC0415 - in-process, with another platform

    for platform, instead in (("darwin", "fs_usage"), ("win32", "Resource Monitor")):
        monkeypatch.setattr(sys, "platform", platform)
        assert run(["stream"]) == 4
        said = capsys.readouterr().err
        assert instead in said
        assert len(said.strip().splitlines()) == 1


def test_recording_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_text("mine")
    assert_one_sentence(moewatch("record", "-o", str(path)), 5, "exists already")
    assert path.read_text() == "mine"
    assert_one_sentence(moewatch("record", "-o", str(tmp_path / "no" / "x.jsonl")), 5, "no folder")


def test_a_map_of_experts_stands_only_where_it_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    from moewatch.cli.output import FrameLines  # noqa: PLC0415 - in-process
    from moewatch.cli.replay import frames  # noqa: PLC0415 - nothing eager

    first = next(frames(TRACE))
    seen = ExpertMap(
        n_layer=1, n_expert=2, bytes_per_expert=(8,), resident=b"ab", again_bytes=(0, 0), again_window_ns=1, left_s=b"cd",
        seen_ns=1, seen_wall_ns=1,
    )  # fmt: skip
    later = msgspec.structs.replace(seen, seen_ns=2)
    lines = FrameLines()
    for shown in (None, seen, seen, later):
        lines.show(msgspec.structs.replace(first, experts=shown))
    printed = [json.loads(line)["experts"] for line in capsys.readouterr().out.splitlines()]
    assert [each is not None for each in printed] == [False, True, False, True]
