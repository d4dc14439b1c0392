"""`moewatch demo`: the dashboard on the built-in workload; everything it shows is measured."""

import argparse
import threading
from collections.abc import Callable

from moewatch.cli import diagnostics, output
from moewatch.cli.dashboard import show
from moewatch.cli.feed import LiveFeed, require_linux
from moewatch.cli.options import add_output, add_target, add_view, new_parser
from moewatch.cli.stream import Printer, watch
from moewatch.cli.warmer import LiveWarmer
from moewatch.clock import SystemClock
from moewatch.demo import model
from moewatch.demo.script import Demo
from moewatch.domain.events import Ended, Event, Notice, Waiting
from moewatch.errors import ExitCode, MoewatchError


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "demo",
        "A real process maps a real, generated MoE model (about 1 GiB in your cache folder), warms up, fits, is squeezed, "
        "thrashes and recovers, in under two minutes.",
    )
    parser.add_argument("--clean", action="store_true", help="remove the generated model and end")
    add_view(parser)
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Show the demo until the person quits; its server ends with it."""
    if options.clean:
        removed = model.remove()
        output.line(
            "\n".join(f"removed {path}" for path in removed) if removed else "there is no generated model to remove"
        )
        return int(ExitCode.OK)
    require_linux()
    clock = SystemClock()
    target = new_target_options()
    lacking = "--json" if options.json else output.lacking_for_screen()
    if lacking:
        diagnostics.say(f"{lacking}: one line per sample instead of the dashboard.")
        with Demo(clock, on_notice=diagnostics.say) as demo:
            target.pid = [demo.start()]
            return watch(target, Printer(as_json=options.json))
    feed = DemoFeed(target, clock)
    try:
        return show(feed, options, LiveWarmer(clock=clock), again="moewatch demo")
    finally:
        feed.stop()


def new_target_options() -> argparse.Namespace:
    """The defaults of everything that chooses a target."""
    parser = argparse.ArgumentParser()
    add_target(parser)
    return parser.parse_args([])


class DemoFeed(LiveFeed):
    """A LiveFeed that first starts what it watches; the screen is up meanwhile, since writing the model takes seconds."""

    def __init__(self, options: argparse.Namespace, clock: SystemClock) -> None:
        super().__init__(options, follow=False, clock=clock)
        self._sink: Callable[[Event], None] = lambda _event: None
        self._demo = Demo(clock, on_notice=self._tell)
        self._started = False
        self._starter: threading.Thread | None = None

    def start(self, sink: Callable[[Event], None]) -> None:
        """Start the workload, then watch it."""
        self._sink = sink
        self._starter = threading.Thread(target=self._start_both, name="demo", daemon=True)
        self._starter.start()

    def stop(self) -> None:
        """End the watch and the workload."""
        super().stop()
        self._demo.stop()

    def _start_both(self) -> None:
        try:
            self._pids = [self._demo.start()]
            self._started = True
            super().start(self._sink)
        except MoewatchError as error:
            self._sink(Ended(text=str(error), wall_ns=self.clock.wall_ns(), final=True))

    def _tell(self, text: str) -> None:
        now_ns = self.clock.wall_ns()
        self._sink(Notice(text=text, wall_ns=now_ns) if self._started else Waiting(text=text, wall_ns=now_ns))
