"""What stands on the screen that is in front."""

from typing import Any, cast

from textual.app import App

from moewatch.tui.widgets.lines import Lines


def lines_of(app: App[Any]) -> Lines:
    """Every screen of ours but the dashboard keeps its rows there; Textual knows only a Screen."""
    lines = cast("Any", app.screen)._lines
    assert isinstance(lines, Lines)
    return lines
