"""The last minute or so of Samples, oldest first, with what must outlive it: the only thing that judging looks at. Pure.

A window never spans a break: a restart of the target (its counters go back), a suspended machine (the wall clock ran on
while monotonic time stood still) or time that goes back begins a new one, so no rate is ever taken across a break.
"""

from msgspec import Struct
from msgspec.structs import replace

from moewatch.domain.sample import Header, OtherProcess, Phase, ResidencyReading, Sample
from moewatch.units import S

SPAN_NS = 75 * S  # longest look-back of any figure (working set: a minute) with room for slow intervals
MAX_SAMPLES = 512  # 75 s at 5 samples a second are 375; more than that is thinned by dropping the oldest
FIRST_STEP_NS = 10 * S
FIRST_NOISE_RATIO = 0.01  # of the file in 10 s: less may be the different instants of the readings, and would add up
FORGOTTEN_RATIO = 0.05
STALE_NS = 5 * S  # a scan may skip Samples (every second one in the recordings), but not for so long
SUSPEND_NS = 5 * S  # wall clock steps by NTP are far smaller; waking up takes longer


class Point(Struct, frozen=True, kw_only=True):
    """One Sample with the scan's differences added up since the window began, so that any two points can be subtracted.

    The sums are None until a Sample has carried them; `has_scan` says whether this Sample carried residency itself.
    """

    sample: Sample
    arrived_first_bytes: int | None = None
    arrived_again_bytes: int | None = None
    departed_bytes: int | None = None
    busy_ns: int = 0  # time in which a disk under the model was busy, see `_busy`

    @property
    def has_scan(self) -> bool:
        """Whether this Sample carries a residency reading."""
        return self.sample.residency is not None


class OtherLow(Struct, frozen=True, kw_only=True):
    """The least anonymous memory that another process was seen with, and when that was last so."""

    pid: int
    name: str
    anon_bytes: int
    mono_ns: int
    wall_ns: int


class Carried(Struct, frozen=True, kw_only=True):
    """What outlives the window (all of one target's life)."""

    started_ns: int = 0  # mono_ns of the first Sample since the last break
    n_samples: int = 0  # since the last break
    breaks: int = 0  # restarts, suspends
    slept_ns: int = 0  # how long the machine slept at the last break; 0 when that was no suspend
    first_bytes: int = 0  # first-time bytes, summed up over steps of 10 s; see `_first_time`
    first_mark: tuple[int, int] | None = None  # mono_ns and resident + evicted bytes at the last such step
    residency: ResidencyReading | None = None  # the latest that a Sample carried
    residency_ns: int | None = None  # mono_ns of that Sample
    residency_gap_ns: int = 0  # from the one before
    others: tuple[OtherProcess, ...] | None = None  # the latest list of the largest other processes
    others_ns: int | None = None
    others_low: tuple[OtherLow, ...] = ()


class Window(Struct, frozen=True, kw_only=True):
    """`samples` and `points` run in parallel, oldest first, at most SPAN_NS long."""

    header: Header
    samples: tuple[Sample, ...] = ()
    points: tuple[Point, ...] = ()
    carried: Carried = Carried()

    @property
    def now(self) -> Sample:
        """The newest Sample; IndexError before the first."""
        return self.samples[-1]

    @property
    def is_scanned(self) -> bool:
        """Whether residency is read here: the latest reading is not overdue, by the rhythm of those before."""
        last_ns = self.carried.residency_ns
        patience_ns = max(STALE_NS, 5 * self.carried.residency_gap_ns // 2)
        return last_ns is not None and self.samples[-1].mono_ns - last_ns <= patience_ns

    @property
    def has_forgotten(self) -> bool:
        """Whether more came in for the first time than the files hold: pages left without a trace and came back.

        POSIX_FADV_DONTNEED and `drop_caches` leave no shadow entries; what comes back afterwards looks like a first read.
        """
        model = self.header.model
        return model is not None and self.carried.first_bytes > model.total_bytes * (1 + FORGOTTEN_RATIO)

    @property
    def span_ns(self) -> int:
        """From the oldest Sample to the newest."""
        return self.samples[-1].mono_ns - self.samples[0].mono_ns if self.samples else 0

    @property
    def loaded_ns(self) -> int:
        """Time since the server was last loading, as far back as is kept: what a load reads is no use of the model."""
        for sample in reversed(self.samples):
            if sample.server.phase is Phase.LOADING:
                return self.now.mono_ns - sample.mono_ns
        return self.span_ns

    def since(self, age_ns: int) -> tuple[Sample, ...]:
        """The Samples of the last `age_ns`, oldest first; the first is the closest to that age."""
        return self.samples[self.index_at(age_ns) :]

    def index_at(self, age_ns: int) -> int:
        """Index of the Sample whose age is closest to `age_ns` (binary search)."""
        samples, wanted = self.samples, self.samples[-1].mono_ns - age_ns
        low, high = 0, len(samples) - 1
        while low < high:
            middle = (low + high) // 2
            if samples[middle].mono_ns < wanted:
                low = middle + 1
            else:
                high = middle
        if low and wanted - samples[low - 1].mono_ns <= samples[low].mono_ns - wanted:
            return low - 1
        return low

    def pushed(self, sample: Sample) -> "Window":
        """This window with one Sample more; a new one when the Sample lies behind a break."""
        if self.samples and is_break(self.now, sample):
            # what other processes hold does not depend on the target's life
            carried = Carried(
                breaks=self.carried.breaks + 1,
                slept_ns=slept_ns(self.now, sample),
                others=self.carried.others,
                others_ns=self.carried.others_ns,
                others_low=self.carried.others_low,
            )
            return Window(header=self.header, carried=carried).pushed(sample)
        point = _added_up(self.points[-1] if self.points else None, sample)
        points, samples = (*self.points, point), (*self.samples, sample)
        first = max(0, len(samples) - MAX_SAMPLES)
        while samples[first].mono_ns < sample.mono_ns - SPAN_NS:
            first += 1
        carried = _carried_on(self.carried, sample, self.header.model.total_bytes if self.header.model else 0)
        return Window(header=self.header, samples=samples[first:], points=points[first:], carried=carried)


def slept_ns(before: Sample, after: Sample) -> int:
    """How far the wall clock ran ahead of monotonic time, which stands still while the machine sleeps; 0 for clock steps."""
    ahead = (after.wall_ns - before.wall_ns) - (after.mono_ns - before.mono_ns)
    return ahead if ahead > SUSPEND_NS else 0


def is_break(before: Sample, after: Sample) -> bool:
    """Whether the two Samples cannot be compared: time went back, the machine slept, or the target's counters began again."""
    if after.mono_ns <= before.mono_ns or slept_ns(before, after):
        return True
    if before.process is None or after.process is None:
        return False
    # a live process's own faults and CPU time never shrink (proc_pid_stat(5)); a smaller figure is another process
    pairs = (
        (before.process.minflt_total, after.process.minflt_total),
        (before.process.utime_ns, after.process.utime_ns),
        (before.process.read_bytes_total, after.process.read_bytes_total),
    )
    return any(a is not None and b is not None and b < a for a, b in pairs)


def difference(before: int | None, after: int | None) -> int | None:
    """After less before; None when either is unknown or the counter went back."""
    return None if before is None or after is None or after < before else after - before


def _added_up(before: Point | None, sample: Sample) -> Point:
    first, again, departed = (
        (before.arrived_first_bytes, before.arrived_again_bytes, before.departed_bytes)
        if before
        else (None, None, None)
    )
    scan = sample.residency
    if scan is not None and before is not None:
        # the differences of the very first scan reach back to before the window: they are no part of it
        first = _plus(first, scan.arrived_first_bytes)
        again = _plus(again, scan.arrived_again_bytes)
        departed = _plus(departed, scan.departed_bytes)
    elif scan is not None:
        first = None if scan.arrived_first_bytes is None else 0
        again = None if scan.arrived_again_bytes is None else 0
        departed = None if scan.departed_bytes is None else 0
    busy_ns = before.busy_ns + _busy(before.sample, sample) if before else 0
    return Point(
        sample=sample, arrived_first_bytes=first, arrived_again_bytes=again, departed_bytes=departed, busy_ns=busy_ns
    )


def _busy(before: Sample, after: Sample) -> int:
    """How long the busiest disk worked between two neighbours.

    Never longer than the time between them: after a pause, io_ticks of some drivers (loop) jumps by the whole pause,
    10 s within one step of 0.2 s in one recording.
    """
    longest = 0
    for name, device in (after.devices or {}).items():
        earlier = (before.devices or {}).get(name)
        if earlier is not None:
            longest = max(longest, difference(earlier.busy_ns_total, device.busy_ns_total) or 0)
    return min(longest, after.mono_ns - before.mono_ns)


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _carried_on(carried: Carried, sample: Sample, total_bytes: int) -> Carried:
    changes: dict[str, object] = {"n_samples": carried.n_samples + 1}
    if not carried.n_samples:
        changes["started_ns"] = sample.mono_ns
    if sample.residency is not None:
        if carried.residency_ns is not None:
            changes["residency_gap_ns"] = sample.mono_ns - carried.residency_ns
        changes["residency"], changes["residency_ns"] = sample.residency, sample.mono_ns
        changes |= _first_time(carried, sample, total_bytes)
    if sample.others is not None:
        changes["others"], changes["others_ns"] = sample.others, sample.mono_ns
        changes["others_low"] = _lowest(carried, sample, sample.others)
    return replace(carried, **changes)


def _first_time(carried: Carried, sample: Sample, total_bytes: int) -> dict[str, object]:
    scan = sample.residency
    if scan is None or scan.resident_bytes is None or scan.evicted_bytes is None:
        return {}
    known = scan.resident_bytes + scan.evicted_bytes
    mark = (sample.mono_ns, known)
    if carried.first_mark is None:
        return {"first_mark": mark}
    before_ns, before = carried.first_mark
    if sample.mono_ns - before_ns < FIRST_STEP_NS:
        # a drop must not wait for the step's end, or the first reads right after it would be set off against it
        return {"first_mark": (before_ns, known)} if known < before else {}
    came = known - before
    return {
        "first_mark": mark,
        "first_bytes": carried.first_bytes + (came if came > FIRST_NOISE_RATIO * total_bytes else 0),
    }


def _lowest(carried: Carried, sample: Sample, others: tuple[OtherProcess, ...]) -> tuple[OtherLow, ...]:
    """The lows of the processes listed now. One that was not listed before held at most the least of those that were."""
    known = {low.pid: low for low in carried.others_low}
    floor = min((o.anon_bytes for o in carried.others), default=0) if carried.others is not None else None
    lows = []
    for other in others:
        low = known.get(other.pid)
        if low is None or low.name != other.name:
            least = other.anon_bytes if floor is None else min(floor, other.anon_bytes)
        elif low.anon_bytes < other.anon_bytes:
            lows.append(low)
            continue
        else:
            least = other.anon_bytes
        lows.append(
            OtherLow(pid=other.pid, name=other.name, anon_bytes=least, mono_ns=sample.mono_ns, wall_ns=sample.wall_ns)
        )
    return tuple(lows)
