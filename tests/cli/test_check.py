"""`moewatch check`: which watch is a finding."""

import msgspec
import pytest

from moewatch.cli.check import Tally
from moewatch.domain.frame import Frame, Residency, State, Target, Verdict
from moewatch.domain.sample import Host, LoadMode
from moewatch.errors import ExitCode
from moewatch.units import S

T, STEADY, UNKNOWN = State.THRASHING, State.STEADY, State.UNKNOWN


def frame(second: int, state: State, dense_ratio: float | None = 1.0, load_mode: LoadMode = LoadMode.MMAP) -> Frame:
    target = Target(
        id="7:1", pid=7, exe="llama-server", files=(), model_name="m", load_mode=load_mode, host=Host(), devices=()
    )
    return Frame(
        mono_ns=second * S,
        wall_ns=second * S,
        target=target,
        residency=Residency(dense_ratio=dense_ratio),
        verdict=Verdict(state=state, since_ns=0),
    )


def tally(frames: list[Frame]) -> Tally:
    watcher = Tally(limit_ns=30 * S)
    for each in frames:
        watcher.show(each, last=False)
    return watcher


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([STEADY] * 31, ExitCode.OK),
        ([STEADY] * 30 + [T], ExitCode.FINDING),  # at its end
        ([STEADY] * 10 + [T] * 15 + [STEADY] * 6, ExitCode.FINDING),  # half of the time
        ([STEADY] * 10 + [T] * 14 + [STEADY] * 7, ExitCode.OK),  # less than half, and over
        ([UNKNOWN] * 31, ExitCode.FORBIDDEN),
        ([], ExitCode.NO_TARGET),
    ],
)
def test_what_a_watch_amounts_to(states: list[State], code: ExitCode) -> None:
    watcher = tally([frame(second, state) for second, state in enumerate(states)])
    assert watcher.exit_code(must_be_ready=False) is code


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (frame(30, STEADY, 1.0), ExitCode.OK),
        (frame(30, State.IDLE, 0.4), ExitCode.FINDING),
        (frame(30, STEADY, None), ExitCode.FORBIDDEN),
        (frame(30, STEADY, None, LoadMode.NONE), ExitCode.OK),  # copied: it is in memory whatever the page cache holds
    ],
)
def test_ready_before_a_demo(last: Frame, code: ExitCode) -> None:
    watcher = tally([msgspec.structs.replace(last, mono_ns=0), last])
    assert watcher.exit_code(must_be_ready=True) is code
    assert watcher.seconds == 30
