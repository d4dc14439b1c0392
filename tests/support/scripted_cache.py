"""A page cache whose every page does what the test says, and whose calls cost what the test says."""

import os
from pathlib import Path

from moewatch.clock import ManualClock
from moewatch.linux.pagecache import CacheStat
from moewatch.linux.root import ReadingError

NEVER, RESIDENT, EVICTED = 0, 1, 2


class ScriptedPageCache:
    """Pages by file; an error set for a call is raised by it."""

    def __init__(self, page_bytes: int = 4096, clock: ManualClock | None = None) -> None:
        self.page_bytes = page_bytes
        self.pages: dict[int, bytearray] = {}  # by inode
        self.cachestat_error: ReadingError | None = None
        self.mincore_error: ReadingError | None = None
        self.cachestat_is_silent = False  # as on a stacked file system
        self.ns_per_page = 0
        self.calls: list[tuple[str, int, int]] = []
        self._clock = clock

    def add(self, path: Path) -> bytearray:
        """The pages of a file, never read so far; states are written into it."""
        about = path.stat()
        return self.pages.setdefault(about.st_ino, bytearray(-(-about.st_size // self.page_bytes)))

    def cachestat(self, fd: int, offset: int, length: int) -> CacheStat:
        """Counts."""
        if self.cachestat_error is not None:
            raise self.cachestat_error
        pages = self._range("cachestat", fd, offset, length)
        if self.cachestat_is_silent:
            return CacheStat(nr_cache=0)
        return CacheStat(
            nr_cache=pages.count(RESIDENT) * self.page_bytes,
            nr_evicted=pages.count(EVICTED) * self.page_bytes,
            nr_recently_evicted=pages.count(EVICTED) * self.page_bytes,
        )

    def mincore(self, fd: int, offset: int, length: int) -> bytes:
        """Pages; the reserved bits are set, as a kernel may."""
        if self.mincore_error is not None:
            raise self.mincore_error
        assert offset % self.page_bytes == 0
        return bytes(0xFE | (page == RESIDENT) for page in self._range("mincore", fd, offset, length))

    def _range(self, call: str, fd: int, offset: int, length: int) -> bytearray:
        self.calls.append((call, offset, length))
        pages = self.pages[os.fstat(fd).st_ino]
        last = -(-(offset + length) // self.page_bytes) if length else len(pages)
        found = pages[offset // self.page_bytes : last]
        if self._clock is not None:
            self._clock.cpu_ns += self.ns_per_page * len(found)
        return found
