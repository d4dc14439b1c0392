"""Cells of two halves, each with its own shade: one half block shows two layers. For terminals of 256 colours and more."""

import enum

from moewatch.tui.rows import Role, Span

LEVELS = 4


class Shade(enum.IntEnum):
    """What one half of a cell shows; the palette has a style for every pair."""

    NONE = 0
    MEMORY_1 = 1
    MEMORY_2 = 2
    MEMORY_3 = 3
    MEMORY_4 = 4
    AGAIN_1 = 5
    AGAIN_2 = 6
    AGAIN_3 = 7
    AGAIN_4 = 8
    LEFT = 9


def level(ratio: float) -> int:
    """0 for (almost) nothing, else 1 to 4 by quarters."""
    return 0 if ratio < _ALMOST_NOTHING else min(LEVELS, 1 + int(ratio * LEVELS))


def memory(ratio: float) -> Shade:
    """The shade of a share in memory."""
    return Shade(level(ratio))


def again(ratio: float) -> Shade:
    """The shade of so many times its size read AGAIN: below half, half, once, twice and more."""
    if ratio <= 0:
        return Shade.NONE
    steps = sum(ratio >= step for step in _AGAIN_STEPS)
    return Shade(Shade.AGAIN_1 + steps)


def cell(upper: Shade, lower: Shade, width: int = 1) -> Span:
    """One cell, `width` columns wide."""
    sign = "▄" if upper is Shade.NONE else "▀" if upper is not lower else "█"
    if upper is lower is Shade.NONE:
        sign = " "
    return Span(sign * width, len(Role) + upper * len(Shade) + lower)


_ALMOST_NOTHING = 0.02  # pages at an expert's edges belong to its neighbours as well
_AGAIN_STEPS = (0.5, 1.0, 2.0)
