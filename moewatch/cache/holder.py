"""The process that holds pages: nothing but the standard library, ends with its parent, and with it every lock.

Started by path, without site-packages, like reader.py; it may join the server's cgroup, so that what it reads is charged
there. stdin: `cgroup HEX-PATH-OF-cgroup.procs`, `file HEX-PATH` for each shard, `go`; then `hold FILE OFFSET LENGTH` (whole
pages but at a file's end). stdout: `cgroup ok` or `cgroup ERRNO`, `ready`; then for each hold `BYTES-HELD ERRNO SHORT`. When
stdin ends, so does this, at once: the kernel unlocks the pages of a process that is gone (mlock(2)).

A range is read into a small buffer before it is locked: read-ahead makes that faster than the page faults of mlock, and a
file that was cut is noticed without touching the mapping. The mapping is never read, so there is no SIGBUS.
"""

import ctypes
import errno
import os
import resource
import signal
import sys

STEP_BYTES = 16 << 20  # of one mlock: a cancel waits for no more than that
BLOCK_BYTES = 1 << 18
PROT_READ, MAP_SHARED = 1, 1
MAP_FAILED = ctypes.c_void_p(-1).value


def main() -> None:
    """Serve one parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _raise_limit()
    source = sys.stdin.buffer
    files: list[int] = []
    for line in iter(source.readline, b""):
        key, _, value = line.strip().partition(b" ")
        if key == b"cgroup":
            _say(b"cgroup " + _join(bytes.fromhex(value.decode())))
        elif key == b"file":
            files.append(os.open(bytes.fromhex(value.decode()), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        elif key == b"go":
            break
    _say(b"ready")
    lock = Locker()
    for line in iter(source.readline, b""):
        _, index, offset, length = line.split()
        held, code, short = lock.hold(files[int(index)], int(offset), int(length))
        _say(b"%d %d %d" % (held, code, short))
    os._exit(0)  # unmapping as the kernel does it: at once


def _raise_limit() -> None:
    """As far as this user may: the soft limit is only a default."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    except (ValueError, OSError):
        return


class Locker:
    """mmap and mlock through ctypes: Python's mmap has no mlock."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap = getattr(libc, "mmap64", libc.mmap)
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        )  # fmt: skip
        self._mlock = libc.mlock
        self._mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._munmap = libc.munmap
        self._munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._buffer = memoryview(bytearray(BLOCK_BYTES))

    def hold(self, fd: int, offset: int, length: int) -> tuple[int, int, int]:
        """(bytes held, errno, 1 when the file ends before the range does); all of the range or nothing of it."""
        try:
            if not self._read(fd, offset, length):
                return 0, 0, 1
        except OSError as error:
            return 0, error.errno or errno.EIO, 0
        address = self._mmap(None, length, PROT_READ, MAP_SHARED, fd, offset)
        if address == MAP_FAILED:
            return 0, ctypes.get_errno(), 0
        if self._mlock(address, length) == 0:
            return length, 0, 0
        code = ctypes.get_errno()
        self._munmap(address, length)
        return 0, code, int(os.fstat(fd).st_size < offset + length)

    def _read(self, fd: int, offset: int, length: int) -> bool:
        at = offset
        while at < offset + length:
            size = os.preadv(fd, [self._buffer[: offset + length - at]], at)
            if not size:
                return False
            at += size
        return True


def _join(path: bytes) -> bytes:
    """Move this process, and only this one, into a cgroup: 0 stands for who writes (cgroups(7))."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError as error:
        return str(error.errno).encode()
    return b"ok"


def _say(line: bytes) -> None:
    try:
        os.write(1, line + b"\n")
    except OSError:
        os._exit(0)  # the parent is gone


if __name__ == "__main__":
    main()
