"""Roles as terminal styles: blue is in memory, orange is read again, grey is read for the first time; never red against green.

The terminal's own background and foreground stay; so a light theme works as well as a dark one and little is sent.
"""

from rich.style import Style

from moewatch.tui.rows import Role

# 256 colours: orange 208 and blue 68 differ in hue and lightness for all common kinds of colour blindness (Okabe and Ito's pair).
_BLUE, _ORANGE, _GREY, _OTHER, _LINE = "color(68)", "color(208)", "color(245)", "color(133)", "color(103)"
_BLUE_16, _ORANGE_16, _GREY_16, _OTHER_16, _LINE_16 = "blue", "yellow", "bright_black", "magenta", "white"


def palette(colours: int, *, no_color: bool) -> tuple[Style, ...]:
    """One Style a Role, for a terminal of so many colours (0, 16 or 256 and more)."""
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
    return tuple(styles[role] for role in Role)
