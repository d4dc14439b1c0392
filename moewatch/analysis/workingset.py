"""How many bytes generation really uses again and again, and how much memory is missing for them to fit. Pure.

Nothing tells the working set outright: the kernel keeps no record of which resident pages are in use. So an honest range:

- *low*: one token's need, A; and what was read again within the last minute, up to what the cache holds; and, once
  the cache has been turned over (as many bytes departed as it holds), all of it, for then a page that is still there was
  used since. From there the miss ratio goes on: when a share m of what tokens need is not in memory though C bytes
  are, at least C / (1 - m) bytes are in use (the curve of misses against memory is convex for random routing, so its
  tangent meets zero no later than the curve itself). The expert map adds what was in memory at any time of that minute.
- *high*: what is in memory and what was read within the last minute; while parts still come in for the first
  time, all that the host needs, for it is not known where that ends.

Checked on recordings of one model with memory for 30, 50, 70 and 95 % of its experts, uniform routing (the truth is the
whole model), with skewed routing, and with room for all.
"""

import binascii

from moewatch.analysis.active import derive_active_bytes
from moewatch.analysis.ledger import Ledger, derive_ledger
from moewatch.analysis.rates import tokens_between
from moewatch.analysis.window import Window
from moewatch.domain.frame import Memory, Method, Rates, Residency, WorkingSet
from moewatch.domain.sample import Phase, Sample
from moewatch.units import MB, S

LOOK_BACK_NS = 60 * S  # "used in the last minute"
MIN_SPAN_NS = 8 * S  # shorter spans hold a burst or a pause, and no reuse
# Below this departures are housekeeping: a server that fits shows 0, one with a harmless trickle 3-4 MB/s (K, B95)
DEPART_BYTES_PER_S = 1 * MB
DEPART_SHARE = 0.5  # of what is read: thrashing 0.98-1.1, warm-up and recovery 0.0-0.2 (all recordings)
FIRST_BYTES_PER_S = 1 * MB  # first reads above this: still growing (a server that has settled shows 0.0-0.3, C)
# From here on read-ahead, and not reuse, makes the misses (more is read than the tokens need)
MAX_MISS_RATIO = 0.9
MIN_WORKING_SHARE = 0.3  # of the minute's samples with a request in work; less tells of the pauses
MAX_PROMPT_SHARE = 0.2  # of the minute: a prompt's reads are not the tokens' (H: they would double the miss ratio)
N_MAPS = 4  # expert maps of the minute that are joined: 20 s apart, 6,144 experts in 1.5 ms


def derive_working_set(window: Window, rates: Rates, residency: Residency, memory: Memory) -> WorkingSet:
    """The range in bytes, what fits (the model's share of memory now, and what is still free) and what is missing.

    All None while no request was in work, before 8 s were seen, and where residency or reads cannot be read.
    """
    fits = derive_fits(rates, memory)
    needed = _needed(window)
    resident = memory.model_resident_bytes
    ledger = derive_ledger(window, min(LOOK_BACK_NS, window.loaded_ns)) if window.samples else None
    if ledger is None or ledger.span_ns < MIN_SPAN_NS or resident is None or needed is None or not _works(window):
        return WorkingSet(fits_bytes=fits)
    if ledger.again_bytes is None or ledger.method is Method.NONE:
        return WorkingSet(fits_bytes=fits)
    resident = min(resident, needed)
    low = min(needed, _low(window, rates, residency, ledger, resident))
    high = max(low, _high(ledger, resident, needed))
    short: int | None = None if fits is None else max(0, low - fits)
    if short and not _is_full(ledger):
        short = 0  # nothing departs: there is still room, whatever the figures of the moment
    elif short == 0 and (ledger.departed_bytes or 0) >= resident:
        short = None  # all of the cache was turned over, so some is missing, but how much cannot be told
    return WorkingSet(low_bytes=low, high_bytes=high, fits_bytes=fits, short_bytes=short)


def derive_fits(rates: Rates, memory: Memory) -> int | None:
    """Bytes of the model that have room.

    While parts are pushed out, just what is there: the kernel has decided. Else the limit less what the server holds
    itself, or what is there or still free, whichever is smaller: other programs and the kernel need their part as well.
    """
    resident, available = memory.model_resident_bytes, memory.available_bytes
    departed, read = rates.departed_bytes_per_s or 0, rates.process_read_bytes_per_s or 0
    if resident is not None and departed >= max(DEPART_BYTES_PER_S, DEPART_SHARE * read):
        return resident
    by_limit = None
    if memory.limit_bytes is not None and memory.target_anon_bytes is not None:
        by_limit = max(0, memory.limit_bytes - memory.target_anon_bytes)
    by_now = None
    if resident is not None and available is not None:
        # the model's own clean pages count as available, so the larger of the two and never their sum
        by_now = max(resident, available)
    known = [room for room in (by_limit, by_now) if room is not None]
    return min(known) if known else None


def _low(window: Window, rates: Rates, residency: Residency, ledger: Ledger, resident: int) -> int:
    again = ledger.again_bytes or 0
    active = derive_active_bytes(window.header.model, window.carried.residency) or 0
    if not _is_full(ledger) or (ledger.departed_bytes or 0) < resident:
        return max(active, min(resident, again))
    low = max(active, resident)
    miss = _miss(window, rates, ledger, active)
    if miss is not None and miss < MAX_MISS_RATIO:
        low = max(low, round(resident / (1 - miss)))
    union = _seen_in_maps(window)
    if union is not None:
        low = max(low, union + (residency.dense_resident_bytes or 0))
    return low


def _miss(window: Window, rates: Rates, ledger: Ledger, active: int) -> float | None:
    """Share of the bytes the tokens needed that came from disk AGAIN, over the ledger's span: calmer than over 10 s."""
    samples = window.since(ledger.span_ns)
    tokens = tokens_between(samples[0], samples[-1])
    if _share(samples, Phase.PROMPT) > MAX_PROMPT_SHARE:
        return None
    if not tokens or not active or ledger.churn_bytes is None:
        return rates.miss_ratio
    return ledger.churn_bytes / (tokens * active)


def _high(ledger: Ledger, resident: int, needed: int) -> int:
    first, again = ledger.first_bytes, ledger.again_bytes or 0
    if ledger.method is Method.MINCORE:
        return needed  # sampling sees 20-80 % of what comes back: no upper bound
    if first is None or first / ledger.span_s >= FIRST_BYTES_PER_S:
        return needed
    return min(needed, resident + first + again)


def _is_full(ledger: Ledger) -> bool:
    return (ledger.departed_bytes or 0) / ledger.span_s >= DEPART_BYTES_PER_S


def _needed(window: Window) -> int | None:
    model, scan = window.header.model, window.carried.residency
    if model is None:
        return None
    if scan is None:
        return model.total_bytes
    away = scan.not_needed_dense_bytes + scan.not_needed_expert_bytes + scan.not_needed_embedding_bytes
    return max(0, model.total_bytes - away)


def _works(window: Window) -> bool:
    """Whether a request was in work for enough of the minute; taken for granted when the server does not say."""
    samples = window.since(LOOK_BACK_NS)
    working = _share(samples, Phase.GENERATE, Phase.PROMPT, Phase.UNKNOWN)
    return window.now.server.phase is not Phase.LOADING and working >= MIN_WORKING_SHARE


def _share(samples: tuple[Sample, ...], *phases: Phase) -> float:
    return sum(sample.server.phase in phases for sample in samples) / len(samples)


def _seen_in_maps(window: Window) -> int | None:
    """Expert bytes that were in memory at any time of the last minute; None without maps or the experts' size."""
    model = window.header.model
    if model is None or not model.expert_bytes:
        return None
    samples = [s for s in window.since(LOOK_BACK_NS) if s.residency is not None and s.residency.experts]
    if not samples:
        return None
    step = max(1, (len(samples) - 1) // (N_MAPS - 1))
    maps = []
    for sample in samples[::-1][::step][:N_MAPS]:
        try:
            maps.append(binascii.a2b_base64(sample.residency.experts or "" if sample.residency else ""))
        except binascii.Error:
            continue
    if not maps or not maps[0]:
        return None
    alike = [ratios for ratios in maps if len(ratios) == len(maps[0])]
    most = alike[0] if len(alike) == 1 else bytes(map(max, *alike))
    return model.expert_bytes * sum(most) // (255 * len(most))
