"""`moewatch tune`: starts the person's llama-server with a few splits or thread counts and names the fastest that fits."""

import argparse
import os
import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moewatch.cli import diagnostics, output
from moewatch.cli.options import add_for, add_output, new_parser, typed
from moewatch.errors import ExitCode, UsageError
from moewatch.units import UNKNOWN, S, format_mb, format_rate

if TYPE_CHECKING:
    from moewatch.analysis.tuning import Candidate, Trial
    from moewatch.server.argv import Options

KINDS = ("threads", "split")
DEFAULT_FOR = "15s"  # the verdict needs 12
EXAMPLE = "moewatch tune -- llama-server -m MODEL.gguf"
ALL_LAYERS = "99"
_CONFLICTS = {"has_ssl": "TLS (--ssl-cert-file)", "is_router": "a router (--models-dir)", "has_rpc": "--rpc"}


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    if not kinds or any(kind not in KINDS for kind in kinds):
        raise ValueError(f"{text!r} is neither threads nor split; write for instance --candidates threads,split")
    return kinds


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "tune",
        "Starts your llama-server with a few splits between GPU and memory, or thread counts, one after the other, "
        "measures each and names the fastest that fits. Every server that it started it also ends.",
    )
    parser.add_argument(
        "command", nargs="*", metavar="llama-server ARGS", help=f"after --: the command as you start it, e.g. {EXAMPLE}"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what it would start, and start nothing")
    parser.add_argument(
        "--candidates",
        type=typed(_kinds),
        metavar="KIND,...",
        help="threads, split, or both (default: both, split only with a GPU and experts)",
    )
    add_for(parser, f"generate for so long in each run (default {DEFAULT_FOR})", DEFAULT_FOR)
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Try, measure, name the best."""
    # late: --help needs none of it
    from moewatch.cli.feed import require_linux  # noqa: PLC0415 - as said
    from moewatch.cli.tuner import Tuner, others_running  # noqa: PLC0415 - as said
    from moewatch.clock import SystemClock  # noqa: PLC0415 - as said

    require_linux()
    plan = _Plan(options)
    if options.dry_run:
        _show_plan(plan, as_json=options.json)
        return int(ExitCode.OK)
    if count := others_running():
        diagnostics.say(
            f"{count} other server{'s' if count > 1 else ''} with a model in work here: figures will be low."
        )
    diagnostics.say(f"Every run listens on 127.0.0.1:{plan.job.port} only, whatever --host and --port say.")
    tuner = Tuner(plan.job, SystemClock(), diagnostics.say)
    best: Trial | None = None
    try:
        for kind in plan.kinds:
            tuner.search(partial(plan.next_candidate, kind))
        best = tuner.repeat_finalists()
    except KeyboardInterrupt:
        _show(plan, tuner.trials, None, as_json=options.json)
        raise
    _show(plan, tuner.trials, best, as_json=options.json)
    if best is None:
        diagnostics.say("None of them ran; the reasons stand in the table.")
        return int(ExitCode.NO_TARGET)
    return int(ExitCode.OK)


class _Plan:
    """What the command line asks for, checked; which candidates there are."""

    def __init__(self, options: argparse.Namespace) -> None:
        from moewatch.analysis import flags, tuning  # noqa: PLC0415 - as late as the rest
        from moewatch.cli.machine import cores  # noqa: PLC0415 - as said
        from moewatch.cli.tuner import Job  # noqa: PLC0415 - as said
        from moewatch.server.argv import parse_options  # noqa: PLC0415 - as said
        from moewatch.server.launch import free_port  # noqa: PLC0415 - as said

        self.words = tuple(options.command)
        program, arguments = split_command(self.words)
        said = parse_options(["", *arguments], os.environ)
        if not said.names_model:
            raise UsageError(f"The command names no model; write for instance: {EXAMPLE}")
        for field, what in _CONFLICTS.items():
            if getattr(said, field):
                raise UsageError(f"tune cannot measure a server with {what}; leave it out of the command.")
        self.kinds, self._n_layer, self._guess, why_not = _split_plan(options.candidates, program, arguments, said)
        for text in why_not:
            diagnostics.say(text)
        kept = tuning.without(tuning.without(arguments, ("--host",)), ("--port",))
        if "split" in self.kinds and said.gpu_layers is None:
            kept = [*tuning.without(kept, flags.GPU_LAYERS), "--n-gpu-layers", ALL_LAYERS]
        self.first_threads = tuning.first_threads(*cores(), said.threads)
        self.job = Job(
            program=program,
            arguments=tuple(kept),
            port=free_port(),
            span_ns=max(S, options.for_ns),
            prefix=said.api_prefix,
            api_key=said.api_key,
        )

    def next_candidate(self, kind: str, trials: "Sequence[Trial]") -> "Candidate | None":
        """The next to try of that kind, on top of the best so far."""
        from moewatch.analysis import flags, tuning  # noqa: PLC0415 - as late as the rest

        best = tuning.best_of(trials)
        base = best.candidate if best is not None else tuning.Candidate(())
        if kind == "split":
            step = partial(tuning.next_split, n_layer=self._n_layer, guess=self._guess)
            return tuning.search(step, flags.N_CPU_MOE, base, trials)
        return tuning.search(partial(tuning.next_threads, first=self.first_threads), flags.THREADS, base, trials)

    def first_candidates(self) -> "list[Candidate]":
        """What is certain to be tried; later ones depend on what is measured."""
        from moewatch.analysis import flags, tuning  # noqa: PLC0415 - as late as the rest

        found: list[Candidate] = []
        if "split" in self.kinds:
            found.append(tuning.Candidate(((flags.N_CPU_MOE, self._guess),)))
        if "threads" in self.kinds:
            base = found[0].settings if found else ()
            found.extend(tuning.Candidate((*base, (flags.THREADS, count))) for count in self.first_threads)
        return found

    def final_command(self, best: "Trial") -> list[str]:
        """The person's own command with the best settings; host and port as they had them."""
        from moewatch.analysis import flags, tuning  # noqa: PLC0415 - as late as the rest
        from moewatch.server.argv import redact_argv  # noqa: PLC0415 - as said

        program, arguments = split_command(self.words)
        if ALL_LAYERS in self.job.arguments and ALL_LAYERS not in arguments:
            arguments = [*tuning.without(arguments, flags.GPU_LAYERS), "--n-gpu-layers", ALL_LAYERS]
        return list(redact_argv([*program, *best.candidate.applied(arguments)]))


def split_command(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """(the program and what stands before it, its arguments); `systemd-run ... llama-server -m x` is split at the server.

    Raises:
        UsageError: there is no command, or its first word is no program.
    """
    if not words:
        raise UsageError(f"Say what to start, after two dashes: {EXAMPLE}")
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]} is no program; write for instance: {EXAMPLE}")
    named = (i for i, word in enumerate(words) if "llama" in Path(word).name.lower() and shutil.which(word) is not None)
    at = next(named, 0)
    return tuple(words[: at + 1]), list(words[at + 1 :])


def _split_plan(
    asked: tuple[str, ...] | None, program: Sequence[str], arguments: Sequence[str], said: "Options"
) -> tuple[tuple[str, ...], int, int, list[str]]:
    """(kinds to try, layers of the model, how many layers' experts to keep on the CPU first, what to tell the person)."""
    from moewatch.analysis import flags  # noqa: PLC0415 - as late as the rest
    from moewatch.analysis.kvcache import derive_kv_cache  # noqa: PLC0415 - as said
    from moewatch.analysis.placement import compute_buffers, derive_placement  # noqa: PLC0415 - as said
    from moewatch.analysis.tuning import split_conflict  # noqa: PLC0415 - as said
    from moewatch.linux.root import KernelRoot  # noqa: PLC0415 - as said
    from moewatch.modelfile.parts import derive_parts  # noqa: PLC0415 - as said
    from moewatch.modelfile.shards import read_shards  # noqa: PLC0415 - as said
    from moewatch.server.gpus import find_gpus, free_bytes  # noqa: PLC0415 - as said
    from moewatch.server.installed import find_server  # noqa: PLC0415 - as said

    parts = (
        derive_parts(read_shards(Path(said.model))) if said.model is not None else None
    )  # an unusable file ends here
    if asked is not None and "split" not in asked:
        return asked, 0, 0, []
    server = find_server(program[-1])
    gpus = find_gpus(KernelRoot.system(), server.device_list)
    reason = split_conflict(arguments)
    if reason is None and not server.knows(flags.N_CPU_MOE[-1]):
        reason = f"this llama-server has no {flags.N_CPU_MOE[-1]}"
    if reason is None and parts is None:
        reason = "the model is not named by its file (-m)"
    if reason is None and parts is not None and not parts.is_moe:
        reason = "the model has no routed experts"
    if reason is None and not gpus and asked is None:
        reason = "no GPU was found"
    if reason is not None or parts is None:
        if asked == ("split",):
            raise UsageError(f"There are no splits to try: {reason}.")
        return ("threads",), 0, 0, [f"No splits are tried: {reason}."] if asked is not None or gpus else []
    n_layer = len(parts.layers)
    context = said.context or 4096
    cache = derive_kv_cache(parts.metadata, parts.architecture, n_layer, context, "f16")
    placed = derive_placement(parts, cache, compute_buffers(parts, context), free_bytes(gpus))
    guess = placed.n_cpu_moe if placed.n_cpu_moe is not None else n_layer
    kinds = tuple(kind for kind in ("split", "threads") if asked is None or kind in asked)
    return kinds, n_layer, said.n_cpu_moe if said.n_cpu_moe is not None else guess, []


def _show_plan(plan: _Plan, *, as_json: bool) -> None:
    from moewatch.server.argv import redact_argv  # noqa: PLC0415 - as late as the rest

    candidates = plan.first_candidates()
    commands = [shlex.join(redact_argv(plan.job.command(candidate))) for candidate in candidates]
    if as_json:
        runs = [_run_json(candidate.label, command) for candidate, command in zip(candidates, commands, strict=True)]
        output.json_line({"schema": "moewatch-tune/1", "runs": runs, "best": None, "command": None})
        return
    output.line("It would start, one after the other, and end each:")
    for command in commands:
        output.line(f"  {command}")
    output.line("Then a few between the best of these, depending on what is measured, and the best two once more.")


def _run_json(label: str, command: str, trial: "Trial | None" = None) -> dict[str, object]:
    return {
        "command": command,
        "candidate": label,
        "tokens_per_s": list(trial.tokens_per_s) if trial is not None else [],
        "state": trial.state if trial is not None else None,
        "reread_bytes_per_s": trial.reread_bytes_per_s if trial is not None else None,
        "failed": trial.failed if trial is not None else None,
    }


def _show(plan: _Plan, trials: "Sequence[Trial]", best: "Trial | None", *, as_json: bool) -> None:
    command = shlex.join(plan.final_command(best)) if best is not None else None
    if as_json:
        runs = [_run_json(trial.candidate.label, shlex.join(trial.command), trial) for trial in trials]
        label = best.candidate.label if best is not None else None
        output.json_line({"schema": "moewatch-tune/1", "runs": runs, "best": label, "command": command})
        return
    width = max([len("settings"), *(len(trial.candidate.label) for trial in trials)])
    output.line(f"{'settings':<{width}}  tokens/s  spread       again MB/s  state")
    for trial in trials:
        output.line(format_row(trial, width))
    if best is None or command is None:
        return
    close = [trial.candidate.label for trial in plan_close(best, trials)]
    output.line()
    output.line(
        f"Fastest: {best.candidate.label}" + (f"; not told apart from it: {', '.join(close)}." if close else ".")
    )
    output.line(command)


def plan_close(best: "Trial", trials: "Sequence[Trial]") -> "tuple[Trial, ...]":
    """Others as fast as the best, as far as was measured."""
    from moewatch.analysis.tuning import close_to  # noqa: PLC0415 - as late as the rest

    return close_to(best, trials)


def format_row(trial: "Trial", width: int) -> str:
    """One line of the table; the spread is from the lowest to the highest, of one measurement none."""
    if trial.failed is not None:
        return f"{trial.candidate.label:<{width}}  {UNKNOWN:>8}  {trial.failed}"
    rates = trial.tokens_per_s
    spread = f"{format_rate(min(rates))}-{format_rate(max(rates))}" if len(rates) > 1 else "once"
    return (
        f"{trial.candidate.label:<{width}}  {format_rate(trial.mean):>8}  {spread:<11}  "
        f"{format_mb(trial.reread_bytes_per_s):>10}  {trial.state or UNKNOWN}"
    )
