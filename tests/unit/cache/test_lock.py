import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moewatch.cache.lock import lock_directory, lock_name, only_one
from moewatch.errors import ForbiddenError, MoewatchError
from tests.support.layouts import layout_of, sparse_file


def test_a_second_run_names_the_first_and_a_dead_one_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    layout = layout_of([sparse_file(tmp_path / "model.gguf", 100)], [])
    code = (
        "import sys,time\nfrom pathlib import Path\nfrom moewatch.cache.lock import only_one\n"
        "from tests.support.layouts import layout_of\n"
        "with only_one(layout_of([Path(sys.argv[1])], [])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.gguf")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(MoewatchError, match=rf"PID {holder.pid}\b"), only_one(layout):
        pass
    holder.kill()
    holder.wait(10)
    holder.stdout.close()
    with only_one(layout):
        assert (tmp_path / lock_name(layout)).read_text() == str(os.getpid())
    with only_one(layout):
        pass


def test_another_model_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    one = layout_of([sparse_file(tmp_path / "one.gguf", 100)], [])
    other = layout_of([sparse_file(tmp_path / "other.gguf", 100)], [])
    with only_one(one), only_one(other):
        pass


def test_without_a_runtime_directory_a_private_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    directory = lock_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(ForbiddenError, match="XDG_RUNTIME_DIR"):
        lock_directory()


def test_a_full_disk_does_not_keep_from_warming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def full(_fd: int, _content: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with only_one(layout_of([sparse_file(tmp_path / "model.gguf", 100)], [])):
        pass
