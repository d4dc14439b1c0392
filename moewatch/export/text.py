"""A Frame in plain words: one line for a stream, a page for `--once`."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from moewatch.domain.frame import Advice, Frame, Method
from moewatch.domain.labels import NOTE_WORDS, gap_words, state_label
from moewatch.units import S, format_duration, format_mb, format_percent, format_rate, format_size

METHOD_WORDS = {
    Method.LEDGER: "counted",
    Method.REFAULTS: "kernel's count",
    Method.MINCORE: "at least, seen by sampling",
    Method.NONE: "not countable here",
}


def format_clock(wall_ns: int) -> str:
    """`12:31:07` in the machine's time zone."""
    return datetime.fromtimestamp(wall_ns / S, UTC).astimezone().strftime("%H:%M:%S")


def format_line(frame: Frame) -> str:
    """One sample on one line: time, state, the figures people used to collect from three terminals, the sentence."""
    rates, residency = frame.rates, frame.residency
    return "  ".join(
        (
            format_clock(frame.wall_ns),
            f"{state_label(frame.verdict, residency.dense_ratio):<22}",
            f"{format_rate(rates.tokens_per_s):>5} tokens/s",
            f"again {format_mb(rates.reread_bytes_per_s):>5}",
            f"first {format_mb(rates.first_read_bytes_per_s):>5}",
            f"disk {format_mb(rates.device_read_bytes_per_s):>5} MB/s",
            f"faults {format_rate(rates.majflt_per_s):>5}/s",
            f"in memory {format_percent(residency.resident_ratio):>3} %",
            frame.verdict.headline,
        )
    )


def format_page(frame: Frame) -> list[str]:
    """The whole Frame as lines: the sentence first, then where the memory is, what was counted, what is unknown and why."""
    rates, residency, memory, verdict, target = frame.rates, frame.residency, frame.memory, frame.verdict, frame.target
    of_total = f" of {format_size(frame.model.total_bytes)}" if frame.model is not None else ""
    disks = ", ".join(d.name for d in target.devices) or target.file_system or "disk unknown"
    since = format_clock(verdict.since_wall_ns or frame.wall_ns)
    dense, experts = format_percent(residency.dense_ratio), format_percent(residency.expert_ratio)
    lines = [
        f"{target.model_name or target.exe}  PID {target.pid}  load mode {target.load_mode.value}  {disks}  {format_clock(frame.wall_ns)}",
        f"{state_label(verdict, residency.dense_ratio)}  since {since}  confidence {format_percent(verdict.confidence)} %",
        verdict.headline,
        *verdict.remarks,
        *(f"> {format_advice(advice)}" for advice in verdict.advice[:1]),
        "",
        f"tokens/s        {format_rate(rates.tokens_per_s)}"
        + (f"   best {format_rate(rates.best_tokens_per_s)}" if rates.best_tokens_per_s else ""),
        f"read AGAIN      {format_mb(rates.reread_bytes_per_s)} MB/s   {METHOD_WORDS[rates.method]}",
        f"read first time {format_mb(rates.first_read_bytes_per_s)} MB/s",
        f"pushed out      {format_mb(rates.departed_bytes_per_s)} MB/s",
        f"disk            {format_mb(rates.device_read_bytes_per_s)} MB/s   of them other programs {format_mb(rates.other_read_bytes_per_s)}",
        f"waits for disk  {format_rate(rates.majflt_per_s)}/s (major faults)",
        f"time lost       {format_percent(verdict.loss_ratio)} %   waiting for memory {format_percent(rates.memory_stall_ratio)} % (memory stall)",
        f"server holds    {format_size(memory.target_rss_bytes)} (RSS)   of it its own, not the model's {format_size(memory.target_anon_bytes)} (anonymous)",
        f"model in memory {format_size(memory.model_resident_bytes)}{of_total}   what every token needs {dense} %, experts {experts} %",
        f"limit           {format_size(memory.limit_bytes)} ({memory.limit_scope or 'unknown'})   available {format_size(memory.available_bytes)} (free, or cache that would be given up)",
        f"rates over      {format_duration(rates.window_ns)}",
    ]
    lines.extend(_listed("notes", (NOTE_WORDS[note] for note in verdict.notes)))
    lines.extend(_listed("not readable", map(gap_words, frame.gaps)))
    return lines


def format_advice(advice: Advice) -> str:
    """What to do on one line: `Raise the memory limit to 26.0 GiB (now 24.0 GiB): docker update ...`."""
    return advice.title if advice.command is None else f"{advice.title.removesuffix('.')}: {advice.command}"


def _listed(name: str, entries: Iterable[str]) -> Iterator[str]:
    """One line each; the name stands before the first."""
    for number, entry in enumerate(entries):
        yield f"{'' if number else name:<16}{entry}"
