"""`moewatch pin`: hold the part of a model that would be pushed out just before it is needed, until interrupted."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import require_linux
from moewatch.cli.latest import Latest
from moewatch.cli.options import add_for, add_output, add_target, new_parser, typed
from moewatch.clock import Clock, SystemClock
from moewatch.domain.frame import Evenness, Frame
from moewatch.errors import ExitCode, ForbiddenError, TargetEndedError, TargetError
from moewatch.units import S, format_percent, format_rate, format_size, parse_size

if TYPE_CHECKING:
    from moewatch.cache.holding import HolderProcess
    from moewatch.cache.hotset import Hotset
    from moewatch.cache.pin import Decision, Facts, Files, Part, Watch
    from moewatch.cache.warmup import Warmup

SCHEMA = "moewatch-pin/1"
WATCH_NS = 12 * S  # the verdict's windows are 10 s
EXPERTS_NS = 17 * S  # how alike experts are used takes 15 s to see (analysis/skew.py)
TELL_NS = 5 * S
FRAME_NS = 10 * S  # frames come every 5 s at the longest


def _parts(text: str) -> "tuple[Part, ...]":
    from moewatch.cache.pin import Part  # noqa: PLC0415 - nothing eager

    words = text.split(",")
    if not words or not set(words) <= {part.value for part in Part}:
        raise ValueError(f"{text!r} is not dense, hot or dense,hot")
    return tuple(part for part in Part if part.value in words)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "pin",
        "Hold a part of a model in memory (mlock of our own mapping; the page cache is shared, so it helps a stock server) "
        "until interrupted. Watches the server for 12 s first (17 s where there are experts) and refuses, with the reason, where holding would do harm. "
        "Lets go at once when the server gets slower or memory runs short.",
    )
    parser.add_argument(
        "--what",
        type=typed(_parts),
        default="dense,hot",
        metavar="dense,hot",
        help="what every token needs, the hot set, or both (default both)",
    )
    parser.add_argument("--hotset", metavar="FILE", help="the hot set (left out: the newest saved by itself)")
    parser.add_argument("--budget", type=typed(parse_size), metavar="SIZE", help="hold at most so much, e.g. 8G")
    parser.add_argument("--force", action="store_true", help="hold although it is expected to do harm or nothing")
    add_target(parser)
    add_for(parser, "let go after so many seconds")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Watch, decide, hold, let go."""
    from moewatch.cache.warmup import Warmup  # noqa: PLC0415 - nothing eager

    require_linux()
    clock = SystemClock()
    model = Path(options.model[0]) if options.model else None
    with Warmup.open(clock=clock, model=model, pids=options.pid or None, asks_server=False) as warmup:
        if warmup.server is None:
            raise TargetError(f"No server maps {warmup.layout.files[0].name}; start it first, then hold a part of it.")
        with Latest(options, warmup.server.pid, clock) as latest:
            return Pin(warmup, warmup.server.pid, latest, options, clock).run()


class Pin:
    """One run of the command on one server."""

    def __init__(self, warmup: "Warmup", pid: int, latest: Latest, options: argparse.Namespace, clock: Clock) -> None:
        from moewatch.cache.holding import StallMeter  # noqa: PLC0415 - nothing eager
        from moewatch.cache.payer import find_payer  # noqa: PLC0415 - nothing eager
        from moewatch.linux.root import KernelRoot  # noqa: PLC0415 - nothing eager

        self._warmup = warmup
        self._latest = latest
        self._options = options
        self._clock = clock
        self._as_json: bool = options.json
        self._root = KernelRoot.system()
        self._payer = find_payer(self._root, pid)
        self._stall = StallMeter(self._root, self._payer.theirs, clock)
        self._before: float | None = None
        self._hot: Hotset | None = None
        self._wanted_bytes = 0

    def run(self) -> int:
        """Returns the exit code."""
        from moewatch.cache.pin import choose_runs, decide  # noqa: PLC0415 - nothing eager

        self._hot = self._hotset()
        watch_ns = EXPERTS_NS if self._warmup.layout.summary.n_expert else WATCH_NS
        diagnostics.say(f"watching the server for {watch_ns // S} s before anything is held.")
        frame = self._watch_first(watch_ns)
        self._before = frame.rates.tokens_per_s if self._latest.tokens else None
        facts = self._facts(frame)
        decision = decide(facts, self._options.what)
        forced = not decision.helps and self._options.force and decision.may_force
        self._show(facts, decision, forced=forced)
        if not decision.helps and not forced:
            return int(ExitCode.FINDING)
        runs = choose_runs(
            self._warmup.layout,
            self._options.what,
            facts.most_bytes,
            hot=self._hot.file_runs if self._hot is not None else (),
            not_needed=self._warmup.not_needed,
            page_bytes=self._warmup.cache.page_bytes,
        )
        return self._hold(runs, facts)

    def _hotset(self) -> "Hotset | None":
        from moewatch.cache.hotset_file import check_model, identify, read_hotset  # noqa: PLC0415 - nothing eager
        from moewatch.cache.hotset_keeper import offered_for  # noqa: PLC0415 - nothing eager
        from moewatch.cache.pin import Part  # noqa: PLC0415 - nothing eager

        if Part.HOT not in self._options.what or not self._warmup.layout.summary.n_expert:
            return None
        if self._options.hotset is not None:
            path = Path(self._options.hotset)
            hotset = read_hotset(path)
            check_model(hotset, identify(self._warmup.layout), path.name)
            return hotset
        offered = offered_for(self._warmup.layout)
        if not offered:
            return None
        diagnostics.say(f"the hot set is {offered[0]}")
        return read_hotset(offered[0])

    def _watch_first(self, watch_ns: int) -> Frame:
        frame: Frame | None = None
        end_ns = self._clock.mono_ns() + watch_ns + 2 * FRAME_NS
        while self._latest.watched_ns < watch_ns and self._clock.mono_ns() < end_ns:
            frame = self._latest.wait(FRAME_NS) or frame
            self._stall.read()
        if frame is None:
            raise TargetError("The server could not be watched; moewatch doctor says what is missing.")
        return frame

    def _facts(self, frame: Frame) -> "Facts":
        from msgspec.structs import replace  # noqa: PLC0415 - nothing eager

        from moewatch.cache.pin import Facts, tiers_that_fit  # noqa: PLC0415 - nothing eager
        from moewatch.cache.plan import class_runs  # noqa: PLC0415 - nothing eager
        from moewatch.cache.runs import intersect, total  # noqa: PLC0415 - nothing eager
        from moewatch.domain.layout import WeightClass  # noqa: PLC0415 - nothing eager
        from moewatch.domain.warm import What  # noqa: PLC0415 - nothing eager

        warmup = self._warmup
        classes = class_runs(warmup.layout, warmup.not_needed, warmup.cache.page_bytes)
        room = warmup.prepare(What.DENSE, with_speed=False).room
        experts = classes[WeightClass.EXPERT]
        facts = Facts(
            dense_bytes=sum(map(total, classes[WeightClass.DENSE])),
            expert_bytes=sum(map(total, experts)),
            active_bytes=frame.active_bytes_per_token,
            room_bytes=room.room_bytes,
            kept_bytes=room.kept_bytes,
            load_mode=frame.target.load_mode,
            is_moe=any(experts),
            is_hot_proven=self._hot is not None and self._hot.is_proven,
            dense_ratio=frame.residency.dense_ratio,
            has_worked=bool(self._latest.tokens),
            is_even=frame.skew is not None and frame.skew.evenness is Evenness.EVEN,
            state=frame.verdict.state,
            budget_bytes=self._options.budget,
        )
        if self._hot is None:
            return facts
        sizes = [
            sum(total(intersect(*pair)) for pair in zip(tier.runs, experts, strict=True)) for tier in self._hot.tiers
        ]
        count = tiers_that_fit(sizes, facts)
        self._hot = replace(self._hot, tiers=self._hot.tiers[:count])
        return replace(facts, hot_bytes=sum(sizes[:count]))

    def _show(self, facts: "Facts", decision: "Decision", *, forced: bool) -> None:
        if self._as_json:
            output.json_line(
                {
                    "schema": SCHEMA,
                    "helps": decision.helps,
                    "forced": forced,
                    "reason": decision.reason,
                    "most_bytes": facts.most_bytes,
                    "needed_bytes": facts.needed_bytes,
                    "room_bytes": facts.room_bytes,
                    "kept_bytes": facts.kept_bytes,
                    "hot_bytes": facts.hot_bytes,
                    "before_tokens_per_s": self._before,
                    "charged_to": self._payer.words,
                }
            )
            return
        if decision.helps or forced:
            output.line(f"HOLD   {decision.reason}")
            if forced:
                output.line("       It is held all the same, as you said (--force).")
            output.line(
                f"       up to {format_size(facts.most_bytes)}; the rest of {format_size(facts.room_bytes)} is left for "
                "programs and for what is read as it is needed"
            )
            output.line(f"       charged to {self._payer.words}")
        else:
            output.line(f"NOTHING HELD   {decision.reason}")
            if decision.may_force:
                diagnostics.say("--force holds it all the same.")

    def _hold(self, runs: "Files", facts: "Facts") -> int:
        from moewatch.cache.child import ReaderEndedError, cgroup_words  # noqa: PLC0415 - nothing eager
        from moewatch.cache.holding import HolderProcess, limit_words, locked_limit  # noqa: PLC0415 - nothing eager
        from moewatch.cache.pin import Watch  # noqa: PLC0415 - nothing eager
        from moewatch.cache.runs import total  # noqa: PLC0415 - nothing eager

        self._wanted_bytes = sum(map(total, runs))
        limit = locked_limit()
        if limit is not None and limit < self._wanted_bytes:
            raise ForbiddenError(limit_words(self._wanted_bytes, limit))
        watch = Watch(
            before_tokens_per_s=self._before, before_stall_ratio=self._stall.read(), kept_bytes=facts.kept_bytes
        )
        layout = self._warmup.layout
        names = [file.name for file in layout.files]
        held, why, code = 0, "", ExitCode.OK
        try:
            with HolderProcess(layout.paths, names, self._clock, cgroup_procs=self._payer.join) as holder:
                if words := cgroup_words(holder.cgroup_errno):
                    diagnostics.say(f"the pages are charged to this terminal: {words}.")
                try:
                    why, code = self._until_reason(holder, runs, facts, watch)
                except KeyboardInterrupt:
                    why, code = "interrupted", ExitCode.INTERRUPTED
                except TargetEndedError:
                    why, code = "the server ended", ExitCode.NO_TARGET
                except ReaderEndedError as error:
                    why, code = str(error).removesuffix("."), ExitCode.FINDING
                held = holder.held_bytes
        finally:
            self._account(held, why or "it failed")
        return int(code)

    def _until_reason(
        self, holder: "HolderProcess", runs: "Files", facts: "Facts", watch: "Watch"
    ) -> tuple[str, ExitCode]:
        """Hold, then go on looking; returns why it ends and with which code."""
        from msgspec.structs import replace  # noqa: PLC0415 - nothing eager

        told_ns = began_ns = self._clock.mono_ns()
        for step in holder.hold(runs, facts.most_bytes):
            watch, why = self._look(watch)
            if why is not None:
                return why, ExitCode.FINDING
            if self._clock.mono_ns() - told_ns >= TELL_NS:
                told_ns = self._clock.mono_ns()
                diagnostics.say(f"{format_size(step.held_bytes)} of {format_size(step.wanted_bytes)} held.")
        watch = replace(watch, held_since_ns=self._clock.mono_ns())
        self._tell(holder.held_bytes)
        told_ns = self._clock.mono_ns()
        end_ns = None if self._options.for_ns is None else began_ns + self._options.for_ns
        while end_ns is None or self._clock.mono_ns() < end_ns:
            self._latest.wait(FRAME_NS)
            holder.check()
            watch, why = self._look(watch)
            if why is not None:
                return why, ExitCode.FINDING
            if self._clock.mono_ns() - told_ns >= TELL_NS:
                told_ns = self._clock.mono_ns()
                self._tell(holder.held_bytes)
        return "the time is over", ExitCode.OK

    def _look(self, watch: "Watch") -> "tuple[Watch, str | None]":
        from moewatch.cache.holding import read_left  # noqa: PLC0415 - nothing eager
        from moewatch.cache.pin import look_of, with_look  # noqa: PLC0415 - nothing eager

        frame = self._latest.frame
        if frame is None:
            return watch, None
        look = look_of(frame, stall_ratio=self._stall.read(), left_bytes=read_left(self._root, self._payer.theirs))
        return with_look(watch, look)

    def _tell(self, held_bytes: int) -> None:
        now = self._now()
        if self._as_json:
            output.json_line(self._figures(held_bytes) | {"released": None})
            return
        output.line(f"holds {format_size(held_bytes)}   {format_rate(now)} tokens/s{self._gain(now)}")

    def _account(self, held_bytes: int, why: str) -> None:
        if self._as_json:
            output.json_line(self._figures(held_bytes) | {"released": why})
            return
        now = self._now()
        output.line(f"LET GO   of {format_size(held_bytes)}: {why}. {format_rate(now)} tokens/s{self._gain(now)}")

    def _now(self) -> float | None:
        try:
            frame = self._latest.frame
        except TargetError:
            return None
        return frame.rates.tokens_per_s if frame is not None else None

    def _figures(self, held_bytes: int) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "held_bytes": held_bytes,
            "wanted_bytes": self._wanted_bytes,
            "tokens_per_s": self._now(),
            "before_tokens_per_s": self._before,
        }

    def _gain(self, now: float | None) -> str:
        if not self._before or now is None:
            return ""
        change = now / self._before - 1
        sign = "+" if change >= 0 else "-"
        return f"   before {format_rate(self._before)} ({sign}{format_percent(abs(change))} %)"
