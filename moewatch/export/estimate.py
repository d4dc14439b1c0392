"""An Estimate as JSON and in plain words, 80 columns wide."""

import shlex
from collections.abc import Sequence
from textwrap import wrap

from moewatch.analysis.prior import DOUBT, FITS, FITS_RATIO, FLUCTUATES, FLUCTUATES_RATIO
from moewatch.analysis.speed import DISK_ASSUMED
from moewatch.domain.estimate import CacheKind, Estimate, Prior, Range
from moewatch.units import S, format_duration, format_gib, format_mb, format_percent, format_rate, format_size

SCHEMA = "moewatch-estimate/1"
WIDTH = 80
NEEDED_WORDS = "every token needs"  # as on the dashboard
_LABEL = 18  # columns of the left-hand names
_TYPES_SHOWN = 6
TOO_SLOW_TOKENS_PER_S = 0.5  # a word every few seconds at the very best: nobody waits for that
_NARROWED = "The range is wide because not everything was measured: add --measure (3 s)."
WIDE_RATIO = 3  # from low to high: the bar of a measured estimate; without a measurement 3 to 7 were seen
_KIND_WORDS = {
    CacheKind.FULL: "whole context",
    CacheKind.WINDOW: "window",
    CacheKind.LATENT: "latent",
    CacheKind.RECURRENT: "state",
    CacheKind.NONE: "none",
}


def _range(value: Range | None) -> dict[str, float] | None:
    return None if value is None else {"low": value.low, "high": value.high}


def command_line(estimate: Estimate, model: Sequence[str]) -> str:
    """The whole command; `model` are the words that name the model (`-m FILE`, `-hf REPO`)."""
    return shlex.join(["llama-server", *model, *(word for flag in estimate.flags for word in flag.words)])


def estimate_json(estimate: Estimate, model: Sequence[str]) -> dict[str, object]:
    """docs/reference/cli.md has the keys."""
    parts, summary, machine = estimate.parts, estimate.parts.summary, estimate.machine
    rate, expectation, placement = machine.disk_bytes_per_s, estimate.expectation, estimate.placement
    is_known = rate is not None and rate.low == rate.high
    cache = estimate.kv_cache
    return {
        "schema": SCHEMA,
        "model": {
            "name": summary.name,
            "architecture": summary.architecture,
            "quantisation": summary.quantisation,
            "total_bytes": summary.total_bytes,
            "dense_bytes": summary.dense_bytes,
            "embedding_bytes": summary.embedding_bytes,
            "expert_bytes": summary.expert_bytes,
            "router_bytes": parts.router_bytes,
            "shared_expert_bytes": parts.shared_bytes,
            "active_bytes_per_token": summary.active_bytes_per_token,
            "n_layer": summary.n_layer,
            "n_expert": summary.n_expert,
            "n_expert_used": summary.n_expert_used,
            "n_files": len(summary.files),
            "n_tensors": parts.n_tensors,
            "tensor_bytes": parts.tensor_bytes,
            "type_bytes": dict(parts.type_bytes),
        },
        "kv_cache_bytes": None if cache is None else cache.total_bytes,
        "kv_cache": None
        if cache is None
        else {"context": cache.context, "type": cache.kv_type, "layers": dict(cache.kinds)},
        "compute_bytes": _range(estimate.compute),
        "machine": {
            "ram_bytes": machine.ram_bytes,
            "room_bytes": machine.room_bytes,
            "swap_bytes": machine.swap_bytes,
            "vram_bytes": machine.vram_bytes,
            "vram_room_bytes": machine.vram_room_bytes,
            "gpus": [{"name": g.name, "total_bytes": g.total_bytes, "free_bytes": g.free_bytes} for g in machine.gpus],
            "disk_bytes_per_s": rate.low if rate is not None and is_known else None,
            "disk_assumed_bytes_per_s": None if is_known else _range(rate or DISK_ASSUMED),
            "memory_bytes_per_s": machine.memory_bytes_per_s,
            "fault_bytes": machine.fault_bytes,
            "n_cores": machine.n_cores,
        },
        "prior": None
        if estimate.prior is None
        else {"ratio": estimate.prior.ratio, "band": estimate.prior.band, "doubt": DOUBT},
        "tokens_per_s": _range(expectation.tokens_per_s),
        "first_token_s": {
            "low": expectation.first_token_s.low,
            "high": expectation.first_token_s.high,
            "prompt_tokens": expectation.prompt_tokens,
        },
        "cached_ratio": expectation.cached_ratio,
        "missing_bytes_per_token": _range(expectation.missing_bytes_per_token),
        "placement": {
            "n_gpu_layers": placement.n_gpu_layers,
            "n_cpu_moe": placement.n_cpu_moe,
            "gpu_bytes": placement.gpu_bytes,
            "host_dense_bytes": placement.host_dense_bytes,
            "host_expert_bytes": placement.host_expert_bytes,
            "host_anon_bytes": placement.host_anon_bytes,
        },
        "command": command_line(estimate, model),
        "reasons": [{"option": " ".join(flag.words), "reason": flag.reason} for flag in estimate.flags],
        "warnings": list(estimate.warnings),
    }


def format_estimate(estimate: Estimate, model: Sequence[str]) -> list[str]:
    """The page."""
    return [
        *wrap(answer(estimate), WIDTH),
        "",
        *_model_lines(estimate),
        "",
        *_machine_lines(estimate),
        "",
        *_verdict_lines(estimate),
        "",
        *_command_lines(estimate, model),
        *(line for warning in estimate.warnings for line in wrap(f"! {warning}", WIDTH, subsequent_indent="  ")),
    ]


def answer(estimate: Estimate) -> str:
    """Will it run here? In one sentence; a second one where the range is wide because nothing was measured."""
    expectation, machine, placement = estimate.expectation, estimate.machine, estimate.placement
    rate = expectation.tokens_per_s
    about = f"about {format_rate(rate.low)} to {format_rate(rate.high)} tokens/s"
    here = "here" if machine.taken_bytes is not None else "on that machine"
    if placement.host_anon_bytes > machine.room_bytes:
        return (
            f"No: the server alone needs {format_size(placement.host_anon_bytes)}, "
            f"and {here} it has {format_size(machine.room_bytes)}."
        )
    if rate.high < TOO_SLOW_TOKENS_PER_S:
        found = f"No: it would read from disk for every token, {about}."
    elif expectation.cached_ratio >= 1:
        found = f"Yes: all of it fits in memory {here}, {about}."
    else:
        found = f"It runs, but reads from disk: {about}."
    if rate.high > WIDE_RATIO * rate.low and not _is_measured(estimate):
        found += f" {_NARROWED}" if machine.taken_bytes is not None else ""
    return found


def _is_measured(estimate: Estimate) -> bool:
    return estimate.machine.memory_bytes_per_s is not None


def _named(label: str, text: str) -> list[str]:
    return wrap(
        text, WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL, break_on_hyphens=False
    ) or [label]


def _model_lines(estimate: Estimate) -> list[str]:
    parts, summary = estimate.parts, estimate.parts.summary
    n_files = len(summary.files)
    experts = (
        f", {summary.n_expert_used or '?'} of {summary.n_expert} experts a token" if parts.is_moe else ", no experts"
    )
    lines = [
        *wrap(f"{summary.name} {summary.quantisation}", WIDTH),
        f"{summary.architecture}, {summary.n_layer} layers{experts}, {n_files} file{'s' if n_files > 1 else ''}",
        "",
        f"{'':<{_LABEL}}{'size':>12}{'%':>6}   a token needs",
    ]
    dense, expert = summary.dense_bytes or 0, summary.expert_bytes or 0
    rows = [
        ("experts", expert, format_size(round(expert * parts.used_ratio)) if parts.is_moe else None),
        (NEEDED_WORDS, dense, format_size(dense)),
        ("  routers", parts.router_bytes, None),
        ("  shared experts", parts.shared_bytes, None),
        ("token table", summary.embedding_bytes, "one row" if summary.embedding_bytes else None),
    ]
    lines += [
        f"{name:<{_LABEL}}{format_size(size):>12}{format_percent(size / max(1, parts.tensor_bytes)):>6}   {needed or ''}".rstrip()
        for name, size, needed in rows
        if size
    ]
    lines.append(
        f"{'all':<{_LABEL}}{format_size(parts.tensor_bytes):>12}{'':>6}   {format_size(summary.active_bytes_per_token)}"
    )
    shares = [
        f"{name} {format_percent(size / max(1, parts.tensor_bytes))} %"
        for name, size in list(parts.type_bytes.items())[:_TYPES_SHOWN]
    ]
    lines += _named("weight types", ", ".join(shares))
    cache = estimate.kv_cache
    if cache is not None:
        kinds = ", ".join(
            f"{_KIND_WORDS[CacheKind(kind)]} {count}" for kind, count in cache.kinds.items() if kind != CacheKind.NONE
        )
        lines += _named(
            "context", f"{cache.context} tokens in {cache.kv_type}: {format_size(cache.total_bytes)} (layers: {kinds})"
        )
    lines += _named("buffers", f"{_sizes(estimate.compute)} while a batch is computed")
    return lines


def _sizes(value: Range) -> str:
    low, high = format_size(round(value.low)), format_size(round(value.high))
    return low if low == high else f"{low} to {high}"


def _machine_lines(estimate: Estimate) -> list[str]:
    machine = estimate.machine
    taken = "" if machine.taken_bytes is None else f"; other programs hold {format_gib(machine.taken_bytes)}"
    lines = _named(
        "memory",
        f"{format_size(machine.ram_bytes)} ({machine.ram_scope}), room for server and model "
        f"{format_size(machine.room_bytes)}{taken}"
        + (f"; swap {format_gib(machine.swap_bytes)}" if machine.swap_bytes else ""),
    )
    if machine.gpus:
        for gpu in machine.gpus:
            free = "" if gpu.free_bytes is None else f", {format_gib(gpu.free_bytes)} free"
            lines += _named("GPU", f"{gpu.name}: {format_size(gpu.total_bytes)}{free}")
    else:
        lines += _named("GPU", format_size(machine.vram_bytes) + " (given)" if machine.vram_bytes else "none")
    lines += _named("disk", machine.disk_scope)
    return lines


def _verdict_lines(estimate: Estimate) -> list[str]:
    expectation, placement, prior = estimate.expectation, estimate.placement, estimate.prior
    lines: list[str] = []
    if placement.n_gpu_layers:
        experts = "" if placement.n_cpu_moe is None else f", {format_size(placement.gpu_expert_bytes)} of experts"
        lines += _named(
            "on the GPU",
            f"{format_size(placement.gpu_dense_bytes)} that every token needs{experts}; {format_size(placement.gpu_bytes)} in all",
        )
    host = placement.host_dense_bytes + placement.host_expert_bytes
    if not host:
        share = "nothing: all weights are on the GPU"
    elif expectation.cached_ratio >= 1:
        share = f"all of the {format_size(host)} of weights have room"
    else:
        missing = expectation.missing_bytes_per_token
        share = (
            f"{format_percent(expectation.cached_ratio)} % of the {format_size(host)} of weights have room; "
            f"{format_mb(missing.low)} to {format_mb(missing.high)} MB to read for each token"
        )
    lines += _named("in memory", share)
    rate, first = expectation.tokens_per_s, expectation.first_token_s
    lines += _named(
        "expected",
        f"{format_rate(rate.low)} to {format_rate(rate.high)} tokens/s; first token of a prompt of "
        f"{expectation.prompt_tokens} after {format_duration(round(first.low * S))} to {format_duration(round(first.high * S))}",
    )
    if prior is not None:
        lines += _named("rule of thumb", _prior_words(prior, is_moe=estimate.parts.is_moe))
    return lines


def _prior_words(prior: Prior, *, is_moe: bool) -> str:
    share = f"{format_percent(min(1.0, prior.ratio))} %"
    if not is_moe:
        return f"without experts, all weights must fit in memory to run well; here there is memory for {share} of them"
    well, at_all = format_percent(FITS_RATIO), format_percent(FLUCTUATES_RATIO)
    rule = {
        FITS: f"with memory for {well} % of the experts or more it runs as from memory",
        FLUCTUATES: f"with memory for {at_all} to {well} % of the experts its speed goes up and down",
    }.get(prior.band, f"with memory for less than {at_all} % of the experts it is not worth it")
    doubt = (
        ""
        if prior.ratio >= 1
        else f" (nobody knows its source: memory for {well} % lost half the speed where all experts were used alike, measured)"
    )
    return f"{rule}; here it is {share}, all memory against the experts alone{doubt}"


def _command_lines(estimate: Estimate, model: Sequence[str]) -> list[str]:
    words = [shlex.join(["llama-server", *model]), *(shlex.join(flag.words) for flag in estimate.flags)]
    lines: list[str] = []
    current = words[0]
    for word in words[1:]:
        if len(current) + len(word) + 3 > WIDTH:
            lines.append(current + " \\")
            current = "  " + word
        else:
            current += " " + word
    lines.append(current)
    for flag in estimate.flags:
        lines += wrap(
            flag.reason,
            WIDTH,
            initial_indent=f"  {shlex.join(flag.words):<22} ",
            subsequent_indent=" " * 25,
            break_on_hyphens=False,
        )
    return lines


def comparison_json(rows: Sequence[tuple[str, Estimate]], best: int | None) -> dict[str, object]:
    """`compare` and `best` beside the keys of the one that is best."""
    return {
        "compare": [
            {
                "file": name,
                "quantisation": estimate.parts.summary.quantisation,
                "total_bytes": estimate.parts.summary.total_bytes,
                "expert_bytes": estimate.parts.summary.expert_bytes,
                "active_bytes_per_token": estimate.parts.summary.active_bytes_per_token,
                "prior": None
                if estimate.prior is None
                else {"ratio": estimate.prior.ratio, "band": estimate.prior.band},
                "cached_ratio": estimate.expectation.cached_ratio,
                "tokens_per_s": _range(estimate.expectation.tokens_per_s),
            }
            for name, estimate in rows
        ],
        "best": None if best is None else rows[best][0],
    }


def format_comparison(rows: Sequence[tuple[str, Estimate]], best: int | None) -> list[str]:
    """A table, smallest first; `>` marks the best fit."""
    lines = [f"  {'':<34}{'size':>11}{'in memory':>11}{'tokens/s':>14}"]
    for index, (name, estimate) in enumerate(rows):
        shown = name if len(name) <= 33 else "…" + name[-32:]  # noqa: PLR2004 - the column
        rate = estimate.expectation.tokens_per_s
        lines.append(
            f"{'>' if index == best else ' '} {shown:<34}{format_size(estimate.parts.summary.total_bytes):>11}"
            f"{format_percent(estimate.expectation.cached_ratio) + ' %':>11}"
            f"{format_rate(rate.low) + ' - ' + format_rate(rate.high):>14}"
        )
    return lines
