"""Figures over time, drawn by plotext and handed on as Rows.

plotext 6 places the signs (its C++ core takes 2 ms for a plot of 60 x 12 cells); the colours it prints are not colours
here but the number of a Role, so that one palette serves NO_COLOR, 16 and 256 colours. A plot is drawn again only when
one of its cells changes, which at ten seconds a column is seldom.
"""

import importlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from moewatch.tui.glyphs import Glyphs
from moewatch.tui.rows import Role, Row, Span

LABEL_WIDTH = 6  # `1,500` and a blank before it; the same for all, so that the time axes agree
AXIS_WIDTH = 1
MIN_WIDTH, MIN_HEIGHT = LABEL_WIDTH + AXIS_WIDTH + 8, 3  # below this nothing can be read off
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_SEEN_SHARE = 0.001  # what is less than this of the axis is drawn as nothing
_EIGHTHS = 8  # the ramp's levels
_ROLE_CODE = 100  # plotext's colour number of Role 0; any free stretch of the 256 will do
_PLAIN_AXIS = str.maketrans("│┤", "|+")
_TOKEN = re.compile(r"\x1b\[([\d;]*)m")
_FOREGROUND = re.compile(r"38;5;(\d+)")


class Series(NamedTuple):
    """One figure's columns, NaN where unknown; filled ones are stacked in the order given, the others are points."""

    values: Sequence[float]
    sign: str
    role: Role
    fill: bool = True


def nice_top(values: Sequence[float], least: float) -> float:
    """The upper end of an axis from zero: the next round number."""
    top = max((v for v in values if not math.isnan(v)), default=0.0)
    top = max(top, least)
    scale = 10.0 ** math.floor(math.log10(top))
    return next((step * scale for step in _STEPS if step * scale >= top * 0.9999), 10 * scale)


def format_tick(value: float) -> str:
    """`1,500`, `12`, `31.2`, `20k`: five columns at most."""
    if value >= 1e6:  # noqa: PLR2004 - where the unit changes
        return f"{value / 1e6:g}M"
    if value >= 10_000:  # noqa: PLR2004 - six columns from here
        return f"{value / 1000:g}k"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"  # noqa: PLR2004 - three digits


def stacked(series: Sequence[Series]) -> list[float]:
    """Sums of the filled series by column."""
    filled = [s.values for s in series if s.fill]
    return [sum(v for v in column if not math.isnan(v)) for column in zip(*filled, strict=True)]


class Plot:
    """One plot and its last picture."""

    def __init__(self) -> None:
        self._key: Any = None
        self._rows: list[Row] = []
        self.drawn = 0  # how often plotext was asked, for tests and for the own cost

    def rows(
        self,
        series: Sequence[Series],
        *,
        width: int,
        height: int,
        top: float,
        glyphs: Glyphs,
        marks: Sequence[tuple[int, str]] = (),
        ticks: Sequence[int] = (),
    ) -> list[Row]:
        """Exactly `height` rows of `width` columns: the figure, its axis from zero, and the marks' signs on the axis.

        `marks` are (column, sign) on the time axis, `ticks` are columns that get a sign at the upper edge.
        """
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            return [(Span(" " * width),)] * height
        columns, rows = width - LABEL_WIDTH - AXIS_WIDTH, height - 1
        heights = _levels(series, columns, rows, top)
        key = (width, height, top, heights, tuple(marks), tuple(ticks), glyphs.ramp)
        if key != self._key:
            self._key = key
            self.drawn += 1
            text = _draw(series, heights, columns=columns, rows=rows, top=top, glyphs=glyphs, ticks=ticks)
            if glyphs.ramp[-1] != "█":
                text = text.translate(_PLAIN_AXIS)
            self._rows = [_split(line) for line in text.split("\n")[:rows]]
            self._rows.append(_axis(series, columns, marks, glyphs))
        return self._rows


def load() -> Any:
    """Plotext, at first use: it takes 150 ms and 6 MiB, most of it for its own documentation."""
    return importlib.import_module("plotext")


def empty_plot(width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The axes alone, as long as there is nothing to draw with; the same size as `Plot.rows`."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return [(Span(" " * width),)] * height
    columns = width - LABEL_WIDTH - AXIS_WIDTH
    line = (Span(" " * LABEL_WIDTH), Span("│" if glyphs.ramp[-1] == "█" else "|", Role.DIM), Span(" " * columns))
    return [*[line] * (height - 1), _axis((Series([math.nan] * columns, " ", Role.DIM),), columns, (), glyphs)]


def canvas_columns(width: int) -> int:
    """How many columns of history a plot of this width shows."""
    return max(0, width - LABEL_WIDTH - AXIS_WIDTH)


def _levels(series: Sequence[Series], columns: int, rows: int, top: float) -> tuple[tuple[int, ...], ...]:
    """Per series and column the height in eighths of a cell, the filled ones cumulated; -1 where there is nothing."""
    full = rows * _EIGHTHS
    base = [0] * columns
    levels = []
    for one in series:
        values = list(one.values)[-columns:]
        values = [math.nan] * (columns - len(values)) + values
        if not one.fill:
            levels.append(tuple(-1 if math.isnan(v) else min(full - 1, int(v * full / top)) for v in values))
            continue
        for i, value in enumerate(values):
            if not math.isnan(value) and value >= top * _SEEN_SHARE:
                base[i] = min(full, base[i] + max(1, round(value * full / top)))
        levels.append(tuple(-1 if math.isnan(v) else base[i] for i, v in enumerate(values)))
    return tuple(levels)


def _draw(
    series: Sequence[Series],
    heights: tuple[tuple[int, ...], ...],
    *,
    columns: int,
    rows: int,
    top: float,
    glyphs: Glyphs,
    ticks: Sequence[int],
) -> str:
    """The figure without its time axis, as plotext prints it: y runs in cells, so nothing is rounded twice."""
    plotext: Any = load()
    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(columns + LABEL_WIDTH + AXIS_WIDTH, rows)
    figure.canvas("default")
    points = _Points(figure, plotext)
    filled = [(s, h) for s, h in zip(series, heights, strict=True) if s.fill]
    for n in range(len(filled) - 1, -1, -1):  # from the top of the stack down: what lies lower is drawn over it
        one, levels = filled[n]
        if n == 0:
            points.fill(one, [(x, level // _EIGHTHS) for x, level in enumerate(levels) if level >= _EIGHTHS])
            tops = [(x, lv // _EIGHTHS, glyphs.ramp[lv % _EIGHTHS]) for x, lv in enumerate(levels) if lv % _EIGHTHS]
            points.put(one.role, [top_ for top_ in tops if top_[2] != " " and levels[top_[0]] > 0])
        else:
            below = filled[n - 1][1]
            grown = [(x, lv) for x, (lv, low) in enumerate(zip(levels, below, strict=True)) if lv > max(low, 0)]
            points.fill(one, [(x, round(lv / _EIGHTHS)) for x, lv in grown if lv >= _EIGHTHS // 2])
            if n == 1:  # less than half a cell on the axis itself: a trickle, not a cell
                points.put(one.role, [(x, 0, glyphs.trickle) for x, lv in grown if lv < _EIGHTHS // 2])
    for one, levels in zip(series, heights, strict=True):
        if not one.fill:
            points.put(one.role, [(x, lv // _EIGHTHS, one.sign) for x, lv in enumerate(levels) if lv >= 0])
    points.put(Role.STRONG, [(x, rows - 1, glyphs.first_answer) for x in ticks])
    dim = plotext.pixel(foreground=_ROLE_CODE + Role.DIM)
    labels = [f"{label:>{LABEL_WIDTH}}" for label in ("0", format_tick(top))]
    vertical = figure.ruler("y", "left")
    vertical.lim(0, rows).alignment("edge").ticks([0.5, rows - 0.5], labels).pixel(dim)
    figure.ruler("x", "lower").lim(0, columns).alignment("edge").frequency(0)
    figure.axes(False, axis="x")
    figure.axes(False, axis="y", side="right")
    figure.axes(True, pixel=dim, axis="y", side="left")
    return str(figure.build().string())


class _Points:
    """Signals of the figure being drawn; one marker a sign and role, kept for good."""

    _markers: dict[tuple[str, int], Any] = {}  # noqa: RUF012 - a cache for the life of the process

    def __init__(self, figure: Any, plotext: Any) -> None:
        self._figure, self._plotext = figure, plotext

    def _marker(self, sign: str, role: Role) -> Any:
        key = (sign, int(role))
        if key not in self._markers:
            pixel = self._plotext.pixel(foreground=_ROLE_CODE + role)
            self._markers[key] = self._plotext.marker(sign).fill(pixel)
        return self._markers[key]

    def fill(self, series: Series, tops: list[tuple[int, int]]) -> None:
        """Columns filled with the series' sign from zero up to so many cells."""
        if tops:
            xs, ys = [x + 0.5 for x, _ in tops], [y - 0.5 for _, y in tops]
            signal = self._figure.signal(xs, ys, marker=self._marker(series.sign, series.role))
            self._figure.draw(signal.fillx().density("full"))

    def put(self, role: Role, cells: list[tuple[int, int, str]]) -> None:
        """Single signs."""
        if cells:
            xs, ys = [x + 0.5 for x, _, _ in cells], [y + 0.5 for _, y, _ in cells]
            markers = [self._marker(sign, role) for _, _, sign in cells]
            self._figure.draw(self._figure.signal(xs, ys, marker=markers))


def _split(line: str) -> Row:
    """A line of plotext's output as Spans: its colour numbers are Roles; equal neighbours become one."""
    spans: list[Span] = []
    role = Role.PLAIN
    pieces = _TOKEN.split(line)
    for n, piece in enumerate(pieces):
        if n % 2:  # an escape code's parameters
            found = _FOREGROUND.search(piece)
            if found:
                code = int(found[1]) - _ROLE_CODE
                role = Role(code) if 0 <= code < len(Role) else Role.DIM
            elif piece in ("", "0"):
                role = Role.PLAIN
        elif piece:
            if spans and (spans[-1].role == role or piece.isspace()):
                spans[-1] = Span(spans[-1].text + piece, spans[-1].role)
            else:
                spans.append(Span(piece, role))
    return tuple(spans)


def _axis(series: Sequence[Series], columns: int, marks: Sequence[tuple[int, str]], glyphs: Glyphs) -> Row:
    """The time axis: dotted where nothing is known, with the marks' signs on it."""
    corner, known, unknown = ("└", "─", "┈") if glyphs.ramp[-1] == "█" else ("+", "-", ".")
    filled = [list(s.values)[-columns:] for s in series if s.fill]
    line = [unknown] * columns
    for values in filled:
        offset = columns - len(values)
        for x, value in enumerate(values):
            if not math.isnan(value):
                line[offset + x] = known
    for column, sign in marks:
        line[column] = sign
    spans = [Span(" " * LABEL_WIDTH + corner, Role.DIM)]
    for sign in line:
        role = Role.STRONG if sign.isdigit() else Role.DIM
        if spans[-1].role == role:
            spans[-1] = Span(spans[-1].text + sign, role)
        else:
            spans.append(Span(sign, role))
    return tuple(spans)


def sparkline(values: Sequence[float], top: float, glyphs: Glyphs) -> str:
    """One row: eight heights a column, `?` where a figure is unknown between known ones, the lowest for zero."""
    out = []
    seen = False
    for value in values:
        if math.isnan(value):
            out.append("?" if seen else " ")
        else:
            seen = True
            out.append(glyphs.ramp[max(1, min(_EIGHTHS, math.ceil(value * _EIGHTHS / top)))])
    return "".join(out)
