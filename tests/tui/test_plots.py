"""Plots are exactly as large as asked, start at zero, and keep again and first apart."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.tui.glyphs import ASCII, BLOCKS, Glyphs
from moewatch.tui.plots import LABEL_WIDTH, Plot, Series, canvas_columns, format_tick, nice_top, sparkline
from moewatch.tui.rows import Role, Row, text_of, width_of

VALUES = st.one_of(st.just(math.nan), st.floats(0, 1e7, allow_nan=False), st.just(0.0))


def draw(again: list[float], first: list[float], *, width: int, height: int, top: float, glyphs: Glyphs) -> list[Row]:
    series = (Series(again, glyphs.again, Role.AGAIN), Series(first, glyphs.first, Role.FIRST))
    return Plot().rows(series, width=width, height=height, top=top, glyphs=glyphs, marks=[(0, "1")])


@settings(max_examples=60)
@given(
    data=st.lists(st.tuples(VALUES, VALUES), max_size=130),
    width=st.integers(1, 120),
    height=st.integers(1, 20),
    least=st.sampled_from([1.0, 10.0, 100.0]),
    glyphs=st.sampled_from([BLOCKS, ASCII]),
)
def test_exactly_as_large_as_asked(
    data: list[tuple[float, float]], width: int, height: int, least: float, glyphs: Glyphs
) -> None:
    again, first = [a for a, _ in data], [f for _, f in data]
    rows = draw(again, first, width=width, height=height, top=nice_top(again + first, least), glyphs=glyphs)
    assert len(rows) == height
    assert {width_of(row) for row in rows} <= {width}


def test_heights_are_true_to_an_eighth_of_a_cell() -> None:
    rows = draw([0, 25, 50, 100, 12.5], [], width=LABEL_WIDTH + 1 + 8, height=5, top=100, glyphs=BLOCKS)
    canvas = [text_of(row)[LABEL_WIDTH + 1 :] for row in rows[:4]]
    assert canvas == ["      █ ", "      █ ", "     ██ ", "    ███▄"]


def test_first_is_stacked_on_again() -> None:
    rows = draw([50] * 8, [50] * 8, width=LABEL_WIDTH + 1 + 8, height=5, top=100, glyphs=BLOCKS)
    canvas = [text_of(row)[LABEL_WIDTH + 1 :] for row in rows[:4]]
    assert canvas == ["░" * 8, "░" * 8, "█" * 8, "█" * 8]
    assert {span.role for span in rows[0]} == {Role.DIM, Role.FIRST}
    assert {span.role for span in rows[3]} == {Role.DIM, Role.AGAIN}


def test_the_axis_starts_at_zero_and_names_its_top() -> None:
    rows = draw([700] * 20, [], width=40, height=6, top=1500, glyphs=BLOCKS)
    assert text_of(rows[0]).startswith(" 1,500┤")
    assert text_of(rows[4]).startswith("     0┤")


def test_the_time_axis_shows_marks_and_what_is_unknown() -> None:
    columns = canvas_columns(30)
    values = [math.nan] * (columns - 5) + [1.0] * 5
    rows = draw(values, [math.nan] * columns, width=30, height=5, top=2, glyphs=BLOCKS)
    assert text_of(rows[-1]) == " " * LABEL_WIDTH + "└1" + "┈" * (columns - 6) + "─" * 5


def test_nothing_is_drawn_again_when_no_cell_changes() -> None:
    plot = Plot()
    for value in (10.0, 10.001, 10.002):
        plot.rows((Series([value], "█", Role.AGAIN),), width=40, height=6, top=20, glyphs=BLOCKS)
    assert plot.drawn == 1
    plot.rows((Series([15.0], "█", Role.AGAIN),), width=40, height=6, top=20, glyphs=BLOCKS)
    assert plot.drawn == 2


def test_neighbours_of_one_role_are_one_span() -> None:
    rows = draw([100] * 50, [], width=57, height=4, top=100, glyphs=BLOCKS)
    assert len(rows[1]) == 2


def test_ticks_fit_their_columns() -> None:
    assert [format_tick(v) for v in (0, 12, 31.2, 1500, 20_000, 2_500_000)] == [
        "0",
        "12",
        "31.2",
        "1,500",
        "20k",
        "2.5M",
    ]


@given(st.lists(VALUES, max_size=50))
def test_the_top_is_round_and_above_all(values: list[float]) -> None:
    top = nice_top(values, 1.0)
    assert all(math.isnan(v) or v <= top * 1.001 for v in values)
    assert len(format_tick(top)) <= LABEL_WIDTH


@given(st.lists(VALUES, max_size=50), st.sampled_from([BLOCKS, ASCII]))
def test_a_sparkline_has_a_sign_a_column(values: list[float], glyphs: Glyphs) -> None:
    assert len(sparkline(values, 10.0, glyphs)) == len(values)
