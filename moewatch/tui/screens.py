"""Full-page screens over the dashboard: pages to read, and the question before quitting."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from moewatch.tui.glyphs import BLOCKS, Glyphs
from moewatch.tui.rows import Role, Row, Span, pad, width_of
from moewatch.tui.widgets.lines import Lines

ARMED_AFTER_S = 0.5  # keys typed for something else are over by then


class Page(Screen[None]):
    """A text to read; scrolls where the terminal is lower than the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,a,enter", "close", "back"),
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup", "scroll_page(-1)", "page up"),
        Binding("pagedown,space", "scroll_page(1)", "page down"),
        Binding("home,g", "scroll_to(0)", "first row"),
        Binding("end,G", "scroll_to(1)", "last row"),
    ]

    def __init__(self, text: Callable[[int], list[Row]], styles: Sequence[Style], glyphs: Glyphs = BLOCKS) -> None:
        super().__init__()
        self._text = text
        self._lines = Lines(styles)
        self._top = 0
        self._scroll_keys = (glyphs.plain("   ↑↓ PgUp PgDn scroll"), glyphs.plain("   ↑↓ scroll"))

    def compose(self) -> ComposeResult:
        """The one widget."""
        yield self._lines

    def on_resize(self, event: events.Resize) -> None:
        """Wrap anew."""
        self._lines.forget()
        self.draw(event.size.width, event.size.height)

    def draw(self, width: int = 0, height: int = 0) -> None:
        """Put the visible part on screen, with how to go on in the last row."""
        width, height = width or self.size.width, height or self.size.height
        rows = self._text(width)
        room = max(1, height - 1)
        self._top = max(0, min(self._top, len(rows) - room))
        shown = rows[self._top : self._top + room]
        shown.extend([()] * (room - len(shown)))
        more = f"   {self._top + 1}-{min(len(rows), self._top + room)} of {len(rows)}" if len(rows) > room else ""
        back = (Span(" Esc", Role.KEY, "close"), Span(" back", Role.DIM, "close"), Span(more, Role.DIM))
        keys = (keys for keys in self._scroll_keys if more and width_of(back) + len(keys) <= width)
        foot = (*back, Span(next(keys, ""), Role.DIM))
        self._lines.show([pad(row, width) for row in (*shown, foot)[:height]])

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        """A click on the foot."""
        message.stop()
        self.action_close()

    def action_close(self) -> None:
        """Back to the dashboard."""
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        """Move by rows."""
        self._top += by
        self.draw()

    def action_scroll_to(self, end: int) -> None:
        """To the first row or the last."""
        self._top = end * len(self._text(self.size.width))
        self.draw()

    def action_scroll_page(self, by: int) -> None:
        """Move by almost a page."""
        self.action_scroll(by * max(1, self.size.height - 2))


class Question(Screen[bool]):
    """Two choices; starts on the harmless one and takes no key for half a second, so that no slip confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,right,tab,shift+tab,h,l", "switch", "choose"),
        Binding("enter", "choose", "do it"),
        Binding("escape,n", "cancel", "back"),
    ]

    def __init__(self, text: Callable[[int, int], list[Row]], styles: Sequence[Style]) -> None:
        super().__init__()
        self._text = text
        self._lines = Lines(styles)
        self._chosen = 0
        self._armed = False

    def compose(self) -> ComposeResult:
        """The one widget."""
        yield self._lines

    def on_mount(self) -> None:
        """Wait before taking keys."""
        self.set_timer(ARMED_AFTER_S, self._arm)

    def _arm(self) -> None:
        self._armed = True

    def on_resize(self, event: events.Resize) -> None:
        """Wrap anew."""
        self._lines.forget()
        self.draw(event.size.width, event.size.height)

    def draw(self, width: int = 0, height: int = 0) -> None:
        """Show the question."""
        width, height = width or self.size.width, height or self.size.height
        rows = [pad(row, width) for row in self._text(width, self._chosen)[:height]]
        self._lines.show(rows + [pad((), width)] * (height - len(rows)))

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text never answers."""
        event.stop()

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        """A click on a button."""
        message.stop()
        if self._armed:
            self.dismiss(message.action == "confirm")

    def action_switch(self) -> None:
        """The other choice."""
        if self._armed:
            self._chosen = 1 - self._chosen
            self.draw()

    def action_choose(self) -> None:
        """Take the choice."""
        if self._armed:
            self.dismiss(self._chosen == 1)

    def action_cancel(self) -> None:
        """The harmless way out, at once."""
        self.dismiss(result=False)
