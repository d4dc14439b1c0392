"""`moewatch warm`: what every token needs, and as many experts as fit, read into memory before they are asked for."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import require_linux
from moewatch.cli.options import add_output, add_pid, new_parser, typed
from moewatch.clock import Clock, SystemClock
from moewatch.domain.warm import Levels, Plan, StopReason, WarmOutcome, WarmProgress, What
from moewatch.domain.warm_events import WarmLeft
from moewatch.errors import ExitCode, MoewatchError, UsageError
from moewatch.units import MB, S, format_duration, format_size, parse_size

if TYPE_CHECKING:
    from moewatch.cache.run import Warming
    from moewatch.cache.warmup import Preparation, Warmup

SCHEMA = "moewatch-warm/1"
PROOF_NS = 10 * S  # looked up again: what is going to be pushed out soon is gone by then
LINE_EVERY_NS = 5 * S  # without a terminal
_EXIT = {
    StopReason.CANCELLED: ExitCode.INTERRUPTED,
    StopReason.SERVER_ENDED: ExitCode.NO_TARGET,
    StopReason.FILE: ExitCode.UNUSABLE_FILE,
}


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "warm",
        "Fill the page cache in the right order and within what fits; says before it starts what it will read, and proves "
        "afterwards that it stayed. Ctrl-C stops at once; what has been read stays in memory.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="the model's file, any shard; left out: the server's")
    add_pid(parser, "the server, as pgrep prints it")
    parser.add_argument(
        "--budget",
        type=typed(parse_size),
        metavar="SIZE",
        help="so much of the model in memory, e.g. 24G (default: what fits)",
    )
    parser.add_argument(
        "--what",
        choices=[what.value for what in What],
        default=What.AUTO.value,
        help="auto: what every token needs, the hot set, then experts of all layers alike; dense: only the first; "
        "hot: the first two; all: as auto, then the rest",
    )
    parser.add_argument("--rate", type=typed(_rate), metavar="R", help="read at most so much a second, e.g. 200MB")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, read nothing")
    parser.add_argument(
        "--watch",
        action=argparse.BooleanOptionalAction,
        help="afterwards keep looking until the first request, and say when more than a little has left "
        "(default on a terminal)",
    )
    parser.add_argument(
        "--evict", action="store_true", help="the opposite, for experiments: drop the model from memory"
    )
    parser.add_argument("--yes", action="store_true", help="with --evict: do not ask")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Plan, read, prove."""
    from moewatch.cache.warmup import Warmup  # noqa: PLC0415 - nothing eager

    require_linux()
    if options.yes and not options.evict:
        raise UsageError("--yes goes with --evict; nothing else asks.")
    clock = SystemClock()
    model = Path(options.model) if options.model else None
    with Warmup.open(clock=clock, model=model, pids=options.pid or None) as warmup:
        if options.evict:
            return _evict(warmup, yes=options.yes, as_json=options.json)
        return Command(warmup, options, clock).run()


class Command:
    """One run of the command on one model."""

    def __init__(self, warmup: "Warmup", options: argparse.Namespace, clock: Clock) -> None:
        self._warmup = warmup
        self._options = options
        self._clock = clock
        self._as_json: bool = options.json

    def run(self) -> int:
        """Returns the exit code."""
        from moewatch.cache.lock import only_one  # noqa: PLC0415 - nothing eager

        what = What(self._options.what)
        if what is not What.DENSE:
            self._find_hot_set()
        if what is What.HOT and self._warmup.hot is None:
            raise UsageError(
                "No hot set of this model is saved; save one while it runs well: moewatch hotset save FILE"
            )
        if self._options.dry_run:
            self._show_plan(self._warmup.prepare(what, budget_bytes=self._options.budget))
            return int(ExitCode.OK)
        with only_one(self._warmup.layout):
            # a person wants to know how long; that costs 24 MiB of reading, which scripts may count
            preparation = self._warmup.prepare(what, budget_bytes=self._options.budget, with_speed=not self._as_json)
            if preparation.refusal:
                return self._refuse(preparation)
            if not self._as_json:
                self._show_plan(preparation)
            return self._carry_out(preparation)

    def _find_hot_set(self) -> None:
        """The newest that was saved by itself; another one is for `moewatch hotset restore FILE`."""
        from moewatch.cache.hotset_file import read_hotset  # noqa: PLC0415 - nothing eager
        from moewatch.cache.hotset_keeper import offered_for  # noqa: PLC0415 - nothing eager

        for path in offered_for(self._warmup.layout)[:1]:
            self._warmup.hot = read_hotset(path).file_runs
            self._warmup.hot_name = path.name.partition(".")[0]

    def _show_plan(self, preparation: "Preparation") -> None:
        from moewatch.cache.words import plan_lines  # noqa: PLC0415 - nothing eager

        if self._as_json:
            output.json_line(plan_json(preparation.plan, self._warmup.layout.paths) | _about(preparation))
            return
        for line in plan_lines(preparation, self._warmup.layout.summary.name):
            output.line(line)

    def _refuse(self, preparation: "Preparation") -> int:
        from moewatch.cache.words import refusal_lines  # noqa: PLC0415 - nothing eager

        if self._as_json:
            nothing = WarmOutcome(
                planned_bytes=preparation.plan.planned_bytes,
                read_bytes=0,
                seconds=0.0,
                before=preparation.before,
                after=preparation.before,
                stopped=" ".join(preparation.refusal),
            )
            output.json_line(outcome_json(nothing, None) | _about(preparation) | {"refused": True})
        else:
            for line in refusal_lines(preparation):
                output.line(line)
        return int(ExitCode.FINDING)

    def _carry_out(self, preparation: "Preparation") -> int:
        from moewatch.cache.words import headline, outcome_lines  # noqa: PLC0415 - nothing eager

        warming = self._warmup.start(preparation, rate_bytes_per_s=self._options.rate)
        self._read(warming)
        outcome = WarmOutcome(
            planned_bytes=preparation.plan.planned_bytes,
            read_bytes=warming.read_bytes,
            seconds=warming.elapsed_ns / S,
            before=preparation.before,
            after=self._warmup.levels(),
            gone_bytes=warming.ruling.gone_bytes,
            reason=warming.reason,
            stopped=warming.stopped,
        )
        if words := _why_not_joined(warming):
            diagnostics.say(f"the pages are charged to this terminal: {words}.")
        later, was_interrupted = None, False
        if warming.reason is None and warming.read_bytes:
            try:
                later = self._look_again()
            except KeyboardInterrupt:
                was_interrupted = True
        if self._as_json:
            output.json_line(outcome_json(outcome, later) | _about(preparation))
        else:
            needed = sum(each.size_bytes for each in preparation.plan.classes)
            lines = outcome_lines(outcome, later, needed) if warming.read_bytes else iter([headline(outcome, later)])
            for line in lines:
                output.line(line)
        if warming.reason is not None:
            return int(_EXIT.get(warming.reason, ExitCode.FINDING))
        if was_interrupted:
            return int(ExitCode.INTERRUPTED)
        wants_watch = self._options.watch
        if wants_watch or (wants_watch is None and output.is_terminal() and not self._as_json):
            with contextlib.suppress(KeyboardInterrupt):  # the usual end of it
                self._watch(later or outcome.after)
        return int(ExitCode.OK)

    def _read(self, warming: "Warming") -> None:
        """Show progress; Ctrl-C is a cancel, and the account follows all the same."""
        run = warming.run()
        try:
            for _ in self._shown(run):
                pass
        except KeyboardInterrupt:
            run.close()

    def _shown(self, run: Iterator[WarmProgress]) -> Iterator[WarmProgress]:
        if self._as_json:
            yield from _with_json(run)
        elif sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
            from moewatch.cli.bar import with_bar  # noqa: PLC0415 - rich is for terminals only

            yield from with_bar(run)
        else:
            yield from _with_lines(run)

    def _look_again(self) -> Levels:
        if not self._as_json:
            diagnostics.say(f"read; looking again in {PROOF_NS // S} s whether it stayed.")
        self._clock.sleep_until(self._clock.mono_ns() + PROOF_NS)
        return self._warmup.levels()

    def _watch(self, start: Levels) -> None:
        """Until the first request, the server's end or Ctrl-C."""
        from moewatch.cache.vigil import keep_vigil, left_limit  # noqa: PLC0415 - nothing eager

        limit = left_limit(start.resident_bytes)
        diagnostics.say(f"watching on: a line appears here if more than {format_size(limit)} leaves. Ctrl-C ends.")
        for event in keep_vigil(self._warmup, start.resident_bytes, self._clock):
            diagnostics.say(
                f"{format_size(event.left_bytes)} of the model have left memory again; moewatch warm brings them back."
                if isinstance(event, WarmLeft)
                else event.text
            )


def _evict(warmup: "Warmup", *, yes: bool, as_json: bool) -> int:
    from moewatch.cache.evict import evict, who_maps  # noqa: PLC0415 - nothing eager

    if mapped := who_maps(warmup.layout):
        pids = ", ".join(map(str, mapped))
        raise MoewatchError(f"PID {pids} maps this model, and mapped pages are not dropped; end that process first.")
    before = warmup.levels()
    if not yes:
        if not output.is_terminal():
            raise UsageError("--evict asks first, and there is no terminal to ask on; --yes does without.")
        answer = diagnostics.ask(
            f"Drop {format_size(before.resident_bytes)} of {warmup.layout.summary.name} from memory? y/N "
        )
        if answer.strip().lower() not in ("y", "yes"):
            diagnostics.say("nothing was dropped.")
            return int(ExitCode.INTERRUPTED)
    evict(warmup.layout)
    after = warmup.levels()
    dropped = max(0, before.resident_bytes - after.resident_bytes)
    if as_json:
        output.json_line(
            {"schema": SCHEMA, "evicted_bytes": dropped, "before": _levels(before), "after": _levels(after)}
        )
    else:
        output.line(f"dropped {format_size(dropped)}; {format_size(after.resident_bytes)} are still in memory.")
    return int(ExitCode.OK)


def _with_json(run: Iterator[WarmProgress]) -> Iterator[WarmProgress]:
    for progress in run:
        output.json_line(progress_json(progress))
        yield progress


def _with_lines(run: Iterator[WarmProgress]) -> Iterator[WarmProgress]:
    told_ns = 0
    for progress in run:
        if progress.elapsed_ns - told_ns >= LINE_EVERY_NS:
            told_ns = progress.elapsed_ns
            diagnostics.say(progress_line(progress))
        yield progress


def progress_line(progress: WarmProgress) -> str:
    """How far it is, in a line."""
    share = 100 * progress.read_bytes // max(1, progress.planned_bytes)
    speed = f", {progress.bytes_per_s / MB:,.0f} MB/s" if progress.bytes_per_s else ""
    left = f", about {format_duration(progress.eta_ns)} left" if progress.eta_ns is not None else ""
    return f"{share} %: {format_size(progress.read_bytes)} of {format_size(progress.planned_bytes)}{speed}{left}"


def progress_json(progress: WarmProgress) -> dict[str, Any]:
    """One progress object."""
    return {
        "planned_bytes": progress.planned_bytes,
        "read_bytes": progress.read_bytes,
        "seconds": round(progress.elapsed_ns / S, 3),
        "bytes_per_s": progress.bytes_per_s,
        "eta_ns": progress.eta_ns,
        "step": progress.step.value if progress.step else None,
        "resident_bytes": progress.resident_bytes,
        "gone_bytes": progress.gone_bytes,
        "pushed_out_bytes": progress.pushed_out_bytes,
        "left_for_programs_bytes": progress.left_for_programs_bytes,
        "server_busy": progress.is_server_busy,
    }


def plan_json(plan: Plan, paths: tuple[str, ...]) -> dict[str, Any]:
    """What `--dry-run --json` prints."""
    return {
        "schema": SCHEMA,
        "planned_bytes": plan.planned_bytes,
        "ranges": [
            {
                "file": paths[each.file_index],
                "offset": each.offset,
                "length": each.length,
                "class": each.weight_class.value,
                "step": each.step.value,
            }
            for each in plan.ranges
        ],
        "left_cold_bytes": plan.left_cold_bytes,
        "budget_bytes": plan.budget_bytes,
        "resident_bytes": plan.resident_bytes,
        "displaced_bytes": plan.displaced_bytes,
        "classes": {
            each.weight_class.value: {
                "size_bytes": each.size_bytes,
                "resident_bytes": each.resident_bytes,
                "planned_bytes": each.planned_bytes,
                "left_cold_bytes": each.left_cold_bytes,
            }
            for each in plan.classes
        },
    }


def outcome_json(outcome: WarmOutcome, later: Levels | None) -> dict[str, Any]:
    """The last object."""
    from moewatch.cache.words import is_ready  # noqa: PLC0415 - nothing eager

    return {
        "schema": SCHEMA,
        "planned_bytes": outcome.planned_bytes,
        "read_bytes": outcome.read_bytes,
        "seconds": round(outcome.seconds, 3),
        "before": _levels(outcome.before),
        "after": _levels(outcome.after),
        "later": _levels(later) if later else None,
        "gone_bytes": outcome.gone_bytes,
        "stopped": outcome.stopped,
        "reason": outcome.reason.value if outcome.reason else None,
        "ready": is_ready(later or outcome.after),
    }


def _about(preparation: "Preparation") -> dict[str, Any]:
    room = preparation.room
    return {
        "room": {
            "room_bytes": room.room_bytes,
            "kept_bytes": room.kept_bytes,
            "scope": room.scope or "host",
        },
        "charged_to": preparation.charged_to,
        "disk_bytes_per_s": preparation.disk_bytes_per_s,
    }


def _levels(levels: Levels) -> dict[str, Any]:
    return dict(msgspec.structs.asdict(levels))


def _why_not_joined(warming: "Warming") -> str | None:
    from moewatch.cache.child import cgroup_words  # noqa: PLC0415 - nothing eager

    return cgroup_words(warming.joined_errno)


def _rate(text: str) -> int:
    """Bytes per second."""
    rate = parse_size(text.removesuffix("/s"))
    if rate < MB:
        raise ValueError(f"{text!r} is less than 1 MB a second; write for instance 200MB")
    return rate
