"""The screen behind the button **Warm cache**: asks before it reads, shows how far it is, proves that it stayed."""

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from moewatch.domain.frame import Frame
from moewatch.tui import warmpages
from moewatch.tui.feed import Warmer
from moewatch.tui.glyphs import Glyphs
from moewatch.tui.screens import ARMED_AFTER_S
from moewatch.tui.warmfigures import Scene
from moewatch.tui.warmstate import Stage, WarmState
from moewatch.tui.widgets.lines import Lines
from moewatch.units import GIB

BUDGET_STEP = 20  # of the room, at least; a GiB at most


class WarmScreen(Screen[bool]):
    """One warm-up; dismissed with True when the dashboard should put the mark `ready`.

    A page that asks something takes no key for half a second after it appears, and starts on the harmless answer.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,right,tab,shift+tab", "switch", "choose"),
        Binding("enter", "press", "do it"),
        Binding("escape,q", "leave", "back"),
        Binding("z", "background", "to the background"),
        Binding("plus,equals_sign", "budget(1)", "more"),
        Binding("minus", "budget(-1)", "less"),
        Binding("d", "dry_run", "dry run to a file"),
        Binding("c", "copy", "copy the command"),
        Binding("m", "mark", "mark"),
        Binding("h", "save", "save as a hot set"),
    ]

    def __init__(
        self,
        state: WarmState,
        warmer: Warmer,
        newest: Callable[[], Frame | None],
        styles: Sequence[Style],
        *,
        glyphs: Glyphs,
        zone: tzinfo | None = None,
    ) -> None:
        super().__init__()
        self._state = state
        self._warmer = warmer
        self._newest = newest
        self._glyphs = glyphs
        self._zone = zone
        self._lines = Lines(styles)
        self._chosen = 0
        self._stage: Stage | None = None
        self._is_armed = False
        self._armings = 0

    def compose(self) -> ComposeResult:
        """The one widget."""
        yield self._lines

    def on_resize(self, event: events.Resize) -> None:
        """Lay out anew."""
        self._lines.forget()
        self.draw(event.size.width, event.size.height)

    def draw(self, width: int = 0, height: int = 0) -> None:
        """Show where it is; a new page starts on its harmless button and is deaf for half a second."""
        width, height = width or self.size.width, height or self.size.height
        if not self._lines.is_attached or not width:
            return
        if self._state.stage is not self._stage:
            self._stage = self._state.stage
            self._chosen = 0
            self._disarm()
        self._lines.show(warmpages.page(self._scene(), width, height))

    def _scene(self) -> Scene:
        return Scene(state=self._state, frame=self._newest(), glyphs=self._glyphs, zone=self._zone, chosen=self._chosen)

    def _disarm(self) -> None:
        self._is_armed = False
        self._armings += 1
        number = self._armings

        def arm() -> None:
            self._is_armed = self._is_armed or number == self._armings

        self.set_timer(ARMED_AFTER_S, arm)

    def on_paste(self, event: events.Paste) -> None:
        """Pasted text never answers."""
        event.stop()

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        """A click on a button or on a key's name."""
        message.stop()
        self._do(message.action)

    def _do(self, action: str) -> None:
        """What a button or a click means."""
        if action == "close":
            self.action_leave()
        elif action == "start" and self._is_armed and self._state.stage is Stage.OFFERED:
            self._state.begin()
            self._warmer.start()
            self.draw()
        elif action == "stop" and self._state.stage is Stage.READING:
            self._warmer.cancel()
        elif action == "background":
            self.action_background()
        elif action == "dry_run":
            self.action_dry_run()
        elif action == "copy":
            self.action_copy()
        elif action == "mark":
            self.action_mark()
        elif action == "save":
            self.action_save()

    # --- keys ----------------------------------------------------------------------------------------------------

    def action_switch(self) -> None:
        """The other button."""
        if self._is_armed:
            self._chosen = (self._chosen + 1) % len(self._scene().buttons)
            self.draw()

    def action_press(self) -> None:
        """The button that is marked."""
        if self._is_armed:
            buttons = self._scene().buttons
            self._do(buttons[self._chosen % len(buttons)][1])

    def action_leave(self) -> None:
        """Esc: stop while it reads; otherwise back, and nothing is lost."""
        stage = self._state.stage
        if stage is Stage.READING:
            self._warmer.cancel()
            return
        if stage not in (Stage.PROVING, Stage.DONE):
            self._warmer.cancel()  # an offer that nobody took
        self.dismiss(result=False)

    def action_background(self) -> None:
        """Back to the dashboard, which shows a line meanwhile."""
        if self._state.is_reading:
            self.dismiss(result=False)

    def action_budget(self, by: int) -> None:
        """Plan again with more or less of the model."""
        offer = self._state.offer
        if not self._is_armed or offer is None or self._state.stage is not Stage.OFFERED:
            return
        step = max(1, min(GIB, offer.room.room_bytes // BUDGET_STEP))
        budget = max(step, min(offer.room.room_bytes, offer.plan.budget_bytes + by * step))
        self._warmer.replan(budget)

    def action_dry_run(self) -> None:
        """The plan to a file; nothing else is done."""
        if self._state.stage is Stage.OFFERED:
            self._warmer.save_plan()

    def action_copy(self) -> None:
        """The same as a command, or what would make it possible."""
        offer, frame = self._state.offer, self._newest()
        if offer is None:
            return
        text = offer.command
        if self._state.stage is Stage.REFUSED and frame is not None:
            text = "\n".join(advice.command for advice in frame.verdict.advice if advice.command) or text
        self.app.copy_to_clipboard(text)
        self._state.said = "Copied, if the terminal allows it (OSC 52)."
        self.draw()

    def action_mark(self) -> None:
        """Back to the dashboard with a mark on its time axis."""
        if self._state.stage in (Stage.DONE, Stage.STOPPED):
            self.dismiss(result=True)

    def action_save(self) -> None:
        """What is in memory now becomes a hot set."""
        if self._state.stage in (Stage.DONE, Stage.STOPPED):
            self._warmer.save_hot_set()
