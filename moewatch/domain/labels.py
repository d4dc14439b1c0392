"""How a state is named to people, the same on every screen and in every line of text."""

from moewatch.domain.frame import Frame, Note, Severity, State, Verdict
from moewatch.domain.sample import Gap, GapReason, Phase
from moewatch.domain.warm import Step

SYMBOL = {
    State.UNKNOWN: "?",
    State.IDLE: "○",
    State.LOADING: "↓",
    State.WARMING: "↗",
    State.STEADY: "●",
    State.THRASHING: "▲",
    State.RECOVERING: "↘",
}
ASCII_SYMBOL = {
    State.UNKNOWN: "?",
    State.IDLE: "o",
    State.LOADING: "v",
    State.WARMING: "/",
    State.STEADY: "*",
    State.THRASHING: "!",
    State.RECOVERING: "\\",
}
WORD = {
    State.UNKNOWN: "WATCHING",
    State.IDLE: "IDLE",
    State.LOADING: "LOADING, normal",
    State.WARMING: "WARMING UP",
    State.STEADY: "OK",
    State.THRASHING: "THRASHING",
    State.RECOVERING: "RECOVERING",
}
STEP_WORDS = {
    Step.DENSE: "weights every token needs",
    Step.HOT: "hot set",
    Step.EXPERTS: "other experts, in no proven order",
    Step.REST: "token table, layers that only draft",
}
PHASE_WORDS = {
    Phase.IDLE: "idle",
    Phase.PROMPT: "in a prompt",
    Phase.GENERATE: "generating",
    Phase.LOADING: "loading",
    Phase.UNKNOWN: "\u2013",
}
NOTE_WORDS = {
    Note.DISK_BUSY_ELSEWHERE: "other programs keep the disk busy",
    Note.DENSE_WEIGHTS_EVICTED: "weights every token needs were pushed out",
    Note.MEMORY_TAKEN: "a program took memory from the model",
    Note.READAHEAD_OFF: "nothing is read ahead: single pages from the disk (read-ahead)",
    Note.READAHEAD_LARGE: "the disk reads far more than was asked for (read-ahead)",
    Note.LEDGER_SHARED: "other processes map the same model: re-reads may be theirs",
    Note.SWAP_IN_USE: "part of the server's own memory is in swap",
    Note.REPACK_DUPLICATE: "the server holds a second copy of weights (repacked)",
    Note.NOT_MAPPED: "the model was copied into the server's own memory (not mapped)",
    Note.LOCKED: "the model is locked in memory (--mlock)",
    Note.LIMIT_IS_CGROUP: "its memory group has a limit",
    Note.COLD: "not all that every token needs is in memory",
    Note.TOPIC_CHANGE: "the topic has changed: other experts are asked for",
}
# field of a Gap, or its group: what it would tell
GAP_WORDS = {
    "process.blkio_delay_ns_total": "wait per thread",
    "process.read_bytes_total": "bytes read by the server",
    "process.majflt_total": "faults",
    "process": "the server's counters",
    "pressure": "waiting for memory",
    "cgroup": "limit of its memory group",
    "residency": "what is in memory",
    "server": "tokens/s",
    "model": "the model's file",
    "vm": "the kernel's count of re-reads",
    "devices": "the disk's counters",
    "memory": "the machine's memory",
    "others": "other programs' memory",
}
GAPS_NOT_NEEDED = ("process.blkio_delay_ns_total", "pressure", "others")  # the verdict is as sure without them
GAP_REASON_WORDS = {
    GapReason.DENIED: "this user may not read it",
    GapReason.ABSENT: "this machine does not have it",
    GapReason.UNSUPPORTED: "this kernel or file system cannot tell",
    GapReason.VANISHED: "it is gone",
    GapReason.MALFORMED: "it makes no sense",
}
READY_DENSE_RATIO = 0.98  # edge pages shared with neighbours and one table row never make it 1.0 exactly


def state_word(verdict: Verdict, *, ready: bool | None) -> str:
    """`THRASHING, severe`, `IDLE, cold`; `ready` None: it cannot be known."""
    word = WORD[verdict.state]
    if verdict.state is State.THRASHING and verdict.severity is not None:
        return f"{word}, {Severity(verdict.severity).value}"
    if verdict.state is State.IDLE and ready is not None:
        return f"{word}, {'ready' if ready else 'cold'}"
    return word


def state_label(verdict: Verdict, dense_ratio: float | None, *, ascii_only: bool = False) -> str:
    """`▲ THRASHING, severe`, `○ IDLE, ready`: symbol and word, which together survive a screen without colour."""
    ready = None if dense_ratio is None else dense_ratio >= READY_DENSE_RATIO
    return f"{(ASCII_SYMBOL if ascii_only else SYMBOL)[verdict.state]} {state_word(verdict, ready=ready)}"


def is_ready(frame: Frame) -> bool | None:
    """Whether what every token needs is in memory; None when that cannot be known. A copied model always is."""
    if frame.target.load_mode.is_mapped is False:
        return True
    if Note.COLD in frame.verdict.notes:
        return False
    ratio = frame.residency.dense_ratio
    return None if ratio is None else ratio >= READY_DENSE_RATIO


def gap_words(gap: Gap) -> str:
    """`wait per thread: kernel.task_delayacct is 0 (not needed for the verdict)`: what is missing, why, whether it matters."""
    group, _, figure = gap.field.partition(".")
    name = GAP_WORDS.get(gap.field) or GAP_WORDS.get(group) or gap.field
    if figure and gap.field not in GAP_WORDS:
        name = f"{name} ({figure.removesuffix('_total').replace('_', ' ')})"
    not_needed = " (not needed for the verdict)" if {gap.field, group} & set(GAPS_NOT_NEEDED) else ""
    return f"{name}: {gap.detail or GAP_REASON_WORDS[gap.reason]}{not_needed}"
