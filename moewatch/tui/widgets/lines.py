"""The one widget: shows Rows, redraws only those that changed, and tells what a click was on."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from moewatch.tui.rows import Role, Row, text_of


class Lines(Widget):
    """Rows as wide as the widget; whoever owns it hands them over whole."""

    class Pressed(Message):
        """A click on a Span with an action."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, styles: Sequence[Style]) -> None:
        super().__init__()
        self._palette = styles
        self._rows: list[Row] = []
        self._strips: dict[int, Strip] = {}
        self.rows_sent = 0  # how many rows were handed to the terminal, for tests

    def show(self, rows: list[Row]) -> None:
        """Put these rows on screen; only rows that differ are drawn."""
        old, self._rows = self._rows, rows
        width = self.size.width
        changed = [y for y, row in enumerate(rows) if y >= len(old) or old[y] != row]
        for y in changed:
            self._strips.pop(y, None)
        if len(rows) < len(old):
            changed.extend(range(len(rows), len(old)))
        self.rows_sent += len(changed)
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def on_resize(self) -> None:
        """Rows rendered for the old width are of no use."""
        self._strips.clear()

    def forget(self) -> None:
        """Draw all rows anew at the next show."""
        self._rows = []
        self._strips.clear()

    @property
    def text(self) -> str:
        """What is on screen as plain text."""
        return "\n".join(text_of(row).rstrip() for row in self._rows)

    @property
    def row_texts(self) -> list[str]:
        """What is on screen, row by row."""
        return [text_of(row) for row in self._rows]

    def render_line(self, y: int) -> Strip:
        """One row, equal neighbours merged into one Segment."""
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strip(self._rows[y]) if y < len(self._rows) else Strip.blank(self.size.width)
            self._strips[y] = strip
        return strip

    def _strip(self, row: Row) -> Strip:
        """Equal neighbours merged; blanks join what stands before them, as SVG viewers drop them at a text's start."""
        segments: list[Segment] = []
        text, style = "", self._palette[Role.PLAIN]
        for span in row:
            own, rest = self._palette[span.role], span.text
            if (own is not style or not text.strip()) and not _has_ground(own) and not _has_ground(style):
                rest = span.text.lstrip(" ")
                text += span.text[: len(span.text) - len(rest)]
            if not rest or (own is style and text.strip()):
                text += rest
                continue
            if text:
                segments.append(Segment(text, style))
            if _has_ground(style) and not _has_ground(own):
                blanks = len(rest) - len(rest.lstrip(" "))
                segments.append(Segment(" " * blanks, self._palette[Role.PLAIN]))
                rest = rest[blanks:]
            text, style = rest, own
        segments.append(Segment(text, style))
        return Strip(segments).adjust_cell_length(self.size.width)

    def on_click(self, event: events.Click) -> None:
        """Find the Span under the pointer."""
        if not 0 <= event.y < len(self._rows):
            return
        x = 0
        for span in self._rows[event.y]:
            x += cell_len(span.text)
            if event.x < x:
                if span.action:
                    self.post_message(self.Pressed(span.action))
                return


def _has_ground(style: Style) -> bool:
    """Whether a blank of this style is seen."""
    return bool(style.reverse) or style.bgcolor is not None
