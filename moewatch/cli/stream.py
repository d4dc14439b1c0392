"""`moewatch stream`: headless, one Frame a line."""

import argparse
from collections.abc import Callable

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import LiveFeed
from moewatch.cli.options import add_for, add_output, add_target, new_parser
from moewatch.domain.events import Candidates, Ended, Event, FrameReady, Notice, Waiting
from moewatch.domain.frame import Frame
from moewatch.errors import ExitCode
from moewatch.export.text import format_line
from moewatch.sampler import Recorder


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser("stream", "One line per sample (with --json one Frame per line) until interrupted.")
    add_target(parser)
    add_for(parser, "end after so many seconds")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Run until interrupted, until the time is over or until the target ends."""
    return watch(options, Printer(as_json=options.json, limit_ns=options.for_ns))


def watch(options: argparse.Namespace, printer: "Printer", *, wait: bool = True) -> int:
    """Run `printer` on a live server; without a pid it waits for one to appear, unless told not to `wait`."""
    feed = LiveFeed(options, follow=wait and not options.pid, recorder=printer.recorder)
    printer.stop = feed.stop
    feed.run(printer)
    return int(ExitCode.NO_TARGET if printer.ended else ExitCode.OK)


def _nothing_to_stop() -> None:
    """Before a feed runs."""


class Printer:
    """Prints Frames to stdout and everything else to stderr; stops the feed when the time is over or the target ends."""

    def __init__(self, *, as_json: bool, limit_ns: int | None = None, recorder: Recorder | None = None) -> None:
        self._as_json = as_json
        self._lines = output.FrameLines()
        self._limit_ns = limit_ns
        self._first_ns: int | None = None
        self.recorder = recorder
        self.ended = False
        self.stop: Callable[[], None] = _nothing_to_stop  # the feed's, once there is one

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, FrameReady):
            self._frame(event.frame)
        elif isinstance(event, Ended):
            self.ended = True
            if not event.final:
                diagnostics.say(event.text)
            self.stop()
        elif isinstance(event, Waiting | Notice):
            diagnostics.say(event.text)
        elif isinstance(event, Candidates) and len(event.servers) > 1:
            (pid, name), *others = event.servers
            named = ", ".join(f"--pid {other} ({model})" for other, model in others)
            diagnostics.say(f"{len(event.servers)} servers map a model; this is {pid} ({name}). The others: {named}.")

    def _frame(self, frame: Frame) -> None:
        last = False
        if self._first_ns is None:
            self._first_ns = frame.mono_ns
        else:  # a rate needs two samples, so the first is never the last
            last = self.is_over(frame, frame.mono_ns - self._first_ns)
        self.show(frame, last=last)
        if last:
            self.stop()

    def is_over(self, frame: Frame, watched_ns: int) -> bool:  # noqa: ARG002 - who answers once looks at it
        """Whether this Frame is the last."""
        return self._limit_ns is not None and watched_ns >= self._limit_ns

    def show(self, frame: Frame, *, last: bool) -> None:  # noqa: ARG002 - who prints one Frame only needs it
        """One line for each Frame; first, to the person, what limits all that follows (another user's process, a damaged model)."""
        if self._as_json:
            self._lines.show(frame)
            return
        if frame.mono_ns == self._first_ns:
            for remark in frame.verdict.remarks:
                diagnostics.say(remark)
        output.line(format_line(frame))
