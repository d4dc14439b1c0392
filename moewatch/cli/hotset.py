"""`moewatch hotset`: remember which pages were in memory after a good run, bring just these back."""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moewatch.cli import diagnostics, output
from moewatch.cli.feed import require_linux
from moewatch.cli.latest import Latest
from moewatch.cli.options import add_for, add_output, add_target, new_parser, typed
from moewatch.clock import Clock, SystemClock
from moewatch.domain.frame import State
from moewatch.errors import ExitCode, MoewatchError, TargetError, UnusableFileError, UsageError
from moewatch.units import MS, S, format_duration, format_percent, format_size, parse_size

if TYPE_CHECKING:
    from moewatch.cache.heat import HeatWatch
    from moewatch.cache.hotset import Hotset, Seen, Tier
    from moewatch.cache.warmup import Warmup

SCHEMA = "moewatch-hotset/1"
LOOK_NS = S
LOOK_SHARE = 20  # a look costs 15 ms per GiB at worst; it takes a twentieth of one core at most
SHORT_NS = 12 * S  # below, no verdict is worth keeping


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "hotset",
        "Remember which pages of a model are in memory after a good run (save), read just these back (restore), or say what "
        "a file holds (show). Without FILE, restore and show take the newest that was saved by itself.",
    )
    parser.add_argument("action", choices=("save", "restore", "show"), help="what to do")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the hot set's file")
    parser.add_argument("--force", action="store_true", help="save: replace an existing file")
    parser.add_argument(
        "--imatrix", metavar="FILE", help="save: from llama.cpp's importance matrix, for a model never run here"
    )
    parser.add_argument(
        "--budget",
        type=typed(parse_size),
        metavar="SIZE",
        help="restore: so much of the model in memory; save --imatrix: so much of experts (default: what fits)",
    )
    parser.add_argument("--dry-run", action="store_true", help="restore: print the plan, read nothing")
    add_target(parser)
    add_for(parser, "save: watch for so long first, and weigh what stays and what comes (default 0: as it is now)", "0")
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Save, restore or show."""
    require_linux()
    if options.action == "save" and options.file is None:
        raise UsageError("hotset save needs a FILE to write to.")
    if options.action != "save" and (options.imatrix or options.force or options.for_ns):
        raise UsageError("--imatrix, --force and --for go with hotset save.")
    if options.action == "show" and options.file is not None and not options.model and options.pid is None:
        return _show(options, None)
    from moewatch.cache.warmup import Warmup  # noqa: PLC0415 - nothing eager

    clock = SystemClock()
    model = Path(options.model[0]) if options.model else None
    if options.action == "restore":
        return _restore(options, model, clock)
    with Warmup.open(clock=clock, model=model, pids=options.pid or None, asks_server=False) as warmup:
        if options.action == "show":
            return _show(options, warmup)
        return _save(options, warmup, clock)


def _save(options: argparse.Namespace, warmup: "Warmup", clock: Clock) -> int:
    from moewatch.cache.hotset_file import write_hotset  # noqa: PLC0415 - nothing eager

    path = Path(options.file)
    if path.exists() and not options.force:
        raise UnusableFileError(f"{path} exists already; choose another name, or --force replaces it.")
    hotset = _from_imatrix(options, warmup, clock) if options.imatrix else _from_memory(options, warmup, clock)
    size = write_hotset(hotset, path, force=options.force)
    if options.json:
        output.json_line(_as_json(hotset, path) | {"file_bytes": size})
    else:
        output.line(f"saved {format_size(hotset.size_bytes)} of {hotset.model.name} in {path} ({format_size(size)})")
        for line in _lines(hotset):
            output.line(line)
    return int(ExitCode.OK)


def _from_memory(options: argparse.Namespace, warmup: "Warmup", clock: Clock) -> "Hotset":
    from moewatch.cache.heat import HeatWatch  # noqa: PLC0415 - nothing eager
    from moewatch.cache.hotset import Seen, make_hotset  # noqa: PLC0415 - nothing eager
    from moewatch.cache.hotset_file import identify  # noqa: PLC0415 - nothing eager

    heat = HeatWatch(warmup.cache.resident())
    seen = Seen()
    if options.for_ns:
        seen = _watch(heat, options, warmup, clock)
    if not heat.resident_bytes:
        raise MoewatchError("Nothing of the model is in memory; let the server work first, then save.")
    return make_hotset(
        identify(warmup.layout),
        heat.tiers(),
        basis="watched" if options.for_ns else "residency",
        created=_now(clock),
        page_bytes=warmup.cache.page_bytes,
        seen=seen,
    )


def _watch(heat: "HeatWatch", options: argparse.Namespace, warmup: "Warmup", clock: Clock) -> "Seen":
    """Look again and again; what the server said and the verdict found meanwhile."""
    from moewatch.cache.hotset import Seen  # noqa: PLC0415 - nothing eager

    if warmup.server is None:
        raise TargetError(
            f"No server maps {warmup.layout.files[0].name}, so there is nothing to watch; leave out --for."
        )
    diagnostics.say(f"watching for {format_duration(options.for_ns)}.")
    with Latest(options, warmup.server.pid, clock) as latest:
        end_ns = clock.mono_ns() + options.for_ns
        while (now_ns := clock.mono_ns()) < end_ns:
            cpu_ns = clock.thread_cpu_ns()
            heat.look(warmup.cache.resident())
            cost_ns = clock.thread_cpu_ns() - cpu_ns
            clock.sleep_until(min(end_ns, now_ns + max(LOOK_NS, LOOK_SHARE * cost_ns)))
        heat.look(warmup.cache.resident())
        latest.wait(2 * S)
        frame = latest.frame
        if frame is None:
            return Seen()
        is_judged = latest.watched_ns >= SHORT_NS - 500 * MS
        return Seen(
            watched_ns=latest.watched_ns,
            state=State(frame.verdict.state).value if is_judged else None,
            tokens=latest.tokens,
            loss_ratio=frame.verdict.loss_ratio,
        )


def _from_imatrix(options: argparse.Namespace, warmup: "Warmup", clock: Clock) -> "Hotset":
    from moewatch.cache.hotset import make_hotset  # noqa: PLC0415 - nothing eager
    from moewatch.cache.hotset_file import identify  # noqa: PLC0415 - nothing eager
    from moewatch.cache.imatrix import heat_tiers, read_imatrix  # noqa: PLC0415 - nothing eager
    from moewatch.domain.layout import WeightClass  # noqa: PLC0415 - nothing eager
    from moewatch.domain.warm import What  # noqa: PLC0415 - nothing eager

    heat = read_imatrix(Path(options.imatrix), warmup.layout)
    budget = options.budget
    if budget is None:
        preparation = warmup.prepare(What.DENSE, with_speed=False)
        budget = max(0, preparation.room.budget_bytes - preparation.plan.of_class(WeightClass.DENSE).size_bytes)
    page = warmup.cache.page_bytes
    return make_hotset(
        identify(warmup.layout),
        heat_tiers(warmup.layout, heat, budget, page_bytes=page),
        basis="imatrix",
        created=_now(clock),
        page_bytes=page,
    )


def _restore(options: argparse.Namespace, model: Path | None, clock: Clock) -> int:
    from moewatch.cache.hotset_file import check_model, identify, read_hotset  # noqa: PLC0415 - nothing eager
    from moewatch.cache.warmup import Warmup  # noqa: PLC0415 - nothing eager
    from moewatch.cli.restore import restore  # noqa: PLC0415 - nothing eager

    # a file that is of no use is said before a server is looked for
    named = Path(options.file) if options.file is not None else None
    hotset = read_hotset(named) if named is not None else None
    with Warmup.open(clock=clock, model=model, pids=options.pid or None) as warmup:
        path = named or _newest(warmup)
        hotset = hotset or read_hotset(path)
        check_model(hotset, identify(warmup.layout), path.name)
        return restore(warmup, hotset, path.name, options, clock)


def _newest(warmup: "Warmup") -> Path:
    from moewatch.cache.hotset_keeper import offered_for  # noqa: PLC0415 - nothing eager

    offered = offered_for(warmup.layout)
    if not offered:
        raise UnusableFileError(
            f"No hot set of {warmup.layout.summary.name} was saved by itself yet; name a FILE, or save one while it runs "
            "well: moewatch hotset save FILE"
        )
    diagnostics.say(f"the newest is {offered[0]}")
    return offered[0]


def _show(options: argparse.Namespace, warmup: "Warmup | None") -> int:
    from moewatch.cache.hotset_file import check_model, identify, read_hotset  # noqa: PLC0415 - nothing eager
    from moewatch.cache.runs import intersect, total  # noqa: PLC0415 - nothing eager

    path = Path(options.file) if options.file is not None or warmup is None else _newest(warmup)
    hotset = read_hotset(path)
    resident = None
    if warmup is not None:
        check_model(hotset, identify(warmup.layout), path.name)
        pairs = zip(hotset.runs, warmup.cache.resident(), strict=True)
        resident = sum(total(intersect(*pair)) for pair in pairs)
    if options.json:
        output.json_line(_as_json(hotset, path) | {"resident_bytes": resident})
        return int(ExitCode.OK)
    output.line(f"{path}: {format_size(hotset.size_bytes)} of {hotset.model.name}")
    for line in _lines(hotset):
        output.line(line)
    if resident is not None:
        share = format_percent(resident / hotset.size_bytes if hotset.size_bytes else None)
        output.line(f"  in memory now   {format_size(resident)}, {share} %")
    return int(ExitCode.OK)


def _lines(hotset: "Hotset") -> list[str]:
    seen = hotset.seen
    total_bytes = sum(file.size_bytes for file in hotset.model.files)
    lines = [
        f"  model           {format_size(total_bytes)} in {_number(len(hotset.model.files), 'file')}, {hotset.model.digest}",
        f"  taken           {hotset.created or 'at an unknown time'}, from {_BASIS.get(hotset.basis, hotset.basis)}",
    ]
    if seen.watched_ns:
        tokens = f", {seen.tokens} tokens" if seen.tokens is not None else ""
        lines.append(f"  watched         {format_duration(seen.watched_ns)}, {seen.state or 'not judged'}{tokens}")
    lines += [
        f"  {_tier_name(tier, hotset):<15} {format_size(tier.size_bytes)} in {_number(sum(map(len, tier.runs)), 'run')}"
        for tier in hotset.tiers
    ]
    return lines


def _tier_name(tier: "Tier", hotset: "Hotset") -> str:
    """One moment knows no hotter and colder pages: then the figure says nothing."""
    return f"heat {tier.heat:.3g}" if len(hotset.tiers) > 1 else "pages"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_BASIS = {
    "residency": "what was in memory at that moment",
    "watched": "what stayed and what came in while watched",
    "imatrix": "an importance matrix: a prior, not a run",
}


def _as_json(hotset: "Hotset", path: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "file": str(path),
        "model": hotset.model.name,
        "digest": hotset.model.digest,
        "files": [{"name": file.name, "size_bytes": file.size_bytes} for file in hotset.model.files],
        "created": hotset.created,
        "basis": hotset.basis,
        "size_bytes": hotset.size_bytes,
        "tiers": [
            {"heat": tier.heat, "size_bytes": tier.size_bytes, "runs": sum(map(len, tier.runs))}
            for tier in hotset.tiers
        ],
        "seen": hotset.seen,
        "proven": hotset.is_proven,
    }


def _now(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.wall_ns() / S, UTC).isoformat(timespec="seconds")
