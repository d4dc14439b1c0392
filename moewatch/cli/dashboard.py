"""`moewatch`: the dashboard; and `--once`, one Frame of it."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import LiveFeed
from moewatch.cli.main import COMMANDS
from moewatch.cli.options import add_for, add_output, add_target, add_view, new_parser
from moewatch.cli.stream import Printer, watch
from moewatch.domain.events import Ended, Event
from moewatch.domain.frame import Frame, State
from moewatch.errors import ExitCode, UsageError
from moewatch.export.text import format_page
from moewatch.units import S

if TYPE_CHECKING:
    from moewatch.cli.record import FileRecorder
    from moewatch.tui.feed import Feed, Warmer

ONCE_NS = 12 * S  # nothing shorter can be judged: the verdict's windows are 10 s
# Until the cache has turned over once, thrashing and a change of topic look alike; at 100 MB/s with 1 GB in memory, as on the
# test server, that takes 10 to 20 s, and one answer is all that is given here.
ONCE_UNSURE_NS, SURE = 30 * S, 0.5


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser("", "Is the model thrashing, why, and what to do: a live monitor beside llama-server.")
    parser.epilog = "commands (moewatch COMMAND --help):\n" + "\n".join(
        f"  {name:<10} {c.summary}" for name, c in COMMANDS.items()
    )
    parser.usage = "moewatch [COMMAND] [--pid PID ...] [options]"
    add_target(parser)
    parser.add_argument(
        "--once", action="store_true", help="print one Frame (text, or --json) instead of the dashboard"
    )
    add_for(parser, "with --once: watch so many seconds first (default 12; 0: two samples, too few for a verdict)")
    parser.add_argument("--record", metavar="FILE", help="record the raw samples as well")
    add_view(parser)
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Draw the dashboard, or print what a screen would show where there is none."""
    if options.once:
        once = _Once(as_json=options.json, for_ns=options.for_ns)
        return watch(options, once, wait=False)
    if options.json:
        raise UsageError("--json needs --once (one Frame) or the command stream (a Frame per line).")
    if options.for_ns is not None:
        raise UsageError("--for needs --once or the command stream; the dashboard runs until you quit it.")
    recorder = _recorder(options.record)
    feed = LiveFeed(options, follow=True, recorder=recorder, keep_hot_sets=True)
    feed.check()
    if lacking := output.lacking_for_screen():
        diagnostics.say(f"{lacking}: one line per sample instead of the dashboard (moewatch stream does the same).")
        return watch(options, Printer(as_json=False, recorder=recorder))
    feed.begin()
    from moewatch.cli.warmer import LiveWarmer  # noqa: PLC0415 - nothing eager

    return show(feed, options, LiveWarmer(model=Path(options.model[0]) if options.model else None))


def show(feed: "Feed", options: argparse.Namespace, warmer: "Warmer | None" = None, again: str | None = None) -> int:
    """Run the dashboard on a feed until the person quits; `again` is the command that shows the same once more."""
    # Textual's pixels of the mouse: nothing here needs them, and a terminal that reports 0 of them ends it (ZeroDivisionError)
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    from moewatch.tui.app import MoewatchApp  # noqa: PLC0415 - textual only when it is drawn

    plain = {"never": True, "always": False}.get(options.color)  # None: by NO_COLOR
    app = MoewatchApp(feed, warmer=warmer, again=again, ascii=options.ascii or None, bell=options.bell, no_color=plain)
    if not os.environ.get(diagnostics.TRACEBACK_VARIABLE):
        app.hush()
    try:
        app.run()
    finally:
        feed.stop()
    closing = app.closing_words()
    if closing:
        output.line(closing)
    if app.fault is not None:
        raise diagnostics.Fault(app.fault)
    return int(app.return_code or ExitCode.OK)


def _recorder(path: str | None) -> "FileRecorder | None":
    if path is None:
        return None
    from moewatch.cli.record import FileRecorder  # noqa: PLC0415 - only when asked for

    recorder = FileRecorder(Path(path))
    recorder.check()
    return recorder


class _Once(Printer):
    """Prints the last Frame only; when the target ends before the time is over, the last there was."""

    def __init__(self, *, as_json: bool, for_ns: int | None) -> None:
        super().__init__(as_json=as_json, limit_ns=ONCE_NS if for_ns is None else for_ns)
        self._latest: Frame | None = None
        self._may_look_on = for_ns is None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Ended) and self._latest is not None:
            self._print(self._latest)
        super().__call__(event)

    def show(self, frame: Frame, *, last: bool) -> None:
        """The Frame at the end of the time, as JSON or as a page."""
        self._latest = frame
        if last:
            self._print(frame)

    def is_over(self, frame: Frame, watched_ns: int) -> bool:
        """Where no time was given, it looks on while it cannot tell yet."""
        is_unsure = frame.verdict.state is State.WARMING and frame.verdict.confidence < SURE
        if self._may_look_on and is_unsure and watched_ns < ONCE_UNSURE_NS:
            return False
        return super().is_over(frame, watched_ns)

    def _print(self, frame: Frame) -> None:
        self._latest = None
        if self._as_json:
            output.json_line(frame)
        else:
            for text in format_page(frame):
                output.line(text)
