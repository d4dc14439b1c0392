"""Which command was asked for. Nothing heavy is imported before that is known."""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from moewatch import __version__
from moewatch.cli.diagnostics import guarded
from moewatch.errors import ExitCode, UsageError


class Command(NamedTuple):
    """A command: the module that runs it, and what it does in a line."""

    module: str
    summary: str


COMMANDS = {
    "stream": Command("stream", "one line (or JSON frame) per sample until interrupted"),
    "residency": Command("residency", "what of these files, or of the server's model, is in memory"),
    "check": Command("check", "one answer and an exit code: does it thrash, is it ready"),
    "estimate": Command("estimate", "before you download: will it run here, how fast, with which flags"),
    "tune": Command("tune", "starts your llama-server with a few splits or thread counts, names the fastest"),
    "record": Command("record", "raw samples to a file"),
    "replay": Command("replay", "the same dashboard, or the same JSON frames, from a recording"),
    "warm": Command("warm", "fill the page cache in the right order, within what fits"),
    "hotset": Command("hotset", "remember which pages were in memory after a good run, bring just these back"),
    "pin": Command("pin", "hold a part of the model in memory where that helps, until interrupted"),
    "doctor": Command("doctor", "what can be read here and what cannot, why, and the remedy"),
    "demo": Command("demo", "the dashboard on the built-in workload"),
}

_FILE_OPTIONS = frozenset({"--model", "--record", "-o", "--output", "--hotset", "--imatrix", "--dir", "--server"})


def run(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name) and return the exit code."""
    return guarded(lambda: _dispatch(list(argv)))


def _dispatch(argv: list[str]) -> int:
    first = argv[0] if argv else ""
    if first in ("-V", "--version"):
        from moewatch.cli.output import line  # noqa: PLC0415 - as late as the rest

        line(f"moewatch {__version__}")
        return int(ExitCode.OK)
    name = first if first in COMMANDS else "dashboard"
    if name == "dashboard" and first and not first.startswith("-"):
        raise UsageError(f"There is no command {first!r}; moewatch --help lists the commands.")
    own = argv[: argv.index("--")] if "--" in argv else argv
    # Path("") is the current folder; other options say themselves what they take, and an empty $(pgrep ...) is meant
    if any(
        not word.strip() and (before in _FILE_OPTIONS or not before.startswith("-"))
        for before, word in pairwise(["", *own])
    ):
        raise UsageError(
            "One of the arguments is empty, perhaps a variable that is not set; leave it out, or name something."
        )
    module = importlib.import_module(f"moewatch.cli.{COMMANDS[name].module if name in COMMANDS else name}")
    parser = module.parser()
    try:
        options = parser.parse_args(argv[1:] if name in COMMANDS else argv)
    except SystemExit as exit_:
        return int(exit_.code or 0) if not isinstance(exit_.code, str) else int(ExitCode.USAGE)
    return int(module.main(options))
