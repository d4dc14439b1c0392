"""Options that several commands share, with the same names and meanings everywhere."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from moewatch.units import MS, S, parse_duration_ns

MIN_INTERVAL_NS, MAX_INTERVAL_NS = 200 * MS, 5 * S  # what the verdict is tested for
DEFAULT_INTERVAL_NS = S
T = TypeVar("T")


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse show the sentence of a ValueError instead of `invalid ... value`."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _interval(text: str) -> int:
    interval_ns = parse_duration_ns(text)
    if not MIN_INTERVAL_NS <= interval_ns <= MAX_INTERVAL_NS:
        raise ValueError(f"{text!r} is outside 0.2 s to 5 s, the intervals at which a verdict can be trusted")
    return interval_ns


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.1 <= speed <= 1000:  # noqa: PLR2004 - beyond these a replay stands still or is all at once
        raise ValueError(f"{text!r} is no speed; write a number from 0.1 to 1000")
    return speed


def pid_of(text: str) -> int:
    """A process id; ValueError says what to write."""
    if not (text.isdecimal() and 0 < int(text) < 1 << 31):
        raise ValueError(f"{text!r} is no process id; write for instance --pid $(pgrep llama-server)")
    return int(text)


def new_parser(name: str, summary: str) -> argparse.ArgumentParser:
    """A parser that looks the same for every command."""
    return argparse.ArgumentParser(
        prog=f"moewatch {name}".strip(),
        description=summary,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """Whom to watch, and how."""
    group = parser.add_argument_group("whom to watch")
    group.add_argument(
        "--pid",
        nargs="*",
        type=typed(pid_of),
        metavar="PID",
        help="process ids, as pgrep prints them; none: wait for a server; left out: find it",
    )
    group.add_argument(
        "--model",
        nargs="+",
        metavar="FILE",
        help="the model's file (any shard), where it cannot be found from the process",
    )
    group.add_argument(
        "--url",
        metavar="URL",
        help="where the server answers, e.g. http://127.0.0.1:8080; left out: found from the process",
    )
    group.add_argument(
        "--interval",
        type=typed(_interval),
        default=DEFAULT_INTERVAL_NS,
        metavar="S",
        help="time between samples, 0.2 to 5 seconds (default 1)",
    )
    group.add_argument(
        "--no-http", action="store_true", help="ask the server nothing; tokens and its phase stay unknown"
    )
    group.add_argument(
        "--no-residency",
        action="store_true",
        help="do not look at the page cache part by part; saves most of the CPU time",
    )


def add_for(parser: argparse.ArgumentParser, help_text: str, default: str | None = None) -> None:
    """`--for S`."""
    parser.add_argument(
        "--for",
        dest="for_ns",
        type=typed(parse_duration_ns),
        default=parse_duration_ns(default) if default else None,
        metavar="S",
        help=help_text,
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--color`."""
    parser.add_argument("--json", action="store_true", help="JSON on stdout")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colour (NO_COLOR is honoured)"
    )


def add_view(parser: argparse.ArgumentParser) -> None:
    """How the dashboard looks and behaves."""
    parser.add_argument("--bell", action="store_true", help="ring the terminal's bell when the state changes")
    parser.add_argument("--ascii", action="store_true", help="no block characters, for fonts that lack them")


def add_speed(parser: argparse.ArgumentParser) -> None:
    """`--speed N`."""
    parser.add_argument(
        "--speed", type=typed(_speed), default=1.0, metavar="N", help="so many times as fast (0.1 to 1000)"
    )
