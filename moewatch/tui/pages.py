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
    rows: list[Row] = [(Span(" moewatch", Role.STRONG), Span("  is it thrashing, why, and what to do", Role.DIM)), ()]
    rows.extend((Span(f"   {key.key:<9}", Role.KEY), Span(_KEY_HELP.get(key.action, key.label))) for key in keys)
    rows.append((Span("   Esc      ", Role.KEY), Span("dismiss a notice; leave a page")))
    rows.append(())
    rows.append((Span(" Signs", Role.STRONG),))
    g = glyphs
    signs = (
        (g.again, Role.AGAIN, "read AGAIN: it was in memory, was pushed out, and had to come back"),
        (g.first, Role.FIRST, "read for the first time: normal after a start and on a new topic"),
        (g.others, Role.OTHER, "the disk's reads for other programs"),
        (g.dense, Role.MEMORY_STRONG, "weights that every token needs, in memory"),
        (g.experts, Role.MEMORY, "experts, or all of the model, in memory"),
        (g.disk, Role.DIM, "parts of the model that are on disk only"),
        (g.program, Role.OTHER, "a program that took memory while we watched"),
        (g.rest, Role.DIM, "the rest: other programs and the kernel"),
    )
    rows.extend((Span("   "), Span(f"{sign:<9}", role), Span(text)) for sign, role, text in signs)
    rows.append(())
    rows.append((Span(" Figures", Role.STRONG),))
    for text in _FIGURES_HELP:
        rows.extend(_paragraph(text, width, glyphs, indent=3))
    return rows


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
