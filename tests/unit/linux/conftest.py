from pathlib import Path

import pytest

from tests.support.proctree import ProcTree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


@pytest.fixture
def captured(tmp_path: Path) -> ProcTree:
    """Linux 6.18, cgroup v1: tests/fixtures/proc/linux-6.18-cgroup1/ORIGIN.md."""
    return ProcTree.captured(tmp_path, "linux-6.18-cgroup1")
