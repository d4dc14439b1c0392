"""The dashboard: takes events from a Feed, shows one screen, sends intent back."""

import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any, ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.message import Message

from moewatch.domain.events import Event
from moewatch.domain.frame import Frame, State
from moewatch.domain.warm_events import WarmEvent
from moewatch.errors import MoewatchError
from moewatch.home import home_directory
from moewatch.tui import footlines, pages, viewmodel
from moewatch.tui.closing import closing_words
from moewatch.tui.experts_screen import ExpertsScreen, Place
from moewatch.tui.faults import FaultTellingApp
from moewatch.tui.feed import Feed, Warmer
from moewatch.tui.figures import grid_columns, spark_columns
from moewatch.tui.glyphs import ASCII, BLOCKS, Glyphs, needs_ascii
from moewatch.tui.history import COLUMN_NS, ZOOM_DEFAULT, History
from moewatch.tui.layout import MEDIUM_COLUMNS, Key, Layout
from moewatch.tui.palette import SHADES_FROM, palette
from moewatch.tui.plots import load
from moewatch.tui.screens import Page, Question
from moewatch.tui.session import Session
from moewatch.tui.viewmodel import View
from moewatch.tui.warm_screen import WarmScreen
from moewatch.tui.warmstate import Stage, WarmState
from moewatch.tui.widgets.lines import Lines
from moewatch.units import MINUTE, S

ASK_FROM_NS = 10 * MINUTE  # more history than this is not thrown away without a question
SEEK_NS = 10 * S
SAID_FOR_S = 5.0  # how long an answer to a key stays
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_COLOURS = {None: 0, "standard": 16, "windows": 16, "256": 256, "truecolor": 1 << 24}


class News(Message):
    """Something was taken in; one is as good as many, so a slow terminal skips pictures and loses no Frame."""

    def can_replace(self, message: Message) -> bool:
        """Any later one."""
        return isinstance(message, News)


class MoewatchApp(FaultTellingApp):
    """One target or recording on one screen."""

    CSS_PATH = "theme.tcss"
    TITLE = "moewatch"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False  # a drag would redraw every row it crosses
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help"),
        Binding("a", "advice", "advice"),
        Binding("e", "experts", "experts"),
        Binding("w", "warm", "Warm cache"),
        Binding("p", "pause", "pause"),
        Binding("m", "mark", "mark"),
        Binding("c", "copy", "copy"),
        Binding("S", "save", "save"),
        Binding("tab", "next_target", "other server", priority=True),
        Binding("plus,equals_sign", "zoom(1)", "more time"),
        Binding("minus", "zoom(-1)", "less time"),
        Binding("space", "hold", "pause the replay"),
        Binding("left", "seek(-1)", "back"),
        Binding("right", "seek(1)", "forward"),
        Binding("left_square_bracket", "speed(-1)", "slower"),
        Binding("right_square_bracket", "speed(1)", "faster"),
        Binding("escape", "dismiss_notice", "dismiss"),
        Binding("q,ctrl+c,ctrl+q", "leave", "quit", priority=False),
    ]

    def __init__(
        self,
        feed: Feed,
        *,
        warmer: Warmer | None = None,
        again: str | None = None,
        ascii: bool | None = None,  # noqa: A002 - the option's own name
        bell: bool = False,
        no_color: bool | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        """`warmer` None: there is nothing to warm, as in a replay; `again`: what to call to see this once more.

        `ascii` None: by TERM and locale; `bell`: ring on a change of state; `no_color` None: by NO_COLOR (no-color.org).
        """
        plain = no_color if no_color is not None else bool(os.environ.get("NO_COLOR"))
        if no_color is False:
            os.environ.pop("NO_COLOR", None)  # textual reads it, too; colour was asked for by name
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._feed = feed
        self._warmer = warmer
        self._again = again
        self._warm: WarmState | None = None
        self._session = Session()
        self._layout = Layout()
        self._glyphs: Glyphs = ASCII if (needs_ascii(os.environ) if ascii is None else ascii) else BLOCKS
        self._ask_terminal = ascii is None and self._glyphs is BLOCKS
        self._bell = bell
        self._zone = zone
        self._zoom: int | None = None  # None: by how much there is to show
        self._held: tuple[Frame, History] | None = None
        self._said = ""  # the answer to a key
        self._terminal_title = ""
        self._reminded = 0  # whole minutes of pause that were announced
        self._state: State | None = None
        colours = 0 if plain else _COLOURS.get(self.console.color_system, 256)
        self._styles: Sequence[Style] = palette(colours, no_color=plain)
        self._has_shades = colours >= SHADES_FROM
        self._has_plots = False
        self._place = Place()
        self._lines = Lines(self._styles)

    # --- life ----------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The one widget."""
        yield self._lines

    def on_mount(self) -> None:
        """Show the first screen, then begin to watch."""
        self._write("\x1b[22;2t")  # xterm: push the title, so that it can be put back
        self._redraw()
        self.call_after_refresh(self._begin)

    def run(self, *args: Any, **options: Any) -> None:
        """Run until the person quits; asks the terminal first whether blocks are one column wide."""
        if not options.get("headless"):
            self._ask_terminal_width()
        super().run(*args, **options)

    def _ask_terminal_width(self) -> None:
        if self._ask_terminal and sys.__stdin__ is not None and sys.__stderr__ is not None:
            from moewatch.tui.probe import draws_blocks_wide  # noqa: PLC0415 - only where there is a terminal to ask

            if draws_blocks_wide(sys.__stdin__.fileno(), sys.__stderr__.fileno()):
                self._glyphs = ASCII

    def _load_plots(self) -> None:
        """In a thread, once the first figures are on the screen: they come 150 ms sooner than the plots."""
        load()
        self._has_plots = True
        self.post_message(News())

    def _begin(self) -> None:
        try:
            self._feed.start(self._take)
        except MoewatchError as error:
            self._session.notice = str(error)
            self._redraw()

    def on_unmount(self) -> None:
        """Stop watching and leave the terminal as it was."""
        if self._warmer is not None:
            self._warmer.close()
        self._feed.stop()
        self._write("\x1b[23;2t")

    def _take(self, event: Event) -> None:
        """On the feed's thread: remember, then say that there is something."""
        self._session.take(event)
        if self.is_running:
            self.post_message(News())

    def on_news(self) -> None:
        """Draw what is newest."""
        if isinstance(self.screen, ExpertsScreen | WarmScreen):
            self.screen.draw()
        else:
            self._redraw()
        frame = self._session.frame
        if frame is not None and self._state is None and not self._has_plots:
            self.call_after_refresh(lambda: self.run_worker(self._load_plots, thread=True, exit_on_error=False))
        if frame is not None and frame.verdict.state is not self._state:
            if self._bell and self._state is not None:
                self.bell()
            self._state = frame.verdict.state
        self._set_terminal_title()
        self._remind()

    def _remind(self) -> None:
        """While paused, ring each minute, if ringing is wanted."""
        if self._held is None or self._session.frame is None:
            self._reminded = 0
            return
        minutes = (self._session.frame.wall_ns - self._held[0].wall_ns) // MINUTE
        if self._bell and minutes > self._reminded:
            self.bell()
        self._reminded = max(minutes, self._reminded)

    def pop_screen(self) -> AwaitComplete:
        """The dashboard, which was not drawn meanwhile, is."""
        popped = super().pop_screen()
        self._redraw()
        return popped

    def on_resize(self, event: events.Resize) -> None:
        """Lay out anew."""
        self._lines.forget()
        self._redraw(event.size.width, event.size.height)

    # --- drawing -------------------------------------------------------------------------------------------------

    def _redraw(self, width: int = 0, height: int = 0) -> None:
        if not self._lines.is_attached:
            return
        width, height = width or self.size.width, height or self.size.height
        with self._session.locked() as session:
            view = self._view(session)
            rows = self._layout.rows(view, width, height, self.live_keys())
        self._lines.show(rows)

    def _view(self, session: Session) -> View:
        frame, history = self._held or (session.frame, session.history)
        position = session.position
        newest = session.frame.wall_ns if session.frame else 0
        paused = self._held[0].wall_ns if self._held else None
        if position is not None and position.paused:
            paused = newest
        return View(
            frame=frame,
            history=history,
            header=session.header,
            standstill=None if self._held else session.standstill,
            servers=session.servers,
            notice=self._said or session.notice,
            warming=self._warm.background_text() if self._warm is not None else "",
            position=position,
            paused_at_ns=paused,
            newest_wall_ns=newest,
            zoom=self._zoom_now(history, frame),
            glyphs=self._glyphs,
            has_plots=self._has_plots,
            has_shades=self._has_shades,
            zone=self._zone,
        )

    def _zoom_now(self, history: History, frame: Frame | None) -> int:
        """The chosen columns; until one is chosen the narrow ones while they show all there is."""
        if self._zoom is not None:
            return self._zoom
        columns = grid_columns(self.size.width) if self.size.width >= MEDIUM_COLUMNS else spark_columns(self.size.width)
        if frame is None:
            return 0
        narrow = enumerate(COLUMN_NS[:ZOOM_DEFAULT])
        fits = (n for n, w in narrow if history.span_ns < columns * w and frame.target.interval_ns <= w)
        return next(fits, ZOOM_DEFAULT)

    def live_keys(self) -> tuple[Key, ...]:
        """The keys that do something now."""
        session = self._session
        replay = session.position is not None
        listed = [Key("?", "help", "help"), Key("a", "advice", "advice"), Key("e", "experts", "experts")]
        if self._can_warm:
            listed.append(Key("w", "Warm cache", "warm", 0, is_button=True))
        listed.append(Key("p", "pause", "pause"))
        if replay:
            listed += [
                Key("[", "slower", "speed(-1)"), Key("]", "faster", "speed(1)"),
                Key(self._glyphs.plain("←"), "back", "seek(-1)"), Key(self._glyphs.plain("→"), "forward", "seek(1)"),
            ]  # fmt: skip
        if len(session.servers) > 1:
            listed.append(Key("Tab", "other server", "next_target"))
        listed += [
            Key("m", "mark", "mark", 2), Key("c", "copy", "copy", 2), Key("S", "save", "save", 2),
            Key("+", "more time", "zoom(1)", 3), Key("-", "less", "zoom(-1)", 3), Key("q", "quit", "leave"),
        ]  # fmt: skip
        return tuple(listed)

    @property
    def screen_text(self) -> str:
        """The dashboard as plain text."""
        return self._lines.text

    def _answer(self, text: str) -> None:
        """Say what a key did, for a few seconds, in the line that notices have."""
        self._said = text
        self._redraw()
        self.set_timer(SAID_FOR_S, self._unsay)

    def _unsay(self) -> None:
        self._said = ""
        self._redraw()

    def _set_terminal_title(self) -> None:
        with self._session.locked() as session:
            view = self._view(session)
            rate = viewmodel.tokens_text(view)
            title = f"{viewmodel.symbol_and_word(view)} {rate} t/s {self._glyphs.dot} {viewmodel.model_name(view)}"
        if title != self._terminal_title:
            self._terminal_title = title
            self._write(f"\x1b]2;{title}\x07")

    def _write(self, code: str) -> None:
        if self._driver is not None and not self.is_headless:
            self._driver.write(code)

    # --- keys ----------------------------------------------------------------------------------------------------

    async def on_lines_pressed(self, message: Lines.Pressed) -> None:
        """A click on a key's name does what the key does."""
        await self.run_action(message.action)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The dashboard's keys work on the dashboard, the replay's in a replay."""
        del parameters
        if action in ("hold", "seek", "speed"):
            return self._on_dashboard and self._session.position is not None
        if action == "warm":
            return self._on_dashboard and self._can_warm
        if action in _DASHBOARD_ACTIONS:
            return self._on_dashboard
        return True

    @property
    def _on_dashboard(self) -> bool:
        return len(self.screen_stack) <= 1

    @property
    def _can_warm(self) -> bool:
        return self._warmer is not None and self._session.position is None and self._session.frame is not None

    def action_help(self) -> None:
        """Show the keys, the signs and where the figures come from."""
        keys = self.live_keys()
        self.push_screen(Page(lambda width: pages.help_page(keys, width, self._glyphs), self._styles, self._glyphs))

    def action_advice(self) -> None:
        """Show all advice."""
        frame = self._held[0] if self._held else self._session.frame
        with self._session.locked() as session:
            remarks = footlines.remarks(self._view(session))
        listed = viewmodel.timed_advice(frame, self._zone)
        self.push_screen(
            Page(
                lambda width: pages.advice_page(frame, listed, remarks, width, self._glyphs), self._styles, self._glyphs
            )
        )

    def action_experts(self) -> None:
        """Show what of each expert is in memory."""

        def newest() -> Frame | None:
            return self._held[0] if self._held else self._session.frame

        self.push_screen(
            ExpertsScreen(
                newest, self._feed, self._place, self._styles,
                glyphs=self._glyphs, has_shades=self._has_shades, zone=self._zone,
                is_replay=self._session.position is not None,
            )
        )  # fmt: skip

    def action_warm(self) -> None:
        """Plan a warm-up and ask; or show the one that is running."""
        frame = self._session.frame
        if self._warmer is None or frame is None:
            return
        if self._warm is None or not self._warm.is_reading:
            self._warm = WarmState()
            self._warmer.plan(frame.target.pid, self._tell_warm(self._warm))
        screen = WarmScreen(
            self._warm, self._warmer, lambda: self._session.frame, self._styles, glyphs=self._glyphs, zone=self._zone
        )
        self.push_screen(screen, self._after_warm)

    def _tell_warm(self, state: WarmState) -> Callable[[WarmEvent], None]:
        def tell(event: WarmEvent) -> None:
            state.take(event)
            if self.is_running:
                self.post_message(News())

        return tell

    def _after_warm(self, mark: bool | None) -> None:  # noqa: FBT001 - textual calls it with the answer
        if mark:
            with self._session.locked() as session:
                session.history.mark("ready")
        self._redraw()

    def action_pause(self) -> None:
        """Hold the picture, or a replay; go on at the second press."""
        if self._session.position is not None:
            self.action_hold()
            return
        with self._session.locked() as session:
            if self._held is not None:
                self._held = None
            elif session.frame is not None:
                self._held = (session.frame, copy.deepcopy(session.history))
        self._redraw()

    def action_hold(self) -> None:
        """Stop a replay or let it go on."""
        position = self._session.position
        if position is not None:
            self._feed.set_paused(not position.paused)

    def action_mark(self) -> None:
        """Put a mark at the newest Frame."""
        with self._session.locked() as session:
            done = session.history.mark("mark")
        self._answer("Marked." if done else "Nothing to mark yet.")

    def action_copy(self) -> None:
        """Copy the banner."""
        with self._session.locked() as session:
            lines = viewmodel.banner_text(self._view(session))
        self.copy_to_clipboard("\n".join(lines))
        self._answer("Copied the first lines to the clipboard, if the terminal allows it (OSC 52).")

    def action_save(self) -> None:
        """Save the screen as SVG and as text in the current directory."""
        with self._session.locked() as session:
            wall_ns = session.frame.wall_ns if session.frame else None
        stamp = viewmodel.clock(wall_ns, self._zone).replace(":", "") if wall_ns is not None else "empty"
        name = f"moewatch-{stamp}"
        home = home_directory()
        try:
            for suffix, text in ((".svg", self.export_screenshot(title="moewatch")), (".txt", self.screen_text + "\n")):
                plain = text.replace(f"{home}/", "~/") if home.name else text
                Path(name + suffix).write_text(plain, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self._answer(f"Not saved: {error.strerror}.")
        else:
            self._answer(f"Saved {name}.svg and {name}.txt in the current directory.")

    def action_next_target(self) -> None:
        """Watch another server."""
        if len(self._session.servers) > 1:
            self._held = None
            self._feed.next_target()

    def action_zoom(self, by: int) -> None:
        """Wider or narrower columns."""
        now = self._zoom_now(self._session.history, self._session.frame)
        self._zoom = max(0, min(len(COLUMN_NS) - 1, now + by))
        self._redraw()

    def action_seek(self, by: int) -> None:
        """Move a replay."""
        self._feed.seek(by * SEEK_NS)

    def action_speed(self, by: int) -> None:
        """Replay faster or slower."""
        position = self._session.position
        if position is not None:
            nearest = min(range(len(SPEEDS)), key=lambda n: abs(SPEEDS[n] - position.speed))
            self._feed.set_speed(SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + by))])

    def action_dismiss_notice(self) -> None:
        """Take a notice off the screen."""
        self._said = self._session.notice = ""
        self._redraw()

    def action_leave(self) -> None:
        """Quit; ask first when more than ten minutes would be lost."""
        span_ns = self._session.history.span_ns
        is_reading = self._warm is not None and self._warm.stage is Stage.READING
        if isinstance(self.screen, Question):
            self.exit()  # asked twice: a second ctrl+c is no slip
        elif is_reading:
            question = Question(lambda width, n: pages.quit_page(None, n, width, self._glyphs), self._styles)
            self.push_screen(question, self._leave_if)
        elif self._session.position is None and span_ns > ASK_FROM_NS:
            question = Question(lambda width, n: pages.quit_page(span_ns, n, width, self._glyphs), self._styles)
            self.push_screen(question, self._leave_if)
        else:
            self.exit()

    def _leave_if(self, sure: bool | None) -> None:  # noqa: FBT001 - textual calls it with the answer
        if sure:
            self.exit()

    def closing_words(self) -> str:
        """What stays in the scrollback after quitting: the last banner, the worst minute, the commands."""
        with self._session.locked() as session:
            self._held = None
            view = dataclasses.replace(self._view(session), standstill=None)
            return closing_words(view, session.history.worst, self._again)


_DASHBOARD_ACTIONS = frozenset(
    ("help", "advice", "experts", "pause", "mark", "copy", "save", "next_target", "zoom", "dismiss_notice")
)
