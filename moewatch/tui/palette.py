"""Roles as terminal styles: blue is in memory, orange is read again, grey is read for the first time; never red against green.

The terminal's own background and foreground stay; so a light theme works as well as a dark one and little is sent.
"""

from rich.style import Style

from moewatch.tui.rows import Role
from moewatch.tui.shades import Shade

# 256 colours: orange 208 and blue 68 differ in hue and lightness for all common kinds of colour blindness (Okabe and Ito's pair).
_BLUE, _ORANGE, _GREY, _OTHER, _LINE = "color(68)", "color(208)", "color(245)", "color(133)", "color(103)"
_BLUE_16, _ORANGE_16, _GREY_16, _OTHER_16, _LINE_16 = "blue", "yellow", "bright_black", "magenta", "white"


# From little to all, four each: on a dark ground they get lighter, on a light one more colourful.
_SHADES = {
    Shade.MEMORY_1: 60, Shade.MEMORY_2: 61, Shade.MEMORY_3: 68, Shade.MEMORY_4: 75,
    Shade.AGAIN_1: 94, Shade.AGAIN_2: 130, Shade.AGAIN_3: 172, Shade.AGAIN_4: 208,
    Shade.LEFT: 243,
}  # fmt: skip
SHADES_FROM = 256  # colours; below, cells are told apart by their signs


def palette(colours: int, *, no_color: bool) -> tuple[Style, ...]:
    """One Style a Role, for a terminal of so many colours (0, 16 or 256 and more), then one a pair of Shades."""
    if no_color or not colours:
        blue = orange = grey = other = line = None
    elif colours < 256:  # noqa: PLR2004 - the terminal's own count
        blue, orange, grey, other, line = _BLUE_16, _ORANGE_16, _GREY_16, _OTHER_16, _LINE_16
    else:
        blue, orange, grey, other, line = _BLUE, _ORANGE, _GREY, _OTHER, _LINE
    styles = {
        Role.PLAIN: Style.null(),
        Role.STRONG: Style(bold=True),
        Role.DIM: Style(color=grey) if grey else Style.null(),
        Role.MEMORY: Style(color=blue),
        Role.AGAIN: Style(color=orange),
        Role.FIRST: Style(color=grey),
        Role.OTHER: Style(color=other),
        Role.AGAIN_STRONG: Style(color=orange, bold=True),
        Role.MEMORY_STRONG: Style(color=blue, bold=True),
        Role.ALARM: Style(reverse=True, bold=True),
        Role.KEY: Style(bold=True),
        Role.LINE: Style(color=line),
    }
    return (*(styles[role] for role in Role), *_pairs())


def _pairs() -> list[Style]:
    """For every upper and lower Shade of a cell; the ground is left to the terminal where one of them is none."""
    pairs = []
    for upper in Shade:
        for lower in Shade:
            front, back = (lower, upper) if upper is Shade.NONE else (upper, lower)
            ground = None if back in (Shade.NONE, front) else f"color({_SHADES[back]})"
            pairs.append(Style(color=f"color({_SHADES[front]})" if front else None, bgcolor=ground))
    return pairs
