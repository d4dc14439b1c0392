"""The screen `what is in memory`: follows the newest map, moves a cursor over it, asks the feed about one expert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.frame import ExpertMap, Frame
from moewatch.tui import expertpage
from moewatch.tui.expertmap import Look, Mode, Picture
from moewatch.tui.feed import Feed
from moewatch.tui.glyphs import Glyphs
from moewatch.tui.widgets.lines import Lines
from moewatch.units import S

FILES_EVERY_NS = 5 * S  # of the Frames' time: a look at 64 GiB by stretches costs 8 ms (measured)
MOST_ZOOM = 6


@dataclass(slots=True)
class Place:
    """Where the person is on the map; kept while the page is closed."""

    mode: Mode = Mode.MEMORY
    layer: int = 0
    expert: int = 0
    zoom: int = 0
    top: int = 0
    mark: ExpertMap | None = None
    marked_wall_ns: int | None = None


class ExpertsScreen(Screen[None]):
    """The expert map over the dashboard."""

    class Looked(Message):
        """The feed's answer."""

        def __init__(
            self, at: tuple[int, int], parts: tuple[ExpertSlice, ...], strips: tuple[FileStrip, ...] | None
        ) -> None:
            super().__init__()
            self.at, self.parts, self.strips = at, parts, strips

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,e", "close", "back"),
        Binding("left,h", "move(0,-1)", "left"),
        Binding("right,l", "move(0,1)", "right"),
        Binding("up,k", "move(-1,0)", "up"),
        Binding("down,j", "move(1,0)", "down"),
        Binding("pageup", "turn(-1)", "page up"),
        Binding("pagedown", "turn(1)", "page down"),
        Binding("home", "edge(0)", "first expert"),
        Binding("end", "edge(1)", "last expert"),
        Binding("1", "mode(1)", "in memory"),
        Binding("2", "mode(2)", "read again"),
        Binding("3", "mode(3)", "changed since the mark"),
        Binding("plus,equals_sign", "zoom(1)", "closer"),
        Binding("minus", "zoom(-1)", "wider"),
        Binding("m", "mark", "mark"),
    ]

    def __init__(
        self,
        newest: Callable[[], Frame | None],
        feed: Feed,
        place: Place,
        styles: Sequence[Style],
        *,
        glyphs: Glyphs,
        has_shades: bool,
        zone: tzinfo | None = None,
        is_replay: bool = False,
    ) -> None:
        super().__init__()
        self._newest = newest
        self._feed = feed
        self._place = place
        self._lines = Lines(styles)
        self._glyphs = glyphs
        self._has_shades = has_shades
        self._zone = zone
        self._is_replay = is_replay
        self._said = ""
        self._strips: tuple[FileStrip, ...] = ()
        self._strips_ns: int | None = None
        self._parts: tuple[ExpertSlice, ...] = ()
        self._parts_of: tuple[int, int, int] | None = None  # layer, expert, seen_ns
        self._is_asking = False
        self._picture = Picture()

    def compose(self) -> ComposeResult:
        """The one widget."""
        yield self._lines

    def on_resize(self, event: events.Resize) -> None:
        """Lay out anew."""
        self._lines.forget()
        self._strips_ns = None
        self.draw(event.size.width, event.size.height)

    def draw(self, width: int = 0, height: int = 0) -> None:
        """Show the newest map; rows that are as before are not sent."""
        width, height = width or self.size.width, height or self.size.height
        if not self._lines.is_attached or not width:
            return
        frame = self._newest()
        if frame is None or frame.experts is None:
            page = expertpage.empty_page(frame, width, height, self._glyphs, is_replay=self._is_replay)
            self._lines.show(page)
            return
        look = self._look(frame.experts, frame.mono_ns, height)
        around = expertpage.Around(
            frame=frame,
            said=self._said,
            marked_wall_ns=self._place.marked_wall_ns,
            strips=self._strips,
            parts=self._parts,
            picture=self._picture,
            zone=self._zone,
        )
        self._lines.show(expertpage.page(look, around, width, height))
        self._ask(frame, look, width, height)

    def _look(self, shown: ExpertMap, now_ns: int, height: int) -> Look:
        place = self._place
        place.layer = max(0, min(place.layer, shown.n_layer - 1))
        place.expert = max(0, min(place.expert, shown.n_expert - 1))
        rows, _ = expertpage.rooms(Look(map=shown), height)
        pair = place.layer // 2
        place.top = max(0, min(place.top, pair, -(-shown.n_layer // 2) - rows), pair - rows + 1)
        return Look(
            map=shown, mode=place.mode, mark=place.mark, layer=place.layer, expert=place.expert, zoom=place.zoom,
            glyphs=self._glyphs, has_shades=self._has_shades, top=place.top, now_ns=now_ns,
        )  # fmt: skip

    # --- what only the feed can tell -----------------------------------------------------------------------------

    def _ask(self, frame: Frame, look: Look, width: int, height: int) -> None:
        """On a thread of its own, one question at a time: the answer may wait for a disk."""
        if self._is_asking or frame.experts is None:
            return
        layer, expert = self._place.layer, self._place.expert
        wanted = (layer, expert, frame.experts.seen_ns)
        files = len(frame.target.files) or 1
        cells = expertpage.file_cells(look, width, height, files)
        is_due = self._strips_ns is None or frame.mono_ns - self._strips_ns >= FILES_EVERY_NS
        if not cells or not is_due:
            cells = 0
        if wanted == self._parts_of and not cells:
            return
        if cells:
            self._strips_ns = frame.mono_ns
        self._parts_of = wanted
        self._is_asking = True
        self.run_worker(lambda: self._look_up(layer, expert, cells), thread=True)

    def _look_up(self, layer: int, expert: int, cells: int) -> None:
        parts = self._feed.expert_slices(layer, expert)
        strips = self._feed.file_strips(cells) if cells else None
        self.post_message(self.Looked((layer, expert), parts, strips))

    def on_experts_screen_looked(self, message: Looked) -> None:
        """Show it; the cursor may have moved on meanwhile."""
        self._is_asking = False
        is_here = message.at == (self._place.layer, self._place.expert)
        self._parts = message.parts if is_here else ()
        if message.strips is not None:
            self._strips = message.strips
        self.draw()

    # --- keys ----------------------------------------------------------------------------------------------------

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        """A click on a key's name."""
        message.stop()
        self.run_worker(self.run_action(message.action))

    def action_close(self) -> None:
        """Back to the dashboard."""
        self.dismiss()

    def action_move(self, layers: int, experts: int) -> None:
        """Move the cursor."""
        place = self._place
        place.layer += layers
        place.expert += experts
        self._parts = ()
        self.draw()

    def action_turn(self, by: int) -> None:
        """A page of layers up or down."""
        frame = self._newest()
        if frame is None or frame.experts is None:
            return
        rows, _ = expertpage.rooms(Look(map=frame.experts), self.size.height)
        self._place.top = max(0, self._place.top + by * rows)
        self.action_move(2 * by * rows, 0)

    def action_edge(self, last: int) -> None:
        """The first or the last expert of the layer."""
        frame = self._newest()
        n_expert = frame.experts.n_expert if frame is not None and frame.experts is not None else 0
        self.action_move(0, n_expert if last else -n_expert)

    def action_mode(self, mode: int) -> None:
        """What the cells show."""
        self._place.mode = Mode(mode)
        self._said = ""
        self.draw()

    def action_zoom(self, by: int) -> None:
        """Fewer or more experts a cell."""
        self._place.zoom = max(0, min(MOST_ZOOM, self._place.zoom + by))
        self.draw()

    def action_mark(self) -> None:
        """Remember this map; mode 3 compares with it."""
        frame = self._newest()
        if frame is not None and frame.experts is not None:
            self._place.mark, self._place.marked_wall_ns = frame.experts, frame.wall_ns
            self._said = "Marked. 3 shows what comes and what leaves from now on."
            self.draw()
