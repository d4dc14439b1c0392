"""One warm-up of a model at a time: two would push out what the other reads."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moewatch.domain.layout import ModelLayout
from moewatch.errors import ForbiddenError, MoewatchError


def lock_name(layout: ModelLayout) -> str:
    """The same for all copies of a model, whichever shard or path it was named by."""
    text = "\n".join(f"{file.name} {file.size_bytes}" for file in layout.files)
    return f"moewatch-warm-{hashlib.sha256(text.encode()).hexdigest()[:16]}.lock"


def lock_directory() -> Path:
    """XDG_RUNTIME_DIR, or a private directory of this user below the temporary one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir() and os.access(runtime, os.W_OK):
        return Path(runtime)
    private = Path(tempfile.gettempdir()) / f"moewatch-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.lstat().st_uid != os.getuid() or private.is_symlink():
        raise ForbiddenError(f"{private} belongs to someone else; set XDG_RUNTIME_DIR to a directory of your own.")
    return private


@contextmanager
def only_one(layout: ModelLayout) -> Iterator[None]:
    """Hold the model's lock; the kernel lets go of it when the process ends, however it ends.

    Raises:
        MoewatchError: another warm-up of this model is running.
    """
    path = lock_directory() / lock_name(layout)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
            raise MoewatchError(
                f"Another warm-up of this model is running (PID {owner}); wait for it or end it."
            ) from None
        with suppress(OSError):  # who it is is told to others; on a full disk they are not told
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)
