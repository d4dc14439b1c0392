"""Two ways to count what of each tensor is resident, a small step at a time: by cachestat and by mincore."""

import bisect
from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from moewatch.domain.layout import ModelLayout
from moewatch.linux.pagecache import MINCORE_CHUNK_BYTES, PageCache
from moewatch.linux.scanplan import NO_TENSOR, plan_pieces

NEVER = -1  # seen_ns of a tensor that was not reached yet

# Two bits a page: 16 MiB of bitmaps. Files above it are counted all the same, but first and second arrivals of a page
# are not told apart (and a rotation by mincore takes ten minutes there, so they would be mere guesses)
HISTORY_LIMIT_BYTES = 256 << 30

_TO_DIGITS = bytes(48 + (value & 1) for value in range(256))  # only the lowest bit of mincore's bytes is defined


class Totals(Struct, frozen=True, kw_only=True):
    """Over all files, in bytes; None for what this way of counting cannot know."""

    resident_bytes: int
    evicted_bytes: int | None = None
    recently_evicted_bytes: int | None = None


class Arrivals(Struct, frozen=True, kw_only=True):
    """What came and went from one visit of a page to the next, in bytes since the scan began."""

    first_bytes: int = 0
    again_bytes: int = 0
    departed_bytes: int = 0
    never_seen_bytes: int = 0  # a level: pages that were resident at no visit


class TensorTally:
    """Resident bytes of each tensor as last seen. Eight bytes a figure: 2,000 tensors are 32 KiB."""

    def __init__(self, n_tensors: int) -> None:
        self.resident = array("q", bytes(8 * n_tensors))
        self.seen_ns = array("q", [NEVER]) * n_tensors


class Scan(Protocol):
    """One way of counting; a rotation visits each unit once, in order.

    One thread visits while another reads the sums, without a lock: every figure is a whole one, and a sum may hold a
    unit's old figure or its new one, as it could a moment earlier or later.
    """

    n_units: int
    tally: TensorTally

    def visit(self, unit: int, now_ns: int) -> None:
        """Ask for one unit and take it into the tally; ReadingError."""
        ...

    def totals(self) -> Totals:
        """Sums over the units as last visited."""
        ...

    def arrivals(self) -> Arrivals | None:
        """What came and went so far; None where this way cannot tell."""
        ...


class CachestatScan:
    """One cachestat for each piece of a tensor. A page that two tensors share counts in proportion to each one's pages."""

    def __init__(self, page_cache: PageCache, layout: ModelLayout, fds: Sequence[int]) -> None:
        self._page_cache = page_cache
        self._fds = fds
        self._pieces = plan_pieces(layout, page_cache.page_bytes)
        self.n_units = len(self._pieces)
        self.tally = TensorTally(len(layout.tensors))
        self._resident = array("q", bytes(8 * self.n_units))
        self._evicted = array("q", bytes(8 * self.n_units))
        self._recent = array("q", bytes(8 * self.n_units))

    def visit(self, unit: int, now_ns: int) -> None:
        """Ask for one piece."""
        piece = self._pieces[unit]
        counted = self._page_cache.cachestat(self._fds[piece.file_index], piece.offset, piece.length)
        page = self._page_cache.page_bytes
        whole_pages = (-(-(piece.offset + piece.length) // page) - piece.offset // page) * page
        resident = min(counted.nr_cache, whole_pages) * piece.length // whole_pages
        if piece.tensor != NO_TENSOR:
            self.tally.resident[piece.tensor] += resident - self._resident[unit]
            if piece.is_last:
                self.tally.seen_ns[piece.tensor] = now_ns
        self._resident[unit] = resident
        self._evicted[unit] = counted.nr_evicted * piece.length // whole_pages
        self._recent[unit] = counted.nr_recently_evicted * piece.length // whole_pages

    def totals(self) -> Totals:
        """Sums over all pieces."""
        return Totals(
            resident_bytes=sum(self._resident),
            evicted_bytes=sum(self._evicted),
            recently_evicted_bytes=sum(self._recent),
        )

    def arrivals(self) -> None:
        """Cachestat knows no single pages; whoever has it has the exact ledger instead."""
        return


class MincoreScan:
    """mincore by chunks of 16 MiB, kept as one bit a page in Python ints (first page in the highest bit)."""

    def __init__(self, page_cache: PageCache, layout: ModelLayout, fds: Sequence[int]) -> None:
        self._page_cache = page_cache
        self._fds = fds
        self._tensors = layout.tensors
        self._chunks = [
            (file_index, offset, min(MINCORE_CHUNK_BYTES, file.size_bytes - offset))
            for file_index, file in enumerate(layout.files)
            for offset in range(0, file.size_bytes, MINCORE_CHUNK_BYTES)
        ]
        self.n_units = len(self._chunks)
        self.tally = TensorTally(len(layout.tensors))
        self._order: list[list[int]] = [[] for _ in layout.files]
        for index in sorted(range(len(layout.tensors)), key=lambda index: layout.tensors[index].offset):
            self._order[layout.tensors[index].file_index].append(index)
        self._ends = [[self._end_of(index) for index in order] for order in self._order]
        total_bytes = sum(file.size_bytes for file in layout.files)
        self._keeps_history = total_bytes <= HISTORY_LIMIT_BYTES
        self._now: list[int | None] = [None] * self.n_units
        self._ever: list[int] = [0] * (self.n_units if self._keeps_history else 0)
        self._total_bytes = total_bytes
        self._pages = [0, 0, 0]  # first, again, departed: totals
        self._resident_bytes = 0  # kept up to date: adding up 25,600 chunks at each reading would cost 80 ms
        self._ever_pages = 0

    def visit(self, unit: int, now_ns: int) -> None:
        """Ask for one chunk and hold it against its previous visit."""
        file_index, offset, length = self._chunks[unit]
        resident = self._page_cache.mincore(self._fds[file_index], offset, length)
        bits = int(resident.translate(_TO_DIGITS), 2)
        before = self._now[unit]
        if self._keeps_history:
            if before is not None:
                came = bits & ~before
                self._pages[0] += (came & ~self._ever[unit]).bit_count()
                self._pages[1] += (came & self._ever[unit]).bit_count()
                self._pages[2] += (before & ~bits).bit_count()
            ever = self._ever[unit] | bits
            self._ever_pages += ever.bit_count() - self._ever[unit].bit_count()
            self._ever[unit] = bits if ever == bits else ever  # one object for both wherever nothing has gone
        self._now[unit] = bits
        self._resident_bytes += self._bytes_of(bits, length) - self._bytes_of(before or 0, length)
        self._tally_chunk(file_index, offset, length, (before or 0, bits), now_ns)

    def totals(self) -> Totals:
        """Sum over the chunks."""
        return Totals(resident_bytes=self._resident_bytes)

    def arrivals(self) -> Arrivals | None:
        """Pages times the page size; what was resident at the first visit has not arrived."""
        if not self._keeps_history:
            return None
        page = self._page_cache.page_bytes
        first, again, departed = self._pages
        return Arrivals(
            first_bytes=first * page,
            again_bytes=again * page,
            departed_bytes=departed * page,
            never_seen_bytes=max(0, self._total_bytes - self._ever_pages * page),
        )

    def _bytes_of(self, bits: int, length: int) -> int:
        """Whole pages, the last one of a file cut to its size."""
        page = self._page_cache.page_bytes
        return bits.bit_count() * page - (-length % page if bits & 1 else 0)

    def _end_of(self, index: int) -> int:
        return self._tensors[index].offset + self._tensors[index].size_bytes

    def _tally_chunk(self, file_index: int, offset: int, length: int, bits: tuple[int, int], now_ns: int) -> None:
        """Give each tensor in the chunk the difference to the chunk's previous visit."""
        page = self._page_cache.page_bytes
        n_pages = -(-length // page)
        until = offset + length
        order = self._order[file_index]
        for index in order[bisect.bisect_right(self._ends[file_index], offset) :]:
            tensor = self._tensors[index]
            if tensor.offset >= until:
                break
            if not tensor.size_bytes:
                continue
            begin, end = max(tensor.offset, offset) - offset, min(self._end_of(index), until) - offset
            first, last = begin // page, -(-end // page)
            mask = (1 << last - first) - 1
            was, now = ((each >> n_pages - last & mask).bit_count() for each in bits)
            share = end - begin, last - first
            self.tally.resident[index] += now * share[0] // share[1] - was * share[0] // share[1]
            if self._end_of(index) <= until:
                self.tally.seen_ns[index] = now_ns
