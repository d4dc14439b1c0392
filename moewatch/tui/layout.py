"""Which lines a screen of a given size shows, and where: exactly `height` rows of at most `width` columns."""

from dataclasses import dataclass, field

from moewatch.domain.frame import ExpertMap
from moewatch.tui import bars, expertpage, figures, footlines, viewmodel
from moewatch.tui.expertmap import Look
from moewatch.tui.rows import Role, Row, Span, apart, pad, thin_out, width_of, wrap
from moewatch.tui.viewmodel import View
from moewatch.units import GIB

TINY_COLUMNS, TINY_ROWS = 20, 4  # below, and at just this size: state and tokens/s only
NARROW_COLUMNS = 40  # below: the banner only
MEDIUM_COLUMNS, MEDIUM_ROWS = 80, 24  # from here: two plots
WIDE_COLUMNS, WIDE_ROWS = 120, 36  # from here: five plots
LEAST_PLOT_ROWS = 20  # five plots; what is left is the map's, when all of it fits
NARROW_REMARK, WIDE_REMARK = 3, 2  # lines of a remark that is longer than the screen is wide
TALL_ROWS = 50  # from here the evidence stands below the plots


@dataclass(frozen=True, slots=True)
class Key:
    """A key that works now; the keys' row shows it and a click on it does the same."""

    key: str
    label: str
    action: str
    keep: int = 1  # the larger, the sooner its word goes where there is no room
    is_button: bool = False  # drawn as one, since people look for it who know no key


@dataclass(slots=True)
class Layout:
    """Puts screens together; owns the plots, which remember their last picture."""

    plots: figures.Plots = field(default_factory=figures.Plots)
    _map: tuple[ExpertMap, int, list[Row]] | None = None  # the last map and the rows it made at that width

    def rows(self, view: View, width: int, height: int, keys: tuple[Key, ...] = ()) -> list[Row]:
        """The whole screen."""
        if width < TINY_COLUMNS or height < TINY_ROWS or (width, height) == (TINY_COLUMNS, TINY_ROWS):
            rows = [viewmodel.tiny(view, width)]
        elif width < NARROW_COLUMNS:
            rows = viewmodel.narrow_banner(view, width, height)
            if view.paused_at_ns is not None:
                rows = [viewmodel.title(view, width), *rows]
        elif width < MEDIUM_COLUMNS or height < MEDIUM_ROWS:
            rows = self._narrow(view, width, height, keys)
        else:
            rows = self._medium(view, width, height, keys)
        rows = [pad(row, width) for row in rows[:height]]
        return rows + [pad((), width)] * (height - len(rows))

    def _narrow(self, view: View, width: int, height: int, keys: tuple[Key, ...]) -> list[Row]:
        """40 to 79 columns, or few rows: one line a figure."""
        wide = width >= MEDIUM_COLUMNS
        banner = viewmodel.banner(view, width) if wide else viewmodel.narrow_banner(view, width, 4)
        head = [viewmodel.title(view, width), *banner]
        body: list[tuple[int, Row]] = []  # with the order in which rows leave a low screen, the highest first
        blank: Row = ()
        body.append((9, blank))
        said = footlines.remarks(view)
        if said:
            body.extend((2, (Span(line),)) for line in wrap(said[0], width, NARROW_REMARK, view.glyphs.ellipsis))
        for bar in (bars.memory_bar(view.frame, view.glyphs), bars.model_bar(view.frame, view.summary, view.glyphs)):
            label = f"{bar.label:<5} {_gib(bar):>4} "
            body.append((1, (Span(label, Role.DIM), *bars.cells(bar, width - len(label), view.glyphs))))
            body.append((3, (Span("  "), *bars.legend(bar, width - 2, compact=True))))
        body.append((8, blank))
        body.extend((4 if n < 2 else 5, row) for n, row in enumerate(self.plots.sparks(view, width)))  # noqa: PLR2004 - the first two outlive the rest
        _, marks = figures.numbered(view, figures.spark_columns(width))
        body.append((6, figures.marks_line(view, marks, width, short=True)))
        body.append((6, footlines.not_readable_names(view, width)))
        body.append((7, footlines.own_short(view, figures.column_text(view.zoom), width)))
        rows = [*head, *thin_out(body, height - len(head) - 1)]
        rows.extend([blank] * (height - 1 - len(rows)))
        return [*rows[: height - 1], keys_row(keys, width, spaced=wide)]

    def _medium(self, view: View, width: int, height: int, keys: tuple[Key, ...]) -> list[Row]:
        """80 x 24 and larger: two plots, from 120 x 36 on five."""
        said = footlines.remarks(view)
        wide = width >= WIDE_COLUMNS and height >= WIDE_ROWS
        rows = [viewmodel.title(view, width), *viewmodel.banner(view, width), ()]
        for bar in (bars.memory_bar(view.frame, view.glyphs), bars.model_bar(view.frame, view.summary, view.glyphs)):
            label = f" {bar.label:<5} {_gib(bar):<5}  "
            rows.append((Span(label, Role.DIM), *bars.cells(bar, width - len(label) - 1, view.glyphs)))
            unit = f"{'GiB':>11}   "
            rows.append((Span(unit, Role.DIM), *bars.legend(bar, width - len(unit))))
        rows.append(())
        tail = self._tail(view, width, said, height)
        room = height - len(rows) - len(tail) - 2
        experts = self._experts(view, width) if wide else []
        if len(experts) > room - LEAST_PLOT_ROWS:
            experts = []
        if experts:  # the strip of layers says the same in less
            tail = self._tail(view, width, said, height, has_layers=False)
            room += 1
        rows.extend(self.plots.grid(view, width, room - len(experts), wide=wide))
        columns = figures.grid_columns(width)
        _, marks = figures.numbered(view, columns)
        rows.append(figures.marks_line(view, marks, width))
        return [*rows, *experts, *tail, keys_row(keys, width, spaced=True)]

    def _experts(self, view: View, width: int) -> list[Row]:
        """The map of experts; made anew only for a new map."""
        shown = view.frame.experts if view.frame is not None else None
        if view.frame is None or shown is None:
            return []
        if self._map is None or self._map[0] is not shown or self._map[1] != width:
            look = Look(map=shown, glyphs=view.glyphs, has_shades=view.has_shades, now_ns=view.frame.mono_ns)
            self._map = (shown, width, expertpage.embedded(look, width))
        return self._map[2]

    def _tail(self, view: View, width: int, said: list[str], height: int, *, has_layers: bool = True) -> list[Row]:
        spare = max(0, height - TALL_ROWS)
        shown = 1 + spare // 4
        more = f"  +{len(said) - shown}, a: more" if len(said) > shown else ""
        tail: list[Row] = [()] if not said else []
        for n, text in enumerate(said[:shown], 1):
            rest = more if n == shown else ""
            lines = wrap(text, width - 2 - len(rest), WIDE_REMARK, view.glyphs.ellipsis)
            tail.extend((Span(" " + line), Span("" if m else rest, Role.DIM, "advice")) for m, line in enumerate(lines))
        if spare and view.frame is not None:
            texts = [e.text for e in view.frame.verdict.evidence[: spare // 2] if e.text]
            tail.extend((Span(" why" if not n else "    ", Role.DIM), Span(f"             {view.glyphs.plain(text)}"))
                        for n, text in enumerate(texts))  # fmt: skip
        cost, late = footlines.own(view)
        if has_layers:
            tail.append((Span(" "), *footlines.layers(view, width - 2)))
        tail.append((Span(" "), *footlines.counted(view, width - 2)))
        tail.append((Span(" "), *footlines.lost(view)))
        tail.append((Span(" "), *footlines.not_readable(view, width - 2)))
        tail.append(apart([Span(" "), *cost], late, width - 1))
        return tail


def _gib(bar: bars.Bar) -> str:
    return f"{bar.label_bytes / GIB:,.{bar.decimals}f}" if bar.total_bytes else ""


def keys_row(keys: tuple[Key, ...], width: int, *, spaced: bool) -> Row:
    """The keys that work, each a target for a click; the words go first where they do not all fit."""
    words = {n: key.keep for n, key in enumerate(keys) if key.label}
    while True:
        row: list[Span] = [Span(" ")] if spaced else []
        for n, key in enumerate(keys):
            if n:
                row.append(Span("  " if spaced else " "))
            is_boxed = key.is_button and n in words
            row.append(Span(f"[{key.key}" if is_boxed else key.key, Role.KEY, key.action))
            if n in words:
                row.append(
                    Span(
                        f" {key.label}]" if is_boxed else f" {key.label}",
                        Role.KEY if is_boxed else Role.DIM,
                        key.action,
                    )
                )
        if width_of(row) <= width or not words:
            return tuple(row)
        del words[max(words, key=lambda n: (words[n], n))]
