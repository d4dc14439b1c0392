"""The plots' memory: nothing lost, bounded, broken where the line must not go on."""

import math
from array import array

import msgspec
import pytest

from moewatch.domain.frame import Frame
from moewatch.tui.history import CAPACITY, COLUMN_NS, Figure, History, MarkKind
from moewatch.units import HOUR, S
from tests.support.frames import design_frame, run, with_parts


def at(second: float, slept_s: float = 0.0, **rates: float | None) -> Frame:
    base = design_frame()
    frame = with_parts(base, rates=rates) if rates else base
    mono, wall = int(second * S), base.wall_ns + int((second + slept_s) * S)
    return with_parts(msgspec.structs.replace(frame, mono_ns=mono, wall_ns=wall), memory={"grew": ()})


def fill(history: History, seconds: range, **rates: float | None) -> None:
    for second in seconds:
        history.add(at(second, 0.0, **rates))


def test_a_column_of_ten_seconds_is_the_rate_over_its_ten_seconds() -> None:
    history = History()
    for second in range(20, 40):
        history.add(at(second, tokens_per_s=float(second)))
    assert history.columns(Figure.TOKENS, 2, 2) == [29.0, 39.0]


def test_a_column_of_a_minute_is_the_mean() -> None:
    history = History()
    for second in range(60):
        history.add(at(second, tokens_per_s=float(second)))
    assert history.columns(Figure.TOKENS, 3, 1)[0] == pytest.approx(29.5)


def test_unknown_stays_unknown() -> None:
    history = History()
    fill(history, range(10), tokens_per_s=None)
    assert math.isnan(history.columns(Figure.TOKENS, 2, 1)[0])


def test_late_samples_leave_no_hole_but_a_stop_does() -> None:
    history = History()
    for second in (0, 1, 2, 26, 27, 90):
        history.add(at(second, tokens_per_s=5.0))
    columns = history.columns(Figure.TOKENS, 2, 10)
    assert columns[:3] == [5.0, 5.0, 5.0]
    assert all(math.isnan(v) for v in columns[3:9])
    assert columns[9] == 5.0


def test_a_restart_breaks_the_line() -> None:
    history = History()
    fill(history, range(20), tokens_per_s=5.0)
    frame = at(20, tokens_per_s=5.0)
    target = msgspec.structs.replace(frame.target, id="48990:7", pid=48990)
    history.add(msgspec.structs.replace(frame, target=target))
    columns = history.columns(Figure.TOKENS, 2, 4)
    assert [math.isnan(v) for v in columns] == [False, False, True, False]
    assert [m.kind for _, m in history.marks(2, 4)] == [MarkKind.BREAK]
    assert history.marks(2, 4)[0][0] == 3


def test_a_sleep_breaks_the_line_and_is_said() -> None:
    history = History()
    fill(history, range(20), tokens_per_s=5.0)
    said = history.add(at(20, slept_s=6130, tokens_per_s=5.0))
    assert said == "The machine slept 1:42:10. Rates start again now."
    assert math.isnan(history.columns(Figure.TOKENS, 2, 2)[0])


def test_going_back_in_a_recording_starts_afresh() -> None:
    history = History()
    fill(history, range(100, 200), tokens_per_s=5.0)
    history.add(at(50, tokens_per_s=3.0))
    known = [v for v in history.columns(Figure.TOKENS, 2, 40) if not math.isnan(v)]
    assert known == [3.0]
    assert history.span_ns == 0


def test_a_day_at_one_hertz_stays_small() -> None:
    history = History()
    frame = design_frame()
    for second in range(0, 24 * 3600, 7):
        history.add(msgspec.structs.replace(frame, mono_ns=second * S, wall_ns=frame.wall_ns + second * S))
    size = sum(row.itemsize * len(row) for tier in history._tiers for row in tier.rows)
    assert all(isinstance(row, array) and len(row) == CAPACITY for tier in history._tiers for row in tier.rows)
    assert size <= 128 * 1024
    assert len(history._marks) <= 200
    assert history.span_ns > 23.9 * HOUR


def test_marks_are_where_they_happened() -> None:
    history = History()
    for frame in run(600, squeeze_at=300):
        history.add(frame)
    marks = history.marks(2, 100)
    kinds = [mark.kind for _, mark in marks]
    assert MarkKind.GREW in kinds
    grew = next(at_ for at_, mark in marks if mark.kind is MarkKind.GREW)
    assert grew == 100 - 1 - 30
    assert next(mark.text for _, mark in marks if mark.kind is MarkKind.GREW) == "firefox +6.2 GiB"
    assert [mark.text for _, mark in marks if mark.kind is MarkKind.STATE] == ["OK", "thrashing"]


def test_a_users_mark_needs_a_frame() -> None:
    history = History()
    assert not history.mark("x")
    fill(history, range(3))
    assert history.mark("x")
    assert history.marks(0, 5)[-1][1].text == "x"


def test_the_worst_minute_is_the_one_with_most_read_again() -> None:
    history = History()
    fill(history, range(60), reread_bytes_per_s=1e6, tokens_per_s=9.0)
    fill(history, range(60, 120), reread_bytes_per_s=900e6, tokens_per_s=3.0)
    fill(history, range(120, 240), reread_bytes_per_s=2e6, tokens_per_s=9.0)
    assert history.worst is not None
    assert history.worst.again_mb_per_s == pytest.approx(900)
    assert history.worst.tokens_per_s == pytest.approx(3.0)


@pytest.mark.parametrize("zoom", range(len(COLUMN_NS)))
def test_every_width_gives_as_many_columns_as_asked(zoom: int) -> None:
    history = History()
    fill(history, range(100))
    assert len(history.columns(Figure.AGAIN, zoom, 57)) == 57
    assert len(history.columns(Figure.AGAIN, zoom, CAPACITY + 50)) == CAPACITY + 50
