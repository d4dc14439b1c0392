"""What of a model's files is in memory by where it lies in them, asked for while someone looks at it."""

import threading

from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.layout import ModelLayout
from moewatch.linux.inspection import inspect_expert
from moewatch.linux.pagecache import Backend, PageCache, SystemPageCache, probe
from moewatch.linux.root import ReadingError
from moewatch.linux.shards import Shard, close_shards, open_shards


class FileMap:
    """Holds the files of one model open between questions; answers nothing where the kernel would not tell the truth."""

    def __init__(self, page_cache: PageCache | None = None) -> None:
        self._page_cache = page_cache or SystemPageCache()
        self._layout: ModelLayout | None = None
        self._shards: list[Shard] = []
        self._counts = False  # whether cachestat may be asked: mincore costs 15 ms per GiB
        self._lock = threading.Lock()

    def strips(self, layout: ModelLayout | None, stretches: int) -> tuple[FileStrip, ...]:
        """Each file in equal stretches of whole pages; 8 ms for 64 GiB in folios of 128 KiB."""
        with self._lock:
            self._use(layout)
            if not self._counts or stretches < 1:
                return ()
            try:
                return tuple(self._strip(shard, stretches) for shard in self._shards)
            except ReadingError:
                return ()

    def slices(self, layout: ModelLayout | None, layer: int, expert: int) -> tuple[ExpertSlice, ...]:
        """One expert's part of each of its tensors, page by page."""
        with self._lock:
            self._use(layout)
            if layout is None or not self._shards:
                return ()
            try:
                return inspect_expert(self._page_cache, layout, self._shards, layer, expert)
            except ReadingError:
                return ()

    def close(self) -> None:
        """Let go of the files; a later question opens them again."""
        with self._lock:
            close_shards(self._shards)
            self._layout = None

    def _use(self, layout: ModelLayout | None) -> None:
        if layout is self._layout:
            return
        close_shards(self._shards)
        self._layout, self._counts = layout, False
        if layout is None:
            return
        try:
            self._shards = open_shards(layout)
            self._counts = all(probe(self._page_cache, shard.fd) is Backend.CACHESTAT for shard in self._shards)
        except ReadingError:
            close_shards(self._shards)

    def _strip(self, shard: Shard, stretches: int) -> FileStrip:
        page = self._page_cache.page_bytes
        pages = -(-shard.size_bytes // page)
        shares = bytearray()
        for n in range(stretches):
            start, end = pages * n // stretches, pages * (n + 1) // stretches
            size = (end - start) * page
            there = self._page_cache.cachestat(shard.fd, start * page, size).nr_cache if size else 0
            shares.append(min(255, there * 255 // size) if size else 0)
        return FileStrip(name=shard.name, size_bytes=shard.size_bytes, shares=bytes(shares))
