"""Owns stdout: data only. Colour follows --color and NO_COLOR (no-color.org)."""

import os
import sys

from msgspec import Struct
from msgspec.json import encode


def json_line(record: Struct | dict[str, object]) -> None:
    """One JSON object on a line of its own, flushed: who reads it may be waiting."""
    sys.stdout.write(encode(record).decode() + "\n")
    sys.stdout.flush()


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
