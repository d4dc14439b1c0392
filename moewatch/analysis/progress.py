"""What is still to come while the server loads or warms up, and how long that will take: a band, or nothing. Pure."""

import math
from itertools import pairwise

from msgspec import Struct

from moewatch.analysis.ledger import derive_ledger
from moewatch.analysis.window import Window
from moewatch.domain.frame import Progress, Rates, Residency, State
from moewatch.domain.sample import Phase, Sample
from moewatch.units import MB, S

FAST_NS, SLOW_NS = 3 * S, 10 * S  # the two rates that span the band: of the moment, and calm
MIN_RATE_BYTES_PER_S = 1 * MB  # a time left at less than this is no forecast
LOOK_BACK_NS = 60 * S
BIN_NS = 2 * S  # one answer's bursts of routing last 0.5-2 s
MIN_BINS = 5  # 10 s after the peak: with less, a pause in the reads looks like their end
# Arrivals must fall to this share of the peak's before a decay is believed: cold starts and new topics fall to 0.05-0.3
# within 10 s of their peak, recovery to 0.5; thrashing stays within 0.7-1.1 of its own (recordings C, J, J2, G, B)
DECAY_RATIO = 0.6
DONE_SHARE = 0.03  # warmed up: arrivals below this share of the peak's; tokens/s was back at its best there (C, J)
MAX_ETA_NS = 3600 * S
# Arrivals come in bursts of a few seconds: on the recordings of skewed routing and of recovery 15 of 16 forecasts hold
# within a factor of three, when no time shorter than these is foreseen
BAND = 3.0
BURST_LOW_NS, BURST_HIGH_NS = 5 * S, 12 * S
NEARLY_ZERO = 1e-3


def derive_progress(window: Window, rates: Rates, residency: Residency, state: State) -> Progress:
    """Loading: bytes left of what fits, and time from the rates over 3 and 10 s. Warming, recovering: from the decay.

    Unknown figures are None: a load of more than the memory holds has no end to foresee, a warm-up that does not
    slow down yet neither.
    """
    if not window.samples:
        return Progress()
    match state:
        case State.LOADING:
            return _loading(window, rates)
        case State.WARMING | State.RECOVERING:
            return _warming(window, residency, _began_ns(window, state))
        case _:
            return Progress()


# --- loading -------------------------------------------------------------------------------------------------------


def _loading(window: Window, rates: Rates) -> Progress:
    model = window.header.model
    read = _read_of_model(window)
    if model is None or read is None:
        return Progress(read_bytes=read)
    limit = window.now.cgroup.limit_bytes if window.now.cgroup else None
    room = min(
        x for x in (limit, window.header.memory_limit_bytes, window.header.host.ram_bytes, model.total_bytes) if x
    )
    if room < model.total_bytes:
        # more than fits: parts are read twice and more, so neither the rest nor its time can be told
        return Progress(read_bytes=_read_by_process(window) or read)
    read = min(read, model.total_bytes)
    remaining = model.total_bytes - read
    low, high = _eta(window, rates, remaining)
    return Progress(remaining_bytes=remaining, eta_low_ns=low, eta_high_ns=high, read_bytes=read)


def _read_of_model(window: Window) -> int | None:
    """Bytes of the model that have arrived: in the cache when it is mapped, else read by the process."""
    return _arrived(window, window.now)


def _arrived(window: Window, sample: Sample) -> int | None:
    if window.header.target.load_mode.is_mapped is not False:
        scan = sample.residency
        if scan is not None and scan.resident_bytes is not None:
            return scan.resident_bytes
        if scan is None and sample is window.now and window.carried.residency is not None:
            return window.carried.residency.resident_bytes
    process = sample.process
    return process.read_bytes_total if process else None


def _read_by_process(window: Window) -> int | None:
    return window.now.process.read_bytes_total if window.now.process else None


def _eta(window: Window, rates: Rates, remaining: int) -> tuple[int | None, int | None]:
    if remaining <= 0:
        return 0, 0
    known = [rate for age in (FAST_NS, SLOW_NS) if (rate := _arrival_rate(window, age)) is not None]
    if not known and rates.process_read_bytes_per_s is not None:
        known = [rates.process_read_bytes_per_s]
    known = [rate for rate in known if rate >= MIN_RATE_BYTES_PER_S]
    if not known:
        return None, None
    low, high = (round(remaining / rate * S) for rate in (max(known), min(known)))
    return (low, high) if high <= MAX_ETA_NS else (None, None)


def _arrival_rate(window: Window, age_ns: int) -> float | None:
    """Bytes of the model that arrived per second, over about the last `age_ns`."""
    points = [(s.mono_ns, a) for s in window.since(age_ns) if (a := _own_arrival(window, s)) is not None]
    if len(points) < 2 or points[-1][0] <= points[0][0]:  # noqa: PLR2004 - two points make a rate
        return None
    return (points[-1][1] - points[0][1]) * S / (points[-1][0] - points[0][0])


def _own_arrival(window: Window, sample: Sample) -> int | None:
    """As `_arrived`, from one kind of reading only, so that differences are of the same thing."""
    mapped = window.header.target.load_mode.is_mapped is not False
    if mapped and window.carried.residency is not None:
        return sample.residency.resident_bytes if sample.residency else None
    return sample.process.read_bytes_total if sample.process else None


# --- warming -------------------------------------------------------------------------------------------------------


def _warming(window: Window, residency: Residency, began_ns: int) -> Progress:
    span_ns = min(LOOK_BACK_NS, window.now.mono_ns - began_ns)
    ledger = derive_ledger(window, span_ns) if span_ns > 0 else None
    first = ledger.first_bytes if ledger else None
    arrivals = _arrivals(window, span_ns)
    decay = None if arrivals is None else fit_decay(*arrivals)
    if decay is None:
        return Progress(first_bytes=first)
    left, eta_ns = decay.rest()
    if left is None or eta_ns is None:
        return Progress(first_bytes=first, levels_off=True)
    absent = _absent(window, residency)
    if absent is not None and left > absent:
        # it ends earlier than the decay says, when all is there
        left, eta_ns = float(absent), eta_ns * absent / left
    low, high = _band(eta_ns) if left else (0, 0)
    return Progress(remaining_bytes=round(left), eta_low_ns=low, eta_high_ns=high, first_bytes=first, levels_off=True)


def _band(eta_ns: float) -> tuple[int | None, int | None]:
    low, high = round(eta_ns / BAND), round(max(eta_ns * BAND, BURST_HIGH_NS))
    if high > MAX_ETA_NS:
        return None, None
    return (0 if low < BURST_LOW_NS else low), high


class Decay(Struct, frozen=True, kw_only=True):
    """How arrivals fall since their peak: bytes/s early, in the middle and late, and the times after it (s) they stand for.

    Two laws bound what comes: what merely comes back after pressure falls exponentially, first touches of skewed
    experts fall as a power of time (a long tail). The middle says which of the two is nearer.
    """

    early: float
    middle: float
    late: float
    t1: float
    t2: float
    t_now: float
    done: float  # bytes/s that no longer matter

    def rest(self) -> tuple[float | None, float | None]:
        """Bytes until the rate no longer matters, and nanoseconds; None when it is there and a tail still comes in."""
        if self.late < MIN_RATE_BYTES_PER_S:
            return 0.0, 0.0
        tail, quick = self._power_law(), self._exponential()
        if tail is None or quick is None:
            return None, None
        share = self._quickness()
        left, eta_s = (slow ** (1 - share) * fast**share for slow, fast in zip(tail, quick, strict=True))
        return left, eta_s * S

    def _quickness(self) -> float:
        """1 where the middle lies on the exponential, 0 where it lies on the power law, which sags below it."""
        by_exponential = math.sqrt(self.early * self.late)
        by_power = self.early * ((self.t1 + self.t2) / 2 / self.t1) ** -self._power
        apart = math.log(by_exponential / by_power)
        if self.middle <= 0 or apart < NEARLY_ZERO:
            return 0.0
        return min(1.0, max(0.0, math.log(self.middle / by_power) / apart))

    @property
    def _power(self) -> float:
        return math.log(self.early / self.late) / math.log(self.t2 / self.t1)

    def _exponential(self) -> tuple[float, float] | None:
        tau = (self.t2 - self.t1) / math.log(self.early / self.late)
        level = self.late * math.exp((self.t2 - self.t_now) / tau)
        if level <= self.done:
            return None
        return tau * (level - self.done), tau * math.log(level / self.done)

    def _power_law(self) -> tuple[float, float] | None:
        level = self.late * (self.t_now / self.t2) ** -self._power
        if level <= self.done:
            return None
        grown = (level / self.done) ** (1 / self._power)  # end time in units of t_now
        rest = 1 - self._power
        area = (grown**rest - 1) / rest if abs(rest) > NEARLY_ZERO else math.log(grown)
        return level * self.t_now * area, (grown - 1) * self.t_now


def fit_decay(bin_ns: int, counts: list[float]) -> Decay | None:
    """The decay from the largest bin on; None when too little time has gone since then, or it does not fall.

    A look-back that holds two warm-ups (a second topic) is judged by the one after its highest bin.
    """
    peak = max(range(len(counts)), key=counts.__getitem__, default=0)
    tail = counts[peak:]
    if len(tail) < MIN_BINS or tail[0] <= 0:
        return None
    third = max(2, len(tail) // 3)
    seconds = bin_ns / S
    parts = (tail[:third], tail[third:-third], tail[-third:])
    early, middle, late = (sum(part) / len(part) / seconds for part in parts)
    if late > DECAY_RATIO * early:
        return None
    done = max(MIN_RATE_BYTES_PER_S, DONE_SHARE * tail[0] / seconds)
    t1, t2 = third / 2 * seconds, (len(tail) - third / 2) * seconds
    return Decay(early=early, middle=middle, late=late, t1=t1, t2=t2, t_now=len(tail) * seconds, done=done)


def _arrivals(window: Window, span_ns: int) -> tuple[int, list[float]] | None:
    """Bytes read by the server in equal bins of the look-back, oldest first: (length of a bin, bytes in each)."""
    bin_ns = max(BIN_NS, 2 * window.header.interval_ns)
    n = span_ns // bin_ns
    if n < MIN_BINS:
        return None
    totals = [_read_total(window.samples[window.index_at(i * bin_ns)]) for i in range(n, -1, -1)]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        return None
    return bin_ns, [float(max(0, after - before)) for before, after in pairwise(known)]


def _read_total(sample: Sample) -> int | None:
    return sample.process.read_bytes_total if sample.process else None


def _began_ns(window: Window, state: State) -> int:
    """When this began: work, after a load or a pause; recovery, where the least of the model was in memory."""
    began = window.now.mono_ns
    least: int | None = None
    for sample in reversed(window.samples):
        if sample.server.phase in (Phase.LOADING, Phase.IDLE):
            break
        resident = sample.residency.resident_bytes if sample.residency else None
        if state is not State.RECOVERING:
            began = sample.mono_ns
        elif resident is not None and (least is None or resident < least):
            least, began = resident, sample.mono_ns
    return began


def _absent(window: Window, residency: Residency) -> int | None:
    model, scan = window.header.model, window.carried.residency
    if model is None or scan is None or scan.resident_bytes is None:
        return None
    return max(0, model.total_bytes - (residency.not_needed_bytes or 0) - scan.resident_bytes)
