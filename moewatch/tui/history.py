"""What the plots remember: a few figures of every Frame, in columns of five widths, in bounded memory.

Ten figures x five widths x 640 columns of 4-byte floats are 125 KiB, however long the watch lasts: 21 minutes in
columns of 2 s, 53 minutes of 5 s, 1.7 hours of 10 s, 10 hours of a minute, 4 days of ten minutes.
"""

import enum
import math
from array import array
from collections import deque
from dataclasses import dataclass

from moewatch.domain.frame import Frame, Growth, State
from moewatch.units import GIB, MB, S

COLUMN_NS = (2 * S, 5 * S, 10 * S, 60 * S, 600 * S)
ZOOM_DEFAULT = 2  # the 10 s that every displayed rate is taken over
WINDOW_NS = 10 * S
CAPACITY = 640  # columns kept of each width; the widest terminal seen in practice has about 500
MARKS_KEPT = 200
# Wall and monotonic time drift apart by less than this but for a suspend or a clock that was set: NTP slews 0.5 ms/s.
SLEPT_NS = 5 * S
WORST_SEEN_NS = 30 * S  # half of a minute must have been seen before it can be the worst
# A sample that comes late leaves a column without one; up to so many are bridged, as the 10 s window covers them.
BRIDGED = 2

UNKNOWN = math.nan


class Figure(enum.IntEnum):
    """What is plotted, in the unit it is shown in."""

    TOKENS = 0  # per second
    AGAIN = 1  # MB/s
    FIRST = 2  # MB/s
    OTHER = 3  # MB/s
    FAULTS = 4  # per second
    STALL = 5  # percent
    RSS = 6  # GiB
    RESIDENT = 7  # GiB
    LIMIT = 8  # GiB
    FIRST_TOKEN = 9  # seconds, in the column where that token came


class MarkKind(enum.StrEnum):
    """What a numbered mark on the time axis stands for."""

    STATE = "state"
    GREW = "grew"
    USER = "user"
    BREAK = "break"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened, and the column of each width it lies in."""

    columns: tuple[int, ...]
    wall_ns: int
    kind: MarkKind
    text: str


@dataclass(slots=True, kw_only=True)
class WorstMinute:
    """The minute in which most was read again: means over its Frames."""

    wall_ns: int
    again_mb_per_s: float
    tokens_per_s: float


class _Tier:
    """Columns of one width, the newest 640 of them."""

    def __init__(self, width_ns: int) -> None:
        self.width_ns = width_ns
        self.rows = [array("f", [UNKNOWN]) * CAPACITY for _ in Figure]
        self.newest = -1
        self._counts = [0] * len(Figure)
        self._skew = 0
        self._broken = False

    def index_of(self, mono_ns: int) -> int:
        return mono_ns // self.width_ns + self._skew

    def add(self, mono_ns: int, values: tuple[float, ...]) -> None:
        index = self.index_of(mono_ns)
        if self._broken:
            self._broken = False
            if self.newest >= 0 and index < self.newest + 2:
                self._skew += self.newest + 2 - index
                index = self.newest + 2
            self._open(index, bridge=False)
        elif index > self.newest:
            self._open(index, bridge=self.newest >= 0 and index - self.newest - 1 <= BRIDGED)
        at = index % CAPACITY
        averaged = self.width_ns > WINDOW_NS
        for figure, value in enumerate(values):
            if math.isnan(value):
                continue
            row, seen = self.rows[figure], self._counts[figure]
            row[at] = (row[at] * seen + value) / (seen + 1) if averaged and seen else value
            self._counts[figure] = seen + 1

    def _open(self, index: int, *, bridge: bool) -> None:
        first = max(self.newest + 1, index - CAPACITY + 1)
        for column in range(first, index + 1):
            for row in self.rows:
                known = bridge and column < index
                row[column % CAPACITY] = row[self.newest % CAPACITY] if known else UNKNOWN
        self.newest = index
        self._counts = [0] * len(Figure)

    def break_line(self) -> None:
        self._broken = True

    def columns(self, figure: Figure, count: int) -> list[float]:
        row, newest = self.rows[figure], self.newest
        kept = min(count, CAPACITY, newest + 1) if newest >= 0 else 0
        return [UNKNOWN] * (count - kept) + [row[i % CAPACITY] for i in range(newest - kept + 1, newest + 1)]


class History:
    """Every Frame goes in, whatever the screen does meanwhile; the plots take columns out."""

    def __init__(self) -> None:
        self._tiers = tuple(_Tier(width) for width in COLUMN_NS)
        self._marks: deque[Mark] = deque(maxlen=MARKS_KEPT)
        self._last: Frame | None = None
        self._first_mono_ns = 0
        self._grew: set[tuple[int, int]] = set()
        self._minute = -1
        self._sums = [0.0, 0, 0.0, 0]
        self.worst: WorstMinute | None = None

    @property
    def span_ns(self) -> int:
        """Time from the first to the newest Frame: what would be lost."""
        return self._last.mono_ns - self._first_mono_ns if self._last else 0

    def add(self, frame: Frame) -> str | None:
        """Take in a Frame; a sentence when the line breaks before it (the machine slept), else None."""
        last, said, broken = self._last, None, ""
        if last is None:
            self._first_mono_ns = frame.mono_ns
        elif frame.mono_ns < last.mono_ns:
            self.clear()
            self._first_mono_ns, last = frame.mono_ns, None
        elif frame.target.id != last.target.id:
            broken = "new server"
        else:
            slept = (frame.wall_ns - last.wall_ns) - (frame.mono_ns - last.mono_ns)
            if slept > SLEPT_NS:
                said = f"The machine slept {_clock_like(slept)}. Rates start again now."
                broken = "slept"
        if broken:
            self.break_line()
        values = figures_of(frame, last)
        for tier in self._tiers:
            tier.add(frame.mono_ns, values)
        if broken:
            self._add_mark(frame, MarkKind.BREAK, broken)
        self._note_state(frame, last)
        self._note_growth(frame)
        self._note_minute(frame)
        self._last = frame
        return said

    def clear(self) -> None:
        """Forget everything: a replay was wound back."""
        self.__init__()  # type: ignore[misc]  # the empty history is defined in one place

    def mark(self, text: str, kind: MarkKind = MarkKind.USER) -> bool:
        """Put a mark at the newest Frame; False when there is none yet."""
        if self._last is None:
            return False
        self._add_mark(self._last, kind, text)
        return True

    def break_line(self) -> None:
        """The next Frame does not continue the lines."""
        for tier in self._tiers:
            tier.break_line()

    def columns(self, figure: Figure, zoom: int, count: int) -> list[float]:
        """The newest `count` columns of a figure, the newest last, NaN where it is unknown."""
        return self._tiers[zoom].columns(figure, count)

    def marks(self, zoom: int, count: int, most: int = 9) -> list[tuple[int, Mark]]:
        """The newest marks in the last `count` columns, oldest first, each with its column; one mark a column."""
        newest = self._tiers[zoom].newest
        found: dict[int, Mark] = {}
        for mark in self._marks:
            column = mark.columns[zoom] - newest + count - 1
            if 0 <= column < count:
                earlier = found.get(column)
                if earlier is None or _WEIGHT[mark.kind] >= _WEIGHT[earlier.kind]:
                    found[column] = mark
        return sorted(found.items())[-most:]

    def _add_mark(self, frame: Frame, kind: MarkKind, text: str) -> None:
        columns = tuple(tier.index_of(frame.mono_ns) for tier in self._tiers)
        self._marks.append(Mark(columns=columns, wall_ns=frame.wall_ns, kind=kind, text=text))

    def _note_state(self, frame: Frame, last: Frame | None) -> None:
        state = frame.verdict.state
        if last is not None and state is not last.verdict.state and state is not State.UNKNOWN:
            self._add_mark(frame, MarkKind.STATE, state.value if state is not State.STEADY else "OK")

    def _note_growth(self, frame: Frame) -> None:
        for growth in frame.memory.grew:
            key = (growth.pid, growth.since_ns)
            if key not in self._grew:
                self._grew.add(key)
                columns = tuple(tier.index_of(growth.since_ns) for tier in self._tiers)
                wall = growth.since_wall_ns or frame.wall_ns
                text = grown_text(growth)
                self._marks.append(Mark(columns=columns, wall_ns=wall, kind=MarkKind.GREW, text=text))
        if len(self._grew) > MARKS_KEPT:
            self._grew = {(growth.pid, growth.since_ns) for growth in frame.memory.grew}

    def _note_minute(self, frame: Frame) -> None:
        minute = frame.mono_ns // (60 * S)
        if minute != self._minute:
            self._minute, self._sums = minute, [0.0, 0, 0.0, 0]
        rates, sums = frame.rates, self._sums
        if rates.reread_bytes_per_s is not None:
            sums[0] += rates.reread_bytes_per_s / MB
            sums[1] += 1
        if rates.tokens_per_s is not None:
            sums[2] += rates.tokens_per_s
            sums[3] += 1
        if sums[1] * frame.target.interval_ns >= WORST_SEEN_NS:
            again = sums[0] / sums[1]
            if self.worst is None or again > self.worst.again_mb_per_s:
                tokens = sums[2] / sums[3] if sums[3] else UNKNOWN
                self.worst = WorstMinute(wall_ns=frame.wall_ns, again_mb_per_s=again, tokens_per_s=tokens)


_WEIGHT = {MarkKind.USER: 3, MarkKind.BREAK: 2, MarkKind.GREW: 1, MarkKind.STATE: 0}


def grown_text(growth: Growth) -> str:
    """`firefox +6.2 GiB`."""
    return f"{growth.name} +{growth.bytes / GIB:.1f} GiB"


def figures_of(frame: Frame, last: Frame | None) -> tuple[float, ...]:
    """The plotted figures of a Frame, in the order of Figure; NaN where unknown."""
    rates, memory = frame.rates, frame.memory
    new_request = last is not None and rates.first_token_s != last.rates.first_token_s
    return (
        _or_nan(rates.tokens_per_s),
        _or_nan(rates.reread_bytes_per_s, MB),
        _or_nan(rates.first_read_bytes_per_s, MB),
        _or_nan(rates.other_read_bytes_per_s, MB),
        _or_nan(rates.majflt_per_s),
        _or_nan(rates.memory_stall_ratio, 0.01),
        _or_nan(memory.target_rss_bytes, GIB),
        _or_nan(memory.model_resident_bytes, GIB),
        _or_nan(memory.limit_bytes, GIB),
        _or_nan(rates.first_token_s) if new_request else UNKNOWN,
    )


def _or_nan(value: float | None, unit: float = 1.0) -> float:
    return UNKNOWN if value is None else value / unit


def _clock_like(duration_ns: int) -> str:
    minutes, seconds = divmod(duration_ns // S, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
