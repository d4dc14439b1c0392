"""The map of layers and experts as Rows: two layers a row, a cell for each expert or for several. No Textual, no I/O.

A cell that stands for several experts shows their mean, and the page says for how many it stands.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from moewatch.domain.frame import ExpertMap
from moewatch.tui import shades
from moewatch.tui.glyphs import BLOCKS, Glyphs
from moewatch.tui.rows import Role, Row, Span
from moewatch.tui.shades import Shade
from moewatch.units import MINUTE, S, format_percent

AGAIN_NS = MINUTE  # what was read AGAIN before does not count any more (analysis/experts.py)
MOST_STRETCH = 6  # columns of one expert, however few there are
TICK_COLUMNS = 8  # between two numbers above the map: room for three digits and a gap
SHARE_COLUMNS = 9  # `  55  61 `
LEAST_COLUMNS = 8  # of the map itself; below, the shares at the right give way
HALF = 0.5  # from here a half counts as in memory, or as read again, where there is no shade to say more
CHANGED = 0.25  # of its size came or left since the mark


class Mode(enum.IntEnum):
    """What the cells show."""

    MEMORY = 1
    AGAIN = 2
    CHANGED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A map and how it is looked at; layer and expert are the cursor's, None without one."""

    map: ExpertMap
    mode: Mode = Mode.MEMORY
    mark: ExpertMap | None = None
    layer: int | None = None
    expert: int | None = None
    top: int = 0  # the first row of layers
    zoom: int = 0
    glyphs: Glyphs = BLOCKS
    has_shades: bool = False
    now_ns: int = 0  # mono_ns of the Frame it is looked at in

    @property
    def window_s(self) -> int:
        """Seconds that `again_bytes` are of: a map that has not changed since was read nothing of since."""
        return min(AGAIN_NS, self.map.again_window_ns + max(0, self.now_ns - self.map.seen_ns)) // S

    @property
    def pairs(self) -> int:
        """Rows that the whole map takes."""
        return -(-self.map.n_layer // 2)

    @property
    def is_plain(self) -> bool:
        """Digits in place of half blocks."""
        return self.glyphs.is_plain


@dataclass(frozen=True, slots=True)
class Grid:
    """How experts lie on columns: `per_cell` of them from `first` on share a cell of `stretch` columns."""

    first: int
    per_cell: int
    stretch: int
    cells: int

    def span(self, cell: int, n_expert: int) -> tuple[int, int]:
        """The experts of a cell, end exclusive."""
        start = self.first + cell * self.per_cell
        return start, min(n_expert, start + self.per_cell)

    def cell_of(self, expert: int) -> int:
        """Where an expert lies."""
        return (expert - self.first) // self.per_cell


def lay_out(shown: ExpertMap, columns: int, *, zoom: int = 0, expert: int = 0) -> Grid:
    """All experts side by side; zoomed in only the stretch around one expert, half as many a cell each time."""
    columns = max(1, columns)
    per_cell = max(1, ceil(ceil(shown.n_expert / columns) / 2**zoom))
    at_most = columns * per_cell
    first = 0 if shown.n_expert <= at_most else expert // at_most * at_most
    cells = max(1, -(-min(at_most, shown.n_expert - first) // per_cell))
    return Grid(first, per_cell, max(1, min(MOST_STRETCH, columns // cells)), cells)


def map_columns(shown: ExpertMap, width: int) -> int:
    """Columns for cells, beside the layers' numbers and their shares."""
    room = width - _label_columns(shown)
    return room - SHARE_COLUMNS if room - SHARE_COLUMNS >= LEAST_COLUMNS else room


def map_rows(look: Look, width: int, height: int) -> list[Row]:
    """The experts' numbers, then `height - 1` rows of layers from `look.top` on."""
    shown = look.map
    columns = map_columns(shown, width)
    grid = lay_out(shown, columns, zoom=look.zoom, expert=look.expert or 0)
    has_shares = columns < width - _label_columns(shown)
    columns = grid.cells * grid.stretch
    rows = [_ruler(look, grid, columns, has_shares=has_shares)]
    pairs = range(look.top, min(look.top + height - 1, look.pairs))
    rows.extend(_pair_row(look, grid, pair, has_shares=has_shares) for pair in pairs)
    return rows


class Picture:
    """`map_rows` with its last rows remembered: 8 to 70 ms (measured) are spent on a new map only, not on every Frame."""

    def __init__(self) -> None:
        self._look: Look | None = None
        self._size = (0, 0)
        self._rows: list[Row] = []

    def rows(self, look: Look, width: int, height: int) -> list[Row]:
        """The same rows as long as the map, the mark and what is asked for are the same."""
        old = self._look
        is_same = old is not None and old.map is look.map and old.mark is look.mark
        if not is_same or self._size != (width, height) or _asked(old) != _asked(look):
            self._look, self._size = look, (width, height)
            self._rows = map_rows(look, width, height)
        return self._rows


def _asked(look: Look | None) -> tuple[object, ...]:
    if look is None:
        return ()
    return look.mode, look.layer, look.expert, look.top, look.zoom, look.glyphs.ramp, look.has_shades


def layer_share(shown: ExpertMap, layer: int) -> float | None:
    """Of a layer's experts, in memory; None where it has none, or none that need memory."""
    if not shown.bytes_per_expert[layer] or layer in shown.not_needed_layers:
        return None
    row = shown.resident[layer * shown.n_expert : (layer + 1) * shown.n_expert]
    return sum(row) / (255 * shown.n_expert)


def why_unknown(shown: ExpertMap, layer: int, glyphs: Glyphs) -> str:
    """What stands in place of a layer's share."""
    return "GPU" if layer in shown.not_needed_layers else glyphs.dash


class _Half(NamedTuple):
    """One cell of one layer: its shade, whether it counts where there are no shades, or a sign of its own."""

    shade: Shade = Shade.NONE
    is_on: bool = False
    sign: str = ""
    value: float = 0.0  # for the digits: tenths


def _ruler(look: Look, grid: Grid, columns: int, *, has_shares: bool) -> Row:
    shown = look.map
    line = [" "] * columns
    step = -(-TICK_COLUMNS // grid.stretch)
    for cell in range(0, grid.cells, step):
        at = cell * grid.stretch
        number = str(grid.span(cell, shown.n_expert)[0])
        if at + len(number) <= columns:
            line[at : at + len(number)] = number
    label = f"{'layer':<{_label_columns(shown)}}"
    right = Span(" % in RAM" if has_shares else "", Role.DIM)
    if look.expert is None:
        return (Span(label, Role.DIM), Span("".join(line), Role.DIM), right)
    at = grid.cell_of(look.expert) * grid.stretch
    text = "".join(line)
    arrow = Span(look.glyphs.first_answer, Role.STRONG)
    return (Span(label, Role.DIM), Span(text[:at], Role.DIM), arrow, Span(text[at + 1 :], Role.DIM), right)


def _pair_row(look: Look, grid: Grid, pair: int, *, has_shares: bool) -> Row:
    shown = look.map
    upper, lower = 2 * pair, 2 * pair + 1
    digits = _digits(shown)
    row: list[Span] = []
    for layer in (upper, lower):
        number = f"{layer:0{digits}}" if layer < shown.n_layer else " " * digits
        is_here = layer == look.layer
        row.extend((Span(" "), Span(number, Role.ALARM if is_here else Role.DIM)))
    row.append(Span(" "))
    halves = [_halves(look, grid, layer) if layer < shown.n_layer else None for layer in (upper, lower)]
    cells = _cells(look, grid, halves[0], halves[1])
    if look.expert is not None and look.layer in (upper, lower):
        at = grid.cell_of(look.expert)
        cells[at] = Span(_signs(look, halves, at) * grid.stretch, Role.ALARM)
    row.extend(cells)
    if has_shares:
        texts = [_share_text(shown, layer, look.glyphs) for layer in (upper, lower)]
        row.append(Span(" " + "".join(f"{text:>4}" for text in texts)))
    return tuple(row)


def _share_text(shown: ExpertMap, layer: int, glyphs: Glyphs) -> str:
    if layer >= shown.n_layer:
        return ""
    share = layer_share(shown, layer)
    return why_unknown(shown, layer, glyphs) if share is None else format_percent(share)


def _cells(look: Look, grid: Grid, upper: list[_Half] | None, lower: list[_Half] | None) -> list[Span]:
    """One Span a cell."""
    if upper is None and lower is None:
        return [Span("?" * grid.stretch, Role.DIM)] * grid.cells
    cells = []
    nothing = _Half()
    for n in range(grid.cells):
        above, below = upper[n] if upper else nothing, lower[n] if lower else nothing
        if look.has_shades and not look.is_plain:
            cells.append(shades.cell(above.shade, below.shade, grid.stretch))
            continue
        sign = _signs(look, (upper, lower), n)
        role = Role.AGAIN if sign == "x" or look.mode is Mode.AGAIN else Role.DIM if sign == "-" else Role.MEMORY
        cells.append(Span(sign * grid.stretch, role))
    return cells


def _signs(look: Look, halves: Sequence[list[_Half] | None], cell: int) -> str:
    """The cell of a pair of layers as one sign."""
    known = [half[cell] for half in halves if half]
    if not known:
        return "?"
    on = [bool(half and half[cell].is_on) for half in halves]
    signs = {half.sign for half in known} - {""}
    if "x" in signs or (signs and not any(on)):
        return signs.pop()
    if look.is_plain:
        if look.mode is Mode.CHANGED:
            return "+" if any(on) else "."
        return str(min(9, int(10 * sum(half.value for half in known) / len(known))))
    return " ▄▀█"[2 * on[0] + on[1]]


def _halves(look: Look, grid: Grid, layer: int) -> list[_Half] | None:
    """A layer's cells; None where nothing is known of it."""
    shown = look.map
    size = shown.bytes_per_expert[layer]
    if not size or layer in shown.not_needed_layers:
        return None
    base = layer * shown.n_expert
    spans = [grid.span(cell, shown.n_expert) for cell in range(grid.cells)]
    cuts = [(base + start, base + end) for start, end in spans]
    if look.mode is Mode.CHANGED:
        return [_changed(look, start, end) for start, end in cuts]
    halves = []
    for start, end in cuts:
        again = sum(shown.again_bytes[start:end]) / (size * (end - start))
        if look.mode is Mode.AGAIN:
            halves.append(_Half(shades.again(again), again >= HALF, value=again / 10))
            continue
        share = sum(shown.resident[start:end]) / (255 * (end - start))
        if again >= HALF:
            halves.append(_Half(shades.again(again), share >= HALF, "x", share))
        else:
            halves.append(_Half(shades.memory(share), share >= HALF, value=share))
    return halves


def _changed(look: Look, start: int, end: int) -> _Half:
    mark = look.mark
    if mark is None or len(mark.resident) != len(look.map.resident):
        return _Half()
    by = (sum(look.map.resident[start:end]) - sum(mark.resident[start:end])) / (255 * (end - start))
    if by >= CHANGED:
        return _Half(shades.memory(by), is_on=True)
    return _Half(Shade.LEFT, sign="-") if by <= -CHANGED else _Half()


def _digits(shown: ExpertMap) -> int:
    return max(2, len(str(shown.n_layer - 1)))


def _label_columns(shown: ExpertMap) -> int:
    return 2 * _digits(shown) + 3
