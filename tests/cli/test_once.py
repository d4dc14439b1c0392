"""`moewatch --once`: when the one answer is given."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from moewatch.cli.dashboard import ONCE_NS, ONCE_UNSURE_NS, SURE, _Once
from moewatch.domain.events import FrameReady
from moewatch.domain.frame import Frame, State
from moewatch.units import S
from tests.support.frames import design_frame


def seconds_until_answered(judge: Callable[[float], tuple[State, float]], for_ns: int | None = None) -> float:
    """`judge` says (state, confidence) at each second since the start."""
    answered: list[int] = []
    once = _Once(as_json=False, for_ns=for_ns)
    once.stop = lambda: answered.append(1)
    frame = design_frame()
    for second in range(60):
        state, confidence = judge(second)
        verdict = replace(frame.verdict, state=state, confidence=confidence)
        now: Frame = replace(frame, mono_ns=frame.mono_ns + S, verdict=verdict)
        once(FrameReady(frame=now))
        frame = now
        if answered:
            return second
    raise AssertionError("never answered")


def test_an_answer_that_is_sure_is_given_after_twelve_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    for state in (State.THRASHING, State.STEADY, State.IDLE, State.UNKNOWN, State.LOADING):
        assert seconds_until_answered(lambda _, state=state: (state, 0.3)) == ONCE_NS / S  # type: ignore[misc]  # bound at once
    assert seconds_until_answered(lambda _: (State.WARMING, SURE)) == ONCE_NS / S
    assert capsys.readouterr().out


def test_while_thrashing_and_a_new_topic_look_alike_it_looks_on(capsys: pytest.CaptureFixture[str]) -> None:
    def judge(second: float) -> tuple[State, float]:
        return (State.WARMING, 0.4) if second < 17 else (State.THRASHING, 0.8)

    assert seconds_until_answered(judge) == 17
    assert "THRASHING" in capsys.readouterr().out


def test_it_does_not_look_on_for_ever_nor_longer_than_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert seconds_until_answered(lambda _: (State.WARMING, 0.4)) == ONCE_UNSURE_NS / S
    assert seconds_until_answered(lambda _: (State.WARMING, 0.4), for_ns=5 * S) == 5
    assert capsys.readouterr().out
