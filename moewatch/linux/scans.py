"""Two ways to count what of each tensor is resident, a small step at a time: by cachestat and by mincore."""

import bisect
import itertools
from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from moewatch.domain.layout import ModelLayout
from moewatch.linux.experts import ExpertTally
from moewatch.linux.pagecache import MINCORE_CHUNK_BYTES, PageCache
from moewatch.linux.scanplan import NO_TENSOR, Piece, plan_pieces

NEVER = -1  # seen_ns of a tensor that was not reached yet

# Two bits a page: 16 MiB of bitmaps. Files above it are counted all the same, but first and second arrivals of a page
# are not told apart (and a rotation by mincore takes ten minutes there, so they would be mere guesses)
HISTORY_LIMIT_BYTES = 256 << 30

# Slices below this (biases, scales) are not asked for one by one: each gets the mean of its piece
SLICE_BYTES = 64 << 10
LOOK_ANYWAY = 7  # visits without a change after which a partly cached piece is looked into all the same
_RESTLESS = 254  # signs in place of a number of visits: changed at the last one ...
_FIRST_LOOK = 255  # ... or not visited yet

_Counts = tuple[int, int, int]  # resident, evicted, recently evicted bytes

_Bits = tuple[int, int, int]  # a bit a page: resident at the previous visit, resident now, come again since

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
    experts: ExpertTally

    def visit(self, unit: int, now_ns: int) -> None:
        """Ask for one unit and take it into the tally; ReadingError."""
        ...

    def totals(self) -> Totals:
        """Sums over the units as last visited."""
        ...

    def arrivals(self) -> Arrivals | None:
        """What came and went so far; None where this way cannot tell."""
        ...


def _n_asked(piece: Piece) -> int:
    """How many slices of a piece have figures of their own."""
    return 1 if piece.n_slices > 0 and piece.slice_bytes < SLICE_BYTES else piece.n_slices


class CachestatScan:
    """One cachestat for each piece of a tensor, and one for each expert in it where something has changed.

    A page that two tensors or experts share counts in proportion to each one's pages. A piece whose counts are the same
    as last time is not looked into, but for every eighth time: as many pages may have come as went. A piece that keeps
    changing is asked expert by expert at once. Measured: 64 MiB in 128 KiB folios 0.1 ms, an expert's slice 3 us and more.
    """

    def __init__(self, page_cache: PageCache, layout: ModelLayout, fds: Sequence[int]) -> None:
        self._page_cache = page_cache
        self._fds = fds
        self._pieces = plan_pieces(layout, page_cache.page_bytes)
        self.n_units = len(self._pieces)
        self.tally = TensorTally(len(layout.tensors))
        self.experts = ExpertTally(layout)
        self._resident = array("q", bytes(8 * self.n_units))
        self._evicted = array("q", bytes(8 * self.n_units))
        self._recent = array("q", bytes(8 * self.n_units))
        self._look = bytearray([_FIRST_LOOK]) * self.n_units  # visits without a change, or one of the two signs
        self._slices = array("q", itertools.accumulate(map(_n_asked, self._pieces), initial=0))
        n_slices = self._slices[-1]
        self._slice_resident = array("q", bytes(8 * n_slices))
        self._slice_evicted = array("q", bytes(8 * n_slices))
        self._slice_recent = array("q", bytes(8 * n_slices))
        self._slice_most = array("q", bytes(8 * n_slices))  # resident, at the visit that saw most of it

    def visit(self, unit: int, now_ns: int) -> None:
        """Ask for one piece, and for its experts where that is of use."""
        piece = self._pieces[unit]
        look = self._look[unit]
        if look == _RESTLESS and self._ask_slices(unit, piece, now_ns):
            self._seen(piece, now_ns)
            return  # still changing
        counts = self._ask(piece.file_index, piece.offset, piece.length)
        self._seen(piece, now_ns)
        is_first = look == _FIRST_LOOK
        is_same = not is_first and (counts[0], counts[1]) == (self._resident[unit], self._evicted[unit])
        self._keep(unit, piece, counts)
        if look == _RESTLESS:
            self._look[unit] = 0
        elif is_same and (look < LOOK_ANYWAY or not 0 < counts[0] < piece.length):
            self._look[unit] = min(look + 1, LOOK_ANYWAY)
        else:
            self._look[unit] = 0
            if piece.n_slices:
                self._look_into(unit, piece, counts, now_ns, is_first=is_first)

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

    def _ask(self, file_index: int, offset: int, length: int) -> _Counts:
        counted = self._page_cache.cachestat(self._fds[file_index], offset, length)
        page = self._page_cache.page_bytes
        whole = (-(-(offset + length) // page) - offset // page) * page
        return (
            min(counted.nr_cache, whole) * length // whole,
            min(counted.nr_evicted, whole) * length // whole,
            min(counted.nr_recently_evicted, whole) * length // whole,
        )

    def _seen(self, piece: Piece, now_ns: int) -> None:
        if piece.tensor != NO_TENSOR and piece.is_last:
            self.tally.seen_ns[piece.tensor] = now_ns

    def _keep(self, unit: int, piece: Piece, counts: _Counts) -> None:
        if piece.tensor != NO_TENSOR:
            self.tally.resident[piece.tensor] += counts[0] - self._resident[unit]
        self._resident[unit], self._evicted[unit], self._recent[unit] = counts

    def _look_into(self, unit: int, piece: Piece, counts: _Counts, now_ns: int, *, is_first: bool) -> None:
        """Tell the experts of a piece that is new or has changed: without asking where one answer holds for all."""
        resident, evicted, _recent = counts
        first = self._slices[unit]
        if _n_asked(piece) == 1:
            self._put(first, piece, counts, (piece.cell, piece.n_slices), now_ns, is_first=is_first)
        elif not (resident or evicted) and is_first:
            return
        elif resident >= piece.length or not (resident or evicted):
            for index in range(piece.n_slices):
                length = piece.slice_bytes if resident else 0
                self._put(first + index, piece, (length, 0, 0), (piece.cell + index, 1), now_ns, is_first=is_first)
        elif self._ask_slices(unit, piece, now_ns, is_first=is_first, keep=False) and not is_first:
            self._look[unit] = _RESTLESS

    def _ask_slices(self, unit: int, piece: Piece, now_ns: int, *, is_first: bool = False, keep: bool = True) -> bool:
        """Ask for each expert; whether any has changed. `keep`: what they add up to becomes the piece's counts."""
        first, each = self._slices[unit], piece.slice_bytes
        changed = False
        sums = [0, 0, 0]
        for index in range(piece.n_slices):
            counts = self._ask(piece.file_index, piece.offset + index * each, each)
            changed |= self._put(first + index, piece, counts, (piece.cell + index, 1), now_ns, is_first=is_first)
            for n, count in enumerate(counts):
                sums[n] += count
        if keep and changed:
            self._keep(unit, piece, (sums[0], sums[1], sums[2]))
        return changed

    def _put(
        self, index: int, piece: Piece, counts: _Counts, cells: tuple[int, int], now_ns: int, *, is_first: bool
    ) -> bool:
        """Hold one slice against its last visit and tell the expert (or, in equal parts, the experts) it belongs to."""
        now, evicted, recent = counts
        before, evicted_before = self._slice_resident[index], self._slice_evicted[index]
        cell, n_cells = cells
        if recent != self._slice_recent[index]:
            for each in range(cell, cell + n_cells):
                self.experts.recent[each] += recent // n_cells - self._slice_recent[index] // n_cells
            self._slice_recent[index] = recent
        if now == before and evicted == evicted_before:
            return False
        again = 0
        if now > before and not is_first:
            length = piece.length if n_cells > 1 or piece.n_slices == 1 else piece.slice_bytes
            known = max(self._slice_most[index], before + evicted_before)  # so much had been there
            again = min(now - before, max(0, evicted_before - evicted, now - before - (length - known)))
        for each in range(cell, cell + n_cells):
            self.experts.put(each, before // n_cells, now // n_cells, again // n_cells, now_ns, is_first=is_first)
        self._slice_resident[index], self._slice_evicted[index] = now, evicted
        self._slice_most[index] = max(self._slice_most[index], now)
        return True


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
        self.experts = ExpertTally(layout)
        self._first_cell = {
            index: self.experts.cell(tensor.layer or 0, tensor.first_expert) for index, tensor in layout.by_expert()
        }
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
        was_ever = self._ever[unit] if self._keeps_history else 0
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
        again = bits & ~before & was_ever if before is not None else 0
        self._tally_chunk(unit, (before or 0, bits, again), now_ns, is_first=before is None)

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

    def _tally_chunk(self, unit: int, bits: _Bits, now_ns: int, *, is_first: bool) -> None:
        """Give each tensor in the chunk, and each of its experts, the difference to the chunk's previous visit."""
        file_index, offset, length = self._chunks[unit]
        until = offset + length
        order = self._order[file_index]
        for index in order[bisect.bisect_right(self._ends[file_index], offset) :]:
            tensor = self._tensors[index]
            if tensor.offset >= until:
                break
            if not tensor.size_bytes:
                continue
            was, now, _ = self._counts(unit, bits, tensor.offset, self._end_of(index))
            self.tally.resident[index] += now - was
            if self._end_of(index) <= until:
                self.tally.seen_ns[index] = now_ns
            if index in self._first_cell and bits[0] != bits[1] and tensor.size_bytes >= tensor.n_expert:
                self._tally_experts(unit, index, bits, now_ns, is_first=is_first)

    def _tally_experts(self, unit: int, index: int, bits: _Bits, now_ns: int, *, is_first: bool) -> None:
        _, offset, length = self._chunks[unit]
        tensor = self._tensors[index]
        each = tensor.size_bytes // tensor.n_expert
        first = max(0, offset - tensor.offset) // each
        last = min(tensor.n_expert, -(-(offset + length - tensor.offset) // each))
        for expert in range(first, last):
            begin, size = tensor.expert_range(expert)
            was, now, again = self._counts(unit, bits, begin, begin + size)
            if was != now or again:
                self.experts.put(self._first_cell[index] + expert, was, now, again, now_ns, is_first=is_first)

    def _counts(self, unit: int, bits: _Bits, begin: int, end: int) -> tuple[int, int, int]:
        """Bytes of [begin, end) within the chunk, by its pages' bits: shared pages in proportion."""
        _, offset, length = self._chunks[unit]
        page = self._page_cache.page_bytes
        n_pages = -(-length // page)
        start, stop = max(begin, offset) - offset, min(end, offset + length) - offset
        first, last = start // page, -(-stop // page)
        mask = (1 << last - first) - 1
        was, now, again = ((each >> n_pages - last & mask).bit_count() for each in bits)
        share, whole = stop - start, last - first
        return was * share // whole, now * share // whole, again * share // whole
