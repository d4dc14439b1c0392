"""The dashboard's figures over time: which there are, their titles, how they share one time axis."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from moewatch.tui.history import COLUMN_NS, Figure, Mark, MarkKind
from moewatch.tui.plots import Plot, Series, canvas_columns, empty_plot, nice_top, sparkline, stacked
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, pad, width_of
from moewatch.tui.viewmodel import View, clock, tokens_text
from moewatch.units import MINUTE, S, format_gib, format_mb, format_percent

BETWEEN = 2  # columns between two plots
SPARK_LABEL = 18  # `AGAIN MB/s  1,270 `
MARKS_SHOWN = 9  # one digit each
LEAST_TOKENS, LEAST_MB, LEAST_FAULTS = 1.0, 10.0, 100.0  # an idle server's axis; noise stays at its foot
_PLOTS_WIDE = 5


def plot_width(width: int) -> int:
    """Columns of one of two plots side by side."""
    return (width - 1 - BETWEEN) // 2


def grid_columns(width: int) -> int:
    """Columns of history in each plot."""
    return canvas_columns(plot_width(width))


def spark_columns(width: int) -> int:
    """Columns of history in a one-line figure."""
    return max(0, width - SPARK_LABEL)


def numbered(view: View, columns: int) -> tuple[list[tuple[int, str]], list[tuple[str, Mark]]]:
    """The marks in view: (column, digit) for the axis, (digit, mark) for the line below it."""
    found = view.history.marks(view.zoom, columns, MARKS_SHOWN)
    return [(at, str(n)) for n, (at, _) in enumerate(found, 1)], [(str(n), m) for n, (_, m) in enumerate(found, 1)]


def column_text(zoom: int) -> str:
    """`10 s`, `1 min`: what one column stands for."""
    width = COLUMN_NS[zoom]
    return f"{width // MINUTE} min" if width >= MINUTE else f"{width // S} s"


def marks_line(view: View, marks: Sequence[tuple[str, Mark]], width: int, *, short: bool = False) -> Row:
    """What the numbers on the time axis are, the newest kept when room is short, and the column's width."""
    right = () if short else (Span(f"one column = {column_text(view.zoom)}", Role.DIM), Span("    +/- ", Role.KEY))
    room = width - width_of(right) - 3
    between = "   " if short else "    "
    texts: list[tuple[str, str]] = []
    used = 0
    minutes = Counter(mark.wall_ns // MINUTE for _, mark in marks)
    for number, mark in reversed(marks):
        text = (
            clean(mark.text) if mark.kind is not MarkKind.GREW or not short else clean(mark.text).removesuffix(" GiB")
        )
        if not short or mark.kind is not MarkKind.STATE:
            text = f"{clock(mark.wall_ns, view.zone, seconds=minutes[mark.wall_ns // MINUTE] > 1)} {text}"
        used += len(number) + 1 + len(text) + len(between)
        if used > room + len(between) and texts:
            break
        texts.insert(0, (number, fit(text, max(4, room - 3), view.glyphs.ellipsis)))
    row: list[Span] = [] if short else [Span(" ")]
    for n, (number, text) in enumerate(texts):
        row.extend((Span(between if n else ""), Span(number, Role.STRONG), Span(f" {text}")))
    if not texts:
        row.append(Span("no marks yet", Role.DIM))
    return apart(row, right, width)


@dataclass(slots=True)
class Plots:
    """The plots with their last pictures."""

    _plots: list[Plot] = field(default_factory=lambda: [Plot() for _ in range(_PLOTS_WIDE)])

    @property
    def drawn(self) -> int:
        """How often plotext drew, over all plots."""
        return sum(plot.drawn for plot in self._plots)

    def grid(self, view: View, width: int, height: int, *, wide: bool) -> list[Row]:
        """Two plots side by side in `height` rows, titles included; five when wide."""
        each = plot_width(width)
        if not wide:
            return _beside(self._tokens(view, each, height), self._disk(view, each, height), each)
        upper = height // 2
        lower = height - upper
        stall = -(-lower // 2)
        left = self._stall(view, each, stall) + self._faults(view, each, lower - stall)
        top = _beside(self._tokens(view, each, upper), self._disk(view, each, upper), each)
        return top + _beside(left, self._memory(view, each, lower), each)

    def sparks(self, view: View, width: int) -> list[Row]:
        """Four figures of one line each, and the marks below them."""
        columns, rates = spark_columns(width), view.frame.rates if view.frame else None
        lines = (
            ("tokens/s", tokens_text(view), Figure.TOKENS, LEAST_TOKENS, Role.LINE),
            ("AGAIN MB/s", format_mb(rates.reread_bytes_per_s if rates else None), Figure.AGAIN, LEAST_MB, Role.AGAIN),
            ("first MB/s", format_mb(rates.first_read_bytes_per_s if rates else None), Figure.FIRST, LEAST_MB, Role.FIRST),
            ("stall %", format_percent(rates.memory_stall_ratio if rates else None), Figure.STALL, 100.0, Role.LINE),
        )  # fmt: skip
        # again and first share one scale, or a trickle would look like a flood
        disk = max(
            nice_top(view.history.columns(f, view.zoom, columns), LEAST_MB) for f in (Figure.AGAIN, Figure.FIRST)
        )
        rows: list[Row] = []
        for label, figure_text, figure, least, role in lines:
            values = view.history.columns(figure, view.zoom, columns)
            top = disk if figure in (Figure.AGAIN, Figure.FIRST) else nice_top(values, least)
            text = f"{label:<11}{view.glyphs.plain(figure_text):>6} "
            rows.append((Span(text, Role.DIM), Span(sparkline(values, top, view.glyphs), role)))
        at, _ = numbered(view, columns)
        line = [" "] * columns
        for column, sign in at:
            line[column] = sign
        if columns >= 8 and not "".join(line[-4:]).strip():  # noqa: PLR2004 - room for ` now`
            line[-4:] = " now"
        rows.append((Span(" " * SPARK_LABEL), Span("".join(line), Role.STRONG)))
        return rows

    def _tokens(self, view: View, width: int, height: int) -> list[Row]:
        columns, glyphs = canvas_columns(width), view.glyphs
        values = view.history.columns(Figure.TOKENS, view.zoom, columns)
        firsts = view.history.columns(Figure.FIRST_TOKEN, view.zoom, columns)
        ticks = [x for x, value in enumerate(firsts) if not math.isnan(value)]
        legend = [Span("tokens/s ", Role.DIM), Span(tokens_text(view), Role.STRONG)]
        seconds = view.frame.rates.first_token_s if view.frame else None
        if ticks and seconds is not None:
            entry = Span(f"  {glyphs.first_answer} first token after {seconds:.1f} s", Role.DIM)
            legend.extend([entry] if width_of((*legend, entry)) < width else [])
        series = (Series(values, glyphs.again, Role.LINE),)
        return self._plot(0, view, width, height, legend, series, nice_top(values, LEAST_TOKENS), ticks)

    def _disk(self, view: View, width: int, height: int) -> list[Row]:
        columns, glyphs = canvas_columns(width), view.glyphs
        rates = view.frame.rates if view.frame else None
        series = (
            Series(view.history.columns(Figure.AGAIN, view.zoom, columns), glyphs.again, Role.AGAIN),
            Series(view.history.columns(Figure.FIRST, view.zoom, columns), glyphs.first, Role.FIRST),
            Series(view.history.columns(Figure.OTHER, view.zoom, columns), glyphs.others, Role.OTHER),
        )
        values = (
            ("AGAIN", rates.reread_bytes_per_s if rates else None),
            ("first", rates.first_read_bytes_per_s if rates else None),
            ("others", rates.other_read_bytes_per_s if rates else None),
        )
        entries = [
            (one, name, glyphs.plain(format_mb(value))) for one, (name, value) in zip(series, values, strict=True)
        ]
        legend = _disk_legend(entries, width)
        return self._plot(1, view, width, height, legend, series, nice_top(stacked(series), LEAST_MB))

    def _stall(self, view: View, width: int, height: int) -> list[Row]:
        values = view.history.columns(Figure.STALL, view.zoom, canvas_columns(width))
        ratio = view.frame.rates.memory_stall_ratio if view.frame else None
        legend = [Span("memory stall % ", Role.DIM), Span(view.glyphs.plain(format_percent(ratio)), Role.STRONG)]
        return self._plot(2, view, width, height, legend, (Series(values, view.glyphs.again, Role.LINE),), 100.0)

    def _faults(self, view: View, width: int, height: int) -> list[Row]:
        values = view.history.columns(Figure.FAULTS, view.zoom, canvas_columns(width))
        rate = view.frame.rates.majflt_per_s if view.frame else None
        text = view.glyphs.dash if rate is None else f"{rate:,.0f}"
        legend = [Span("faults/s that wait for the disk ", Role.DIM), Span(text, Role.STRONG)]
        series = (Series(values, view.glyphs.again, Role.LINE),)
        return self._plot(3, view, width, height, legend, series, nice_top(values, LEAST_FAULTS))

    def _memory(self, view: View, width: int, height: int) -> list[Row]:
        columns, glyphs = canvas_columns(width), view.glyphs
        memory = view.frame.memory if view.frame else None
        series = (
            Series(view.history.columns(Figure.RESIDENT, view.zoom, columns), glyphs.resident, Role.MEMORY),
            Series(view.history.columns(Figure.LIMIT, view.zoom, columns), glyphs.limit, Role.DIM, fill=False),
            Series(view.history.columns(Figure.RSS, view.zoom, columns), glyphs.trace, Role.PLAIN, fill=False),
        )
        top = max((v for one in series for v in one.values if not math.isnan(v)), default=1.0)
        legend = [Span("GiB", Role.DIM)]
        for one, name, size in (
            (series[0], "model", memory.model_resident_bytes if memory else None),
            (series[2], "server's RSS", memory.target_rss_bytes if memory else None),
            (series[1], "limit", memory.limit_bytes if memory else None),
        ):
            legend.extend((Span(f"  {one.sign}", one.role), Span(f" {name} {glyphs.plain(format_gib(size)):<4}")))
        return self._plot(4, view, width, height, legend, series, top)

    def _plot(  # noqa: PLR0917 - private, one call a figure
        self,
        number: int,
        view: View,
        width: int,
        height: int,
        legend: list[Span],
        series: tuple[Series, ...],
        top: float,
        ticks: Sequence[int] = (),
    ) -> list[Row]:
        if view.has_plots:
            marks, _ = numbered(view, canvas_columns(width))
            picture = self._plots[number].rows(
                series, width=width, height=height - 1, top=top, glyphs=view.glyphs, marks=marks, ticks=ticks
            )
        else:
            picture = empty_plot(width, height - 1, view.glyphs)
        indent = max(1, min(_INDENT, width - width_of(legend)))
        return [(Span(" " * indent), *legend), *picture]


_INDENT = 6


def _disk_legend(entries: Sequence[tuple[Series, str, str]], width: int) -> list[Span]:
    """Every sign is named at every width; where room is short only what decides has its figure: all stand below."""
    legend: list[Span] = []
    for title, between, blank, figures in (
        ("disk MB/s", "  ", " ", 3), ("disk MB/s", " ", "", 3), ("disk MB/s", " ", "", 1), ("MB/s", " ", "", 1),
        ("disk MB/s", " ", "", 0),
    ):  # fmt: skip
        legend = [Span(title, Role.DIM)]
        for n, (one, name, value) in enumerate(entries):
            figure = "" if n >= figures else f" {value:<5}"
            legend.extend((Span(between + one.sign, one.role), Span(f"{blank}{name}{figure}")))
        if width_of(legend) < width:
            break
    return legend


def _beside(left: list[Row], right: list[Row], each: int) -> list[Row]:
    gap = Span(" " * BETWEEN)
    return [(*pad(a, each), gap, *pad(b, each)) for a, b in zip(left, right, strict=True)]
