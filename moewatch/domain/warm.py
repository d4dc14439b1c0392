"""What warming says to whoever shows it: the plan, the progress, the proof. Frozen records, sizes in bytes."""

import enum

from msgspec import Struct

from moewatch.domain.layout import WeightClass


class What(enum.StrEnum):
    """How much of the model is wanted in memory."""

    AUTO = "auto"  # what every token needs, the hot set if there is one, then experts of all layers alike
    DENSE = "dense"  # only what every token needs
    HOT = "hot"  # what every token needs, and the hot set
    ALL = "all"  # as auto, and then the rest: the token table, layers that only draft


class Step(enum.StrEnum):
    """The parts of a plan, in the order in which they are read."""

    DENSE = "dense"
    HOT = "hot"
    EXPERTS = "experts"
    REST = "rest"


class FileRun(Struct, frozen=True):
    """`length` bytes of one shard from `offset`."""

    file_index: int
    offset: int
    length: int


class PlannedRange(Struct, frozen=True, kw_only=True):
    """One range to read: whole pages (the last of a file cut to its size), none of them in memory yet."""

    file_index: int
    offset: int
    length: int
    weight_class: WeightClass
    step: Step


class StepSum(Struct, frozen=True, kw_only=True):
    """One step in figures; `size_bytes` is what it asks for, `resident_bytes` what of that is there already."""

    step: Step
    size_bytes: int
    resident_bytes: int
    planned_bytes: int

    @property
    def after_bytes(self) -> int:
        """In memory when the plan is done."""
        return self.resident_bytes + self.planned_bytes


class ClassSum(Struct, frozen=True, kw_only=True):
    """One class of weights in figures, in whole pages; what is on the GPU is not in it."""

    weight_class: WeightClass
    size_bytes: int
    resident_bytes: int
    planned_bytes: int

    @property
    def left_cold_bytes(self) -> int:
        """Still on disk when the plan is done."""
        return self.size_bytes - self.resident_bytes - self.planned_bytes


class Plan(Struct, frozen=True, kw_only=True):
    """Which ranges to read in which order, and what that leaves."""

    what: What
    budget_bytes: int  # of the model in memory, when it is done
    ranges: tuple[PlannedRange, ...]
    steps: tuple[StepSum, ...]
    classes: tuple[ClassSum, ...]
    resident_bytes: int  # of the whole model, before
    displaced_bytes: int = 0  # of other parts of the model, which make room
    held: tuple[FileRun, ...] = ()  # in memory, wanted, and to be kept from making room

    @property
    def planned_bytes(self) -> int:
        """To be read."""
        return sum(each.length for each in self.ranges)

    @property
    def left_cold_bytes(self) -> int:
        """What the host needs of the model and stays on disk: it does not fit, or was not asked for."""
        return sum(each.left_cold_bytes for each in self.classes)

    def of_class(self, weight_class: WeightClass) -> ClassSum:
        """The figures of one class."""
        return next(each for each in self.classes if each.weight_class is weight_class)


class Room(Struct, frozen=True, kw_only=True):
    """How much of the model memory can hold: the tightest of the machine and the target's cgroups."""

    room_bytes: int  # programs as they are, everything else the model's
    kept_bytes: int  # of that, left for programs to grow
    scope: str | None = None  # the cgroup that limits; None: the machine
    other_cache_bytes: int | None = None  # cache of other files, which is pushed out first

    @property
    def budget_bytes(self) -> int:
        """Room less what is kept."""
        return max(0, self.room_bytes - self.kept_bytes)


class Levels(Struct, frozen=True, kw_only=True):
    """What of the model is in memory at one instant; ratios are of what the host needs."""

    resident_bytes: int
    dense_bytes: int
    dense_ratio: float | None
    expert_bytes: int
    expert_ratio: float | None
    hot_bytes: int | None = None
    hot_ratio: float | None = None


class WarmProgress(Struct, frozen=True, kw_only=True):
    """How far it is; one every quarter of a second while it reads."""

    planned_bytes: int
    read_bytes: int
    elapsed_ns: int
    bytes_per_s: float | None  # over the last seconds
    eta_ns: int | None
    step: Step | None  # being read
    steps: tuple[tuple[Step, int, int], ...]  # step, bytes read, bytes planned
    resident_bytes: int | None = None  # of the model, looked up
    gone_bytes: int = 0  # read but gone again
    pushed_out_bytes: int = 0  # of the model's other parts, beyond those that were to make room
    left_for_programs_bytes: int | None = None
    is_server_busy: bool | None = None  # None: unknown


class StopReason(enum.StrEnum):
    """Why it ended before the plan was done."""

    CANCELLED = "cancelled"
    EVICTING = "evicting"
    MEMORY = "memory"
    SERVER_ENDED = "server_ended"
    FILE = "file"
    READER = "reader"


class WarmOutcome(Struct, frozen=True, kw_only=True):
    """How it ended; `stopped` is the reason in one sentence, None when all was read."""

    planned_bytes: int
    read_bytes: int
    seconds: float
    before: Levels
    after: Levels
    gone_bytes: int = 0
    reason: StopReason | None = None
    stopped: str | None = None
