"""The one path from raw Samples to judged Frames, live and replayed alike. Pure.

`step` looks at a bounded window and at a few carried facts, so its cost does not grow with the length of the watch.
"""

from msgspec import Struct
from msgspec.structs import replace

from moewatch.analysis.active import derive_active_bytes
from moewatch.analysis.advice import advise
from moewatch.analysis.cause import derive_cause
from moewatch.analysis.confidence import derive_confidence
from moewatch.analysis.evidence import derive_evidence
from moewatch.analysis.experts import ExpertBook, update_experts
from moewatch.analysis.loss import PAGING_COST, derive_loss, derive_rate_loss, derive_severity
from moewatch.analysis.memory import GrowthBook, derive_memory, update
from moewatch.analysis.notes import derive_notes, find_reader
from moewatch.analysis.progress import derive_progress
from moewatch.analysis.rates import WINDOW_NS, derive_best, derive_rates
from moewatch.analysis.remarks import remarks
from moewatch.analysis.residency import derive_residency
from moewatch.analysis.signals import Signals, derive_signals, since
from moewatch.analysis.situation import Situation
from moewatch.analysis.skew import derive_skew
from moewatch.analysis.verdict import Judged, Memo, judge, observe
from moewatch.analysis.window import Window
from moewatch.analysis.words import headline, headline_short
from moewatch.analysis.workingset import derive_working_set
from moewatch.domain.frame import Frame, Own, Rates, Server, Target, Verdict
from moewatch.domain.frame import State as Word
from moewatch.domain.sample import Header, LoadMode, Sample
from moewatch.units import S

STEADY_NS = 8 * S  # so long a state must have been steady before its speed counts as the best
SETTLING_NS = 3 * S  # it is called steady only after it has been so for 3 s


class State(Struct, frozen=True, kw_only=True):
    """What is handed from one step to the next."""

    target: Target
    window: Window
    memo: Memo = Memo()
    growth: GrowthBook = GrowthBook()
    experts: ExpertBook = ExpertBook()
    disk_bytes_per_s: float | None = None


def start(header: Header) -> State:
    """The state before the first Sample of a target."""
    model = header.model
    target = Target(
        id=header.target.id,
        pid=header.target.pid,
        exe=header.target.exe,
        files=tuple({"name": f.name, "size_bytes": f.size_bytes} for f in model.files) if model else (),
        model_name=_model_name(header),
        load_mode=header.target.load_mode,
        host=header.host,
        devices=header.devices,
        file_system=header.file_system,
        interval_ns=header.interval_ns,
    )
    return State(target=target, window=Window(header=header))


def step(state: State, sample: Sample) -> tuple[State, Frame]:
    """Take one Sample in: the state to hand in with the next one, and what may be seen now."""
    state = _with_load_mode(state, sample.load_mode)
    window = state.window.pushed(sample)
    memo = observe(state.memo, window)
    active_bytes = derive_active_bytes(window.header.model, window.carried.residency)
    rates = derive_rates(window, active_bytes, memo.best)
    signals = derive_signals(window, memo.from_ns or 0)
    by_rate = derive_rate_loss(window, memo.since_ns, memo.best)
    memo, judged = judge(memo, window, signals, rates, by_rate)
    memo = _with_best(memo, window, signals)
    growth = update(state.growth, sample)
    seen = rates.process_read_bytes_per_s
    fastest = seen if seen is not None and seen > (state.disk_bytes_per_s or 0.0) else state.disk_bytes_per_s
    experts = update_experts(state.experts, window.header.model, sample, window.carried.breaks)
    state = replace(state, window=window, memo=memo, growth=growth, experts=experts, disk_bytes_per_s=fastest)
    return state, _frame(state, signals=signals, rates=rates, judged=judged, by_rate=by_rate, active_bytes=active_bytes)


def _with_load_mode(state: State, mode: LoadMode | None) -> State:
    """From now on the load mode is the one that was seen last."""
    if mode is None or mode is state.target.load_mode:
        return state
    header = state.window.header
    header = replace(header, target=replace(header.target, load_mode=mode))
    return replace(state, target=replace(state.target, load_mode=mode), window=replace(state.window, header=header))


def _frame(
    state: State, *, signals: Signals, rates: Rates, judged: Judged, by_rate: float | None, active_bytes: int | None
) -> Frame:
    window, memo, word = state.window, state.memo, judged.state
    now = window.now
    residency = derive_residency(window)
    memory = derive_memory(window, residency, state.growth)
    working_set = derive_working_set(window, rates, residency, memory)
    skew = derive_skew(window, residency)
    progress = derive_progress(window, rates, residency, word)
    notes = derive_notes(window, rates, residency, memory, word)
    loss, method = derive_loss(signals, rates, word, by_rate)
    severity = derive_severity(loss, judged.cost) if word is Word.THRASHING else None
    cause = derive_cause(memo, window, signals, judged, memory)
    server = Server(
        phase=now.server.phase,
        tokens_total=now.server.tokens_total,
        source=now.server.source,
        n_active=now.server.n_active,
    )
    came_back = since(window, memo.since_point) if memo.since_point else None
    situation = Situation(
        header=window.header,
        state=word,
        severity=severity,
        cause=cause,
        loss_ratio=loss,
        loss_method=method,
        rates=rates,
        residency=residency,
        memory=memory,
        server=server,
        working_set=working_set,
        progress=progress,
        notes=notes,
        gaps=now.gaps,
        active_bytes=active_bytes,
        seen_ns=now.mono_ns - window.carried.started_ns,
        late_ns=now.late_ns,
        is_stopped=bool(now.process and now.process.is_stopped),
        slept_ns=window.carried.slept_ns,
        came_back_bytes=came_back.again_bytes if came_back else None,
        disk_bytes_per_s=state.disk_bytes_per_s,
        reader=find_reader(window, rates),
        others=window.carried.others or (),
        context_tokens=now.server.context_tokens,
        skew=skew,
    )
    verdict = Verdict(
        state=word,
        severity=severity,
        since_ns=memo.since_ns if memo.since_ns is not None else now.mono_ns,
        since_wall_ns=memo.since_wall_ns,
        confidence=derive_confidence(window, signals, judged),
        loss_ratio=loss,
        loss_method=method,
        cause=cause,
        headline=headline(situation),
        headline_short=headline_short(situation),
        remarks=remarks(situation),
        evidence=derive_evidence(window, signals, rates, judged),
        notes=notes,
        advice=advise(situation),
    )
    return Frame(
        mono_ns=now.mono_ns,
        wall_ns=now.wall_ns,
        target=state.target,
        model=window.header.model,
        active_bytes_per_token=active_bytes,
        rates=rates,
        residency=residency,
        memory=memory,
        server=server,
        working_set=working_set,
        experts=state.experts.map,
        skew=skew,
        progress=progress,
        verdict=verdict,
        own=_own(window),
        gaps=now.gaps,
    )


def _with_best(memo: Memo, window: Window, signals: Signals) -> Memo:
    """Only what was steady for a while, and waited for no disk, is a speed to be compared with."""
    if memo.state is not Word.STEADY or memo.since_ns is None or window.now.mono_ns - memo.since_ns < STEADY_NS:
        return memo
    if signals.again_cost is not None and signals.again_cost >= PAGING_COST:
        return memo
    return replace(memo, best=derive_best(window, memo.since_ns - SETTLING_NS, memo.best))


def _own(window: Window) -> Own:
    samples = window.since(WINDOW_NS)
    a, b = samples[0], samples[-1]
    if b.own is None:
        return Own(late_ns=b.late_ns)
    cpu = None
    if a.own is not None and b.mono_ns > a.mono_ns and b.own.cpu_ns_total >= a.own.cpu_ns_total:
        cpu = (b.own.cpu_ns_total - a.own.cpu_ns_total) / (b.mono_ns - a.mono_ns)
    return Own(cpu_ratio=cpu, rss_bytes=b.own.rss_bytes, late_ns=b.late_ns)


def _model_name(header: Header) -> str:
    model = header.model
    if model is None:
        return ""
    return model.name or (model.files[0].name if model.files else "")
