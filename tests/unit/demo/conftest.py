"""A small demo model on a real disk: paging cannot be tried in a file system that lives in memory."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.demo import model
from moewatch.linux.blockdev import disks_of
from moewatch.linux.root import KernelRoot

SMALL = model.Geometry(n_layer=4, n_expert=8, dim=1024, ff=256, n_word=512)  # 59 MiB; an expert's matrix is half a MiB


@pytest.fixture
def disk_dir(tmp_path: Path) -> Iterator[Path]:
    for base in (tmp_path, Path("/var/tmp"), Path.cwd()):  # noqa: S108 - a fresh directory is made in it
        if disks_of(KernelRoot.system(), base).file_system not in model.IN_MEMORY:
            made = Path(tempfile.mkdtemp(prefix="moewatch-test-", dir=base))
            yield made
            shutil.rmtree(made)
            return
    pytest.fail("no directory on a disk to try the demo in")


@pytest.fixture
def small() -> model.Geometry:
    return SMALL


@pytest.fixture
def model_path(disk_dir: Path, small: model.Geometry) -> Path:
    return model.ensure(lambda _: None, disk_dir, small)
