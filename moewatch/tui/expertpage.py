"""The page `what is in memory`: the map, its legend, one expert under the cursor, and the files by offset. No Textual."""

import heapq
from dataclasses import dataclass, field
from datetime import tzinfo

from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.frame import ExpertMap, Frame
from moewatch.tui import shades
from moewatch.tui.expertmap import Look, Mode, Picture, lay_out, layer_share, map_columns, map_rows
from moewatch.tui.glyphs import BLOCKS, Glyphs
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, pad, width_of, wrap
from moewatch.tui.shades import Shade
from moewatch.tui.viewmodel import clock
from moewatch.units import GIB, MB, S, format_mb, format_percent, format_size

UNCHANGED_NS = 10 * S  # while anything moves a map comes every 5 s (linux/scanner.py)
LEFT_LONG_AGO_S = 255  # as in ExpertMap.left_s
TINY_COLUMNS, TINY_ROWS = 30, 5  # below: the expert under the cursor only
MEDIUM_COLUMNS, ROOMY_COLUMNS = 70, 90  # from here lines say more, and spell it out
FEW_PAIRS = 4  # the map keeps so many rows before other lines give way
LEAST_STRIP = 8  # columns of a strip that says anything
LIST_HEADING = "layer expert      MB   x size   in memory"
LIST_COLUMNS = len(LIST_HEADING) + 2
STRIP_LABEL = 15  # columns before a strip of a file
STATEMENT_LINES = 3
LINES_PER_FILE = 16
_SHORT_MODES = {Mode.MEMORY: "in memory", Mode.AGAIN: "read AGAIN", Mode.CHANGED: "came in"}
_NOT_ROUTING = "What is in memory; not what the router chose."
PARTS_SHOWN = 4  # tensors of one expert


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What stands beside the map."""

    frame: Frame
    said: str = ""  # the answer to a key
    marked_wall_ns: int | None = None
    strips: tuple[FileStrip, ...] = ()
    parts: tuple[ExpertSlice, ...] = ()  # of the expert under the cursor
    picture: Picture = field(default_factory=Picture)
    zone: tzinfo | None = None


def rooms(look: Look, height: int) -> tuple[int, int]:
    """(rows of layers shown, rows below them for lists); the legend gives way before the map."""
    fixed = 6 if height >= 6 + FEW_PAIRS else 4 if height >= 4 + FEW_PAIRS else 3
    shown = max(1, min(look.pairs, height - fixed))
    return shown, max(0, height - fixed - shown)


def file_cells(look: Look, width: int, height: int, files: int) -> int:
    """Into how many stretches each file is cut; 0 where there is no room for files."""
    lines = _file_lines(rooms(look, height)[1], files)
    return lines * max(0, width - STRIP_LABEL - 1)


def page(look: Look, around: Around, width: int, height: int) -> list[Row]:
    """Exactly `height` rows of `width` columns."""
    if width < TINY_COLUMNS or height < TINY_ROWS:
        rows: list[Row] = [(Span(_inspected(look, around, width)),)]
    else:
        shown, spare = rooms(look, height)
        rows = [_title(look, around, width), *around.picture.rows(look, width, shown + 1)]
        if height >= 4 + FEW_PAIRS:
            rows.append(_legend(look, width))
        if height >= 6 + FEW_PAIRS:
            # where no file is drawn below, whose strips are cut to the room there is, the sentence may take more lines
            more = 0 if _has_files(around, width, spare) else min(STATEMENT_LINES - 1, spare)
            said = _statement(look, around, width, 1 + more)
            rows.extend(said)
            spare -= len(said) - 1
        rows.extend(_below(look, around, width, spare))
        rows.append((Span(_inspected(look, around, width)),))
        rows.append(_keys(look, width))
        if height < 4 + FEW_PAIRS:
            rows.pop(0)
    rows = [pad(row, width) for row in rows[:height]]
    return rows + [pad((), width)] * (height - len(rows))


def embedded(look: Look, width: int) -> list[Row]:
    """The map on the dashboard: how to read it, and all its rows; beside it the experts read again most, if they fit."""
    heading: list[Span] = [Span(" experts", Role.DIM), *_legend(look, width - 20)]
    more = (Span("e: more ", Role.DIM, "experts"),)
    rows = map_rows(look, width, look.pairs + 1)
    taken = width_of(rows[-1]) + 4
    if width - taken >= LIST_COLUMNS:
        listed = _most_read(look, len(rows) - 2)
        beside = [_most_heading(look), LIST_HEADING if listed else "none was seen", *listed]
        rows = [
            (*pad(row, taken), Span(text, Role.DIM if n < 2 else Role.PLAIN))  # noqa: PLR2004 - two headings
            for n, (row, text) in enumerate(zip(rows, [*beside, *[""] * len(rows)], strict=False))
        ]
    return [apart(heading, more, width), *rows]


def empty_page(
    frame: Frame | None, width: int, height: int, glyphs: Glyphs = BLOCKS, *, is_replay: bool = False
) -> list[Row]:
    """There is no map: why."""
    reason = "nothing has been read yet"
    text = ""
    if frame is not None:
        why = next((gap.detail or gap.reason.value for gap in frame.gaps if gap.field.startswith("residency")), "")
        has_experts = frame.model is None or bool(frame.model.n_expert)
        reason = clean(why) or ("not seen yet" if has_experts else "this model has no routed experts")
        if is_replay and has_experts and not why:
            text = " This recording holds no map of experts up to here."
    rows: list[Row] = [
        (Span(" what is in memory", Role.STRONG),),
        (),
        (Span(fit(glyphs.plain(text or f" No map of experts: {reason}."), width, glyphs.ellipsis)),),
        (),
    ]
    rows.append((Span(" Esc", Role.KEY, "close"), Span(" back", Role.DIM, "close")))
    rows = [pad(row, width) for row in rows[:height]]
    return rows + [pad((), width)] * (height - len(rows))


def _title(look: Look, around: Around, width: int) -> Row:
    shown, glyphs = look.map, look.glyphs
    grid = lay_out(shown, map_columns(shown, width), zoom=look.zoom, expert=look.expert or 0)
    sizes = sorted({size for size in shown.bytes_per_expert if size})
    each = (
        ""
        if not sizes
        else f", {format_size(sizes[0])}" + (" each" if len(sizes) == 1 else f" to {format_size(sizes[-1])}")
    )
    cell = "1 expert" if grid.per_cell == 1 else f"{grid.per_cell} experts"
    unit = "a cell = 2 layers of" if look.is_plain else "half a cell ="
    age = _age_s(around.frame, shown)
    seen = Span(f"seen {age} s ago", Role.DIM)
    about = f"{shown.n_layer} layers x {shown.n_expert} experts{each}"
    texts = (
        f" what is in memory {glyphs.dot} {about} {glyphs.dot} {unit} {cell}",
        f" {about} {glyphs.dot} {unit} {cell}",
        f" {shown.n_layer} x {shown.n_expert} {glyphs.dot} {unit} {cell}",
        f" {unit} {cell}",
    )
    room = width - len(seen.text) - 2
    return apart(
        (Span(next((t for t in texts if len(t) <= room), fit(texts[-1], room, glyphs.ellipsis)), Role.STRONG),),
        (seen,),
        width,
    )


def _age_s(frame: Frame, shown: ExpertMap) -> int:
    """Seconds since it was looked at; a map that stays the same is not told again, and only the scan has an age then."""
    age_ns = max(0, frame.mono_ns - shown.seen_ns)
    if age_ns > UNCHANGED_NS and frame.residency.age_ns is not None:
        age_ns = min(age_ns, frame.residency.age_ns)
    return age_ns // S


def _legend(look: Look, width: int) -> Row:
    window = f"{look.window_s} s"
    if look.is_plain:
        texts = {
            Mode.MEMORY: f"0 to 9: tenths in memory   x: half or more read AGAIN in {window}   ?: not known",
            Mode.AGAIN: f"0 to 9: times its size read AGAIN in {window}   ?: not known",
            Mode.CHANGED: "+ came into memory since the mark   - left it   . as it was   ?: not known",
        }
        return (Span(" "), Span(fit(texts[look.mode], width - 1, "~"), Role.DIM))
    signs = _shade_legend(look, window, width) if look.has_shades else _sign_legend(look, window, width)
    row: list[Span] = [Span(" ")]
    for entry in signs:  # whole entries only: a legend that is cut in a word explains nothing
        if width_of((*row, *entry)) <= width:
            row.extend(entry)
    return tuple(row)


def _sign_legend(look: Look, window: str, width: int) -> list[list[Span]]:
    role = Role.AGAIN if look.mode is Mode.AGAIN else Role.MEMORY
    if width < MEDIUM_COLUMNS:
        entries = [[Span("▀▄█", role), Span(f" {_SHORT_MODES[look.mode]}", Role.DIM)]]
    else:
        what = {
            Mode.MEMORY: "half or more in memory",
            Mode.AGAIN: f"half or more of its size read AGAIN in {window}",
            Mode.CHANGED: "came in since the mark",
        }[look.mode]
        signs = (("▀", "upper layer "), ("▄", "lower "), ("█", f"both: {what}"))
        entries = [[Span(sign, role), Span(f" {name}", Role.DIM)] for sign, name in signs]
    if look.mode is Mode.MEMORY:
        entries.append([Span("  x", Role.AGAIN), Span(f" read AGAIN <{window}", Role.DIM)])
    if look.mode is Mode.CHANGED:
        entries.append([Span("  -", Role.DIM), Span(" left", Role.DIM)])
    return entries


def _shade_legend(look: Look, window: str, width: int) -> list[list[Span]]:
    swatches = [shades.cell(shade, shade) for shade in Shade]
    memory = swatches[Shade.MEMORY_1 : Shade.MEMORY_4 + 1]
    entries = [[Span("upper and lower half: two layers  ", Role.DIM)]] if width >= ROOMY_COLUMNS else []
    if look.mode is Mode.MEMORY:
        entries.append([*memory, Span(" share in memory  " if width >= ROOMY_COLUMNS else " in memory  ", Role.DIM)])
        entries.append([*swatches[Shade.AGAIN_2 : Shade.AGAIN_4 + 1], Span(f" read AGAIN, {window}", Role.DIM)])
    elif look.mode is Mode.AGAIN:
        more = ": <half, half, 1x, 2x its size" if width >= MEDIUM_COLUMNS else ""
        again = swatches[Shade.AGAIN_1 : Shade.AGAIN_4 + 1]
        entries.append([*again, Span(f" read AGAIN in {window}{more}", Role.DIM)])
    else:
        entries.append([*memory, Span(" came since the mark  ", Role.DIM)])
        entries.append([swatches[Shade.LEFT], Span(" left", Role.DIM)])
    return entries


def _statement(look: Look, around: Around, width: int, lines: int) -> list[Row]:
    """How even the use is, or what this map is not; the answer to a key goes first."""
    text, role = f"{_NOT_ROUTING} What is used and not in memory shows as read AGAIN.", Role.DIM
    if around.frame.skew is not None:
        text, role = around.frame.skew.text, Role.PLAIN
    if look.mode is Mode.CHANGED:
        text = "No mark yet: m marks what is in memory now; then this shows what came and what left."
        if around.marked_wall_ns is not None:
            text = f"Since the mark at {clock(around.marked_wall_ns, around.zone)}: {_moved(look)}."
    if around.said:
        text, role = around.said, Role.PLAIN
    if lines == 1 and width_of((Span(text),)) > width - 2 and text.startswith(_NOT_ROUTING):
        text = _NOT_ROUTING
    wrapped = wrap(look.glyphs.plain(text), width - 2, lines, look.glyphs.ellipsis)
    return [(Span(" "), Span(line, role)) for line in wrapped]


def _moved(look: Look) -> str:
    if look.mark is None or len(look.mark.resident) != len(look.map.resident):
        return "of another model, nothing to compare"
    came = left = 0
    for layer, size in enumerate(look.map.bytes_per_expert):
        if layer_share(look.map, layer) is None:
            continue
        cut = slice(layer * look.map.n_expert, (layer + 1) * look.map.n_expert)
        for now, then in zip(look.map.resident[cut], look.mark.resident[cut], strict=True):
            if now > then:
                came += (now - then) * size
            else:
                left += (then - now) * size
    return f"{format_size(came // 255)} came into memory, {format_size(left // 255)} left it"


def _inspected(look: Look, around: Around, width: int) -> str:
    """`L17 e042 ▸ 61 % of 12.6 MiB · again at least 74 MB in 60 s, 5.6 x its size`, and what else has room."""
    shown, glyphs = look.map, look.glyphs
    layer, expert = look.layer or 0, look.expert or 0
    size = shown.bytes_per_expert[layer]
    parts = [f" {_name(look)} {glyphs.pointer} "]
    share = shown.share(layer, expert)
    if share is None:
        why = (
            "on the GPU: it needs no memory" if layer in shown.not_needed_layers else "this layer has no routed experts"
        )
        return fit(parts[0] + why, width, glyphs.ellipsis)
    cell = layer * shown.n_expert + expert
    parts[0] += f"{format_percent(share)} % of {format_size(size)}"
    again = shown.again_bytes[cell]
    if again:
        times = again / size
        parts.append(
            f"again at least {format_mb(again)} MB in {look.window_s} s, {times:.1f} {glyphs.plain('×')} its size"  # noqa: RUF001 - the sign of the design
        )
    else:
        parts.append(f"not seen read AGAIN in {look.window_s} s")
    left = shown.left_s[cell]
    at_left = len(parts)
    if left < LEFT_LONG_AGO_S:
        parts.append(f"last left memory {clock(shown.seen_wall_ns - left * S, around.zone)}")
    if around.parts:
        first = around.parts[0]
        parts.append(f"{_short(first.tensor)} at {first.offset / GIB:,.2f} GiB of {clean(first.file)}")
    if left < LEFT_LONG_AGO_S and len(f" {glyphs.dot} ".join(parts)) > width:
        parts[at_left] = parts[at_left].removeprefix("last ").replace("left memory", "left")
    text = parts[0]
    for part in parts[1:]:
        if len(text) + 3 + len(part) <= width:
            text += f" {glyphs.dot} {part}"
    return fit(text, width, glyphs.ellipsis)


def _name(look: Look) -> str:
    """`L17 e042`: the expert under the cursor."""
    digits = max(2, len(str(look.map.n_expert - 1)))
    return f"L{look.layer or 0:02} e{look.expert or 0:0{digits}}"


def _short(tensor: str) -> str:
    """`ffn_gate_exps`: the layer stands beside it."""
    return clean(tensor).removesuffix(".weight").rpartition(".")[2]


def _keys(look: Look, width: int) -> Row:
    """The keys of this page; the mode that is shown is marked."""
    glyphs = look.glyphs
    entries = [
        (glyphs.plain("←↑↓→"), ("move", "", ""), "", False),
        ("1", ("in memory", "in memory", "memory"), "mode(1)", look.mode is Mode.MEMORY),
        ("2", ("read again", "read again", "again"), "mode(2)", look.mode is Mode.AGAIN),
        ("3", ("changed since mark", "changed", "new"), "mode(3)", look.mode is Mode.CHANGED),
        ("m", ("mark", "mark", ""), "mark", False),
        ("+/-", ("zoom", "zoom", ""), "", False),
        ("Esc", ("back", "back", ""), "close", False),
    ]
    if look.map.n_expert <= map_columns(look.map, width):
        entries = [entry for entry in entries if entry[0] != "+/-"]
    row: list[Span] = []
    for length, between in enumerate(("  ", "  ", " ")):
        row = [Span(" ")]
        for key, labels, action, is_chosen in entries:
            label = labels[length]
            word = f" {label}" if label else ""
            row.append(Span(key + word if is_chosen else key, Role.ALARM if is_chosen else Role.KEY, action))
            row.append(Span(between if is_chosen else word + between, Role.DIM, action))
        row[-1] = row[-1]._replace(text=row[-1].text.rstrip())
        if width_of(row) <= width:
            break
    return tuple(row)


# --- below the map -----------------------------------------------------------------------------------------------


def _below(look: Look, around: Around, width: int, spare: int) -> list[Row]:
    """The experts read again most, one expert's pages, and the files; as far as there is room."""
    files = _file_rows(look, around, width, _file_lines(spare, len(around.strips)))
    pages = _part_rows(look, around, width) if files else []
    room = spare - len(files) - len(pages)
    rows = _most(look, width, room)
    rows = [*rows, *pages, *files]
    return rows + [()] * (spare - len(rows)) if len(rows) <= spare else rows[:spare]


def _most(look: Look, width: int, room: int) -> list[Row]:
    """`read again most`: a blank, the heading, then the experts."""
    heading = f" {_most_heading(look)}"
    if room < 3 or width < len(heading) + LIST_COLUMNS:  # noqa: PLR2004 - a blank, the heading and one line
        return []
    listed = _most_read(look, room - 2)
    if not listed:
        return [(), (Span(f" Nothing was seen read AGAIN in {look.window_s} s.", Role.DIM),)]
    indent = " " * (len(heading) + 4)
    rows: list[Row] = [(), (Span(f"{heading}    ", Role.DIM), Span(LIST_HEADING, Role.DIM))]
    return [*rows, *((Span(indent + line),) for line in listed)]


def _most_heading(look: Look) -> str:
    return f"read again most, {look.window_s} s, at least"


def _most_read(look: Look, count: int) -> list[str]:
    """The experts of which most was read again, at most so many, under LIST_HEADING."""
    shown = look.map
    again = shown.again_bytes
    lines = []
    for cell in heapq.nlargest(count, filter(again.__getitem__, range(len(again))), key=again.__getitem__):
        layer, expert = divmod(cell, shown.n_expert)
        times = again[cell] / shown.bytes_per_expert[layer] if shown.bytes_per_expert[layer] else 0.0
        share = format_percent(shown.share(layer, expert))
        lines.append(f"{layer:>5} {expert:>6} {again[cell] / MB:>7,.0f} {times:>8.1f} {share:>9} %")
    return lines


def _file_lines(spare: int, files: int) -> int:
    """Lines of each file's strip; the list of experts comes first."""
    room = spare - 3 - PARTS_SHOWN - 2 - 3  # its own heading, one expert's pages, and a short list
    if files == 0 or room < files:
        return 0
    return min(LINES_PER_FILE, room // files)


def _has_files(around: Around, width: int, spare: int) -> bool:
    """Whether the files are drawn."""
    return bool(_file_lines(spare, len(around.strips))) and width - STRIP_LABEL - 1 >= LEAST_STRIP


def _file_rows(look: Look, around: Around, width: int, lines: int) -> list[Row]:
    """Every file from its first byte to its last, as a defragmenter shows a disk."""
    columns = width - STRIP_LABEL - 1
    if not lines or columns < LEAST_STRIP:
        return []
    rows: list[Row] = [()]
    for number, strip in enumerate(around.strips, 1):
        stretch = strip.size_bytes / max(1, len(strip.shares))
        if number == 1:
            text = f" the files by offset, one sign = {format_size(round(stretch))}, {clean(strip.name)}"
            rows.append((Span(fit(text, width, look.glyphs.ellipsis), Role.DIM),))
        step = columns * stretch / GIB
        decimals = next((d for d in (1, 2, 3) if step >= 0.1**d), 4)  # no two lines begin with the same figure
        for start in range(0, len(strip.shares), columns):
            label = f" {number}  {start * stretch / GIB:>6,.{decimals}f} GiB"
            cells = [_strip_cell(look, share) for share in strip.shares[start : start + columns]]
            rows.append((Span(f"{label:<{STRIP_LABEL}}", Role.DIM), *cells))
    return rows


def _strip_cell(look: Look, share: int) -> Span:
    if look.has_shades and not look.is_plain:
        shade = shades.memory(share / 255)
        return shades.cell(shade, shade) if shade else Span(look.glyphs.disk, Role.DIM)
    level = look.glyphs.ramp[min(8, -(-share * 8 // 255))]
    return Span(level, Role.MEMORY) if share else Span(look.glyphs.disk, Role.DIM)


def _part_rows(look: Look, around: Around, width: int) -> list[Row]:
    """The expert under the cursor page by page: a strip for each of its tensors."""
    columns = width - 46
    if not around.parts or columns < LEAST_STRIP:
        return []
    heading = f" {_name(look)} page by page, in {clean(around.parts[0].file)}"
    rows: list[Row] = [(), (Span(fit(heading, width, look.glyphs.ellipsis), Role.DIM),)]
    for part in around.parts[:PARTS_SHOWN]:
        pages = bytes(flag for _, count, is_in in part.pages for flag in [is_in] * count)
        where = f"{format_size(part.length)} at {part.offset / GIB:,.3f} GiB"
        label = f" {fit(_short(part.tensor), 18, look.glyphs.ellipsis):<18} {where:<24} "
        step = max(1, -(-len(pages) // columns))
        cells = []
        for start in range(0, len(pages), step):
            cut = pages[start : start + step]
            cells.append(_strip_cell(look, 255 * sum(cut) // len(cut)))
        rows.append((Span(label, Role.DIM), *cells))
    return rows
