import pytest

from moewatch.analysis.loss import derive_loss, derive_rate_loss, derive_severity
from moewatch.analysis.rates import Best
from moewatch.analysis.signals import Signals
from moewatch.domain.frame import Rates, Severity, State
from moewatch.domain.sample import Phase
from moewatch.units import S
from tests.support.readings import sample, window

BEST = Best(tokens_per_s=10.0, wall_ns=0, n_active=1)


def signals(**values: object) -> Signals:
    return Signals(
        **{
            "phase": Phase.GENERATE,
            "phase_told": True,
            "active_ratio": 1.0,
            "span_ns": 10**10,
            "cost_by": "wait",
            **values,
        }  # type: ignore[arg-type]  # fields by name
    )


@pytest.mark.parametrize(
    ("tokens", "n_active", "phase", "loss"),
    [
        (50, 1, Phase.GENERATE, 0.5),
        (3, 1, Phase.GENERATE, 0.97),
        (120, 1, Phase.GENERATE, 0.0),
        (50, 2, Phase.GENERATE, None),  # another number of requests
        (50, 1, Phase.PROMPT, None),
    ],
)
def test_loss_by_rate(tokens: int, n_active: int, phase: Phase, loss: float | None) -> None:
    made = window([sample(0, tokens=0, n_active=n_active), sample(10, tokens=tokens, n_active=n_active, phase=phase)])
    found = derive_rate_loss(made, None, BEST)
    assert found == (None if loss is None else pytest.approx(loss))
    assert derive_rate_loss(made, None, None) is None


@pytest.mark.parametrize(("prompt_s", "loss"), [(1, 0.5), (4, 0.5), (8, None)])
def test_a_short_prompt_does_not_interrupt_the_loss_by_rate(prompt_s: int, loss: float | None) -> None:
    """Tokens at half the best speed until the prompt came; its own time makes none and counts for none."""
    last = 20 - prompt_s
    made = window(
        sample(t, tokens=5 * min(t, last), n_active=1, phase=Phase.GENERATE if t <= last else Phase.PROMPT)
        for t in range(21)
    )
    found = derive_rate_loss(made, None, BEST)
    assert found == (None if loss is None else pytest.approx(loss, abs=0.1))


def test_a_slow_model_is_compared_over_a_longer_span_of_one_state() -> None:
    slow = Best(tokens_per_s=0.8, wall_ns=0, n_active=1)
    made = window(sample(t, tokens=t // 5, n_active=1) for t in range(61))
    assert derive_rate_loss(made, 0, slow) == pytest.approx(0.75)
    assert derive_rate_loss(made, 30 * S, slow) is None  # at the best speed, 30 s would have been 24 tokens, 20 s 16
    assert derive_rate_loss(made, 0, Best(tokens_per_s=0.1, wall_ns=0, n_active=1)) is None


def test_the_first_that_can_be_had() -> None:
    waits = signals(again_cost=0.3, again_cost_short=0.3, cost_long=0.3, cost_short=0.3)
    rates = Rates(memory_stall_ratio=0.1)
    assert derive_loss(waits, rates, State.THRASHING, 0.6) == (0.6, "rate")
    assert derive_loss(waits, rates, State.THRASHING, None) == (0.3, "wait")
    assert derive_loss(signals(cost_by=None), rates, State.THRASHING, None) == (0.1, "stall")
    assert derive_loss(signals(cost_by=None), Rates(), State.THRASHING, None) == (None, None)


@pytest.mark.parametrize("state", [State.IDLE, State.LOADING, State.UNKNOWN])
def test_nobody_waits(state: State) -> None:
    assert derive_loss(signals(again_cost=0.3), Rates(), state, 0.5) == (None, None)


def test_slower_tokens_without_paging_are_no_loss() -> None:
    calm = signals(again_cost=0.0, again_cost_short=0.0, cost_long=0.0, cost_short=0.0)
    assert derive_loss(calm, Rates(), State.STEADY, 0.4) == (0.0, "wait")
    assert derive_loss(calm, Rates(), State.WARMING, 0.4) == (0.0, "wait")


@pytest.mark.parametrize(
    ("loss", "cost", "severity"),
    [
        (0.05, None, Severity.LIGHT),
        (0.199, 0.9, Severity.LIGHT),
        (0.20, None, Severity.MODERATE),
        (0.50, None, Severity.SEVERE),
        (None, 0.6, Severity.SEVERE),
        (None, None, None),
    ],
)
def test_severity(loss: float | None, cost: float | None, severity: Severity | None) -> None:
    assert derive_severity(loss, cost) is severity
