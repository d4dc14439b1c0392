"""`moewatch replay`: the same dashboard, or the same JSON frames, from a recording."""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moewatch import engine
from moewatch.cli import diagnostics, output
from moewatch.cli.options import add_output, add_speed, add_view, new_parser
from moewatch.domain.frame import Frame
from moewatch.errors import ExitCode, UnusableFileError
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
    n_frames = 0
    for n_frames, sample in enumerate(samples, start=1):  # noqa: B007 - counted for what is said at the end
        state, frame = engine.step(state, sample)
        yield frame
    if not n_frames:
        raise UnusableFileError(f"{path} holds no samples: its recording was ended before the first; record it again.")


def main(options: argparse.Namespace) -> int:
    """Show or print the recording."""
    path = Path(options.file)
    if options.json:
        lines = output.FrameLines()
        for frame in frames(path):
            lines.show(frame)
        return int(ExitCode.OK)
    if lacking := output.lacking_for_screen():
        found = frames(path)
        first = next(found)  # what is no recording is said before anything else
        diagnostics.say(f"{lacking}: one line per sample instead of the dashboard.")
        for frame in chain((first,), found):
            output.line(format_line(frame))
        return int(ExitCode.OK)
    from moewatch.cli.dashboard import show  # noqa: PLC0415 - textual only when it is drawn
    from moewatch.cli.feed import ReplayFeed  # noqa: PLC0415 - nothing eager

    return show(ReplayFeed(path, speed=options.speed), options)
