"""Where the dashboard's events come from and where its intent goes; the command line brings the implementation."""

from collections.abc import Callable
from typing import Protocol

from moewatch.domain.events import Event
from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.warm_events import WarmEvent


class Feed(Protocol):
    """A running watch or a replay; every method may be called from the dashboard's thread and must not block."""

    def start(self, sink: Callable[[Event], None]) -> None:
        """Begin; events are handed to `sink` in order, on a thread of the feed's own."""
        ...

    def stop(self) -> None:
        """End and wait until no more events come; a second call does nothing."""
        ...

    def next_target(self) -> None:
        """Watch the next of the Candidates."""
        ...

    def set_paused(self, paused: bool) -> None:  # noqa: FBT001 - the one thing it says
        """Stop or go on with a replay; a live watch goes on sampling and recording and may ignore it."""
        ...

    def set_speed(self, speed: float) -> None:
        """Replay so many times as fast as it was recorded."""
        ...

    def seek(self, delta_ns: int) -> None:
        """Move a replay by so much of the recording's time, back when negative."""
        ...

    def expert_slices(self, layer: int, expert: int) -> tuple[ExpertSlice, ...]:
        """Where one expert lies and which of its pages are in memory; nothing in a replay. Asked on a worker's thread."""
        ...

    def file_strips(self, stretches: int) -> tuple[FileStrip, ...]:
        """Each of the model's files in so many equal stretches; nothing in a replay. Asked on a worker's thread."""
        ...


class Warmer(Protocol):
    """Warms the model of a live server; every method returns at once, what comes of it is told on a thread of its own."""

    def plan(self, pid: int, tell: Callable[[WarmEvent], None]) -> None:
        """Look and make an offer, or refuse; ends whatever went on before. Reads nothing into memory."""
        ...

    def replan(self, budget_bytes: int) -> None:
        """Another offer, with so much of the model in memory."""
        ...

    def start(self) -> None:
        """Carry the offer out."""
        ...

    def cancel(self) -> None:
        """Stop; what has been read stays in memory."""
        ...

    def save_hot_set(self) -> None:
        """Remember what is in memory now as a hot set of this model."""
        ...

    def save_plan(self) -> None:
        """Write the offer to a file, as `warm --dry-run --json` prints it."""
        ...

    def close(self) -> None:
        """Stop and wait; nothing is told afterwards. A second call does nothing."""
        ...
