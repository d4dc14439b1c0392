"""How a state is named to people, the same on every screen and in every line of text."""

from moewatch.domain.frame import Frame, Note, Severity, State, Verdict
from moewatch.domain.sample import Phase
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
