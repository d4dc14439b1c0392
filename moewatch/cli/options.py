"""Options that several commands share, with the same names and meanings everywhere."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from moewatch.cli import output
from moewatch.errors import ExitCode
from moewatch.units import MS, S, parse_duration_ns

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

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


def pids_of(text: str) -> list[int]:
    """The process ids in one argument: as many as pgrep printed, also in quotes (lines) or by `-d,`; ValueError says what to write."""
    pids = []
    for word in re.split(r"[\s,]+", text.strip(" \t\n,")):
        if word and not (word.isascii() and word.isdecimal() and 0 < int(word[:11]) < 1 << 31):
            raise ValueError(f"{word!r} is no process id; write for instance --pid $(pgrep llama-server)")
        pids += [int(word)] if word else []
    return pids


class _Pids(argparse.Action):
    """Adds to the list; given with nothing, the list is empty and not None."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse calls it so
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,  # noqa: ARG002 - argparse calls it so
    ) -> None:
        found = list(getattr(namespace, self.dest) or [])
        for each in values or ():
            if isinstance(each, list):
                found += each
        setattr(namespace, self.dest, found)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, as every other trouble is said; the usage is one `--help` away."""

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:  # noqa: ARG002 - argparse calls it so
        """To stdout like all else: argparse would keep silent about a full disk."""
        output.line(self.format_help().rstrip())

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(int(ExitCode.USAGE), f"{self.prog}: {message}; {self.prog} --help lists what there is\n")


def new_parser(name: str, summary: str) -> argparse.ArgumentParser:
    """A parser that looks the same for every command."""
    return _Parser(
        prog=f"moewatch {name}".strip(),
        description=summary,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_pid(parser: argparse._ActionsContainer, help_text: str) -> None:
    """`--pid [PID ...]`."""
    parser.add_argument("--pid", nargs="*", action=_Pids, type=typed(pids_of), metavar="PID", help=help_text)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Whom to watch, and how."""
    group = parser.add_argument_group("whom to watch")
    add_pid(group, "process ids, as pgrep prints them; none: wait for a server; left out: find it")
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
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour of the dashboard (NO_COLOR is honoured); text on stdout has none",
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
