"""What the sampler tells whoever listens (the dashboard, a printer, a recorder): one way, in order."""

from msgspec import Struct

from moewatch.domain.frame import Frame
from moewatch.domain.sample import Header


class Started(Struct, frozen=True, kw_only=True):
    """A target is watched from now on; also a new one after an end (counters start again)."""

    header: Header
    wall_ns: int


class FrameReady(Struct, frozen=True, kw_only=True):
    """A new Frame."""

    frame: Frame


class Ended(Struct, frozen=True, kw_only=True):
    """The target ended, or the recording is over; `text` says which in one sentence."""

    text: str
    wall_ns: int
    final: bool = False  # nothing more will come (end of a recording)


class Waiting(Struct, frozen=True, kw_only=True):
    """No target yet; `text` says what is waited for and what to do."""

    text: str
    wall_ns: int


class Candidates(Struct, frozen=True, kw_only=True):
    """Servers that could be watched instead: (pid, model name), the watched one first."""

    servers: tuple[tuple[int, str], ...]


class Notice(Struct, frozen=True, kw_only=True):
    """Something the person should know that is no reading: the recording stopped, a page failed."""

    text: str
    wall_ns: int


class Position(Struct, frozen=True, kw_only=True):
    """Where a replay stands."""

    name: str
    elapsed_ns: int
    total_ns: int
    speed: float
    paused: bool = False


Event = Started | FrameReady | Ended | Waiting | Candidates | Notice | Position
