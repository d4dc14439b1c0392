"""A disk of our own for the model files: ext4 (or another file system) in an image behind a loop device, with a PC's read-ahead.

A virtual machine's disk may read 8 MiB ahead of every fault, which makes a hundred times the re-reads of a PC's 128 KiB,
and it is shared with whatever else the machine does. The loop device has its own row in /proc/diskstats and reads its image
past the page cache (--direct-io), so that evicted means evicted. Needs root.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

DISK_TOOLS = ("losetup", "mkfs.ext4", "mount")
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
READ_AHEAD_KIB = 128  # the kernel's default (VM_READAHEAD_PAGES)
SIZE_BYTES = 4 << 30  # sparse: only what is written takes space
PARENT = Path("/var/tmp")  # noqa: S108 - disk-backed where /tmp may be memory; mkdtemp makes it private


class ModelDisk:
    """Mounted while the `with` block lasts; leaves nothing behind."""

    def __init__(
        self, *, size_bytes: int = SIZE_BYTES, read_ahead_kib: int = READ_AHEAD_KIB, file_system: str = "ext4"
    ) -> None:
        self._make = MAKE[file_system]
        self._size_bytes = size_bytes
        self._read_ahead_kib = read_ahead_kib
        self._room: Path | None = None
        self._loop: str | None = None
        self._mounted = False

    @property
    def path(self) -> Path:
        """Where it is mounted."""
        assert self._room is not None, "the disk is not mounted"
        return self._room / "mounted"

    @property
    def device(self) -> str:
        """Its name in /proc/diskstats."""
        assert self._loop is not None, "the disk is not mounted"
        return Path(self._loop).name

    def __enter__(self) -> Self:
        try:
            self._mount()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _mount(self) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="moewatch-live-", dir=PARENT))
        image = self._room / "disk.img"
        with image.open("wb") as file:
            file.truncate(self._size_bytes)
        self.path.mkdir()
        _run(*self._make, str(image))
        self._loop = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        Path(f"/sys/block/{self.device}/queue/read_ahead_kb").write_text(str(self._read_ahead_kib), encoding="ascii")
        _run("mount", "-o", "noatime", self._loop, str(self.path))
        self._mounted = True

    def remove(self) -> None:
        """Unmount, detach, delete; each step only if the one before it was done."""
        if self._mounted:
            # lazily: after a failed test a traceback may still hold a file open, and that must not hide the failure
            _run("umount", "--lazy", str(self.path))
            self._mounted = False
        if self._loop is not None:
            _run("losetup", "-d", self._loop)
            self._loop = None
        if self._room is not None:
            shutil.rmtree(self._room)
            self._room = None


def evict(*paths: Path) -> None:
    """Drop files from the page cache, leaving no trace that they were there (what a process maps stays)."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # a dirty page cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout
