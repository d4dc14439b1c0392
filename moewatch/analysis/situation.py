"""What the sentences, the notes and the advice are made from: the parts of a Frame before its verdict is put into words."""

from msgspec import Struct

from moewatch.domain.frame import (
    Cause,
    Memory,
    Note,
    Progress,
    Rates,
    Residency,
    Server,
    Severity,
    Skew,
    State,
    WorkingSet,
)
from moewatch.domain.sample import Gap, Header, LoadMode, OtherProcess
from moewatch.units import S


class Reader(Struct, frozen=True, kw_only=True):
    """Another process that reads a disk: its name, and bytes per second."""

    name: str
    pid: int
    bytes_per_s: float


class Situation(Struct, frozen=True, kw_only=True):
    """One tick, judged but not yet put into words; every figure is None when unknown."""

    header: Header
    state: State
    severity: Severity | None = None
    cause: Cause = Cause.UNKNOWN
    loss_ratio: float | None = None
    loss_method: str | None = None
    rates: Rates = Rates()
    residency: Residency = Residency()
    memory: Memory = Memory()
    server: Server = Server()
    working_set: WorkingSet = WorkingSet()
    progress: Progress = Progress()
    skew: Skew | None = None
    notes: tuple[Note, ...] = ()
    gaps: tuple[Gap, ...] = ()
    active_bytes: int | None = None  # A, less what is on the GPU
    seen_ns: int = 0  # how long this target has been watched since the last break
    needed_ns: int = 10 * S  # how long it takes to judge
    late_ns: int = 0
    is_stopped: bool = False  # the server, by SIGSTOP or a debugger
    slept_ns: int = 0  # the machine was suspended so long just before
    came_back_bytes: int | None = None  # re-read since the state began; None: estimated from the rate over its window
    disk_bytes_per_s: float | None = None  # the fastest that this disk was seen to serve the server
    reader: Reader | None = None  # who keeps the disk busy, where it may be read
    others: tuple[OtherProcess, ...] = ()  # the largest other processes
    context_tokens: int | None = None  # as the server says it

    @property
    def total_bytes(self) -> int | None:
        """The model's size: all shards."""
        return self.header.model.total_bytes if self.header.model else None

    @property
    def needed_bytes(self) -> int | None:
        """What the host needs in memory: the model less what is on the GPU."""
        total = self.total_bytes
        return None if total is None else max(0, total - (self.residency.not_needed_bytes or 0))

    @property
    def is_mapped(self) -> bool | None:
        """Whether the model's file is mapped; None when unknown."""
        return self.header.target.load_mode.is_mapped

    @property
    def load_mode(self) -> LoadMode:
        """How the weights really are in memory."""
        return self.header.target.load_mode

    @property
    def is_dense(self) -> bool:
        """A model without routed experts: every token needs all of it."""
        model = self.header.model
        return model is not None and not model.n_expert and not model.expert_bytes
