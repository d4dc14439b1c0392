"""Owns stdout: data only, and without colour; only the dashboard has some."""

import codecs
import io
import os
import sys

from msgspec import Struct
from msgspec.structs import replace

from moewatch.domain.encoding import encode_json
from moewatch.domain.frame import ExpertMap, Frame, State
from moewatch.domain.labels import ASCII_SYMBOL, SYMBOL
from moewatch.units import UNKNOWN

# what stands for our own signs where the locale has no room for them (LANG=C): as the dashboard's --ascii draws them
_PLAIN = {SYMBOL[state]: ASCII_SYMBOL[state] for state in State} | {
    UNKNOWN: "-",
    "…": "...",
    "→": "->",
    "·": "-",
    "█": "#",
    "▓": "=",
    "░": ".",
    "▏": "|",
}


def prepare_streams() -> None:
    """Make stdin, stdout and stderr usable whatever the shell did to them.

    A stream that was closed (`>&-`) becomes /dev/null, before another file gets its number and is written into. Signs
    that the locale's encoding lacks are replaced, never an error.
    """
    codecs.register_error("moewatch.plain", _plainly)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number, name)
        stream = getattr(sys, name)
        if name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="moewatch.plain")


def _open_null(number: int, name: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is the missing one unless a file sits there
    if null != number:
        os.dup2(null, number)
        os.close(null)
    stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in part), error.end


def json_line(record: Struct | dict[str, object]) -> None:
    """One JSON object on a line of its own in UTF-8 (RFC 8259) whatever the locale, flushed: who reads it may be waiting."""
    sys.stdout.flush()
    sys.stdout.buffer.write(encode_json(record) + b"\n")
    sys.stdout.buffer.flush()


class FrameLines:
    """Frames as JSON lines; a map of experts (20 kB for 6,144 of them) only on the line where it is new."""

    def __init__(self) -> None:
        self._experts: ExpertMap | None = None

    def show(self, frame: Frame) -> None:
        """One Frame on a line."""
        if frame.experts is not None and frame.experts is self._experts:
            json_line(replace(frame, experts=None))
            return
        self._experts = frame.experts
        json_line(frame)


def printable(text: str) -> str:
    """Without escapes and other control characters: names of files, models and processes are other people's."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def line(text: str = "") -> None:
    """One line of text, flushed."""
    print(printable(text), flush=True)


def is_terminal() -> bool:
    """Whether a full-screen dashboard can be drawn: it reads keys from stdin and draws on stderr (Textual's choice)."""
    return lacking_for_screen() is None


def lacking_for_screen() -> str | None:
    """What is missing for a full-screen dashboard, or None."""
    streams = (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
    elsewhere = [name for name, stream in streams if not stream.isatty()]
    if len(elsewhere) == len(streams):
        return "no terminal here"
    if elsewhere:
        return f"{' and '.join(elsewhere)} {'is' if len(elsewhere) == 1 else 'are'} no terminal"
    return "TERM says that this terminal draws nothing" if os.environ.get("TERM", "") in ("", "dumb") else None
