"""How much time is lost to paging, and what that is called. Pure."""

from moewatch.analysis.rates import MIN_TOKENS, WINDOW_NS, Best, tokens_between
from moewatch.analysis.signals import Signals
from moewatch.analysis.window import Window
from moewatch.domain.frame import Rates, Severity, State
from moewatch.domain.sample import Phase

LIGHT, MODERATE, SEVERE = 0.05, 0.20, 0.50  # shares of the time, as docs/reference/cli.md defines them
PAGING_COST = 0.01  # below this share of disk waits, slower tokens have another reason (a longer context, fewer cores)


def derive_rate_loss(window: Window, rates: Rates, best: Best | None) -> float | None:
    """1 - tokens/s / best steady tokens/s of this run; None without 20 tokens at the same number of requests in work."""
    samples = window.since(WINDOW_NS)
    tokens = tokens_between(samples[0], samples[-1])
    if best is None or rates.tokens_per_s is None or tokens is None or tokens < MIN_TOKENS:
        return None
    now = window.now.server
    if now.n_active != best.n_active or now.phase is Phase.PROMPT:
        return None
    return max(0.0, 1 - rates.tokens_per_s / best.tokens_per_s)


def derive_loss(signals: Signals, rates: Rates, state: State, by_rate: float | None) -> tuple[float | None, str | None]:
    """The share of the time lost to paging and how it is known: `rate`, `wait` or `stall`, the first that can be had.

    None while nobody waits for tokens. A steady server's slower tokens have other reasons (a longer context, another program on
    its cores): there, only a speed near the best says something about paging.
    """
    if state in (State.IDLE, State.LOADING, State.UNKNOWN):
        return None, None
    waited = signals.again_cost if signals.again_cost is not None else signals.cost_long
    if state is State.STEADY:
        waited = signals.cost_short
        by_rate = None if by_rate is None or by_rate >= LIGHT else by_rate
    if by_rate is not None and (waited is None or waited >= PAGING_COST):
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
