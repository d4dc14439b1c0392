"""The texts of the full-page screens: help, advice, and the question before quitting."""

from collections.abc import Sequence

from moewatch.domain.frame import Advice, Frame
from moewatch.tui.glyphs import Glyphs
from moewatch.tui.layout import Key
from moewatch.tui.rows import Role, Row, Span, clean, wrap
from moewatch.tui.viewmodel import duration

_LABEL = 9  # `  command `
_LINES_AT_MOST = 12  # of one paragraph


def _paragraph(text: str, width: int, glyphs: Glyphs, *, indent: int = 1, role: Role = Role.PLAIN) -> list[Row]:
    lines = wrap(glyphs.plain(clean(text)), max(10, width - indent - 1), _LINES_AT_MOST, glyphs.ellipsis)
    return [(Span(" " * indent), Span(line, role)) for line in lines]


def _labelled(label: str, text: str, width: int, glyphs: Glyphs, role: Role = Role.PLAIN) -> list[Row]:
    lines = wrap(glyphs.plain(clean(text)), max(10, width - _LABEL - 4), _LINES_AT_MOST, glyphs.ellipsis)
    return [
        (Span(f"   {label if not n else '':<{_LABEL}}", Role.DIM), Span(line, role)) for n, line in enumerate(lines)
    ]


def advice_page(
    frame: Frame | None, listed: Sequence[Advice], remarks: Sequence[str], width: int, glyphs: Glyphs
) -> list[Row]:
    """All advice: action, why, the exact command, what it gains and whether it needs a restart; then the remarks."""
    rows: list[Row] = [(Span(" What to do", Role.STRONG),), ()]
    if frame is not None and frame.verdict.headline:
        rows[1:1] = [*_paragraph(frame.verdict.headline, width, glyphs, role=Role.DIM)]
    if not listed:
        rows.extend(_paragraph("Nothing to do: no advice for this state.", width, glyphs))
    for number, advice in enumerate(listed, 1):
        lines = wrap(glyphs.plain(clean(advice.title)), max(10, width - 5), 3, glyphs.ellipsis)
        rows.extend(
            (Span(f" {number if not n else ' '} ", Role.DIM), Span(line, Role.STRONG)) for n, line in enumerate(lines)
        )
        if advice.reason:
            rows.extend(_labelled("why", advice.reason, width, glyphs))
        if advice.command:
            rows.extend(_labelled("command", advice.command, width, glyphs, Role.KEY))
        if advice.gain:
            rows.extend(_labelled("gain", advice.gain, width, glyphs))
        rows.extend(_labelled("restart", "yes, of the server" if advice.restart else "no", width, glyphs))
        rows.append(())
    if remarks:
        rows.append((Span(" What is special here", Role.STRONG),))
        for text in remarks:
            rows.extend(_paragraph(text, width, glyphs, indent=3))
    return rows


def help_page(keys: tuple[Key, ...], width: int, glyphs: Glyphs) -> list[Row]:
    """Keys, what the signs mean, and where the figures come from."""
    rows: list[Row] = [(Span(" moewatch", Role.STRONG),)]
    rows.extend((*_paragraph("Is it thrashing, why, and what to do.", width, glyphs, role=Role.DIM), ()))
    for key in keys:
        rows.extend(_entry(Span(key.key, Role.KEY), _KEY_HELP.get(key.action, key.label), width, glyphs))
    rows.extend(_entry(Span("Esc", Role.KEY), "dismiss a notice; leave a page", width, glyphs))
    rows.extend(
        _paragraph(
            "Where the last row has no room, some of these keys stand there without their words.",
            width,
            glyphs,
            indent=3,
        )
    )
    for heading, signs in _signs(glyphs):
        rows.extend(((), (Span(f" {heading}", Role.STRONG),)))
        for sign, role, text in signs:
            rows.extend(_entry(Span(sign, role), text, width, glyphs))
    rows.append(())
    rows.append((Span(" Figures", Role.STRONG),))
    for text in _FIGURES_HELP:
        rows.extend(_paragraph(text, width, glyphs, indent=3))
    return rows


def _entry(head: Span, text: str, width: int, glyphs: Glyphs) -> list[Row]:
    """A key or a sign, and beside it what it means, wrapped."""
    lines = wrap(glyphs.plain(text), max(10, width - _LABEL - 4), _LINES_AT_MOST, glyphs.ellipsis)
    rest = Span(" " * (3 + _LABEL))
    blanks = " " * max(1, _LABEL - len(head.text))
    return [(rest, Span(line)) if n else (Span("   "), head, Span(blanks), Span(line)) for n, line in enumerate(lines)]


def _signs(g: Glyphs) -> tuple[tuple[str, tuple[tuple[str, Role, str], ...]], ...]:
    """What the signs mean, figure by figure: a sign has one meaning in a figure, and may have another one elsewhere."""
    memory_bar = (
        (g.server, Role.STRONG, "server: the server's own memory, without the model's files"),
        (g.model, Role.MEMORY, "model: what of the model's files is in memory"),
        (g.cache, Role.FIRST, "cache: other files in memory; the kernel gives it up when memory is needed"),
        (g.program, Role.OTHER, "a program that took memory while we watched"),
        (g.rest, Role.DIM, "the rest: other programs and the kernel; what is left blank is free"),
    )
    model_bar = (
        (g.dense, Role.MEMORY_STRONG, "weights that every token needs, in memory"),
        (g.experts, Role.MEMORY, "experts, or all of the model, in memory"),
        (g.table, Role.MEMORY, "token table: of this a token needs one row only"),
        (g.gpu, Role.DIM, "parts on the GPU, which need no memory here"),
        (g.disk, Role.DIM, "parts of the model that are on disk only"),
    )
    plots = (
        (g.again, Role.AGAIN, "read AGAIN: it was in memory, was pushed out, and had to come back"),
        (g.first, Role.FIRST, "read for the first time: normal after a start and on a new topic"),
        (g.trickle, Role.FIRST, "first-time reads of less than half a cell"),
        (g.others, Role.OTHER, "the disk's reads for other programs"),
        (g.first_answer, Role.STRONG, "at the upper edge: here the first token of an answer came"),
        ("1 to 9", Role.STRONG, "on the time axis: the marks that are named below the plots"),
        (g.resident, Role.MEMORY, "in the plot of GiB: what of the model is in memory"),
        (g.trace, Role.PLAIN, "in the plot of GiB: the server's RSS"),
        (g.limit, Role.DIM, "in the plot of GiB: the limit"),
    )
    if g.is_plain:
        cells: tuple[tuple[str, Role, str], ...] = (
            ("0 to 9", Role.MEMORY, "tenths in memory, or how many times its size was read AGAIN"),
        )
    else:
        cells = (
            ("▀", Role.MEMORY, "the upper of a row's two layers: half or more in memory"),
            ("▄", Role.MEMORY, "the lower one"),
            ("█", Role.MEMORY, "both; with many colours a shade tells how much of each"),
        )
    experts = (
        *cells,
        ("x", Role.AGAIN, "read AGAIN in the last minute"),
        (g.first_answer, Role.STRONG, "above the map: the column of the expert that the line below is about"),
    )
    return (
        ("Signs of the memory bar", memory_bar),
        ("Signs of the MODEL bar", model_bar),
        ("Signs of the plots", plots),
        ("Signs of the map of experts", experts),
    )


_KEY_HELP = {
    "help": "this page",
    "advice": "all advice with commands and gains, and what is special here",
    "experts": "what of each layer and expert is in memory, and what is read again",
    "warm": "bring the model into memory before it is asked for: shows a plan first",
    "pause": "hold the picture; watching and recording go on",
    "mark": "put a mark on the time axis",
    "copy": "copy the first lines to the clipboard (OSC 52)",
    "save": "save this screen as SVG and text in the current directory",
    "next_target": "watch the next server",
    "zoom(1)": "wider columns: more time in a plot",
    "zoom(-1)": "narrower columns: less time in a plot",
    "seek(1)": "10 s forward in the recording",
    "seek(-1)": "10 s back",
    "speed(1)": "replay twice as fast",
    "speed(-1)": "replay half as fast",
    "leave": "quit",
}
_FIGURES_HELP = (
    "Sizes are in GiB (2^30 bytes), rates in MB/s (10^6 bytes). Every rate is taken over the last 10 s.",
    "counted: what the server read, set against what its files gained in memory. kernel's count: refaults of the whole machine. at least: seen by looking once a second; the truth may be more.",
    "A dash is a figure that could not be read; the line `not readable` says why. It never means zero.",
    "time lost: tokens/s against the best steady rate of this run; where tokens are not known, the wait for re-reads, or the memory stall.",
    "The dotted stretches of a time axis are times of which nothing is known.",
)


def quit_page(span_ns: int | None, chosen: int, width: int, glyphs: Glyphs) -> list[Row]:
    """The question; the choice starts on Cancel. None: a warm-up is running."""
    text = "The warm-up would be stopped; what has been read stays in memory."
    if span_ns is not None:
        text = f"{duration(span_ns)} of history would be lost. A recording, if one runs, is kept."
    rows: list[Row] = [(Span(" Quit?", Role.STRONG),), *_paragraph(text, width, glyphs), ()]
    buttons: list[Span] = [Span("   ")]
    for n, (label, action) in enumerate((("[ Cancel ]", "cancel"), ("[ Quit ]", "confirm"))):
        pointer = "> " if n == chosen else "  "
        buttons.extend((Span(pointer), Span(label, Role.ALARM if n == chosen else Role.PLAIN, action), Span("   ")))
    rows.extend((tuple(buttons), ()))
    rows.append((Span(glyphs.plain(" ←→ choose   Enter do it   Esc back"), Role.DIM),))
    return rows
