"""What happens per second and per token, over the last 10 s. Pure.

Every rate is the difference of two totals over the time between them. A total that is missing at either end, or that
went back, gives None: never a negative rate, never a zero for what was not read.
"""

import itertools
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace as _replace

from moewatch.analysis.ledger import Ledger, derive_ledger, refaulted_bytes
from moewatch.analysis.window import Window, difference
from moewatch.domain.frame import Method, Rates
from moewatch.domain.sample import Phase, Sample
from moewatch.units import S

# Thrashing and everything else separate by a wide gap over 10 s, nearly over 5 s and not at all over 3 s
# (a change of topic looks the same), measured on 19 recordings.
WINDOW_NS = 10 * S
SPANS_NS = (10 * S, 20 * S, 40 * S, 60 * S)  # the shortest that holds enough tokens
MIN_TOKENS = 20  # a rate from fewer tokens is noise: one token of 20 is 5 %
METRICS = "metrics"
MIN_GENERATE_NS = 2 * S  # the clock of /slots polls is some 100 ms: 5 % of that


class Best(Struct, frozen=True, kw_only=True):
    """The best steady speed of this run, for a number of requests in work."""

    tokens_per_s: float
    wall_ns: int
    n_active: int | None


def derive_rates(window: Window, active_bytes: int | None, best: Best | None) -> Rates:
    """All rates of the last 10 s (less when there is less)."""
    samples = window.since(WINDOW_NS)
    a, b = samples[0], samples[-1]
    span_s = (b.mono_ns - a.mono_ns) / S
    ledger = derive_ledger(window, WINDOW_NS)
    if span_s <= 0:
        return _with_best(Rates(), best)
    page_bytes = window.header.host.page_bytes
    told = _told(samples)
    tokens = tokens_between(told[0], b)
    told_s = (b.mono_ns - told[0].mono_ns) / S
    device, requests = _devices(window, a, b)
    own = ledger.read_bytes if ledger else None
    process = _change(a, b, lambda s: s.process.read_bytes_total if s.process else None)
    majflt = _change(a, b, lambda s: s.process.majflt_total if s.process else None)
    refaults = refaulted_bytes(a, b, page_bytes)
    busy_cpu = _change(a, b, lambda s: s.process.cpu_ns if s.process else None)
    rates = Rates(
        window_ns=b.mono_ns - a.mono_ns,
        majflt_per_s=_over(majflt, span_s),
        minflt_per_s=_over(_change(a, b, lambda s: s.process.minflt_total if s.process else None), span_s),
        process_read_bytes_per_s=_over(process, span_s),
        device_read_bytes_per_s=_over(device, span_s),
        other_read_bytes_per_s=None if device is None or process is None else max(0, device - process) / span_s,
        first_read_bytes_per_s=_per_s(ledger, ledger.first_bytes if ledger else None),
        reread_bytes_per_s=_per_s(ledger, ledger.again_bytes if ledger else None),
        departed_bytes_per_s=_per_s(ledger, ledger.departed_bytes if ledger else None),
        refault_bytes_per_s=_over(refaults, span_s),
        mean_request_bytes=None if device is None or not requests else device / requests,
        memory_stall_ratio=_share(
            _change(a, b, lambda s: s.pressure.memory_some_ns_total if s.pressure else None), b, a
        ),
        io_stall_ratio=_share(_change(a, b, lambda s: s.pressure.io_some_ns_total if s.pressure else None), b, a),
        cpu_ratio=None if busy_cpu is None else busy_cpu / S / span_s,
        tokens_per_s=derive_token_rate(samples),
        first_token_s=None if b.server.first_token_ns is None else b.server.first_token_ns / S,
        read_bytes_per_token=_by_token(_over(process if process is not None else own, span_s), tokens, told_s),
        reread_bytes_per_token=_by_token(_per_s(ledger, ledger.again_bytes if ledger else None), tokens, told_s),
        majflt_per_token=_by_token(_over(majflt, span_s), tokens, told_s),
        miss_ratio=_over(
            _by_token(_per_s(ledger, ledger.churn_bytes if ledger else None), tokens, told_s), active_bytes or None
        ),
        method=ledger.method if ledger else Method.NONE,
    )
    return _with_best(rates, best)


def derive_best(window: Window, since_ns: int, best: Best | None) -> Best | None:
    """The best so far, the speed since `since_ns` counted as steady: 20 tokens or more at one number of requests in work."""
    for age_ns in SPANS_NS:
        samples = window.since(age_ns)
        a, b = samples[0], samples[-1]
        if a.mono_ns < since_ns:
            return best
        tokens, rate = tokens_between(a, b), derive_token_rate(samples)
        if tokens is None or rate is None:
            return best
        if tokens >= MIN_TOKENS:
            break
    else:
        return best
    working = {s.server.n_active for s in samples if s.server.phase is Phase.GENERATE}
    if len(working) > 1:
        return best
    n_active = next(iter(working), None)
    if best is not None and best.n_active == n_active and best.tokens_per_s >= rate:
        return best
    return Best(tokens_per_s=rate, wall_ns=b.wall_ns, n_active=n_active)


def derive_token_rate(samples: tuple[Sample, ...]) -> float | None:
    """Tokens a second of the time in which the server generated; of all the time when it does not say its phase."""
    samples = _told(samples)
    tokens = tokens_between(samples[0], samples[-1])
    if tokens is None:
        return None
    span_ns = samples[-1].mono_ns - samples[0].mono_ns
    if any(s.server.phase is Phase.GENERATE for s in samples):
        spent_ns = 0
        for before, after in itertools.pairwise(samples):
            if after.server.phase is Phase.GENERATE or before.server.phase is Phase.GENERATE:
                spent_ns += after.mono_ns - before.mono_ns
        span_ns = max(spent_ns, min(span_ns, MIN_GENERATE_NS))
    return tokens * S / span_ns if span_ns > 0 else None


def _told(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Those from which on the server counts its tokens: its first answer may come after the first Sample."""
    source = samples[-1].server.source
    for index, sample in enumerate(samples):
        if sample.server.source == source and sample.server.tokens_total is not None:
            return samples[index:]
    return samples


def tokens_between(a: Sample, b: Sample) -> int | None:
    """Tokens generated between two Samples; None when the server does not say, or its count began again.

    The counters of /metrics move only when a request ends: over seconds they tell nothing.
    """
    if b.server.source == METRICS or a.server.source != b.server.source:
        return None
    before, after = a.server.tokens_total, b.server.tokens_total
    return None if before is None or after is None or after < before else after - before


def _with_best(rates: Rates, best: Best | None) -> Rates:
    if best is None:
        return rates
    return _replace(rates, best_tokens_per_s=best.tokens_per_s, best_wall_ns=best.wall_ns)


def _devices(window: Window, a: Sample, b: Sample) -> tuple[int | None, int | None]:
    """Bytes and requests read from all disks under the model; None when one of them has no row."""
    size, requests = 0, 0
    if not window.header.devices or a.devices is None or b.devices is None:
        return None, None
    for device in window.header.devices:
        before, after = a.devices.get(device.name), b.devices.get(device.name)
        if before is None or after is None:
            return None, None
        read = difference(before.read_bytes_total, after.read_bytes_total)
        if read is None:
            return None, None
        size += read
        requests += difference(before.reads_total, after.reads_total) or 0
    return size, requests


def _change(a: Sample, b: Sample, read: Callable[[Sample], int | None]) -> int | None:
    return difference(read(a), read(b))


def _over(amount: float | None, divisor: float | None) -> float | None:
    return None if amount is None or not divisor else amount / divisor


def _per_s(ledger: Ledger | None, amount: int | None) -> float | None:
    return _over(amount, ledger.span_s if ledger else None)


def _by_token(per_s: float | None, tokens: int | None, span_s: float) -> float | None:
    """A rate over tokens/s of the same window: the ledger's span and the tokens' can differ by an interval."""
    return None if per_s is None or not tokens else per_s * span_s / tokens


def _share(stalled_ns: int | None, b: Sample, a: Sample) -> float | None:
    return None if stalled_ns is None else min(1.0, stalled_ns / (b.mono_ns - a.mono_ns))
