"""After the proof: what has left is said once for each step, and the first request or the server's end is the end."""

import threading
from collections.abc import Iterable

import pytest

from moewatch.cache.vigil import LEFT_BYTES, LEFT_RATIO, WATCH_NS, WATCH_RESTS, keep_vigil, left_limit
from moewatch.clock import ManualClock
from moewatch.domain.warm_events import WarmLeft, WarmOver
from moewatch.units import GIB, MIB, MS

START = 10 * GIB


class Scripted:
    """One answer a look; the last of them stays."""

    def __init__(self, resident: Iterable[int], busy_at: int | None = None, ended_at: int | None = None) -> None:
        self._resident = list(resident)
        self._busy_at, self._ended_at = busy_at, ended_at
        self.looks = 0

    def resident_bytes(self) -> int:
        self.looks += 1
        return self._resident[min(self.looks, len(self._resident)) - 1]

    def is_busy(self) -> bool | None:
        return None if self._busy_at is None else self.looks >= self._busy_at

    def has_ended(self) -> bool:
        return self._ended_at is not None and self.looks >= self._ended_at


def test_little_that_leaves_is_not_said_and_a_request_ends_it() -> None:
    watched = Scripted([START, START - 100 * MIB], busy_at=3)
    clock = ManualClock()
    assert list(keep_vigil(watched, START, clock)) == [
        WarmOver(text="The first request is here; 100.0 MiB had left by then.")
    ]
    assert clock.mono_ns() == 3 * WATCH_NS


def test_each_further_step_is_said_once() -> None:
    limit = left_limit(START)
    gone = [0, limit, limit + 1, limit + 2, 2 * limit + 1, 2 * limit + 2]
    watched = Scripted([START - each for each in gone], ended_at=len(gone))
    assert list(keep_vigil(watched, START, ManualClock())) == [
        WarmLeft(left_bytes=limit + 1),
        WarmLeft(left_bytes=2 * limit + 2),
        WarmOver(text="The server ended; the pages stay in memory until something needs the room."),
    ]


def test_what_came_in_besides_is_nothing_that_left() -> None:
    assert list(keep_vigil(Scripted([START + GIB], busy_at=1), START, ManualClock())) == [
        WarmOver(text="The first request is here; nothing had left by then.")
    ]


@pytest.mark.parametrize(("resident", "limit"), [(START, int(LEFT_RATIO * START)), (100 * GIB, LEFT_BYTES), (0, 0)])
def test_more_than_a_little_is_a_share_and_never_more_than_a_gib(resident: int, limit: int) -> None:
    assert left_limit(resident) == limit


def test_a_stop_ends_it_without_a_word() -> None:
    stop = threading.Event()
    stop.set()
    watched = Scripted([START])
    assert list(keep_vigil(watched, START, ManualClock(), stop)) == []
    assert not watched.looks


def test_looks_that_cost_much_are_rare() -> None:
    class Costly(Scripted):
        def resident_bytes(self) -> int:
            clock.cpu_ns += 100 * MS
            return super().resident_bytes()

    clock = ManualClock()
    list(keep_vigil(Costly([START], busy_at=3), START, clock))
    assert clock.mono_ns() == WATCH_NS + 2 * WATCH_RESTS * 100 * MS
