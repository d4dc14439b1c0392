"""Lines of a screen as plain values: a Row is a tuple of Spans, a Span is text with a role. No Textual here."""

import enum
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size


class Role(enum.IntEnum):
    """What a piece of text stands for; the palette turns it into a style, or into none under NO_COLOR."""

    PLAIN = 0
    STRONG = 1  # the first line, readable from two metres
    DIM = 2  # labels, axes, what is not in memory
    MEMORY = 3  # blue: in memory
    AGAIN = 4  # orange: read again
    FIRST = 5  # grey: read for the first time
    OTHER = 6  # other programs' memory or reads
    AGAIN_STRONG = 7  # the state's word while it thrashes
    MEMORY_STRONG = 8  # the state's word while all is well
    ALARM = 9  # reverse video: paused, a question
    KEY = 10  # a key that works
    LINE = 11  # the filled area of a figure that is neither memory nor reads


class Span(NamedTuple):
    """Text of one role; `action` names what a click on it does, as in the key bindings."""

    text: str
    role: int = Role.PLAIN  # a Role, or the number of a pair of shades (shades.py)
    action: str = ""


Row = tuple[Span, ...]

ELLIPSIS = "…"


def clean(text: str) -> str:
    """The text without anything that could steer a terminal: process and model names are written by others."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() and not unicodedata.category(c).startswith("C") else "?" for c in text)


def width_of(row: Iterable[Span]) -> int:
    """Columns a row takes."""
    return sum(cell_len(span.text) for span in row)


def fit(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """The text in at most `width` columns, cut at a word where that costs less than a third, with an ellipsis."""
    if cell_len(text) <= width:
        return text
    if width <= len(ellipsis):
        return set_cell_size(text, max(0, width))
    cut = set_cell_size(text, width - len(ellipsis)).rstrip()
    at = cut.rfind(" ")
    if at > width * 2 // 3:
        cut = cut[:at]
    return cut.rstrip(" ,;:") + ellipsis


def pad(row: Sequence[Span], width: int) -> Row:
    """The row in exactly `width` columns: cut or filled with blanks."""
    kept: list[Span] = []
    left = width
    for span in row:
        size = cell_len(span.text)
        if size > left:
            kept.append(span._replace(text=set_cell_size(span.text, left)))
            left = 0
            break
        kept.append(span)
        left -= size
    if left:
        kept.append(Span(" " * left))
    return tuple(kept)


def apart(left: Sequence[Span], right: Sequence[Span], width: int, gap: int = 1) -> Row:
    """Left text and right text at the two ends of a row; the right gives way when both do not fit."""
    space = width - width_of(left) - width_of(right)
    if space < gap:
        return pad(left, width)
    return (*left, Span(" " * space), *right)


def wrap(text: str, width: int, lines: int, ellipsis: str = ELLIPSIS) -> list[str]:
    """The text in at most `lines` lines of at most `width` columns; the last one says when something is missing."""
    out: list[str] = []
    rest = text.strip()
    while rest and len(out) < lines:
        if cell_len(rest) <= width or len(out) == lines - 1:
            out.append(fit(rest, width, ellipsis))
            break
        cut = set_cell_size(rest, width + 1)
        at = cut.rfind(" ")
        if at <= 0:
            at = len(set_cell_size(rest, width).rstrip()) or 1
        out.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return out


def thin_out(body: list[tuple[int, Row]], room: int) -> list[Row]:
    """At most `room` of the rows; those with the highest number leave first, of equal ones the last."""
    kept = list(body)
    while len(kept) > max(0, room):
        most = max(order for order, _ in kept)
        del kept[next(n for n in range(len(kept) - 1, -1, -1) if kept[n][0] == most)]
    return [row for _, row in kept]


def text_of(row: Iterable[Span]) -> str:
    """The bare text of a row."""
    return "".join(span.text for span in row)
