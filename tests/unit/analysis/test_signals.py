"""What a wait is counted for: only what the target itself reads again."""

import pytest
from msgspec.structs import replace

from moewatch.analysis.evidence import derive_evidence
from moewatch.analysis.rates import derive_rates
from moewatch.analysis.signals import derive_signals
from moewatch.analysis.verdict import Judged
from moewatch.analysis.window import Window
from moewatch.domain.frame import State
from moewatch.domain.sample import Sample
from tests.support.readings import GB, MB, sample, window

PAGE = 4096


def watched(*, again_mb: int, everyone_mb: int, scope: str = "system", stalled: float = 0.4) -> Window:
    """Ten seconds at a stall of 40 %: MB a second that the target reads again, and that came back to the machine."""

    def one(t: int) -> Sample:
        read = t * again_mb * MB
        made = sample(
            t,
            read=read,
            resident=2 * GB,
            evicted=GB,
            machine_refaults=t * everyone_mb * MB // PAGE,
            busy_s=0.1 * t,
            stalled_s=stalled * t,
            tokens=10 * t,
        )
        assert made.pressure is not None
        return replace(made, pressure=replace(made.pressure, scope=scope))

    return window(one(t) for t in range(11))


def test_another_programs_stall_is_not_the_targets() -> None:
    """The machine's stall beside a server that reads nothing: a second one thrashes in a cgroup of its own."""
    signals = derive_signals(watched(again_mb=0, everyone_mb=300), 0)
    assert signals.again_cost == 0
    assert signals.cost_short == 0


@pytest.mark.parametrize(
    ("everyone_mb", "scope", "cost"),
    [
        (100, "system", 0.4),  # alone: all of it
        (200, "system", 0.2),  # half of what came back is another's
        (1000, "system", 0.1),  # less than the disk was busy for it: that counts
        (1000, "cgroup", 0.4),  # the stall is its own
    ],
)
def test_of_the_machines_stall_the_targets_share_counts(everyone_mb: int, scope: str, cost: float) -> None:
    signals = derive_signals(watched(again_mb=100, everyone_mb=everyone_mb, scope=scope), 0)
    assert signals.cost_by == "wait"
    assert signals.again_cost == pytest.approx(cost, rel=0.02)
    assert signals.cost_short == pytest.approx(cost, rel=0.02)


@pytest.mark.parametrize(("scope", "whose"), [("system", "Tasks of any program waited"), ("cgroup", "Tasks waited")])
def test_evidence_says_whose_stall_it_is_and_over_how_long(scope: str, whose: str) -> None:
    made = watched(again_mb=100, everyone_mb=100, scope=scope)
    signals, rates = derive_signals(made, 0), derive_rates(made, None, None)
    found = derive_evidence(made, signals, rates, Judged(state=State.THRASHING, cost=signals.cost_long))
    texts = {each.id: each.text for each in found}
    assert texts["memory_stall_ratio"] == f"{whose} for memory 40 % of the time (PSI)."
    assert texts["time_lost"] == "40 % of the time went into waiting for what had been pushed out to come back."
    assert texts["reread_bytes_per_s"].startswith("100 MB/s come back AGAIN over 5 s (")
