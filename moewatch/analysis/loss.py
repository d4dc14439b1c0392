"""How much time is lost to paging, and what that is called. Pure."""

from moewatch.analysis.rates import MIN_TOKENS, SPANS_NS, Best, derive_token_rate
from moewatch.analysis.signals import Signals
from moewatch.analysis.window import Window
from moewatch.domain.frame import Rates, Severity, State
from moewatch.domain.sample import Phase
from moewatch.units import S

LIGHT, MODERATE, SEVERE = 0.05, 0.20, 0.50  # shares of the time, as docs/reference/cli.md defines them
# While a prompt is read the tokens before it still tell the speed: a request every 10 s shall not change the severity twice
# each (0.57 by rate and 0.17 by wait in turn, recorded). Once it has filled half of the span, they are too few.
MAX_PROMPT_SHARE = 0.5
PAGING_COST = 0.01  # below this share of disk waits, slower tokens have another reason (a longer context, fewer cores)


def derive_rate_loss(window: Window, since_ns: int | None, best: Best | None) -> float | None:
    """1 - tokens/s / best steady tokens/s of this run; None at another number of requests in work, or while a long prompt is read.

    Over the shortest span in which the best speed would have made 20 tokens, so that one token more or less is 5 % at most;
    over 10 s, or else within the present state (`since_ns`).
    """
    now = window.now.server
    if best is None or now.n_active != best.n_active:
        return None
    for age_ns in SPANS_NS:
        samples = window.since(age_ns)
        a, b = samples[0], samples[-1]
        if age_ns > SPANS_NS[0] and (since_ns is None or a.mono_ns < since_ns):
            return None
        if best.tokens_per_s * (b.mono_ns - a.mono_ns) / S >= MIN_TOKENS:
            prompts = sum(s.server.phase is Phase.PROMPT for s in samples)
            if now.phase is Phase.PROMPT and prompts >= MAX_PROMPT_SHARE * len(samples):
                return None
            rate = derive_token_rate(samples)
            return None if rate is None else max(0.0, 1 - rate / best.tokens_per_s)
    return None


def derive_loss(signals: Signals, rates: Rates, state: State, by_rate: float | None) -> tuple[float | None, str | None]:
    """The share of the time lost to paging and how it is known: `rate`, `wait` or `stall`, the first that can be had.

    None while nobody waits for tokens. A steady server's slower tokens have other reasons (a longer context, another program on
    its cores): there, only a speed near the best says something about paging.
    """
    if state in (State.IDLE, State.LOADING, State.UNKNOWN):
        return None, None
    waited = signals.again_cost
    if state is State.STEADY:
        waited = signals.cost_short
        by_rate = None if by_rate is None or by_rate >= LIGHT else by_rate
    recent = signals.again_cost_short
    if by_rate is not None and (recent is None or recent >= PAGING_COST):
        return by_rate, "rate"
    if waited is not None and signals.cost_by == "wait":
        return min(1.0, waited), "wait"
    stalled = waited if signals.cost_by == "stall" else rates.memory_stall_ratio
    return (None, None) if stalled is None else (stalled, "stall")


def derive_severity(loss_ratio: float | None, cost: float | None) -> Severity | None:
    """What thrashing that costs so much is called; disk waits stand in where the loss is not known, None without either."""
    lost = cost if loss_ratio is None else loss_ratio
    if lost is None:
        return None
    if lost >= SEVERE:
        return Severity.SEVERE
    return Severity.MODERATE if lost >= MODERATE else Severity.LIGHT
