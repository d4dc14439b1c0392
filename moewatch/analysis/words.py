"""The sentences that people read: one headline per state, in two lengths. Pure.

Rules: the figure that decided stands in the sentence; AGAIN in capitals; sizes in GiB (2^30), rates in MB/s (10^6); what
was not counted says so; no word that only people who know page caches understand.
"""

import re

from moewatch.analysis.situation import Situation
from moewatch.domain.frame import Cause, Method, Note, State
from moewatch.domain.labels import READY_DENSE_RATIO
from moewatch.domain.sample import GapReason, Phase
from moewatch.units import (
    GIB,
    MB,
    MIB,
    S,
    format_duration,
    format_gib,
    format_mb,
    format_percent,
)

# Below this the disk is as good as still: a server that fits reads 0, one with a harmless trickle 1 to 4 MB/s (recordings A, K)
QUIET_BYTES_PER_S = 1 * MB
LONGEST_WAIT_S = 86_400  # a day; what takes longer is a speed that was not measured
SEEN_BYTES_PER_S = 0.05 * MB  # what a screen shows as more than 0 MB/s
TOPIC_SEEN_NS = 30 * S  # the start-up's own reads are over by then (recordings: 10 to 20 s)
# More than this many times a token's need is a prompt's reading, spread over the first few tokens after it (12 times
# in recording H); read-ahead of 4 MiB alone makes 3.4
MAX_NEEDS = 5
SUM_TOLERANCE = 0.1  # of the two sides of MB per token x tokens/s = MB/s: the rounding of what is shown
_REMEDY = re.compile(r"sudo -u ('[^']+'|[\w.-]+)")


def headline(now: Situation) -> str:
    """The one sentence under the state; fits 77 columns wherever its figures do."""
    if now.is_stopped:  # whatever its counters say
        return f"The server is stopped and does nothing; kill -CONT {now.header.target.pid} lets it go on."
    return _HEADLINES[now.state](now)


def headline_short(now: Situation) -> str:
    """The same in at most 38 columns, for terminals of 40."""
    if now.is_stopped:
        return f"Stopped: kill -CONT {now.header.target.pid}"
    return _SHORT[now.state](now)


def is_cold(now: Situation) -> bool:
    """Weights that every token needs are not in memory; False as well when that is unknown."""
    ratio = now.residency.dense_ratio
    if now.is_mapped is False:
        return False
    return Note.COLD in now.notes or (ratio is not None and ratio < READY_DENSE_RATIO)


def size(size_bytes: float) -> str:
    """`19.8 GiB`; below 0.1 GiB in MiB, so that no figure is lost."""
    return f"{format_gib(round(size_bytes))} GiB" if size_bytes >= GIB / 10 else f"{size_bytes / MIB:.0f} MiB"


def per_second(bytes_per_s: float) -> str:
    """`410 MB/s`."""
    return f"{format_mb(bytes_per_s)} MB/s"


def _is_known(now: Situation) -> bool:
    return now.residency.dense_ratio is not None or now.is_mapped is False


# --- unknown -------------------------------------------------------------------------------------------------------


def _unknown(now: Situation) -> str:
    if now.seen_ns < now.needed_ns:
        return f"{_early(now)}: too early to judge."
    return f"Cannot judge: {_missing(now)}."


def _unknown_short(now: Situation) -> str:
    if now.seen_ns < now.needed_ns:
        return f"{_early(now)}: too early."
    remedy = remedy_of(now)
    return f"Cannot judge: {remedy or 'readings missing'}."


def _early(now: Situation) -> str:
    return f"{int(now.seen_ns // S)} of {round(now.needed_ns / S)} s seen"


def _missing(now: Situation) -> str:
    remedy = remedy_of(now)
    if remedy:
        return f"this needs {remedy}"
    if any(gap.reason is GapReason.DENIED for gap in now.gaps):
        return "the server belongs to another user; run moewatch as that user, or with sudo"
    fields = {gap.field for gap in now.gaps}
    if {"process", "process.read_bytes_total"} & fields and "residency" in fields:
        return "this kernel hides both disk reads and memory shares of the server"
    if now.server.source == "none" and now.server.phase is Phase.UNKNOWN:
        return "it is not known whether the server works; is its port reachable?"
    return "too few readings arrive; moewatch doctor says which and why"


def remedy_of(now: Situation) -> str | None:
    """`sudo -u ollama`, when a gap says that this would help."""
    for gap in now.gaps:
        if gap.reason is GapReason.DENIED and (found := _REMEDY.search(gap.detail)):
            return found[0]
    return None


# --- idle ----------------------------------------------------------------------------------------------------------


def _idle(now: Situation) -> str:
    if now.is_mapped is False:
        return "Ready: the server holds its own copy of the model in memory."
    if not _is_known(now):
        return "No request in work; what is in memory cannot be read here."
    if is_cold(now):
        missing = _missing_dense(now)
        if missing is None:
            return "Cold: the next answer first reads from disk."
        return f"Cold: the next answer first reads at least {size(missing)}{_about_time(now, missing)}."
    dense, experts = now.residency.dense_needed_bytes, now.residency.expert_ratio
    ready = "Ready: what every token needs is" if dense is None else f"Ready: the {size(dense)} every token needs are"
    if now.is_dense or experts is None:
        return f"{ready} in memory."
    return f"{ready} in memory, and {format_percent(experts)} % of the experts."


def _idle_short(now: Situation) -> str:
    if now.is_mapped is False:
        return "Ready: a copy is in memory."
    if not _is_known(now):
        return "Idle; memory cannot be read."
    if is_cold(now):
        missing = _missing_dense(now)
        return "Cold: first reads from disk." if missing is None else f"Cold: first reads {size(missing)} or more."
    experts = now.residency.expert_ratio
    if now.is_dense or experts is None:
        return "Ready: it is in memory."
    return f"Ready: core in, {format_percent(experts)} % of experts."


def _missing_dense(now: Situation) -> int | None:
    needed, resident = now.residency.dense_needed_bytes, now.residency.dense_resident_bytes
    return None if needed is None or resident is None else max(0, needed - resident)


def about_seconds(amount_bytes: float, bytes_per_s: float | None) -> str | None:
    """`about 12 s`; None where the speed is unknown, or so low that it was none."""
    if not bytes_per_s or amount_bytes / bytes_per_s > LONGEST_WAIT_S:
        return None
    return f"about {max(1, round(amount_bytes / bytes_per_s))} s"


def _about_time(now: Situation, amount_bytes: float) -> str:
    wait = about_seconds(amount_bytes, now.disk_bytes_per_s)
    return "" if wait is None else f", {wait}"


# --- loading -------------------------------------------------------------------------------------------------------


def _loading(now: Situation) -> str:
    read, total = now.progress.read_bytes, now.total_bytes
    if read is None:
        return "The server reads the model; reading much is normal while loading."
    room = now.working_set.fits_bytes
    if total is None or read > total or (room is not None and total > room and now.progress.remaining_bytes is None):
        return f"{size(read)} read; reading parts twice is normal while loading."
    left = _about_left(now)
    if now.progress.remaining_bytes == 0:
        return f"{format_gib(read)} of {size(total)} read; the server gets ready."
    if total < GIB:
        return f"{read / MIB:.0f} of {total / MIB:.0f} MiB read{left}."
    return f"{format_gib(read)} of {size(total)} read{left}."


def _loading_short(now: Situation) -> str:
    read, total = now.progress.read_bytes, now.total_bytes
    if read is None:
        return "Reads the model: normal at start."
    if total is None or read > total:
        return f"{size(read)} read, normal at start."
    eta = now.progress.eta_high_ns
    left = f", ~{format_duration(eta)}" if eta else ""
    return f"{format_gib(read)} of {size(total)} read{left}."


def _about_left(now: Situation) -> str:
    low, high = now.progress.eta_low_ns, now.progress.eta_high_ns
    if low is None or high is None or not now.progress.remaining_bytes:
        return ""
    return f", about {format_duration((low + high) // 2)} left"


# --- warming, recovering, steady -----------------------------------------------------------------------------------


def _warming(now: Situation) -> str:
    if now.cause in (Cause.LIMIT_LOWERED, Cause.MEMORY_TAKEN):
        return "Less memory than before: parts leave and come back. Too early to judge."
    if _is_new_topic(now):
        return "New topic: other experts come in. Not a fault yet."
    if _mostly_comes_back(now):
        back = _came_back(now)
        what = "Parts" if back is None else size(back)
        return f"{what} came back that had left memory. Too early to say if it will fit."
    first = now.progress.first_bytes
    if first is None:
        return "Parts of the model are read for the first time. Too early to say if it will fit."
    less = ", less each minute" if now.progress.levels_off else ""
    return f"{size(first)} read for the first time{less}. Too early to say if it will fit."


def _warming_short(now: Situation) -> str:
    if now.cause in (Cause.LIMIT_LOWERED, Cause.MEMORY_TAKEN):
        return "Less memory: parts leave, come back."
    if _is_new_topic(now):
        return "New topic: other experts come in."
    if _mostly_comes_back(now):
        back = _came_back(now)
        return f"{'Parts' if back is None else size(back)} came back; it may yet fit."
    first = now.progress.first_bytes
    return "First reads; too early to judge." if first is None else f"{size(first)} read for the first time."


def _is_new_topic(now: Situation) -> bool:
    """Not for a model without experts, and not so soon after the start that there was no topic before."""
    if Note.TOPIC_CHANGE in now.notes:
        return True
    return now.cause is Cause.TOPIC_CHANGE and now.seen_ns >= TOPIC_SEEN_NS and not now.is_dense


def _mostly_comes_back(now: Situation) -> bool:
    first, back = now.progress.first_bytes, _came_back(now)
    if first is not None and back is not None:
        return back > first
    if first is not None and first < MIB:
        return True
    first_rate, again_rate = now.rates.first_read_bytes_per_s, now.rates.reread_bytes_per_s
    return first_rate is not None and again_rate is not None and again_rate > first_rate


def _recovering(now: Situation) -> str:
    back, missing = _came_back(now), _still_missing(now)
    if back is None and missing is None:
        return "Nothing is pushed out any more; what left comes back."
    if missing is None:
        return f"Nothing is pushed out any more; {size(back or 0)} came back."
    if back is None:
        return f"Nothing is pushed out any more; at most {size(missing)} still missing."
    # one unit for both figures, as "2.1 GiB came back, at most 4.0 still missing"
    unit, name, decimals = (GIB, "GiB", 1) if min(back, missing) >= GIB / 10 else (MIB, "MiB", 0)
    came, rest = (f"{each / unit:,.{decimals}f}" for each in (back, missing))
    return f"Nothing is pushed out any more; {came} {name} came back, at most {rest} still missing."


def _recovering_short(now: Situation) -> str:
    missing = _still_missing(now)
    return "It comes back by itself." if missing is None else f"Parts return; at most {size(missing)} missing."


def _came_back(now: Situation) -> float | None:
    """Bytes since the state began; None as well while there are none to speak of."""
    back: float | None = now.came_back_bytes
    if back is None and now.rates.reread_bytes_per_s is not None:
        back = now.rates.reread_bytes_per_s * now.rates.window_ns / S
    return None if back is None or back < MIB else back


def _still_missing(now: Situation) -> int | None:
    resident, needed = now.memory.model_resident_bytes, now.needed_bytes
    return None if resident is None or needed is None else max(0, needed - resident)


def _steady(now: Situation) -> str:
    if now.is_mapped is False:
        return "The server has its own copy of the model in memory: the disk is not why."
    read = now.rates.process_read_bytes_per_s
    if read is not None and read < QUIET_BYTES_PER_S:
        return f"{_next_to(read)}othing is read from disk."
    if now.loss_ratio is not None:
        return f"{_wait_percent(now)} % of the time waits for the disk. If this is slow, the disk is not why."
    if read is not None:
        return f"Reads {per_second(read)}: too little to matter. If this is slow, the disk is not why."
    return "Nothing comes back from disk. If this is slow, the disk is not why."


def _steady_short(now: Situation) -> str:
    if now.is_mapped is False:
        return "Own copy in memory: not the disk."
    read = now.rates.process_read_bytes_per_s
    if read is not None and read < QUIET_BYTES_PER_S:
        return f"{_next_to(read)}othing is read from disk."
    return "Slow? The disk is not why." if now.loss_ratio is None else f"{_wait_percent(now)} % waits for the disk."


def _next_to(bytes_per_s: float) -> str:
    return "N" if bytes_per_s < SEEN_BYTES_PER_S else "Next to n"


def _wait_percent(now: Situation) -> str:
    return format_percent(now.loss_ratio)


# --- thrashing -----------------------------------------------------------------------------------------------------


def _thrashing(now: Situation) -> str:
    rates = now.rates
    per_token, per_s = rates.reread_bytes_per_token, rates.reread_bytes_per_s
    if rates.method is Method.MINCORE and per_s is not None:
        return f"AGAIN: at least {per_second(per_s)} (seen by sampling; a 6.5 kernel would count it)."
    if per_s is not None and not rates.tokens_per_s and now.server.phase is Phase.PROMPT:
        return f"The prompt reads {per_second(per_s)} AGAIN; no tokens yet."
    if per_token is not None and _agrees(now):
        return _per_token(per_token, now.active_bytes)
    if per_s is not None:
        return f"The server reads {per_second(per_s)} from disk AGAIN: it had been in memory."
    return "The server reads from disk AGAIN what had been in memory; how much is not known."


def _per_token(again_bytes: float, need_bytes: int | None) -> str:
    again = f"Every token reads {format_mb(again_bytes)} MB from disk AGAIN"
    if need_bytes is None:
        return f"{again}."
    # read-ahead can bring in more than the token wants: "530 of 155" would be nonsense
    if again_bytes > need_bytes:
        return f"{again}; it needs only {format_mb(need_bytes)} MB."
    return f"{again}, of the {format_mb(need_bytes)} MB a token needs."


def _agrees(now: Situation) -> bool:
    """Whether MB per token x tokens/s is the MB/s that stands beside it, and no nonsense against what a token needs.

    In a window that also holds a prompt or a pause it is not: then the rate alone is said.
    """
    rates, need_bytes = now.rates, now.active_bytes
    per_token, per_s = rates.reread_bytes_per_token, rates.reread_bytes_per_s
    if per_token is None or per_s is None or rates.tokens_per_s is None:
        return False
    if need_bytes and per_token > MAX_NEEDS * need_bytes:
        return False
    return abs(per_token * rates.tokens_per_s - per_s) <= SUM_TOLERANCE * per_s


def _thrashing_short(now: Situation) -> str:
    rates = now.rates
    per_token, per_s = rates.reread_bytes_per_token, rates.reread_bytes_per_s
    if rates.method is Method.MINCORE and per_s is not None:
        return f"At least {per_second(per_s)} AGAIN."
    if per_s is not None and not rates.tokens_per_s and now.server.phase is Phase.PROMPT:
        return f"Prompt reads {per_second(per_s)} AGAIN."
    if per_token is not None and _agrees(now):
        return f"Every token reads {format_mb(per_token)} MB AGAIN."
    return "Reads from disk AGAIN." if per_s is None else f"Reads {per_second(per_s)} AGAIN."


_HEADLINES = {
    State.UNKNOWN: _unknown,
    State.IDLE: _idle,
    State.LOADING: _loading,
    State.WARMING: _warming,
    State.STEADY: _steady,
    State.THRASHING: _thrashing,
    State.RECOVERING: _recovering,
}
_SHORT = {
    State.UNKNOWN: _unknown_short,
    State.IDLE: _idle_short,
    State.LOADING: _loading_short,
    State.WARMING: _warming_short,
    State.STEADY: _steady_short,
    State.THRASHING: _thrashing_short,
    State.RECOVERING: _recovering_short,
}
