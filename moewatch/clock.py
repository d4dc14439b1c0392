"""The only place that reads time or sleeps; everything else is handed a Clock."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time for arithmetic, wall time as a label only; all in nanoseconds."""

    def mono_ns(self) -> int:
        """Time since boot, without jumps of the wall clock; stands still while the machine sleeps (clock_gettime(2))."""
        ...

    def wall_ns(self) -> int:
        """Time since 1970 in UTC: for showing, never for differences."""
        ...

    def thread_cpu_ns(self) -> int:
        """CPU time the calling thread has used: what a reading cost, whoever else ran meanwhile."""
        ...

    def process_cpu_ns(self) -> int:
        """CPU time this process has used, all threads: our own cost."""
        ...

    def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
        """Sleep until that monotonic time; True when `stop` was set before it came."""
        ...


class SystemClock:
    """The machine's clocks."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns()

    def thread_cpu_ns(self) -> int:
        """CLOCK_THREAD_CPUTIME_ID."""
        return time.thread_time_ns()

    def process_cpu_ns(self) -> int:
        """CLOCK_PROCESS_CPUTIME_ID."""
        return time.process_time_ns()

    def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
        """Sleep in one go; an Event wakes it at once."""
        left_s = (mono_ns - time.monotonic_ns()) / 1e9
        if stop is not None:
            return stop.wait(max(0.0, left_s))
        if left_s > 0:
            time.sleep(left_s)
        return False


class ManualClock:
    """A clock that moves only when it is told to or slept on; for tests and for replay as fast as possible."""

    def __init__(self, mono_ns: int = 0, wall_ns: int = 1_780_000_000_000_000_000) -> None:
        self._mono_ns = mono_ns
        self._wall_offset_ns = wall_ns - mono_ns
        self.cpu_ns = 0

    def mono_ns(self) -> int:
        """The time it was set to."""
        return self._mono_ns

    def wall_ns(self) -> int:
        """The monotonic time plus a fixed offset."""
        return self._mono_ns + self._wall_offset_ns

    def thread_cpu_ns(self) -> int:
        """What the test says was used."""
        return self.cpu_ns

    def process_cpu_ns(self) -> int:
        """What the test says was used."""
        return self.cpu_ns

    def advance(self, by_ns: int) -> None:
        """Move on by so many nanoseconds."""
        self._mono_ns += by_ns

    def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
        """Jump there at once."""
        if stop is not None and stop.is_set():
            return True
        self._mono_ns = max(self._mono_ns, mono_ns)
        return False
