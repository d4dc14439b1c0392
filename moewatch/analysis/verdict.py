"""Which state a server is in: a pure state machine over the signals of each instant.

What tells thrashing from everything else that reads a disk:

1. bytes come back that had departed, and as many depart (churn): no load, cold start or recovery does both;
2. it costs time: 5 % or more goes into waiting for them (a trickle is harmless);
3. it goes on: the cache is turned over once, while a change of topic levels off before that.
"""

from msgspec import Struct
from msgspec.structs import replace

from moewatch.analysis.ledger import Ledger
from moewatch.analysis.rates import Best
from moewatch.analysis.signals import Signals, is_mapped, point_at, turned_over
from moewatch.analysis.window import Point, Window
from moewatch.domain.frame import Rates, State
from moewatch.domain.sample import Phase
from moewatch.units import MB, S

# Shares of time. Thrashing 0.10 to 0.65; with a skewed working set that all but fits 0.05 at the very start, then
# below 0.02 (K, B95). 5 % is what people call lost; below 3 % it has ended.
COST_ENTER, COST_STAY = 0.05, 0.03
# By memory stalls (no disk row) less is seen: thrashing 0.04 to 0.42, everything else 0.02 at most.
STALL_ENTER, STALL_STAY = 0.03, 0.02
# Without a cost: the share of what tokens need that came back. Thrashing 0.008 to 1; a harmless trickle 0.004 at most.
MISS_ENTER, MISS_STAY = 0.008, 0.004
# Without tokens either: cache turned over per second. Thrashing 0.08 to 0.75 of it, a trickle 0.01 at most.
TURN_ENTER_PER_S, TURN_STAY_PER_S = 0.03, 0.015
# A change of topic that fits brings back 0.6 of the cache (C2), at most all of it; the last tenth is the ledger's error.
TURNOVERS = 0.9
SURE_TURNOVERS = 2.0  # no single change can do that, however seldom one looks
MIN_HOT_NS = 3 * S  # a change of topic looks the same for 3 s
# A burst that levels off falls to less than this share of its own mean within 5 s (C2: 0.15), thrashing never did (0.6).
DECAY = 0.4
CALM_NS = 3 * S  # so long below COST_STAY ends it
# Between two requests nothing is learnt: the next one may go on where the last one stopped. After so long all is open again.
FORGET_NS = 120 * S
SETTLED_NS = 8 * S  # so long steady, and the cold start is over: what comes new from then on is another topic
READING_BYTES_PER_S = 1 * MB  # below, the disk is as good as still
# Where reads are hidden: faults. A server that fits shows below 1 a second; one of 128 KiB each at 1 MB/s would be 8.
READING_MAJFLT_PER_S = 5.0
LEVELS_OFF_RATIO = 0.3  # departed / read: warming and recovery 0.0 to 0.2, thrashing 0.98 to 1.1
WORKING_RATIO = 0.1  # of the last seconds with a request in work; below it is idle
# Of them, for churn to be laid to the requests; not delicate: the 19 recordings meet all bars from 0.11 to 0.8.
HOT_WORKING_RATIO = 0.3
MIN_SPAN_NS = 2 * S  # nothing is said about less
HOLD_NS = 5 * S  # a state that paging alone changes stays so long: no flapping
RATE_CLEARS_COST = 0.10  # up to here a speed within 5 % of the best proves that the waiting cost nothing


class Episode(Struct, frozen=True, kw_only=True):
    """Churn that costs time, from where it began."""

    anchor: Point
    hot_ns: int = 0  # how long it has been seen to be costly
    calm_ns: int = 0  # how long it has not, while requests were in work
    idle_ns: int = 0  # how long nothing was in work since


class Memo(Struct, frozen=True, kw_only=True):
    """What the state machine remembers from one Sample to the next."""

    state: State = State.UNKNOWN
    since_ns: int | None = None
    since_wall_ns: int = 0
    since_point: Point | None = None
    before: State = State.UNKNOWN  # the state before this one
    from_ns: int | None = None  # nothing before this counts: end of loading, of a break
    breaks: int = 0
    last_ns: int | None = None
    episode: Episode | None = None
    settled: bool = False  # it has been steady since the load
    best: Best | None = None
    highest_limit_bytes: int | None = None


class Judged(Struct, frozen=True, kw_only=True):
    """The state of this instant and how it was reached."""

    state: State
    turned: float | None = None  # cache turnovers in the present episode
    cost: float | None = None
    is_early: bool = False  # it looks like thrashing, but a change of topic would, too
    missing: tuple[str, ...] = ()  # what would be needed


def observe(memo: Memo, window: Window) -> Memo:
    """The memo with this Sample's boundaries: after a break or while loading, nothing before counts."""
    now = window.now
    limit = now.cgroup.limit_bytes if now.cgroup else None
    if limit is not None:
        memo = replace(memo, highest_limit_bytes=max(limit, memo.highest_limit_bytes or 0))
    if memo.from_ns is None or memo.breaks != window.carried.breaks:
        best = memo.best if window.carried.slept_ns else None  # another process is another run
        memo = Memo(
            from_ns=now.mono_ns,
            breaks=window.carried.breaks,
            best=best,
            highest_limit_bytes=memo.highest_limit_bytes,
        )
    if now.server.phase is Phase.LOADING or _was_loading(window):
        memo = replace(memo, from_ns=now.mono_ns, episode=None, settled=False)
    return memo


def _was_loading(window: Window) -> bool:
    """Whether the last interval began while loading: its reads are the load's."""
    return len(window.samples) > 1 and window.samples[-2].server.phase is Phase.LOADING


def judge(
    memo: Memo, window: Window, signals: Signals, rates: Rates, loss_by_rate: float | None
) -> tuple[Memo, Judged]:
    """The next state, and the memo to hand in with the next Sample."""
    now = window.now
    step_ns = 0 if memo.last_ns is None else now.mono_ns - memo.last_ns
    if signals.phase is Phase.LOADING and not signals.phase_told:
        memo = replace(memo, from_ns=now.mono_ns, episode=None)
    hot = is_hot(memo, signals, rates, loss_by_rate)
    episode = _continued(memo, window, signals, hot=hot, step_ns=step_ns)
    turned = turned_over(window, episode.anchor) if episode else None
    sustained = _is_sustained(memo, signals, episode, turned)
    wanted = _wanted(memo, window, signals, hot=hot, episode=episode, sustained=sustained)
    state = _held(memo, now.mono_ns, wanted, hot=hot)
    if memo.state is State.THRASHING and state is not State.THRASHING and episode is not None:
        # after a pause it must cost time anew for a while, but the cache need not turn over once more
        episode = replace(episode, hot_ns=0) if state is State.IDLE else None
    if state is State.STEADY and memo.since_ns is not None and now.mono_ns - memo.since_ns >= SETTLED_NS:
        memo = replace(memo, settled=True)
    judged = Judged(
        state=state,
        turned=turned,
        cost=signals.cost_long if state is State.THRASHING else signals.cost_short,
        is_early=episode is not None and state is State.WARMING,
        missing=_missing(window, signals) if state is State.UNKNOWN else (),
    )
    return _moved(replace(memo, episode=episode, last_ns=now.mono_ns), window, state), judged


def is_hot(memo: Memo, signals: Signals, rates: Rates, loss_by_rate: float | None) -> bool:
    """Whether bytes that had departed come back at a price, now."""
    short = signals.short
    if short is None or not short.churn_bytes or signals.active_ratio < HOT_WORKING_RATIO or short.span_ns < S:
        return False
    per_s = short.churn_bytes / short.span_s
    if per_s < READING_BYTES_PER_S:
        return False
    cost = signals.cost_short
    if cost is not None and loss_by_rate is not None and loss_by_rate < COST_ENTER and cost < RATE_CLEARS_COST:
        return False
    measures = (
        (cost if signals.cost_by == "wait" else None, COST_ENTER, COST_STAY),
        (cost if signals.cost_by == "stall" else None, STALL_ENTER, STALL_STAY),
        (rates.miss_ratio, MISS_ENTER, MISS_STAY),
        (per_s / short.resident_bytes if short.resident_bytes else None, TURN_ENTER_PER_S, TURN_STAY_PER_S),
    )
    for value, enter, stay in measures:  # the first that is known decides
        if value is not None:
            return value >= (stay if memo.episode is not None else enter)
    return False


def _continued(memo: Memo, window: Window, signals: Signals, *, hot: bool, step_ns: int) -> Episode | None:
    episode = memo.episode
    if episode is None:
        if not hot or signals.short is None:
            return None
        # what the short window shows may have begun with it
        return Episode(anchor=point_at(window, signals.short.span_ns))
    if hot:
        return replace(episode, hot_ns=episode.hot_ns + step_ns, calm_ns=0, idle_ns=0)
    if signals.active_ratio < HOT_WORKING_RATIO or signals.phase is Phase.IDLE:
        episode = replace(episode, idle_ns=episode.idle_ns + step_ns)
        return None if episode.idle_ns >= FORGET_NS else episode
    episode = replace(episode, calm_ns=episode.calm_ns + step_ns)
    return None if episode.calm_ns >= CALM_NS else episode


def _is_sustained(memo: Memo, signals: Signals, episode: Episode | None, turned: float | None) -> bool:
    """Whether the episode has gone on for long enough to be no change of topic."""
    if episode is None or turned is None or signals.short is None:
        return False
    if memo.state is State.THRASHING:
        return True
    if episode.calm_ns or turned < TURNOVERS or (episode.hot_ns < MIN_HOT_NS and turned < SURE_TURNOVERS):
        return False
    if signals.glance is not None and _levels_off(signals.glance):
        return False  # all of it departed at once, and comes back now
    long = signals.long
    if long is None or not long.churn_bytes or not signals.short.churn_bytes:
        return False
    return signals.short.churn_bytes / signals.short.span_s >= DECAY * long.churn_bytes / long.span_s


def _wanted(
    memo: Memo, window: Window, signals: Signals, *, hot: bool, episode: Episode | None, sustained: bool
) -> State:
    short, reading = signals.short, is_reading(signals)
    if signals.phase is Phase.LOADING:
        state = State.LOADING
    elif signals.phase is Phase.UNKNOWN:
        state = State.UNKNOWN
    elif signals.active_ratio <= WORKING_RATIO:
        state = State.WARMING if signals.idle_read_bytes_per_s >= READING_BYTES_PER_S else State.IDLE
    elif not is_mapped(window):
        state = State.STEADY  # its weights lie in memory that no file backs: paging cannot be the cause
    elif signals.span_ns < MIN_SPAN_NS or short is None:
        state = memo.state if memo.state is State.LOADING else State.UNKNOWN
    elif sustained and not _levels_off(short):
        state = State.THRASHING
    else:
        costly = hot or episode is not None or (signals.cost_short or 0.0) >= COST_ENTER
        state = _of_calm(signals, short, reading=reading, costly=costly)
    return state


def _of_calm(signals: Signals, short: Ledger, *, reading: bool | None, costly: bool) -> State:
    """The state of a server that works and does not thrash."""
    if short.departed_bytes is None or short.again_bytes is None:
        return State.STEADY if reading is False else State.UNKNOWN
    if not reading:
        return State.STEADY
    if short.first_bytes is not None and short.first_bytes >= short.again_bytes:
        return State.WARMING
    if _levels_off(short) or (signals.glance is not None and _levels_off(signals.glance)):
        return State.RECOVERING
    return State.WARMING if costly else State.STEADY


def is_reading(signals: Signals) -> bool | None:
    """Whether the target reads at more than a trickle; None when neither reads nor faults can be read."""
    rates = [
        ledger.read_bytes / ledger.span_s
        for ledger in (signals.short, signals.glance)
        if ledger is not None and ledger.read_bytes is not None and ledger.span_ns > 0
    ]
    if rates:
        return max(rates) >= READING_BYTES_PER_S
    short = signals.short
    again = short.again_bytes if short is not None and short.span_ns > 0 else None
    if short is not None and again is not None and again / short.span_s >= READING_BYTES_PER_S:
        return True  # and if nothing comes back, something may still come for the first time
    return None if signals.majflt_per_s is None else signals.majflt_per_s >= READING_MAJFLT_PER_S


def _levels_off(ledger: Ledger) -> bool:
    """Whether bytes arrive, more than a trickle, and next to none depart."""
    if ledger.departed_bytes is None:
        return False
    read = ledger.read_bytes if ledger.read_bytes is not None else (ledger.again_bytes or 0)
    return read >= READING_BYTES_PER_S * ledger.span_s and ledger.departed_bytes < LEVELS_OFF_RATIO * read


def _held(memo: Memo, now_ns: int, wanted: State, *, hot: bool) -> State:
    """The wanted state, unless paging alone would change it back and forth."""
    if wanted is memo.state or memo.since_ns is None:
        return wanted
    outside = {State.LOADING, State.IDLE, State.THRASHING}
    if wanted in outside or memo.state in outside or wanted is State.UNKNOWN:
        return wanted
    if memo.state is State.UNKNOWN and memo.before in {*outside, State.UNKNOWN}:
        return wanted  # it can be told at last
    if hot and memo.state is State.STEADY:
        return wanted  # steady is a promise
    return wanted if now_ns - memo.since_ns >= HOLD_NS else memo.state


def _moved(memo: Memo, window: Window, state: State) -> Memo:
    if memo.since_ns is not None and state is memo.state:
        return memo
    now = window.now
    return replace(
        memo,
        state=state,
        before=memo.state,
        since_ns=now.mono_ns,
        since_wall_ns=now.wall_ns,
        since_point=window.points[-1] if window.points[-1].has_scan else point_at(window, 0),
    )


def _missing(window: Window, signals: Signals) -> tuple[str, ...]:
    """What could not be read and would be needed, in the words of the gaps' fields."""
    if signals.span_ns < MIN_SPAN_NS:
        return ("time",)
    process = window.now.process
    missing = []
    if process is None or process.read_bytes_total is None:
        missing.append("process.read_bytes_total")
    if not window.is_scanned:
        missing.append("residency")
    if signals.phase is Phase.UNKNOWN:
        missing.append("work")
    return tuple(missing)
