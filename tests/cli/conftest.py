"""What several commands are tried on."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.moe_model import TINY, write_model


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    """A mixture of experts on a disk: /tmp may be a tmpfs, which has no page cache apart from itself."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        (path,) = write_model(Path(directory), TINY)
        yield path
