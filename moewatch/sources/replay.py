"""A recording as a Source: the same Samples at the recording's pace, faster, paused or moved."""

import threading
from collections.abc import Iterator
from pathlib import Path

from moewatch.clock import Clock
from moewatch.domain.sample import Header, Sample
from moewatch.trace.reader import read_trace
from moewatch.units import MS

PATIENCE_NS = 50 * MS  # how long a key press in a replay may go unnoticed


class ReplaySource:
    """Plays one recording; `set_speed`, `set_paused` and `seek` may be called from another thread."""

    patience_ns = PATIENCE_NS

    def __init__(self, path: Path, clock: Clock, *, speed: float = 1.0, stays: bool = False) -> None:
        self.path = path
        self.stays = stays
        self._clock = clock
        self._lock = threading.Lock()
        self._speed = speed
        self._paused_at_ns: int | None = None
        self._jumped = False
        self._rush_until_ns: int | None = None
        self.first_ns, self.last_ns = self._bounds()
        self._header: Header
        self._samples: Iterator[Sample]
        self._next: Sample | None
        self._position_ns: int
        self._rewind()

    @property
    def header(self) -> Header:
        """The recording's own."""
        return self._header

    @property
    def elapsed_ns(self) -> int:
        """How far into the recording the last Sample was."""
        return max(0, self._position_ns - self.first_ns)

    @property
    def total_ns(self) -> int:
        """From the first Sample to the last."""
        return self.last_ns - self.first_ns

    @property
    def speed(self) -> float:
        """Recording seconds per second."""
        return self._speed

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._paused_at_ns is not None

    def due_ns(self) -> int | None:
        """When the next Sample is due at the present speed; at once while rushing to where it was moved."""
        with self._lock:
            if self._next is None:
                return None
            now_ns = self._clock.mono_ns()
            if self._rush_until_ns is not None:
                if self._next.mono_ns <= self._rush_until_ns:
                    return now_ns
                self._rush_until_ns = None
                self._anchor()
            if self._paused_at_ns is not None:
                return now_ns + PATIENCE_NS
            return self._anchor_ns + round((self._next.mono_ns - self._anchor_sample_ns) / self._speed)

    def read(self) -> Sample:
        """The next Sample."""
        with self._lock:
            sample = self._next
            if sample is None:
                raise StopIteration
            self._position_ns = sample.mono_ns
            self._next = next(self._samples, None)
            return sample

    def took_jump(self) -> bool:
        """Whether `seek` went backwards since last asked."""
        with self._lock:
            jumped, self._jumped = self._jumped, False
            return jumped

    def set_speed(self, speed: float) -> None:
        """Recording seconds per second, from now on."""
        with self._lock:
            self._speed = speed
            self._anchor()

    def set_paused(self, paused: bool) -> None:  # noqa: FBT001 - the state itself is the argument
        """Stand still, or go on from there."""
        with self._lock:
            self._paused_at_ns = self._clock.mono_ns() if paused else None
            self._anchor()

    def seek(self, delta_ns: int) -> None:
        """Move by so much; what lies before is played at once, so that every figure is what it was live."""
        with self._lock:
            goal_ns = min(max(self._position_ns + delta_ns, self.first_ns), self.last_ns)
            if goal_ns < self._position_ns:
                self._rewind()
                self._jumped = True
            self._rush_until_ns = goal_ns

    def close(self) -> None:
        """Forget the file."""
        self._samples = iter(())

    def _bounds(self) -> tuple[int, int]:
        _, samples = read_trace(self.path)
        first = last = next(samples, None)
        for sample in samples:
            last = sample
        return (first.mono_ns, last.mono_ns) if first is not None and last is not None else (0, 0)

    def _rewind(self) -> None:
        self._header, self._samples = read_trace(self.path)
        self._next = next(self._samples, None)
        self._position_ns = self.first_ns
        self._anchor()

    def _anchor(self) -> None:
        """From now on pace is counted from here."""
        self._anchor_ns = self._clock.mono_ns()
        self._anchor_sample_ns = self._position_ns
