"""Who works: the server's word, and what it misses when it is asked seldom."""

import pytest

from moewatch.analysis.signals import derive_signals
from moewatch.analysis.verdict import WORKING_RATIO
from moewatch.analysis.window import Window
from moewatch.domain.sample import Phase, ServerReading
from moewatch.units import S
from tests.support.situations import header, process, sample

IDLE = ServerReading(phase=Phase.IDLE, source="slots", n_active=0)


def active_ratio(interval_s: int, cpu_ratio: float) -> float:
    """Of a server that calls itself idle each time it is asked."""
    found = Window(header=header())
    for at_s in range(0, 31, interval_s):
        found = found.pushed(sample(at_s * S, server=IDLE, process=process(utime_ns=int(at_s * cpu_ratio * S))))
    return derive_signals(found, 0).active_ratio


@pytest.mark.parametrize(("interval_s", "cpu_ratio", "works"), [(5, 0.5, True), (5, 0.01, False), (1, 0.5, False)])
def test_asked_seldom_a_server_may_pause_each_time(interval_s: int, cpu_ratio: float, *, works: bool) -> None:
    assert (active_ratio(interval_s, cpu_ratio) > WORKING_RATIO) is works
