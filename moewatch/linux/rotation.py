"""Going round and round over a model's files, a bounded step at a time."""

import threading

from moewatch.clock import Clock
from moewatch.domain.sample import Gap
from moewatch.linux.root import ReadingError
from moewatch.linux.scans import NEVER, Scan
from moewatch.linux.shards import FIELD


class Rotation:
    """Where a scan stands. One thread steps; others may read the attributes at any time."""

    def __init__(self, scan: Scan, clock: Clock) -> None:
        self.scan = scan
        self.count = 0  # whole rotations done
        self.last_cost_ns = 0  # CPU time of the last whole one
        self.failure: Gap | None = None  # of the last step
        self._clock = clock
        self._unit = 0
        self._seen_ns = [NEVER] * scan.n_units
        self._cost_ns = 0
        self._confirmed_ns = NEVER

    @property
    def is_at_start(self) -> bool:
        """Whether the next unit is the first."""
        return self._unit == 0

    @property
    def share_done(self) -> float:
        """How far the present rotation is, 0 to 1."""
        return self._unit / max(1, self.scan.n_units)

    def confirm(self, now_ns: int) -> None:
        """All that was seen still holds at this moment, as is known without asking."""
        self._confirmed_ns = now_ns

    def step(self, budget_ns: int, stop: threading.Event) -> int:
        """Visit units until the CPU budget is spent, the rotation ends or a unit fails; the CPU time it took."""
        began_ns = self._clock.thread_cpu_ns()
        count = self.count
        spent_ns = 0
        self.failure = None
        while spent_ns < budget_ns and not stop.is_set():
            now_ns = self._clock.mono_ns()
            try:
                if self.scan.n_units:
                    self.scan.visit(self._unit, now_ns)
            except ReadingError as error:
                self.failure = error.gap(FIELD)
                break
            finally:
                spent_ns = self._clock.thread_cpu_ns() - began_ns
            self._advance(now_ns, spent_ns)
            if self.count != count:
                return spent_ns
        self._cost_ns += spent_ns
        return spent_ns

    def oldest_age_ns(self, now_ns: int) -> int | None:
        """Age of the unit whose turn is next, or of the word that nothing has changed; None until all were visited."""
        if not self.count or not self._seen_ns:
            return None
        return max(0, now_ns - max(self._confirmed_ns, self._seen_ns[self._unit]))

    def _advance(self, now_ns: int, spent_ns: int) -> None:
        if self._seen_ns:
            self._seen_ns[self._unit] = now_ns
        if self._unit + 1 < self.scan.n_units:
            self._unit += 1
            return
        self._unit = 0
        self.count += 1
        self.last_cost_ns, self._cost_ns = self._cost_ns + spent_ns, 0
