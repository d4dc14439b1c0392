"""How far a warm-up is, from the events it tells; filled by its thread, read by the screen's."""

import enum
import threading

from moewatch.domain.warm import Levels, WarmOutcome, WarmProgress
from moewatch.domain.warm_events import (
    WarmEvent,
    WarmFailed,
    WarmLeft,
    WarmOffer,
    WarmOver,
    WarmProof,
    WarmSaid,
)
from moewatch.units import GIB, MIB, S, format_duration, format_percent, format_size

SPEEDS_KEPT = 600  # one a second
SMALL_BYTES = 8 * GIB  # a model below this is shown in MiB: its parts are hundredths of a GiB


class Stage(enum.Enum):
    """Which page there is to show."""

    LOOKING = "looking"
    OFFERED = "offered"
    REFUSED = "refused"
    FAILED = "failed"
    READING = "reading"
    PROVING = "proving"
    DONE = "done"
    STOPPED = "stopped"


class WarmState:
    """One warm-up, from the first look to the end of the watch."""

    def __init__(self) -> None:
        self.stage = Stage.LOOKING
        self.offer: WarmOffer | None = None
        self.progress: WarmProgress | None = None
        self.outcome: WarmOutcome | None = None
        self.later: Levels | None = None
        self.left_bytes = 0
        self.text = ""  # why it failed, or what came of the watch
        self.said = ""
        self.speeds: list[float] = []  # bytes a second, one a second
        self._spoken_s = 0
        self._lock = threading.Lock()

    @property
    def is_reading(self) -> bool:
        """Whether something would be lost by leaving."""
        return self.stage in (Stage.READING, Stage.PROVING)

    @property
    def unit(self) -> tuple[int, str]:
        """Bytes and name of what the tables are in."""
        size = sum(each.size_bytes for each in self.offer.plan.classes) if self.offer else GIB
        return (GIB, "GiB") if size >= SMALL_BYTES else (MIB, "MiB")

    def take(self, event: WarmEvent) -> None:
        """One event, on the warm-up's thread."""
        with self._lock:
            self._take(event)

    def begin(self) -> None:
        """The person said yes."""
        self.stage = Stage.READING

    def _take(self, event: WarmEvent) -> None:
        match event:
            case WarmOffer():
                self.offer = event
                self.stage = Stage.REFUSED if event.refusal else Stage.OFFERED
            case WarmProgress():
                self.progress, self.stage = event, Stage.READING
                if event.bytes_per_s is not None and event.elapsed_ns // S > self._spoken_s:
                    self._spoken_s = event.elapsed_ns // S
                    self.speeds = [*self.speeds[1 - SPEEDS_KEPT :], event.bytes_per_s]
            case WarmOutcome():
                self.outcome = event
                self.stage = Stage.PROVING if event.stopped is None else Stage.STOPPED
            case WarmProof():
                self.later, self.stage = event.later, Stage.DONE
            case WarmLeft():
                self.left_bytes = event.left_bytes
            case WarmOver():
                self.text, self.left_bytes = event.text, 0
            case WarmFailed():
                self.text, self.stage = event.text, Stage.FAILED
            case WarmSaid():
                self.said = event.text

    def background_text(self) -> str:
        """The line on the dashboard; nothing where there is nothing to say."""
        if self.stage is Stage.PROVING:
            return "Warm: read; looking again in a few seconds whether it stayed. w shows it."
        if self.left_bytes:
            return f"Warm: {format_size(self.left_bytes)} of the model have left memory again; w brings them back."
        if self.stage is not Stage.READING or self.progress is None:
            return ""
        now = self.progress
        left = f", about {about(now.eta_ns)} left" if now.eta_ns is not None else ""
        share = format_percent(now.read_bytes / max(1, now.planned_bytes))
        return f"Warm: {share} % of {format_size(now.planned_bytes)} read{left}. w shows it."


def about(span_ns: int) -> str:
    """`8 s`, `3:12`: no tenths for what is only about right."""
    return format_duration(round(span_ns / S) * S).replace(".0 s", " s") if span_ns > S else "1 s"
