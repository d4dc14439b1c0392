"""`moewatch pin` as scripts use it: a process that maps a model stands in for a server."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.moe_model import MoeShape, write_model

SHAPE = MoeShape(layers=2, experts=0, width=512, heads=8, expert_width=512)
MAPPER = (
    "import mmap, sys, time\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    "    print('mapped', flush=True)\n"
    "    time.sleep(300)\n"
)


def pin(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moewatch", "pin", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        (path,) = write_model(Path(directory), SHAPE)
        yield path


@pytest.fixture
def mapper(model: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", MAPPER, str(model)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_without_a_server_there_is_nothing_to_hold_for(model: Path) -> None:
    done = pin("--model", model)
    assert done.returncode == 3
    assert "No server maps" in done.stderr


@pytest.mark.parametrize("words", ["experts", "", "dense,"])
def test_usage(words: str) -> None:
    done = pin("--what", words)
    assert done.returncode == 2
    assert "dense,hot" in done.stderr


def test_what_fits_is_not_held_unless_forced_and_then_let_go(mapper: "subprocess.Popen[bytes]") -> None:
    done = pin("--pid", str(mapper.pid), "--json", "--no-http", "--force", "--for", "2", "--budget", "3M")
    assert done.returncode == 0, done.stderr
    decision, *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert decision["helps"] is False
    assert decision["forced"] is True
    assert decision["reason"].startswith("Everything fits; nothing to hold")
    assert last["held_bytes"] == last["wanted_bytes"] == 3 << 20
    assert last["released"] == "the time is over"


def test_the_servers_end_lets_go_and_a_refusal_is_a_finding(mapper: "subprocess.Popen[bytes]") -> None:
    command = [sys.executable, "-m", "moewatch", "pin", "--pid", str(mapper.pid), "--no-http", "--force", "--json"]
    with subprocess.Popen(
        [*command, "--budget", "4M"],  # any user may lock so much
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holding:
        refused = pin("--pid", str(mapper.pid), "--no-http")
        assert refused.returncode == 1
        assert refused.stdout.startswith("NOTHING HELD   Everything fits; nothing to hold")
        assert "--force" in refused.stderr
        assert holding.stdout is not None
        assert holding.stderr is not None
        told = map(json.loads, holding.stdout)
        assert any(each.get("held_bytes") for each in told), "it held something"
        mapper.kill()
        mapper.wait(10)
        *_, last = told
        said = holding.stderr.read()
    assert holding.returncode == 3, said
    assert last["released"] == "the server ended"
    assert "Traceback" not in said


def test_a_holder_that_was_killed_holds_nothing_and_says_so(mapper: "subprocess.Popen[bytes]") -> None:
    command = [sys.executable, "-m", "moewatch", "pin", "--pid", str(mapper.pid), "--no-http", "--force", "--json"]
    with subprocess.Popen(
        [*command, "--budget", "4M"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holding:
        assert holding.stdout is not None
        assert holding.stderr is not None
        told = map(json.loads, holding.stdout)
        assert any(each.get("held_bytes") for each in told), "it held something"
        children = Path(f"/proc/{holding.pid}/task/{holding.pid}/children").read_text(encoding="ascii").split()
        (holder,) = map(int, children)
        os.kill(holder, signal.SIGKILL)
        *_, last = told
        said = holding.stderr.read()
    assert holding.returncode == 1, said
    assert last["released"] == "The holding process was ended by signal 9; perhaps its memory group was full"
