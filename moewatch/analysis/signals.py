"""The few figures that the verdict rests on, over the last seconds; none depends on the disk or the model. Pure.

Everything is a share: of the time (disk waits, CPU), of what a token needs (A), of the cache (turnover).
"""

from itertools import pairwise

from msgspec import Struct

from moewatch.analysis.ledger import Ledger, between, derive_ledger
from moewatch.analysis.window import Point, Window, difference
from moewatch.domain.frame import Method
from moewatch.domain.sample import LoadMode, Phase, Sample
from moewatch.units import MB, MIB, S

SHORT_NS, LONG_NS = 5 * S, 10 * S
GLANCE_NS = 3 * S  # for what reads at all and who works; nothing is judged on it
ACTIVITY_NS = 5 * S  # who works, by CPU time and faults
TOLD_ACTIVITY_NS = 3 * S  # and by the server's own word: a pause between two requests is shorter
SELDOM_NS = 2 * S  # Samples farther apart may miss short requests each time; 0.5 to 5 s meet all bars of the recordings
NOW_NS = 1500 * 10**6  # just now: one or two samples at 1 Hz

# Without the server's word: a server that works uses 0.19 to 1.3 cores (0.19 on a disk throttled to 100 MiB/s), an idle one
# below 0.01. A server on a disk slower still shows by its faults.
WORKING_CPU_RATIO = 0.1
WORKING_MAJFLT_PER_S = 5.0
# A load by MAP_POPULATE takes 0 to 7 faults for gigabytes; decode takes one per 0.3-0.5 MB, prefill one per 0.9-1.4 MB,
# and read-ahead of 4 MiB at most one per 8 MiB. Disks of virtual machines may read ahead 8 MiB and more.
POPULATE_BYTES_PER_FAULT = 16 * MIB
POPULATE_READ_AHEADS = 4
POPULATE_BYTES_PER_S = 20 * MB


class Signals(Struct, frozen=True, kw_only=True):
    """One instant's figures; None where they cannot be told."""

    phase: Phase  # told by the server, or else by its CPU time and faults
    phase_told: bool
    active_ratio: float  # share of the last seconds with a request in work
    span_ns: int  # how much could be looked at
    short: Ledger | None = None
    long: Ledger | None = None
    glance: Ledger | None = None
    cost_short: float | None = None  # share of the time that goes into reading again what had departed
    cost_long: float | None = None
    again_cost: float | None = None  # the same for all that is read again, over the long window
    again_cost_short: float | None = None
    cost_by: str | None = None  # wait, stall: what the cost is measured by
    majflt_per_s: float | None = None
    idle_read_bytes_per_s: float = 0.0  # what the target reads although nothing is in work


def derive_signals(window: Window, from_ns: int) -> Signals:
    """The figures of this instant; `from_ns` is the end of loading or of the last break, nothing before it counts."""
    now = window.now
    room_ns = max(0, now.mono_ns - from_ns)
    told = now.server.phase is not Phase.UNKNOWN or now.server.n_active is not None
    short = _ledger(window, min(SHORT_NS, room_ns))
    long = _ledger(window, min(LONG_NS, room_ns))
    glance = _ledger(window, min(GLANCE_NS, room_ns))
    by, cost_short, again_cost_short = _cost(window, short, min(SHORT_NS, room_ns))
    _, cost_long, again_cost = _cost(window, long, min(LONG_NS, room_ns))
    recent = window.since(min(SHORT_NS, room_ns))
    return Signals(
        phase=_told(now) if told else guess_phase(window),
        phase_told=told,
        active_ratio=_active(window, told=told),
        span_ns=room_ns,
        short=short,
        long=long,
        glance=glance,
        cost_short=cost_short,
        cost_long=cost_long,
        again_cost=again_cost,
        again_cost_short=again_cost_short,
        cost_by=by,
        majflt_per_s=_majflt_per_s(recent[0], recent[-1]),
        idle_read_bytes_per_s=_read_while_idle(window, told=told),
    )


def guess_phase(window: Window) -> Phase:
    """Loading, generating or idle by CPU time and faults, where the server does not say."""
    samples = window.since(NOW_NS)
    if len(samples) == 1 and len(window.samples) > 1:
        samples = window.samples[-2:]
    a, b = samples[0], samples[-1]
    span_s = (b.mono_ns - a.mono_ns) / S
    if span_s <= 0 or a.process is None or b.process is None:
        return Phase.UNKNOWN
    faults = difference(a.process.majflt_total, b.process.majflt_total)
    read = difference(a.process.read_bytes_total, b.process.read_bytes_total)
    ahead = max((d.read_ahead_bytes or 0 for d in window.header.devices), default=0)
    each = max(POPULATE_BYTES_PER_FAULT, POPULATE_READ_AHEADS * ahead)
    if faults is not None and read is not None and read > max(POPULATE_BYTES_PER_S * span_s, faults * each):
        return Phase.LOADING
    cpu = difference(a.process.cpu_ns, b.process.cpu_ns)
    if cpu is None and faults is None:
        return Phase.UNKNOWN
    working = (cpu or 0) / S > WORKING_CPU_RATIO * span_s or (faults or 0) > WORKING_MAJFLT_PER_S * span_s
    return Phase.GENERATE if working else Phase.IDLE


def turned_over(window: Window, anchor: Point) -> float | None:
    """How many times the cache was turned over since `anchor`: bytes that departed and came back / bytes resident."""
    ledger = since(window, anchor)
    if ledger is None or ledger.churn_bytes is None or not ledger.resident_bytes:
        return None
    return ledger.churn_bytes / ledger.resident_bytes


def since(window: Window, anchor: Point) -> Ledger | None:
    """The ledger from a kept point to the newest that can end one."""
    scanned = window.is_scanned
    for point in reversed(window.points):
        if point.has_scan or not scanned:
            if point.sample.mono_ns <= anchor.sample.mono_ns:
                return None
            return between(anchor, point, window.header.host.page_bytes)
    return None


def point_at(window: Window, age_ns: int) -> Point:
    """The point of about that age that can begin a ledger."""
    points = window.points
    index = window.index_at(age_ns)
    if window.is_scanned:
        for near in range(index, len(points)):
            if points[near].has_scan:
                return points[near]
    return points[index]


def is_mapped(window: Window) -> bool:
    """False only where the model is known not to be mapped: then its weights cannot be paged out to the file."""
    return window.header.target.load_mode in (LoadMode.MMAP, LoadMode.MMAP_MLOCK, LoadMode.UNKNOWN)


def _ledger(window: Window, age_ns: int) -> Ledger | None:
    return derive_ledger(window, age_ns) if age_ns > 0 else None


def _cost(window: Window, ledger: Ledger | None, age_ns: int) -> tuple[str | None, float | None, float | None]:
    """How it is measured; the share of the time lost to churn; and to all that is read again.

    `wait`: the time in which the disk was busy, times the share of its reads that brought back what had departed: what is
    read again / the rate at which this disk serves such reads. A disk that is throttled (io.max of a cgroup, a cloud
    volume) is idle while one waits for it: memory stalls see that, so the larger of the two counts. `stall`: memory
    pressure alone, where the disk has no row. Of a stall only the target's part counts (`_own_stall_share`).
    Over 10 s, by wait: thrashing 0.10 to 0.65, a topic change 0.13 at most, all else 0.05 at most (19 recordings).
    """
    if ledger is None or ledger.churn_bytes is None or ledger.again_bytes is None:
        return None, None, None
    index = window.index_at(age_ns)
    a, b = window.points[index], window.points[-1]
    span_ns = b.sample.mono_ns - a.sample.mono_ns
    if span_ns <= 0 or ledger.span_ns <= 0:
        return None, None, None
    stalled = _stalled(a.sample, b.sample)
    own = _own_stall_share(a.sample, b.sample, ledger, window.header.host.page_bytes)
    again = None if stalled is None else min(1.0, stalled / span_ns) * own
    churn = None if again is None else again * (ledger.churn_bytes / ledger.again_bytes if ledger.again_bytes else 0.0)
    read = _device_read(a.sample, b.sample)
    if read is None:
        return ("stall", churn, again) if again is not None else (None, None, None)
    served = max(read / span_ns * ledger.span_ns, 1.0)  # the ledger may span a sample less
    busy = (b.busy_ns - a.busy_ns) / span_ns
    by_churn, by_again = (busy * min(1.0, part / served) for part in (ledger.churn_bytes, ledger.again_bytes))
    return "wait", max(by_churn, churn or 0.0), max(by_again, again or 0.0)


def _own_stall_share(a: Sample, b: Sample, ledger: Ledger, page_bytes: int) -> float:
    """The target's part of a memory stall: what it read again, of all that came back to the machine's page cache.

    The kernel counts a memory stall where a task waits for a page that had departed. The machine's figure, all there is with
    cgroup v1, holds every program's: beside a second server that thrashed, one that read nothing saw 0.15, and one that
    thrashed as well had brought back 0.4 of all. Alone, the share was 0.99 to 1 (19 recordings).
    """
    if not ledger.again_bytes:
        return 0.0
    if a.pressure is None or a.pressure.scope != "system" or ledger.method is Method.MINCORE:
        return 1.0  # its own, or what is known to be read again is a lower bound
    everyone = difference(
        a.vm.workingset_refault_file_total if a.vm else None, b.vm.workingset_refault_file_total if b.vm else None
    )
    if not everyone:
        return 1.0
    own_bytes = ledger.again_bytes * (b.mono_ns - a.mono_ns) / ledger.span_ns  # the ledger may span a sample less
    return min(1.0, own_bytes / (everyone * page_bytes))


def _device_read(a: Sample, b: Sample) -> int | None:
    total = None
    for name, device in (b.devices or {}).items():
        before = (a.devices or {}).get(name)
        read = difference(before.read_bytes_total if before else None, device.read_bytes_total)
        if read is None or device.busy_ns_total is None:
            return None
        total = (total or 0) + read
    return total


def _stalled(a: Sample, b: Sample) -> int | None:
    if a.pressure is None or b.pressure is None:
        return None
    return difference(a.pressure.memory_some_ns_total, b.pressure.memory_some_ns_total)


def _active(window: Window, *, told: bool) -> float:
    """The share of the last seconds in which a request was in work."""
    samples = window.since(TOLD_ACTIVITY_NS if told else ACTIVITY_NS)
    if told:
        told_busy = [_told(s) in (Phase.PROMPT, Phase.GENERATE, Phase.LOADING) for s in samples]
        if not told_busy[-1] and len(window.samples) > 1:
            # seldom asked, a server that pauses between two requests may seem idle each time
            before, now = window.samples[-2:]
            told_busy[-1] = now.mono_ns - before.mono_ns >= SELDOM_NS and _worked(before, now)
        return sum(told_busy) / len(told_busy)
    if len(samples) == 1:
        return 0.0
    a, b = samples[0], samples[-1]
    if _worked(a, b):
        return 1.0
    return sum(_worked(before, after) for before, after in pairwise(samples)) / (len(samples) - 1)


def _read_while_idle(window: Window, *, told: bool) -> float:
    """Bytes a second just now, since the last request ended: the request's own reads are none of them."""
    samples = window.since(NOW_NS)
    last = samples[-1]
    first = last
    for sample in reversed(samples):
        if told and _told(sample) is not Phase.IDLE:
            break
        first = sample
    if first.process is None or last.process is None or last.mono_ns <= first.mono_ns:
        return 0.0
    read = difference(first.process.read_bytes_total, last.process.read_bytes_total)
    return (read or 0) * S / (last.mono_ns - first.mono_ns)


def _told(sample: Sample) -> Phase:
    """What the server says; one that only counts its requests at work (/metrics) is generating while there are any."""
    server = sample.server
    if server.phase is Phase.UNKNOWN and server.n_active is not None:
        return Phase.GENERATE if server.n_active else Phase.IDLE
    return server.phase


def _worked(a: Sample, b: Sample) -> bool:
    span_s = (b.mono_ns - a.mono_ns) / S
    cpu = difference(a.process.cpu_ns, b.process.cpu_ns) if a.process and b.process else None
    faults = _majflt_per_s(a, b)
    return (cpu or 0) / S > WORKING_CPU_RATIO * span_s or (faults or 0.0) > WORKING_MAJFLT_PER_S


def _majflt_per_s(a: Sample, b: Sample) -> float | None:
    if a.process is None or b.process is None or b.mono_ns <= a.mono_ns:
        return None
    faults = difference(a.process.majflt_total, b.process.majflt_total)
    return None if faults is None else faults * S / (b.mono_ns - a.mono_ns)
