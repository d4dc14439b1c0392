"""After the proof: watch that what was warmed stays, until the first request or the server's end."""

import threading
from collections.abc import Iterator
from typing import Protocol

from moewatch.clock import Clock
from moewatch.domain.warm_events import WarmLeft, WarmOver
from moewatch.units import GIB, S, format_size

WATCH_NS, WATCH_RESTS = S, 50  # every second, 2 % of a core at most
LEFT_BYTES, LEFT_RATIO = GIB, 0.05  # more than a little has left: so much, or so much of what was there


class Watched(Protocol):
    """What the vigil looks at."""

    def resident_bytes(self) -> int:
        """How much of the model is in memory now."""
        ...

    def is_busy(self) -> bool | None:
        """Whether a request is in work; None when unknown."""
        ...

    def has_ended(self) -> bool:
        """Whether the server is gone."""
        ...


def left_limit(resident_bytes: int) -> int:
    """Bytes: when more than this has left, it is said."""
    return min(LEFT_BYTES, int(LEFT_RATIO * resident_bytes))


def keep_vigil(
    watched: Watched, start_bytes: int, clock: Clock, stop: threading.Event | None = None
) -> Iterator[WarmLeft | WarmOver]:
    """Tell each time that more than a little has left since `start_bytes`; the last event, unless stopped, is a WarmOver."""
    limit, told = left_limit(start_bytes), 0
    wait_ns = WATCH_NS
    while not clock.sleep_until(clock.mono_ns() + wait_ns, stop):
        began_ns = clock.thread_cpu_ns()
        left = max(0, start_bytes - watched.resident_bytes())
        wait_ns = max(WATCH_NS, WATCH_RESTS * (clock.thread_cpu_ns() - began_ns))
        if left > told + limit:
            told = left
            yield WarmLeft(left_bytes=left)
        if watched.is_busy():
            gone = format_size(left) if left else "nothing"
            yield WarmOver(text=f"The first request is here; {gone} had left by then.")
            return
        if watched.has_ended():
            yield WarmOver(text="The server ended; the pages stay in memory until something needs the room.")
            return
