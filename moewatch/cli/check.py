"""`moewatch check`: one answer and an exit code, for scripts and for the minute before a demo."""

import argparse

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import LiveFeed
from moewatch.cli.options import add_for, add_output, add_target, new_parser
from moewatch.cli.stream import Printer
from moewatch.domain.frame import Frame, Severity, State
from moewatch.domain.labels import is_ready, state_label
from moewatch.errors import ExitCode, UsageError
from moewatch.export.text import format_advice
from moewatch.units import S, format_duration

DEFAULT_NS = 30 * S
LEAST_NS = 12 * S  # the verdict's windows are 10 s
HELD_RATIO = 0.5  # thrashing for half of the time is a finding even when it has just stopped


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "check",
        "Watch for a while and answer: exit 1 when it thrashes, 4 when that cannot be told, 3 without a server, else 0.",
    )
    parser.add_argument("--ready", action="store_true", help="exit 1 also when what every token needs is not in memory")
    add_target(parser)
    add_for(parser, "how long to watch (default 30, at least 12 seconds)")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Watch, print, and answer by the exit code."""
    wanted_ns = DEFAULT_NS if options.for_ns is None else options.for_ns
    if wanted_ns < LEAST_NS:
        raise UsageError(f"nothing shorter than 12 s can be judged; --for {wanted_ns / S:g} is too short.")
    watcher = Tally(limit_ns=wanted_ns)
    feed = LiveFeed(options, follow=False)
    watcher.stop = feed.stop
    feed.run(watcher)
    if watcher.ended or watcher.last is None:
        return int(ExitCode.NO_TARGET)
    _print(watcher.last, watcher.seconds, as_json=options.json)
    return int(watcher.exit_code(must_be_ready=options.ready))


class Tally(Printer):
    """Counts for how long which state held; prints nothing."""

    def __init__(self, *, limit_ns: int) -> None:
        super().__init__(as_json=False, limit_ns=limit_ns)
        self.last: Frame | None = None
        self._first_ns_seen: int | None = None
        self._thrashing_ns = 0

    @property
    def seconds(self) -> float:
        """How long was watched."""
        if self.last is None or self._first_ns_seen is None:
            return 0.0
        return (self.last.mono_ns - self._first_ns_seen) / S

    def show(self, frame: Frame, *, last: bool) -> None:  # noqa: ARG002 - every Frame counts
        """The time since the previous Frame belongs to this Frame's state."""
        if self._first_ns_seen is None:
            self._first_ns_seen = frame.mono_ns
        if self.last is not None and frame.verdict.state is State.THRASHING:
            self._thrashing_ns += frame.mono_ns - self.last.mono_ns
        self.last = frame

    def exit_code(self, *, must_be_ready: bool) -> ExitCode:
        """What the whole watch amounts to."""
        if self.last is None:
            return ExitCode.NO_TARGET
        state = self.last.verdict.state
        if state is State.THRASHING or self._thrashing_ns / S >= HELD_RATIO * self.seconds > 0:
            return ExitCode.FINDING
        if state is State.UNKNOWN:
            return ExitCode.FORBIDDEN
        if must_be_ready:
            ready = is_ready(self.last)
            if ready is None:
                return ExitCode.FORBIDDEN
            return ExitCode.OK if ready else ExitCode.FINDING
        return ExitCode.OK


def _print(frame: Frame, seconds: float, *, as_json: bool) -> None:
    verdict, ready = frame.verdict, is_ready(frame)
    if as_json:
        severity = Severity(verdict.severity).value if verdict.severity is not None else None
        output.json_line(
            {
                "state": verdict.state.value,
                "severity": severity,
                "headline": verdict.headline,
                "seconds": round(seconds, 1),
                "ready": ready,
            }
        )
        return
    output.line(f"{state_label(verdict, frame.residency.dense_ratio)}   watched {format_duration(round(seconds * S))}")
    output.line(verdict.headline)
    output.line(
        {True: "ready", False: "cold", None: "readiness unknown: what of the model is in memory cannot be read"}[ready]
    )
    for advice in verdict.advice[:1]:
        diagnostics.say(format_advice(advice))
