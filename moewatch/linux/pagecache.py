"""What of a file is in the page cache: cachestat(2) and mincore(2), and which of the two may be believed.

Neither reads a page in. cachestat (Linux 6.5) counts a range in one call; mincore says page by page.

**mincore lies.** Asked by someone who neither owns nor may write the file it reports every page resident, without an
error (mm/mincore.c, can_do_mincore). So it is refused here unless the kernel would tell the truth: never a false 100 %.
**cachestat is silent on overlayfs**: it counts the empty overlay inode and says 0. That is refused too, and `probe`
checks any other 0 against mincore.
"""

import ctypes
import enum
import errno
import functools
import os
import stat
from typing import Protocol

from msgspec import Struct

from moewatch.domain.sample import GapReason
from moewatch.linux.capability import FOWNER, has_capability
from moewatch.linux.root import ReadingError

MINCORE_CHUNK_BYTES = 16 << 20  # measured: chunks below 16 MiB cost more per byte; bounds address space and buffer
PROBE_WINDOWS = 64  # mincore windows spread over a file to check a cachestat that says 0 ...
PROBE_WINDOW_BYTES = 1 << 20  # ... of 1 MiB: 64 MiB cost 1 ms

_SYS_CACHESTAT = 451  # one number on all architectures but alpha (561)
_PROT_READ = 1
_MAP_SHARED = 1
_MAP_FAILED = ctypes.c_void_p(-1).value
_OVERLAY_MAGIC = 0x794C7630  # linux/magic.h
_OVERFLOW_UID = 65534  # what stat(2) shows for owners that this user namespace does not know
_FULL_UID_MAP = b"4294967295"


class Backend(enum.StrEnum):
    """Which system call's word is taken."""

    CACHESTAT = "cachestat"
    MINCORE = "mincore"


class CacheStat(Struct, frozen=True, kw_only=True):
    """cachestat(2) over a range, in bytes (whole pages times the page size), the kernel's names."""

    nr_cache: int  # in the page cache, pages in flight included
    nr_dirty: int = 0
    nr_writeback: int = 0
    nr_evicted: int = 0  # were there, and their shadow entries still are
    nr_recently_evicted: int = 0  # of these: evicted so lately that coming back counts as a refault


class PageCache(Protocol):
    """The page cache of open files, real or scripted."""

    @property
    def page_bytes(self) -> int:
        """Size of a page."""
        ...

    def cachestat(self, fd: int, offset: int, length: int) -> CacheStat:
        """Counts over [offset, offset + length), pages at the edges whole; length 0 means to the end. ReadingError."""
        ...

    def mincore(self, fd: int, offset: int, length: int) -> bytes:
        """One byte per page, lowest bit set when resident; offset must be a multiple of a page. ReadingError."""
        ...


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("nr_cache", "nr_dirty", "nr_writeback", "nr_evicted", "nr_recently_evicted")
    )


class SystemPageCache:
    """The machine's own. Safe to use from several threads; CDLL lets other threads run during a call."""

    def __init__(self) -> None:
        self.page_bytes = os.sysconf("SC_PAGESIZE")
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = libc.syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long, ctypes.c_uint, ctypes.POINTER(_Range), ctypes.POINTER(_Counts), ctypes.c_uint,
        )  # fmt: skip
        # off_t is 32 bits in plain mmap of 32-bit glibc; musl has only mmap, with 64 bits
        self._mmap = getattr(libc, "mmap64", libc.mmap)
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        )  # fmt: skip
        self._munmap = libc.munmap
        self._munmap.restype = ctypes.c_int
        self._munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._fstatfs = getattr(libc, "fstatfs64", libc.fstatfs)
        self._fstatfs.restype = ctypes.c_int
        self._fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._mincore = libc.mincore
        self._mincore.restype = ctypes.c_int
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

    def cachestat(self, fd: int, offset: int, length: int) -> CacheStat:
        """1.3 us for a small range; a whole file 0.05 to 21 ms per GiB, by the size of its folios."""
        counts = _Counts()
        asked = _Range(offset, length)
        if self._syscall(_SYS_CACHESTAT, fd, ctypes.byref(asked), ctypes.byref(counts), 0) != 0:
            raise _cachestat_error(ctypes.get_errno())
        if counts.nr_cache == 0 and counts.nr_evicted == 0 and self._is_on_overlay(fd):
            raise ReadingError(GapReason.UNSUPPORTED, "cachestat always says 0 on overlayfs")
        page = self.page_bytes
        return CacheStat(
            nr_cache=counts.nr_cache * page,
            nr_dirty=counts.nr_dirty * page,
            nr_writeback=counts.nr_writeback * page,
            nr_evicted=counts.nr_evicted * page,
            nr_recently_evicted=counts.nr_recently_evicted * page,
        )

    def mincore(self, fd: int, offset: int, length: int) -> bytes:
        """15 ms per GiB; maps the range (never touching it) in chunks of 16 MiB and asks for each."""
        if offset % self.page_bytes:
            raise ValueError(f"offset {offset} is no multiple of a page")
        if not mincore_tells_truth(fd):
            raise ReadingError(
                GapReason.DENIED,
                "mincore would call every page resident: this user neither owns the model file nor may write it",
            )
        return b"".join(
            self._mincore_chunk(fd, offset + done, min(MINCORE_CHUNK_BYTES, length - done))
            for done in range(0, length, MINCORE_CHUNK_BYTES)
        )

    def _is_on_overlay(self, fd: int) -> bool:
        # f_type is the first field on all architectures, 4 or 8 bytes wide; the magic number fits into 4
        about = (ctypes.c_uint32 * 64)()  # struct statfs has at most 120 bytes
        return self._fstatfs(fd, ctypes.byref(about)) == 0 and _OVERLAY_MAGIC in about[:2]

    def _mincore_chunk(self, fd: int, offset: int, length: int) -> bytes:
        address = self._mmap(None, length, _PROT_READ, _MAP_SHARED, fd, offset)
        if address == _MAP_FAILED:
            raise _mincore_error(ctypes.get_errno())
        try:
            pages = -(-length // self.page_bytes)
            resident = ctypes.create_string_buffer(pages)
            if self._mincore(address, length, resident) != 0:
                raise _mincore_error(ctypes.get_errno())
            return resident.raw
        finally:
            self._munmap(address, length)


def mincore_tells_truth(fd: int) -> bool:
    """Whether the kernel answers this process honestly about that file: owner, CAP_FOWNER, or may write it."""
    try:
        owner = os.fstat(fd).st_uid
        if owner == os.geteuid():
            return True
        if has_capability(FOWNER) and (owner != _OVERFLOW_UID or _knows_all_users()):
            return True
        # asks the kernel as itself (effective ids), not by comparing mode bits: ACLs and read-only mounts count
        return os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    except OSError:
        return False


def probe(page_cache: PageCache, fd: int) -> Backend:
    """Which call may be trusted for this file; ReadingError (denied, unsupported) when neither: residency is unknown."""
    size = os.fstat(fd).st_size
    try:
        counted = page_cache.cachestat(fd, 0, 0)
    except ReadingError as error:
        try:
            page_cache.mincore(fd, 0, min(size, page_cache.page_bytes))
        except ReadingError as second:
            raise (error if error.reason is GapReason.DENIED else second) from None
        return Backend.MINCORE
    if counted.nr_cache == 0 and counted.nr_evicted == 0 and _mincore_sees_any(page_cache, fd, size):
        return Backend.MINCORE  # overlayfs
    return Backend.CACHESTAT


def open_for_asking(path: str) -> int:
    """An fd of a regular file, without touching its access time where that is allowed; ReadingError otherwise."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        try:
            fd = os.open(path, flags | os.O_NOATIME)  # the owner's privilege
        except PermissionError:
            fd = os.open(path, flags)
    except PermissionError:
        raise ReadingError(GapReason.DENIED, f"{path} may not be read by this user") from None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ReadingError(GapReason.VANISHED, f"{path} could not be opened: {words}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ReadingError(GapReason.UNSUPPORTED, f"{path} is no regular file")
    return fd


def _mincore_sees_any(page_cache: PageCache, fd: int, size: int) -> bool:
    """Whether any page is resident in windows spread evenly over the file."""
    page = page_cache.page_bytes
    step = max(PROBE_WINDOW_BYTES, size // PROBE_WINDOWS // page * page)
    try:
        return any(
            any(byte & 1 for byte in page_cache.mincore(fd, at, min(PROBE_WINDOW_BYTES, size - at)))
            for at in range(0, size, step)
        )
    except ReadingError:
        return False


@functools.cache
def _knows_all_users() -> bool:
    """Whether this is the first user namespace, where no owner is hidden behind the overflow id."""
    try:
        with open("/proc/self/uid_map", "rb") as file:  # noqa: PTH123 - of this process itself, never of a tree under test
            return file.read(1 << 16).split()[-1:] == [_FULL_UID_MAP]
    except OSError:
        return False


def _cachestat_error(number: int) -> ReadingError:
    if number in (errno.EPERM, errno.EACCES):
        detail = "cachestat is denied: this user neither owns the model file nor may write it"
        return ReadingError(GapReason.DENIED, detail)
    if number == errno.ENOSYS:
        return ReadingError(GapReason.UNSUPPORTED, "this kernel has no cachestat (Linux 6.5), or a sandbox hides it")
    return ReadingError(GapReason.UNSUPPORTED, f"cachestat failed: {os.strerror(number)}")


def _mincore_error(number: int) -> ReadingError:
    reason = GapReason.DENIED if number in (errno.EPERM, errno.EACCES) else GapReason.UNSUPPORTED
    return ReadingError(reason, f"mincore failed: {os.strerror(number)}")
