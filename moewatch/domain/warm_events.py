"""What a warm-up tells a screen, in order: what would be done, how far it is, how it ended, whether it stayed."""

from msgspec import Struct

from moewatch.domain.sample import Phase
from moewatch.domain.warm import Levels, Plan, Room, WarmOutcome, WarmProgress


class WarmOffer(Struct, frozen=True, kw_only=True):
    """What would be done, and what speaks against it; nothing has been read yet."""

    model_name: str
    plan: Plan
    room: Room
    before: Levels
    phase: Phase
    charged_to: str  # in words: which memory group pays for the pages
    command: str  # the same from a script
    hot_name: str = ""
    refusal: tuple[str, ...] = ()  # sentences; empty: nothing speaks against it
    disk_bytes_per_s: float | None = None
    gone_limit_bytes: int = 0  # so much gone again, and it stops by itself
    watch_limit_bytes: int = 0  # so much gone after the proof, and it says so


class WarmProof(Struct, frozen=True, kw_only=True):
    """Looked at again, a little later."""

    later: Levels


class WarmLeft(Struct, frozen=True, kw_only=True):
    """More than a little has left memory since the proof, before the first request."""

    left_bytes: int


class WarmOver(Struct, frozen=True, kw_only=True):
    """The watch after the proof has ended, and why: a request came, or the server went."""

    text: str


class WarmFailed(Struct, frozen=True, kw_only=True):
    """It cannot be done here; one sentence."""

    text: str


class WarmSaid(Struct, frozen=True, kw_only=True):
    """The answer to something asked for meanwhile, such as saving a hot set."""

    text: str


WarmEvent = WarmOffer | WarmProgress | WarmOutcome | WarmProof | WarmLeft | WarmOver | WarmFailed | WarmSaid
