"""Owns stdout: data only. Colour follows --color and NO_COLOR (no-color.org)."""

import os
import sys

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from moewatch.domain.frame import ExpertMap, Frame


def json_line(record: Struct | dict[str, object]) -> None:
    """One JSON object on a line of its own, flushed: who reads it may be waiting."""
    sys.stdout.write(encode(record).decode() + "\n")
    sys.stdout.flush()


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


def line(text: str = "") -> None:
    """One line of text, flushed."""
    print(text, flush=True)


def wants_colour(choice: str) -> bool:
    """Whether to colour what goes to stdout: `always`, `never`, or `auto` (a terminal that is not dumb, and no NO_COLOR)."""
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def is_terminal() -> bool:
    """Whether a full-screen dashboard can be drawn on stdout."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
