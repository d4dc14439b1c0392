"""How much of a model is in the page cache, counted in the background within a budget of CPU time.

Two figures of different price. The totals over whole files (for the ledger) are counted at each reading, as long as
that is cheap; the parts (per tensor, hence per class and layer) come from a thread that rotates over the files in small
steps and sleeps in proportion to what each step cost. Each carries its age.
"""

import threading
from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.domain.sample import Gap, ResidencyReading
from moewatch.linux.pagecache import Backend, PageCache, probe
from moewatch.linux.parts import Parts
from moewatch.linux.root import ReadingError
from moewatch.linux.rotation import Rotation
from moewatch.linux.scans import NEVER, Arrivals, CachestatScan, MincoreScan, Totals
from moewatch.linux.shards import FIELD, Shard, check_shard, close_shards, open_shards
from moewatch.units import GIB, MS, S

BUDGET_NS_PER_S = 8 * MS  # 0.8 % of a core: 400 GiB rotate in 5 to 10 s, 64 GiB in 3 to 4 s
SLOWDOWN = S // BUDGET_NS_PER_S  # sleep this many times what a step cost
STEP_CPU_NS = 2 * MS  # then sleep 0.25 s
FIRST_STEP_CPU_NS = 150 * MS  # at once, so that the first screen has figures: enough for 64 GiB in 128 KiB folios
ROTATION_NS = S  # a small model is not counted more often than it is shown
PASS_CPU_LIMIT_NS = 25 * MS  # a sample must not be late: costlier totals are left to the rotation
PASS_STEP_BYTES = GIB // 4  # so that a costly pass is noticed early: 8 ms at worst
RETRY_NS = 5 * S  # after a failed step
DOUBT_NS = 10 * S  # how often a file of which cachestat sees nothing is checked against mincore (1 ms)


class _Pass(Struct, frozen=True, kw_only=True):
    """One counting of whole files."""

    totals: Totals
    mono_ns: int
    cost_ns: int


class ResidencyScanner:
    """Counts for one model until stopped. One thread scans; `read` may be called from another.

    Memory for 400 GiB and 2,000 tensors: 1 MiB with cachestat, 20 MiB with mincore.
    """

    def __init__(
        self, page_cache: PageCache, layout: ModelLayout, clock: Clock, not_needed: frozenset[str] = frozenset()
    ) -> None:
        self.not_needed = (
            not_needed  # names of tensors that the host does not need (on the GPU); may be set at any time
        )
        self.not_needed_assumed = False
        self._page_cache = page_cache
        self._layout = layout
        self._clock = clock
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
        if self._rotation is not None:
            count = self._rotation.count
            while True:
                self._scanned_ns += self._rotation.step(S, self._stop)
                if self._rotation.count != count or self._rotation.failure is not None or self._stop.is_set():
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

    def _run(self) -> None:
        due_ns = began_ns = self._clock.mono_ns()
        budget_ns = FIRST_STEP_CPU_NS
        while not self._clock.sleep_until(due_ns, self._stop) and self._rotation is not None:
            rotation, count = self._rotation, self._rotation.count
            before_ns = self._clock.thread_cpu_ns()
            rotation.step(budget_ns, self._stop)
            has_ended = rotation.count != count
            if has_ended:
                self._doubt_nothing(rotation)
            spent_ns = self._clock.thread_cpu_ns() - before_ns
            self._scanned_ns += spent_ns
            now_ns = due_ns = self._clock.mono_ns()
            if budget_ns == STEP_CPU_NS:  # the first step is forgiven, every later one is slept off
                due_ns += spent_ns * SLOWDOWN
            budget_ns = STEP_CPU_NS
            if rotation.failure is not None:
                due_ns = max(due_ns, now_ns + RETRY_NS)
            elif has_ended:
                due_ns = began_ns = max(due_ns, began_ns + ROTATION_NS)

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
            self._pass = self._count_whole_files(now_ns)
            if self._pass is not None:
                return self._pass.totals, 0
            self._pass_is_costly = True
        if not rotation.count:
            return None, 0
        return rotation.scan.totals(), rotation.oldest_age_ns(now_ns) or 0

    def _count_whole_files(self, now_ns: int) -> _Pass | None:
        """One pass over all files; None when it costs too much."""
        began_ns = self._clock.thread_cpu_ns()
        resident = evicted = recent = spent_ns = 0
        for shard in self._shards:
            for offset in range(0, shard.size_bytes, PASS_STEP_BYTES):
                length = min(PASS_STEP_BYTES, shard.size_bytes - offset)
                counted = self._page_cache.cachestat(shard.fd, offset, length)
                resident += min(counted.nr_cache, length)  # the file's last page is not all of the file
                evicted += min(counted.nr_evicted, length)
                recent += min(counted.nr_recently_evicted, length)
                spent_ns = self._clock.thread_cpu_ns() - began_ns
                if spent_ns > PASS_CPU_LIMIT_NS:
                    self._counted_ns += spent_ns
                    return None
        self._counted_ns += spent_ns
        totals = Totals(resident_bytes=resident, evicted_bytes=evicted, recently_evicted_bytes=recent)
        return _Pass(totals=totals, mono_ns=now_ns, cost_ns=spent_ns)

    def _reading(self, rotation: Rotation, totals: Totals | None, totals_age_ns: int) -> ResidencyReading:
        parts = Parts.of(self._layout, rotation.scan.tally, self.not_needed)
        spent_ns = self._scanned_ns + self._counted_ns
        cost_ns, self._told_ns = spent_ns - self._told_ns, spent_ns
        arrivals, told = rotation.scan.arrivals(), self._told
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
            arrived_first_bytes=arrivals.first_bytes - told.first_bytes if arrivals else None,
            arrived_again_bytes=arrivals.again_bytes - told.again_bytes if arrivals else None,
            departed_bytes=arrivals.departed_bytes - told.departed_bytes if arrivals else None,
            never_seen_bytes=arrivals.never_seen_bytes if arrivals else None,
            not_needed_dense_bytes=parts.not_needed[WeightClass.DENSE],
            not_needed_expert_bytes=parts.not_needed[WeightClass.EXPERT],
            not_needed_embedding_bytes=parts.not_needed[WeightClass.EMBEDDING],
            not_needed_assumed=self.not_needed_assumed and bool(self.not_needed),
        )
