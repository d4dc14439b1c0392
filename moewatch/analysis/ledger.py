"""Where the bytes came from: read for the first time, read again, and departed, between two points in time. Pure.

Three cheap readings make an exact ledger without any page scan: the process's read_bytes (proc_pid_io(5); it counts the
read-ahead of mmap faults) and, over the model's files, cachestat's nr_cache and nr_evicted (cachestat(2)):

    first    = d(nr_cache + nr_evicted)   never read before, since the last full drop
    again    = d(read_bytes) - first      came back after it had been evicted
    departed = d(read_bytes) - d(nr_cache)

The three are not taken at one instant, so single steps can be negative: differences are taken over a window's end points
and clamped once. Measured against the cgroup's refault counter: within 0-6 % over spans of 10 s and more.
"""

from msgspec import Struct

from moewatch.analysis.window import Point, Window, difference
from moewatch.domain.frame import Method
from moewatch.domain.sample import Sample
from moewatch.units import MIB, S

SHARED_RATIO = 0.05  # first-time bytes above what all known readers read: somebody else reads the same files
# Below this the three readings' different instants make more than 5 % (0.2 s of a slow disk).
SHARED_FLOOR_BYTES = 64 * MIB


class Ledger(Struct, frozen=True, kw_only=True):
    """Bytes between two points; None where it cannot be told. `churn` is the signature of thrashing."""

    span_ns: int
    method: Method = Method.NONE
    read_bytes: int | None = None
    first_bytes: int | None = None
    again_bytes: int | None = None
    departed_bytes: int | None = None
    resident_bytes: int | None = None  # at the end
    shared: bool = False  # others read the same files: first and departed are theirs, too

    @property
    def churn_bytes(self) -> int | None:
        """What departed and came back: the smaller of the two."""
        if self.again_bytes is None or self.departed_bytes is None:
            return None
        return min(self.again_bytes, self.departed_bytes)

    @property
    def span_s(self) -> float:
        """Seconds between the two points."""
        return self.span_ns / S


def derive_ledger(window: Window, age_ns: int) -> Ledger | None:
    """The ledger over about the last `age_ns`: between the newest Sample with residency and the one closest to that age.

    None before there are two points to compare.
    """
    points = window.points
    scanned = window.is_scanned
    last = len(points) - 1
    if scanned:
        while last > 0 and not points[last].has_scan:
            last -= 1
    if last <= 0:
        return None
    first = window.index_at(age_ns)
    if scanned:
        found = _nearest_scan(points, first, last)
        if found is None:
            return None
        first = found
    if first >= last:
        return None
    return between(points[first], points[last], window.header.host.page_bytes)


def _nearest_scan(points: tuple[Point, ...], index: int, last: int) -> int | None:
    """The point nearest to `index` and before `last` that carries residency."""
    for distance in range(last + 1):
        for near in (index - distance, index + distance):
            if 0 <= near < last and points[near].has_scan:
                return near
    return None


def between(start: Point, end: Point, page_bytes: int) -> Ledger:
    """The ledger between two points of one window, by the best method that their readings allow."""
    a, b = start.sample, end.sample
    span_ns = b.mono_ns - a.mono_ns
    read, readers = _read(a, b, page_bytes)
    again = refaulted_bytes(a, b, page_bytes)
    cache_a, cache_b = a.residency, b.residency
    if cache_a is None or cache_b is None or cache_a.resident_bytes is None or cache_b.resident_bytes is None:
        return _without_cache(a, b, span_ns, read, again)
    grown = cache_b.resident_bytes - cache_a.resident_bytes
    resident = cache_b.resident_bytes
    first: int | None = None
    if cache_a.evicted_bytes is not None and cache_b.evicted_bytes is not None:
        first = max(0, grown + cache_b.evicted_bytes - cache_a.evicted_bytes)
    if first is not None and readers is not None and read is not None:
        shared = first > readers * (1 + SHARED_RATIO) + SHARED_FLOOR_BYTES
        method = Method.LEDGER
        if shared and again is not None:
            method = Method.REFAULTS
        else:
            again = max(0, readers - first)
        return Ledger(
            span_ns=span_ns,
            method=method,
            read_bytes=read,
            first_bytes=min(readers, first),
            again_bytes=again,
            departed_bytes=max(0, readers - grown),
            resident_bytes=resident,
            shared=shared,
        )
    if again is not None and (first is not None or read is not None):
        if read is None:  # no /proc/PID/io
            read = (first or 0) + again
        elif first is None:  # no cachestat
            again = min(again, read)
            first = read - again
        return Ledger(
            span_ns=span_ns,
            method=Method.REFAULTS,
            read_bytes=read,
            first_bytes=first,
            again_bytes=again,
            departed_bytes=max(0, read - grown),
            resident_bytes=resident,
        )
    return _by_sampling(start, end, read, again)


def _by_sampling(start: Point, end: Point, read: int | None, again: int | None) -> Ledger:
    """Neither two of the ledger's readings nor one beside the refaults: what scans of the page cache saw, at least.

    At 1 Hz a scan sees 45-80 % of the re-reads of a thrashing MoE and 20 % of a dense model's; refaults, where there are any,
    are counted, and what came back without the cache growing by it has pushed out as much.
    """
    a, b = start.sample.residency, end.sample.residency
    first = difference(start.arrived_first_bytes, end.arrived_first_bytes)
    departed = difference(start.departed_bytes, end.departed_bytes)
    method = Method.MINCORE
    if again is None:
        again = difference(start.arrived_again_bytes, end.arrived_again_bytes)
        method = Method.NONE if again is None else method
    elif a is not None and b is not None and a.resident_bytes is not None and b.resident_bytes is not None:
        method = Method.REFAULTS
        grown = b.resident_bytes - a.resident_bytes
        departed = max(departed or 0, again - grown)
        first = max(first or 0, grown - again)
        read = again + first
    return Ledger(
        span_ns=end.sample.mono_ns - start.sample.mono_ns,
        method=method,
        read_bytes=read,
        first_bytes=first,
        again_bytes=again,
        departed_bytes=departed,
        resident_bytes=b.resident_bytes if b else None,
    )


def _without_cache(a: Sample, b: Sample, span_ns: int, read: int | None, again: int | None) -> Ledger:
    """No residency: another user's process, or a kernel that would not tell. The cgroup's file pages stand in."""
    size_a, size_b = _file_cache(a), _file_cache(b)
    grown = None if size_a is None or size_b is None else size_b - size_a
    first: int | None = None
    if read is None and again is not None and grown is not None:
        first = max(0, grown - again)  # at least
        read = again + first
    elif read is not None and again is not None:
        first = max(0, read - again)
    return Ledger(
        span_ns=span_ns,
        method=Method.NONE if again is None else Method.REFAULTS,
        read_bytes=read,
        first_bytes=first,
        again_bytes=again,
        departed_bytes=None if read is None or grown is None else max(0, read - grown),
        resident_bytes=size_b,
    )


def _read(a: Sample, b: Sample, page_bytes: int) -> tuple[int | None, int | None]:
    """What the target read from disk, and what all known readers of its files read; swap-ins taken off."""
    read = difference(
        a.process.read_bytes_total if a.process else None, b.process.read_bytes_total if b.process else None
    )
    if read is None:
        return None, None
    readers = difference(a.readers_read_bytes_total, b.readers_read_bytes_total)
    swapped = _swapped_in(a, b, page_bytes)
    return max(0, read - swapped), max(0, max(read, readers or 0) - swapped)


def _swapped_in(a: Sample, b: Sample, page_bytes: int) -> int:
    """Swap-ins count in read_bytes. The machine's are taken off when the target may have had any of them."""
    if a.vm is None or b.vm is None or a.process is None or b.process is None:
        return 0
    if a.process.swap_bytes == b.process.swap_bytes == 0:
        return 0
    return (difference(a.vm.pswpin_total, b.vm.pswpin_total) or 0) * page_bytes


def refaulted_bytes(a: Sample, b: Sample, page_bytes: int) -> int | None:
    """Bytes that came back after eviction by the kernel's own count: the target's cgroup's, else the machine's."""
    pages = None
    if a.cgroup is not None and b.cgroup is not None:
        pages = difference(a.cgroup.workingset_refault_file_total, b.cgroup.workingset_refault_file_total)
    if pages is None and a.vm is not None and b.vm is not None:
        pages = difference(a.vm.workingset_refault_file_total, b.vm.workingset_refault_file_total)
    return None if pages is None else pages * page_bytes


def _file_cache(sample: Sample) -> int | None:
    group = sample.cgroup
    if group is None or group.active_file_bytes is None or group.inactive_file_bytes is None:
        return None
    return group.active_file_bytes + group.inactive_file_bytes
