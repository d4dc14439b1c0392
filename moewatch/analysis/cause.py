"""What brought a state about. Pure."""

from moewatch.analysis.memory import who_took
from moewatch.analysis.signals import Signals
from moewatch.analysis.verdict import Judged, Memo
from moewatch.analysis.window import Window
from moewatch.domain.frame import Cause, Memory, State
from moewatch.units import MIB, S

# Read-ahead of 512 KiB tripled what is read again (39 against 13 MB a token), 4 MiB made it 40 times as much; 128 KiB is Linux's own.
LARGE_READ_AHEAD_BYTES = 1 * MIB
COLD_START_NS = (
    60 * S
)  # a start that took longer without being steady is none (a model of 60 GB is read in 20 s at 3 GB/s)
LOWERED_RATIO = 0.97  # the limit against its highest: less is rounding to pages


def derive_cause(memo: Memo, window: Window, signals: Signals, judged: Judged, memory: Memory) -> Cause:
    """The cause of the present state; unknown where none is needed (steady, idle) or none can be told."""
    match judged.state:
        case State.LOADING:
            return Cause.LOAD
        case State.WARMING:
            return _of_warming(memo, window, signals, judged, memory)
        case State.THRASHING:
            return _of_thrashing(memo, window, memory)
        case State.RECOVERING if _is_lowered(memo, window):
            return Cause.LIMIT_LOWERED
        case State.STEADY if signals.long is not None and signals.long.shared:
            return Cause.OTHER_READER
        case _:
            return Cause.UNKNOWN


def _of_warming(memo: Memo, window: Window, signals: Signals, judged: Judged, memory: Memory) -> Cause:
    """Before it was ever steady it is the start, whatever the pages: a load larger than memory evicts what it has just read."""
    if judged.is_early and _fell_lately(window):
        return Cause.LIMIT_LOWERED
    if judged.is_early and who_took(memory) is not None:
        return Cause.MEMORY_TAKEN
    is_long = judged.is_early and signals.span_ns > COLD_START_NS
    return Cause.TOPIC_CHANGE if memo.settled or is_long else Cause.COLD_START


def _of_thrashing(memo: Memo, window: Window, memory: Memory) -> Cause:
    if _is_lowered(memo, window):
        return Cause.LIMIT_LOWERED
    if who_took(memory) is not None:
        return Cause.MEMORY_TAKEN
    if any((d.read_ahead_bytes or 0) >= LARGE_READ_AHEAD_BYTES for d in window.header.devices):
        return Cause.READAHEAD
    model = window.header.model
    if model is not None and not model.n_expert and not model.expert_bytes:
        return Cause.DENSE_CLIFF
    return Cause.WORKING_SET


def _fell_lately(window: Window) -> bool:
    """Whether the limit is lower than it was within the window."""
    limits = [s.cgroup.limit_bytes for s in window.samples if s.cgroup is not None and s.cgroup.limit_bytes is not None]
    return bool(limits) and limits[-1] < LOWERED_RATIO * max(limits)


def _is_lowered(memo: Memo, window: Window) -> bool:
    limit = window.now.cgroup.limit_bytes if window.now.cgroup else None
    highest = memo.highest_limit_bytes
    return limit is not None and highest is not None and limit < LOWERED_RATIO * highest
