"""Watches while the reading goes on: does what was read stay, does the server keep its pages, is there still room."""

from collections.abc import Callable

from msgspec import Struct

from moewatch.cache.residency import ShardCache
from moewatch.cache.runs import Run
from moewatch.clock import Clock
from moewatch.domain.warm import Plan, Room, StopReason
from moewatch.units import GIB, MIB, MS, format_size

GONE_LIMIT_BYTES = GIB // 2
GONE_LIMIT_RATIO = 0.03  # of the plan
GONE_FLOOR_BYTES = 16 * MIB  # a page here and there goes on every machine
CHECK_NS = 500 * MS
# of CPU per check: 2 % of the time; cachestat costs up to 21 ms per GiB of 4 KiB folios
LOOK_CPU_NS = 10 * MS
ROOM_SLACK = 8  # less than 7/8 of what was to be kept is a stop: the plan aims at the whole of it, and memory breathes


class Ruling(Struct, frozen=True, kw_only=True):
    """What the last look found."""

    gone_bytes: int = 0
    pushed_out_bytes: int = 0
    resident_bytes: int | None = None
    left_for_programs_bytes: int | None = None
    reason: StopReason | None = None
    words: str | None = None


class Guard:
    """Looks at what was read part by part, the oldest first: that is what the kernel gives up first."""

    def __init__(
        self,
        plan: Plan,
        cache: ShardCache,
        clock: Clock,
        *,
        read_room: Callable[[int], Room] | None = None,
        room: Room | None = None,
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._clock = clock
        self._read_room = read_room
        self._kept_bytes = room.kept_bytes if room is not None else 0
        self._room_bytes = room.room_bytes if room is not None else plan.budget_bytes
        budget_bytes = room.budget_bytes if room is not None else plan.budget_bytes
        self._may_go_bytes = max(0, plan.resident_bytes + plan.planned_bytes - budget_bytes)
        self._limit_bytes = gone_limit(plan.planned_bytes)
        self._done: list[tuple[int, Run]] = []
        self._gone: list[int] = []
        self._next = 0
        self._read_bytes = 0
        self._pushed_before = 0

    def note(self, file_index: int, start: int, end: int) -> None:
        """These bytes were read."""
        self._read_bytes += end - start
        self._done.append((file_index, (start, end)))
        self._gone.append(0)

    def look(self) -> Ruling:
        """The oldest parts again, then some more; the whole model; the room."""
        began_ns = self._clock.thread_cpu_ns()
        for share, start in ((3, 0), (1, self._next)):
            index = start
            while index < len(self._done) and self._clock.thread_cpu_ns() - began_ns < LOOK_CPU_NS // share:
                file_index, run = self._done[index]
                self._gone[index] = run[1] - run[0] - self._cache.count(file_index, [run])
                index += 1
            if share == 1:
                self._next = 0 if index >= len(self._done) else index
            elif self._next < index:
                self._next = index
        gone = sum(self._gone)
        resident = self._cache.total()
        departed = self._plan.resident_bytes + self._read_bytes - resident
        pushed = max(0, departed - gone - self._may_go_bytes)
        room = self._read_room(resident).room_bytes if self._read_room is not None else None
        return self._rule(gone, pushed, resident, room)

    def _rule(self, gone: int, pushed: int, resident: int, room: int | None) -> Ruling:
        reason, words = None, None
        # of the model, what has a place in this plan: at most the budget, however full memory is of other parts
        held = min(self._plan.budget_bytes, self._plan.resident_bytes + self._read_bytes)
        if gone > self._limit_bytes:
            reason = StopReason.EVICTING
            words = f"{format_size(gone)} of what was read is gone again: memory is full, more would push out the rest"
        elif min(pushed, self._pushed_before) > self._limit_bytes:  # twice: read-ahead of the server comes and goes
            reason = StopReason.EVICTING
            words = f"{format_size(pushed)} of what was in memory before has been pushed out: memory is full"
        elif room is not None and held > room - self._kept_bytes + self._kept_bytes // ROOM_SLACK:
            reason = StopReason.MEMORY
            left = f"{format_size(max(0, room - held))} are left for programs, {format_size(self._kept_bytes)} are to be kept"
            took = room < self._room_bytes - self._kept_bytes // ROOM_SLACK
            words = f"{'another program took memory' if took else 'the budget is above the room'}: {left}"
        left_bytes = max(0, room - resident) if room is not None else None
        self._pushed_before = pushed
        return Ruling(
            gone_bytes=gone,
            pushed_out_bytes=pushed,
            resident_bytes=resident,
            left_for_programs_bytes=left_bytes,
            reason=reason,
            words=words,
        )


def gone_limit(planned_bytes: int) -> int:
    """How much may be gone again before it stops: half a GiB, or 3 % of a smaller plan."""
    return max(GONE_FLOOR_BYTES, min(GONE_LIMIT_BYTES, int(GONE_LIMIT_RATIO * planned_bytes)))
