"""How much of a model is in the page cache, counted in the background within a budget of CPU time.

Two figures of different price. The totals over whole files (for the ledger) are counted at each reading, as long as
that is cheap; the parts (per tensor, hence per class and layer) come from a thread that rotates over the files in small
steps and sleeps in proportion to what each step cost. Each carries its age. As long as the machine says that no page of
any file moved (linux/activity.py), nothing is asked: the figures still hold.
"""

import binascii
import threading
from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.domain.experts import ExpertFigures
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.domain.sample import Gap, GapReason, ResidencyReading
from moewatch.linux.activity import FileCacheActivity, Level
from moewatch.linux.pagecache import Backend, PageCache, probe
from moewatch.linux.parts import Parts, layers_not_needed
from moewatch.linux.root import ReadingError
from moewatch.linux.rotation import Rotation
from moewatch.linux.scans import NEVER, Arrivals, CachestatScan, MincoreScan, Totals
from moewatch.linux.shards import FIELD, Shard, check_shard, close_shards, open_shards
from moewatch.units import GIB, MIB, MS, S

BUDGET_NS_PER_S = 8 * MS  # 0.8 % of a core: 400 GiB rotate in 5 to 10 s, 64 GiB in 3 to 4 s
SLOWDOWN = S // BUDGET_NS_PER_S  # sleep this many times what a step cost
# Until all has been looked at once: mincore takes 15 ms a GiB, so 60 GiB would stay unknown for two minutes (as long as a
# demo) instead of 23 s.
FIRST_BUDGET_NS_PER_S = 40 * MS
FIRST_SLOWDOWN = S // FIRST_BUDGET_NS_PER_S
STEP_CPU_NS = 2 * MS  # then sleep 0.25 s
FIRST_STEP_CPU_NS = 150 * MS  # at once, so that the first screen has figures: enough for 64 GiB in 128 KiB folios
ROTATION_NS = S  # a small model is not counted more often than it is shown
PASS_CPU_LIMIT_NS = 25 * MS  # a sample must not be late: costlier totals are left to the rotation
PASS_STEP_BYTES = GIB // 4  # so that a costly pass is noticed early: 8 ms at worst
# A pass that cost next to nothing takes larger steps next time: 400 GiB in 50 calls. A disk that brings 5 GB/s in the
# meantime, in folios of 4 KiB, makes one reading 0.1 s late, once.
PASS_STEP_MAX_BYTES = 8 * GIB
RETRY_NS = 5 * S  # after a failed step
DOUBT_NS = 10 * S  # how often a file of which cachestat sees nothing is checked against mincore (1 ms)
CHEAP_NS = MS  # what costs less than this is asked each time: DONTNEED may show in the machine's counters 2 s late
# So little may have moved on the whole machine for figures to hold: a log file's pages, less than any figure shows ...
QUIET_BYTES = MIB
QUIET_PASS_BYTES = 0  # ... but totals feed the ledger, which is exact
LOOK_ANYWAY_NS = 30 * S  # and then all is asked again, whatever the machine says
EXPERTS_EVERY_NS = 5 * S  # the expert map in a reading: 8 kB each for 6,144 experts, 30 kB for 92 layers of 256


class _Pass(Struct, frozen=True, kw_only=True):
    """One counting of whole files."""

    totals: Totals
    mono_ns: int
    cost_ns: int
    level: Level | None


class _Map(Struct, frozen=True, kw_only=True):
    """The expert map as a reading carries it."""

    shares: str | None = None
    again: str | None = None
    not_needed: tuple[int, ...] = ()


class ResidencyScanner:
    """Counts for one model until stopped. One thread scans; `read` may be called from another.

    Memory for 400 GiB in 2,000 tensors and 15,000 experts: 8 MiB with cachestat, 20 MiB with mincore.
    """

    def __init__(
        self,
        page_cache: PageCache,
        layout: ModelLayout,
        clock: Clock,
        not_needed: frozenset[str] = frozenset(),
        *,
        activity: FileCacheActivity | None = None,
    ) -> None:
        self.not_needed = (
            not_needed  # names of tensors that the host does not need (on the GPU); may be set at any time
        )
        self.not_needed_assumed = False
        self._page_cache = page_cache
        self._layout = layout
        self._clock = clock
        self._activity = activity
        self._level: Level | None = None  # of the machine when the last rotation began ...
        self._level_ns = 0  # ... and when that was
        self._shards: list[Shard] = []
        self._backend: Backend | None = None
        self._rotation: Rotation | None = None
        self._failure: Gap | None = None  # of opening
        self._reading_or_closing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._scanned_ns = 0  # CPU of the scan so far; only the scanning thread writes it
        self._counted_ns = 0  # CPU of whole-file passes so far; only the reader writes it
        self._told_ns = 0  # how much of both was reported
        self._told = Arrivals()
        self._pass: _Pass | None = None
        self._pass_is_costly = False
        self._pass_step_bytes = PASS_STEP_BYTES
        self._map_told: tuple[bytes, tuple[int, ...]] | None = None
        self._map_told_ns = 0
        self._doubted_ns: int | None = None

    def start(self, *, parts: bool = True) -> Self:
        """Open the files, find out which call can be believed, scan in the background. A failure becomes read()'s Gap.

        Without `parts` there is no background scan: `read` has the totals over whole files only.
        """
        self._open()
        if parts and self._rotation is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moewatch-residency", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and close the files; nothing can be read afterwards."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._reading_or_closing:
            self._rotation = None
            close_shards(self._shards)

    def scan_once(self) -> None:
        """One whole rotation at once in the calling thread, whatever it costs: for a single answer, without `start`."""
        self._open()
        rotation = self._rotation
        if rotation is None or self._has_rested(rotation):
            return
        count = rotation.count
        while True:
            self._scanned_ns += rotation.step(S, self._stop)
            if rotation.count != count or rotation.failure is not None or self._stop.is_set():
                break

    def read(self) -> tuple[ResidencyReading | None, list[Gap]]:
        """Totals now and parts as last scanned; (None, gaps) when nothing can be known."""
        with self._reading_or_closing:
            rotation = self._rotation
            if rotation is None:
                return None, [self._failure] if self._failure else []
            gaps = [gap for gap in map(check_shard, self._shards) if gap is not None]
            if rotation.failure is not None:
                gaps.append(rotation.failure)
            try:
                totals, age_ns = self._read_totals(rotation)
            except ReadingError as error:
                return None, [*gaps, error.gap(FIELD)]
            if totals is None and rotation.failure is None:
                done = f"the first look at the page cache is under way, {100 * rotation.share_done:.0f} %"
                gaps.append(Gap(field=f"{FIELD}.resident_bytes", reason=GapReason.ABSENT, detail=done))
            return self._reading(rotation, totals, age_ns), gaps

    def tensor_resident(self) -> Mapping[str, tuple[int, int]]:
        """(resident bytes, mono_ns when seen) by name, of the tensors that were reached already."""
        rotation = self._rotation
        if rotation is None:
            return {}
        tally = rotation.scan.tally
        return {
            tensor.name: (tally.resident[index], tally.seen_ns[index])
            for index, tensor in enumerate(self._layout.tensors)
            if tally.seen_ns[index] != NEVER
        }

    def experts(self) -> ExpertFigures | None:
        """What is known of each expert so far; None for a dense model, and before all of it was looked at once."""
        rotation = self._rotation
        if rotation is None or not rotation.count or not rotation.scan.experts.n_expert:
            return None
        return rotation.scan.experts.figures()

    def _open(self) -> None:
        if self._rotation is not None or self._stop.is_set():
            return
        try:
            self._shards = open_shards(self._layout)
            backends = {probe(self._page_cache, shard.fd) for shard in self._shards}
        except ReadingError as error:
            close_shards(self._shards)
            self._failure = error.gap(FIELD)
            return
        self._failure = None
        self._use(Backend.MINCORE if Backend.MINCORE in backends else Backend.CACHESTAT)

    def _use(self, backend: Backend) -> None:
        way = CachestatScan if backend is Backend.CACHESTAT else MincoreScan
        scan = way(self._page_cache, self._layout, [shard.fd for shard in self._shards])
        self._backend = backend
        self._rotation = Rotation(scan, self._clock)
        self._pass = None  # counted the other way, which may have seen nothing of a stacked file system

    def _run(self) -> None:
        due_ns = began_ns = self._clock.mono_ns()
        budget_ns = FIRST_STEP_CPU_NS
        while not self._clock.sleep_until(due_ns, self._stop) and self._rotation is not None:
            rotation, count = self._rotation, self._rotation.count
            before_ns = self._clock.thread_cpu_ns()
            if self._has_rested(rotation):
                spent_ns = self._clock.thread_cpu_ns() - before_ns
                self._scanned_ns += spent_ns
                due_ns = began_ns = max(self._clock.mono_ns() + spent_ns * SLOWDOWN, began_ns + ROTATION_NS)
                continue
            rotation.step(budget_ns, self._stop)
            has_ended = rotation.count != count
            if has_ended:
                self._doubt_nothing(rotation)
            spent_ns = self._clock.thread_cpu_ns() - before_ns
            self._scanned_ns += spent_ns
            now_ns = due_ns = self._clock.mono_ns()
            if budget_ns == STEP_CPU_NS:  # the first step is forgiven, every later one is slept off
                due_ns += spent_ns * (SLOWDOWN if count else FIRST_SLOWDOWN)
            budget_ns = STEP_CPU_NS
            if rotation.failure is not None:
                due_ns = max(due_ns, now_ns + RETRY_NS)
            elif has_ended:
                due_ns = began_ns = max(due_ns, began_ns + ROTATION_NS)

    def _has_rested(self, rotation: Rotation) -> bool:
        """Whether a rotation that is due can be left out, since no page of any file moved since the last one began."""
        is_cheap = rotation.count > 0 and rotation.last_cost_ns < CHEAP_NS
        if self._activity is None or not rotation.is_at_start or is_cheap:
            return False
        now_ns, level, last = self._clock.mono_ns(), self._activity.read(), self._level
        if level is None or last is None or not rotation.count or rotation.failure is not None:
            pass
        elif level.moved_bytes(last) <= QUIET_BYTES and now_ns - self._level_ns < LOOK_ANYWAY_NS:
            rotation.confirm(now_ns)
            return True
        self._level, self._level_ns = level, now_ns
        return False

    def _doubt_nothing(self, rotation: Rotation) -> None:
        """Where cachestat sees nothing of a model, ask mincore now and then: stacked file systems hide their pages."""
        now_ns = self._clock.mono_ns()
        is_due = self._doubted_ns is None or now_ns - self._doubted_ns >= DOUBT_NS
        if self._backend is not Backend.CACHESTAT or not is_due:
            return
        self._doubted_ns = now_ns
        totals = rotation.scan.totals()
        if totals.resident_bytes or totals.evicted_bytes or not self._shards:
            return
        try:
            if probe(self._page_cache, self._shards[0].fd) is Backend.MINCORE:
                self._use(Backend.MINCORE)
        except ReadingError as error:
            rotation.failure = error.gap(FIELD)

    def _read_totals(self, rotation: Rotation) -> tuple[Totals | None, int]:
        """Totals and their age: counted now when cheap, the previous ones while the budget recovers, else the scan's."""
        now_ns = self._clock.mono_ns()
        if self._pass_is_costly and 0 < rotation.last_cost_ns <= PASS_CPU_LIMIT_NS:
            self._pass_is_costly = False  # folios have grown or went: a rotation costs what a pass does, and more
        if self._backend is Backend.CACHESTAT and not self._pass_is_costly:
            last = self._pass
            if last is not None and now_ns - last.mono_ns < last.cost_ns * SLOWDOWN:
                return last.totals, now_ns - last.mono_ns
            level = self._activity.read() if self._activity is not None else None
            if last is not None and last.level is not None and level is not None and last.cost_ns >= CHEAP_NS:
                is_quiet = level.moved_bytes(last.level) <= QUIET_PASS_BYTES
                if is_quiet and now_ns - last.mono_ns < LOOK_ANYWAY_NS:
                    return last.totals, 0
            counted = self._count_whole_files(now_ns, level)
            if counted is not None:
                self._pass = counted
                return counted.totals, 0
            self._pass_is_costly = True
        if not rotation.count:  # what was counted while it was cheap, with its age, else nothing yet
            return (self._pass.totals, now_ns - self._pass.mono_ns) if self._pass else (None, 0)
        return rotation.scan.totals(), rotation.oldest_age_ns(now_ns) or 0

    def _count_whole_files(self, now_ns: int, level: Level | None) -> _Pass | None:
        """One pass over all files; None when it costs too much."""
        began_ns = self._clock.thread_cpu_ns()
        resident = evicted = recent = spent_ns = longest_ns = 0
        for shard in self._shards:
            for offset in range(0, shard.size_bytes, self._pass_step_bytes):
                length = min(self._pass_step_bytes, shard.size_bytes - offset)
                counted = self._page_cache.cachestat(shard.fd, offset, length)
                resident += min(counted.nr_cache, length)  # the file's last page is not all of the file
                evicted += min(counted.nr_evicted, length)
                recent += min(counted.nr_recently_evicted, length)
                before_ns, spent_ns = spent_ns, self._clock.thread_cpu_ns() - began_ns
                longest_ns = max(longest_ns, spent_ns - before_ns)
                if spent_ns > PASS_CPU_LIMIT_NS:
                    self._counted_ns += spent_ns
                    self._pass_step_bytes = PASS_STEP_BYTES
                    return None
        self._counted_ns += spent_ns
        if longest_ns < CHEAP_NS:
            self._pass_step_bytes = min(2 * self._pass_step_bytes, PASS_STEP_MAX_BYTES)
        elif longest_ns > 4 * CHEAP_NS:
            self._pass_step_bytes = PASS_STEP_BYTES
        totals = Totals(resident_bytes=resident, evicted_bytes=evicted, recently_evicted_bytes=recent)
        return _Pass(totals=totals, mono_ns=now_ns, cost_ns=spent_ns, level=level)

    def _new_map(self, rotation: Rotation) -> _Map:
        """The expert map, when a while has passed since the last one and it is another one now."""
        experts, now_ns = rotation.scan.experts, self._clock.mono_ns()
        is_early = self._map_told is not None and now_ns - self._map_told_ns < EXPERTS_EVERY_NS
        if is_early or not rotation.count or not experts.n_expert:
            return _Map()
        away = layers_not_needed(self._layout, self.not_needed)
        again, told = experts.take_again(), (bytes(experts.share), away)
        if again is None and told == self._map_told:
            return _Map()
        self._map_told, self._map_told_ns = told, now_ns
        return _Map(shares=_in_base64(told[0]), again=_in_base64(again) if again is not None else None, not_needed=away)

    def _reading(self, rotation: Rotation, totals: Totals | None, totals_age_ns: int) -> ResidencyReading:
        parts = Parts.of(self._layout, rotation.scan.tally, self.not_needed)
        spent_ns = self._scanned_ns + self._counted_ns
        cost_ns, self._told_ns = spent_ns - self._told_ns, spent_ns
        arrivals, told = rotation.scan.arrivals(), self._told
        experts = self._new_map(rotation)
        self._told = arrivals or told
        return ResidencyReading(
            backend=self._backend or "none",
            age_ns=rotation.oldest_age_ns(self._clock.mono_ns()),
            cost_ns=cost_ns,
            totals_age_ns=totals_age_ns,
            resident_bytes=totals.resident_bytes if totals else None,
            evicted_bytes=totals.evicted_bytes if totals else None,
            recently_evicted_bytes=totals.recently_evicted_bytes if totals else None,
            dense_resident_bytes=parts.resident[WeightClass.DENSE],
            expert_resident_bytes=parts.resident[WeightClass.EXPERT],
            embedding_resident_bytes=parts.resident[WeightClass.EMBEDDING],
            by_layer=parts.by_layer,
            experts=experts.shares,
            experts_again=experts.again,
            experts_not_needed=experts.not_needed,
            arrived_first_bytes=arrivals.first_bytes - told.first_bytes if arrivals else None,
            arrived_again_bytes=arrivals.again_bytes - told.again_bytes if arrivals else None,
            departed_bytes=arrivals.departed_bytes - told.departed_bytes if arrivals else None,
            never_seen_bytes=arrivals.never_seen_bytes if arrivals else None,
            not_needed_dense_bytes=parts.not_needed[WeightClass.DENSE],
            not_needed_expert_bytes=parts.not_needed[WeightClass.EXPERT],
            not_needed_embedding_bytes=parts.not_needed[WeightClass.EMBEDDING],
            not_needed_assumed=self.not_needed_assumed and bool(self.not_needed),
        )


def _in_base64(values: bytes) -> str:
    return binascii.b2a_base64(values, newline=False).decode()
