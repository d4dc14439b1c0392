"""The figures that a verdict rests on, each with the threshold that it was held against, in words. Pure."""

from collections.abc import Iterator

from moewatch.analysis import verdict as v
from moewatch.analysis.signals import Signals
from moewatch.analysis.verdict import Judged
from moewatch.analysis.window import Window
from moewatch.domain.frame import Evidence, Method, Rates
from moewatch.units import format_mb, format_percent

_METHODS = {
    Method.LEDGER: "counted: what the process read against what the page cache saw for the first time",
    Method.REFAULTS: "by the kernel's count of pages that came back",
    Method.MINCORE: "at least: seen by sampling the page cache",
    Method.NONE: "not known: neither reads nor the page cache can be seen",
}

_MISSING = {
    "time": "Too little time has passed to tell.",
    "process.read_bytes_total": "What the process reads from disk cannot be seen (/proc/PID/io).",
    "residency": "What of the model is in the page cache cannot be seen (cachestat, mincore).",
    "work": "Neither the server's phase nor its CPU time and faults can be seen.",
}


def derive_evidence(window: Window, signals: Signals, rates: Rates, judged: Judged) -> tuple[Evidence, ...]:
    """The signals of this instant, the deciding ones first; a figure that is not known is left out."""
    found = []
    ledger = signals.short
    if judged.cost is not None:
        how = "went into waiting" if signals.cost_by == "wait" else "tasks stood still, the kernel says, waiting"
        found.append(
            Evidence(
                id="time_lost",
                value=judged.cost,
                unit="ratio",
                threshold=v.COST_ENTER,
                text=f"{format_percent(judged.cost)} % of the time {how} for what had been pushed out to come back.",
            )
        )
    if judged.turned is not None:
        found.append(
            Evidence(
                id="turnovers",
                value=judged.turned,
                unit="count",
                threshold=v.TURNOVERS,
                text=f"What departed and came back is {judged.turned:.1f} times what the page cache holds of the model.",
            )
        )
    if rates.miss_ratio is not None:
        found.append(
            Evidence(
                id="miss_ratio",
                value=rates.miss_ratio,
                unit="ratio",
                threshold=v.MISS_ENTER,
                text=f"{format_percent(rates.miss_ratio)} % of the bytes that the tokens needed were read AGAIN.",
            )
        )
    if ledger is not None and ledger.again_bytes is not None and ledger.span_ns:
        again = ledger.again_bytes / ledger.span_s
        found.append(
            Evidence(
                id="reread_bytes_per_s",
                value=again,
                unit="bytes/s",
                threshold=float(v.READING_BYTES_PER_S),
                text=f"{format_mb(again)} MB/s come back AGAIN over {ledger.span_s:.0f} s ({_METHODS[ledger.method]}).",
            )
        )
    if ledger is not None and ledger.departed_bytes is not None and ledger.read_bytes:
        ratio = ledger.departed_bytes / ledger.read_bytes
        found.append(
            Evidence(
                id="departed_ratio",
                value=ratio,
                unit="ratio",
                threshold=v.LEVELS_OFF_RATIO,
                text=f"For {format_mb(ledger.read_bytes / ledger.span_s)} MB/s that arrive, "
                f"{format_mb(ledger.departed_bytes / ledger.span_s)} MB/s depart.",
            )
        )
    if rates.memory_stall_ratio is not None:
        pressure = window.now.pressure
        whose = "Tasks of any program" if pressure is not None and pressure.scope == "system" else "Tasks"
        found.append(
            Evidence(
                id="memory_stall_ratio",
                value=rates.memory_stall_ratio,
                unit="ratio",
                threshold=None,
                text=f"{whose} waited for memory {format_percent(rates.memory_stall_ratio)} % of the time (PSI).",
            )
        )
    return (*found, *_cautions(window, judged))


def _cautions(window: Window, judged: Judged) -> Iterator[Evidence]:
    """What is missing, and what makes the figures above doubtful."""
    for field in judged.missing:
        yield Evidence(id=f"missing:{field}", value=None, unit="", threshold=None, text=_MISSING[field])
    if window.has_forgotten and window.header.model is not None and window.header.model.total_bytes:
        ratio = window.carried.first_bytes / window.header.model.total_bytes
        text = "More came in for the first time than the model's files hold: some of it was dropped without a trace and came back."
        yield Evidence(id="first_ratio", value=ratio, unit="ratio", threshold=1.0, text=text)
