"""`moewatch replay`: the same dashboard, or the same JSON frames, from a recording."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from moewatch import engine
from moewatch.cli import diagnostics, output
from moewatch.cli.options import add_output, add_speed, add_view, new_parser
from moewatch.domain.frame import Frame
from moewatch.errors import ExitCode
from moewatch.export.text import format_line
from moewatch.trace.reader import read_trace


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "replay", "A recording in the dashboard; with --json all its Frames, as fast as they can be made."
    )
    parser.add_argument("file", metavar="FILE", help="a recording made by `moewatch record`")
    add_speed(parser)
    add_view(parser)
    add_output(parser)
    return parser


def frames(path: Path) -> Iterator[Frame]:
    """Every Frame of a recording, through the same engine as live."""
    header, samples = read_trace(path)
    state = engine.start(header)
    for sample in samples:
        state, frame = engine.step(state, sample)
        yield frame


def main(options: argparse.Namespace) -> int:
    """Show or print the recording."""
    path = Path(options.file)
    if options.json:
        lines = output.FrameLines()
        for frame in frames(path):
            lines.show(frame)
        return int(ExitCode.OK)
    if not output.is_terminal():
        diagnostics.say("no terminal here: one line per sample instead of the dashboard.")
        for frame in frames(path):
            output.line(format_line(frame))
        return int(ExitCode.OK)
    from moewatch.cli.dashboard import show  # noqa: PLC0415 - textual only when it is drawn
    from moewatch.cli.feed import ReplayFeed  # noqa: PLC0415

    return show(ReplayFeed(path, speed=options.speed), options)
