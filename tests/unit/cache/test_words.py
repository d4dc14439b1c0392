import msgspec
import pytest

from moewatch.cache.warmup import Preparation, _refusal
from moewatch.cache.words import _tenths, headline, outcome_lines, plan_lines, refusal_lines
from moewatch.domain.layout import WeightClass
from moewatch.domain.sample import Phase
from moewatch.domain.warm import (
    ClassSum,
    Levels,
    Plan,
    PlannedRange,
    Room,
    Step,
    StepSum,
    StopReason,
    WarmOutcome,
    What,
)
from moewatch.units import GIB, MIB


def levels(dense_ratio: float | None) -> Levels:
    return Levels(
        resident_bytes=3 * GIB, dense_bytes=GIB, dense_ratio=dense_ratio, expert_bytes=2 * GIB, expert_ratio=0.5
    )


def prepared(*, planned_bytes: int, phase: Phase = Phase.IDLE, displaced_bytes: int = 0) -> Preparation:
    """A model of 10 GiB, 1 of it dense and there, planned experts on top."""
    plan = Plan(
        what=What.AUTO,
        budget_bytes=8 * GIB,
        ranges=(
            PlannedRange(
                file_index=0, offset=0, length=planned_bytes, weight_class=WeightClass.EXPERT, step=Step.EXPERTS
            ),
        )
        if planned_bytes
        else (),
        steps=(
            StepSum(step=Step.DENSE, size_bytes=GIB, resident_bytes=GIB, planned_bytes=0),
            StepSum(step=Step.EXPERTS, size_bytes=9 * GIB, resident_bytes=GIB, planned_bytes=planned_bytes),
        ),
        classes=(
            ClassSum(weight_class=WeightClass.DENSE, size_bytes=GIB, resident_bytes=GIB, planned_bytes=0),
            ClassSum(
                weight_class=WeightClass.EXPERT, size_bytes=9 * GIB, resident_bytes=GIB, planned_bytes=planned_bytes
            ),
        ),
        resident_bytes=2 * GIB,
        displaced_bytes=displaced_bytes,
    )
    return Preparation(
        plan=plan,
        room=Room(room_bytes=10 * GIB, kept_bytes=2 * GIB),
        before=levels(1.0),
        phase=phase,
        charged_to="this terminal: user.slice",
        refusal=_refusal(plan, phase),
        disk_bytes_per_s=GIB,
    )


def test_the_plans_figures_add_up() -> None:
    text = list(plan_lines(prepared(planned_bytes=6 * GIB), "m"))
    assert "reads 6.0 GiB in about 6.0 s" in text[0]
    assert "2.0 GiB of weights stay on disk" in text[1]
    rows = [
        [float(word) for word in line.split()[-3:]] for line in text if line.startswith("  1") or "  2  " in line[:5]
    ]
    (total,) = [[float(word) for word in line.split()[-3:]] for line in text if "model in memory" in line]
    assert [sum(column) for column in zip(*rows, strict=True)] == total
    assert total == [2.0, 8.0, 6.0]
    assert any("10.0 GiB less 2.0 GiB kept for programs; limit: the whole machine" in line for line in text)


def test_columns_add_up_also_where_rounding_would_not() -> None:
    """8.2 + 96.0 is not 104.1, which the first sentence says."""
    for sizes, total in (([8.16, 95.96], 104.12), ([0.04, 0.04], 0.08), ([0, 0], 0.5)):
        found = _tenths([round(each * MIB) for each in sizes], round(total * MIB), MIB)
        assert sum(found) == round(10 * total)
    assert _tenths([8 * MIB, 96 * MIB], 105 * MIB, MIB) == [80, 960, 10]


@pytest.mark.parametrize(
    ("has_server", "phase", "words"),
    [
        (False, Phase.UNKNOWN, "none has this model open"),
        (True, Phase.UNKNOWN, "does not say what it is doing"),
        (True, Phase.IDLE, "idle"),
    ],
)
def test_the_server_and_who_pays(has_server: bool, phase: Phase, words: str) -> None:  # noqa: FBT001 - a parameter
    plan = msgspec.structs.replace(prepared(planned_bytes=GIB, phase=phase), has_server=has_server)
    lines = list(plan_lines(plan, "m"))
    assert lines[-1] == f"  the server  {words}"
    assert any("charged to" in line for line in lines)
    free = msgspec.structs.replace(plan, is_limited=False)
    assert not any("charged to" in line for line in plan_lines(free, "m"))


def test_nothing_to_read_says_which_of_the_two_it_is() -> None:
    assert "do not fit" in next(plan_lines(prepared(planned_bytes=0), "m"))
    full = prepared(planned_bytes=0)
    steps = tuple(msgspec.structs.replace(each, resident_bytes=each.size_bytes) for each in full.plan.steps)
    done = msgspec.structs.replace(full, plan=msgspec.structs.replace(full.plan, steps=steps))
    assert "all that was asked for is in memory" in next(plan_lines(done, "m"))


@pytest.mark.parametrize(
    ("phase", "planned_bytes", "is_refused"),
    [
        (Phase.IDLE, 0, False),
        (Phase.GENERATE, 0, True),
        (Phase.PROMPT, MIB, True),
        (Phase.GENERATE, GIB, False),
        (Phase.LOADING, GIB, True),
        (Phase.UNKNOWN, 0, False),
    ],
)
def test_when_it_is_refused(phase: Phase, planned_bytes: int, is_refused: bool) -> None:  # noqa: FBT001 - a parameter
    preparation = prepared(planned_bytes=planned_bytes, phase=phase)
    assert bool(preparation.refusal) is is_refused
    if is_refused:
        text = "\n".join(refusal_lines(preparation))
        assert "NOT STARTED" in text
        assert ("--force" in text) is (phase is not Phase.LOADING)


def test_the_headline_is_the_truth_of_the_last_look() -> None:
    outcome = WarmOutcome(planned_bytes=GIB, read_bytes=GIB, seconds=2.0, before=levels(0.2), after=levels(1.0))
    assert headline(outcome, levels(1.0)).startswith("READY   looked up twice")
    assert headline(outcome, levels(0.5)).startswith("COLD   50 %")
    assert headline(outcome, None).startswith("READY   All")
    assert headline(outcome, levels(None)).startswith("DONE")
    stopped = msgspec.structs.replace(outcome, reason=StopReason.EVICTING, stopped="memory is full")
    assert headline(stopped, None) == "STOPPED   memory is full."
    text = "\n".join(outcome_lines(outcome, levels(1.0), 10 * GIB))
    assert "1.0 GiB in 2.0 s, 537 MB/s; 0 B of it left again" in text
