"""How far a verdict may be believed: by how re-reads were counted, and by what could not be read. Pure."""

from moewatch.analysis.ledger import Ledger
from moewatch.analysis.signals import LONG_NS, Signals
from moewatch.analysis.verdict import Judged
from moewatch.analysis.window import Window
from moewatch.domain.frame import Method, State

# A judgement, no hit rate: on the 19 labelled recordings (on which the verdict's thresholds were chosen) 31,000 samples
# got the right state, all of them, by the ledger as by refaults. The ledger counts what is read; refaults do not say who
# read, or whether it was for the first time; sampling sees 45 to 80 % of an MoE's re-reads and 20 % of a dense model's.
BY_METHOD = {Method.LEDGER: 0.95, Method.REFAULTS: 0.85, Method.MINCORE: 0.6, Method.NONE: 0.3}
NO_PHASE, NO_COST, SHARED, MACHINE_WIDE, FORGOTTEN = 0.85, 0.85, 0.7, 0.8, 0.7
EARLY = 0.45  # it looks like thrashing, and a change of topic would, too: below one half, as the contract says
BLIND = 0.4  # neither the page cache nor the process's reads can be seen: another user's process
SEEN_RATIO = 0.3  # what is left with next to no time seen


def derive_confidence(window: Window, signals: Signals, judged: Judged) -> float:
    """0 to 1; 0 for unknown. States that the server itself tells (idle, loading) do not rest on the ledger."""
    if judged.state is State.UNKNOWN:
        return 0.0
    if judged.state in (State.LOADING, State.IDLE):
        return 0.95 if signals.phase_told else 0.6
    confidence = _by_readings(window, signals.long or signals.short)
    if not signals.phase_told:
        confidence *= NO_PHASE
    if signals.cost_long is None:
        confidence *= NO_COST
    confidence *= SEEN_RATIO + (1 - SEEN_RATIO) * min(1.0, signals.span_ns / LONG_NS)
    if judged.is_early:
        confidence = min(confidence, EARLY)
    return round(confidence, 2)


def _by_readings(window: Window, ledger: Ledger | None) -> float:
    if ledger is None:
        return BY_METHOD[Method.NONE]
    confidence = BY_METHOD[ledger.method]
    if ledger.shared:
        confidence *= SHARED
    if window.has_forgotten:
        confidence *= FORGOTTEN
    now = window.now
    if ledger.method is Method.REFAULTS and (now.cgroup is None or now.cgroup.workingset_refault_file_total is None):
        confidence *= MACHINE_WIDE  # other programs' refaults are among them
    if not window.is_scanned:
        confidence = min(confidence, BLIND)
    return confidence
