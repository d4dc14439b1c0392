"""The warm-up of the design's example, event by event: figures that add up."""

from typing import Any

import msgspec

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
    WarmProgress,
    What,
)
from moewatch.domain.warm_events import WarmEvent, WarmOffer, WarmProof
from moewatch.units import GB, GIB, S
from tests.support.frames import gib

DENSE_READ, HOT_READ = gib(1.3), gib(17.0)
BEFORE = Levels(
    resident_bytes=gib(7.1), dense_bytes=gib(0.4), dense_ratio=0.24, expert_bytes=gib(6.2), expert_ratio=0.11,
    hot_bytes=gib(4.4), hot_ratio=0.21,
)  # fmt: skip
AFTER = Levels(
    resident_bytes=gib(25.2), dense_bytes=gib(1.7), dense_ratio=1.0, expert_bytes=gib(23.0), expert_ratio=0.41,
    hot_bytes=gib(21.2), hot_ratio=0.99,
)  # fmt: skip


def plan(**changes: Any) -> Plan:
    """Dense weights and a hot set to read: 18.3 GiB."""

    def one(step: Step, length: int, weight_class: WeightClass, offset: int) -> PlannedRange:
        return PlannedRange(file_index=0, offset=offset, length=length, weight_class=weight_class, step=step)

    made = Plan(
        what=What.AUTO,
        budget_bytes=gib(25.4),
        ranges=(
            one(Step.DENSE, DENSE_READ, WeightClass.DENSE, 0),
            one(Step.HOT, HOT_READ, WeightClass.EXPERT, 2 * GIB),
        ),
        steps=(
            StepSum(step=Step.DENSE, size_bytes=gib(1.7), resident_bytes=gib(0.4), planned_bytes=DENSE_READ),
            StepSum(step=Step.HOT, size_bytes=gib(21.4), resident_bytes=gib(4.4), planned_bytes=HOT_READ),
        ),
        classes=(
            ClassSum(weight_class=WeightClass.DENSE, size_bytes=gib(1.7), resident_bytes=gib(0.4),
                     planned_bytes=DENSE_READ),
            ClassSum(weight_class=WeightClass.EXPERT, size_bytes=gib(56.7), resident_bytes=gib(6.2),
                     planned_bytes=HOT_READ),
            ClassSum(weight_class=WeightClass.EMBEDDING, size_bytes=gib(0.6), resident_bytes=gib(0.5), planned_bytes=0),
        ),
        resident_bytes=gib(7.1),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def offer(**changes: Any) -> WarmOffer:
    """The plan page's moment."""
    made = WarmOffer(
        model_name="gpt-oss-120b",
        plan=plan(),
        room=Room(room_bytes=gib(27.4), kept_bytes=2 * GIB, other_cache_bytes=gib(1.9)),
        before=BEFORE,
        phase=Phase.IDLE,
        charged_to="this terminal: user.slice (matters only with a memory limit)",
        command="moewatch warm --pid 48213",
        hot_name="good chat",
        disk_bytes_per_s=1.2 * GB,
        gone_limit_bytes=gib(0.5),
        watch_limit_bytes=GIB,
    )
    return msgspec.structs.replace(made, **changes)


def refused() -> WarmOffer:
    """Memory is full of what the server is using."""
    full = plan(ranges=(), resident_bytes=gib(19.8), budget_bytes=gib(19.8))
    reason = "Memory is full of parts the server is using: each GiB read would push out another that it needs for the next token."
    return offer(plan=full, phase=Phase.GENERATE, refusal=(reason,))


def progress(seconds: int = 8, read: int | None = None) -> WarmProgress:
    """So many seconds after the start."""
    done = min(DENSE_READ + HOT_READ, int(seconds * 1.29 * GB)) if read is None else read
    dense = min(DENSE_READ, done)
    return WarmProgress(
        planned_bytes=DENSE_READ + HOT_READ,
        read_bytes=done,
        elapsed_ns=seconds * S,
        bytes_per_s=1.29 * GB,
        eta_ns=8 * S,
        step=Step.HOT,
        steps=((Step.DENSE, dense, DENSE_READ), (Step.HOT, done - dense, HOT_READ)),
        resident_bytes=gib(7.1) + done,
        left_for_programs_bytes=gib(11.9),
        is_server_busy=False,
    )


def outcome(**changes: Any) -> WarmOutcome:
    """All was read."""
    made = WarmOutcome(
        planned_bytes=DENSE_READ + HOT_READ, read_bytes=DENSE_READ + HOT_READ, seconds=15.1, before=BEFORE, after=AFTER,
        gone_bytes=gib(0.2),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def stopped() -> WarmOutcome:
    """Cancelled half way."""
    words = "cancelled; what has been read stays in memory"
    return outcome(read_bytes=gib(8.4), seconds=7.0, reason=StopReason.CANCELLED, stopped=words)


STORY: dict[str, tuple[WarmEvent, ...]] = {
    "plan": (offer(),),
    "running": (offer(), *(progress(n) for n in range(1, 8)), progress(read=gib(8.4))),
    "proving": (offer(), progress(15), outcome()),
    "done": (offer(), progress(15), outcome(), WarmProof(later=AFTER)),
    "stopped": (offer(), progress(7), stopped()),
    "refused": (refused(),),
}
