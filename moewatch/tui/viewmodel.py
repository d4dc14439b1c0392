"""A Frame as words: every line of the dashboard, for a width. No Textual, no clock, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from moewatch.domain.events import Ended, Position, Waiting
from moewatch.domain.frame import Advice, Frame, Method, Note, State
from moewatch.domain.sample import Gap, Header, LoadMode, ModelSummary
from moewatch.tui.glyphs import BLOCKS, Glyphs
from moewatch.tui.history import History
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, width_of, wrap
from moewatch.units import MIB, MS, S, format_gib, format_mb, format_percent, format_rate

DENSE_READY_RATIO = 0.98  # below this share of the weights that every token needs, the next answer waits for the disk
_ROOMY_COLUMNS = 90  # from here lines spell things out
_LAYER_COLUMNS = 3  # a layer gets no more, however few there are
LATE_NS = 500 * MS  # a sample this late moved its window by 5 %

WORDS = {
    State.UNKNOWN: "WATCHING",
    State.LOADING: "LOADING, normal",
    State.WARMING: "WARMING UP",
    State.STEADY: "OK",
    State.THRASHING: "THRASHING",
    State.RECOVERING: "RECOVERING",
}
STATE_ROLES = {State.THRASHING: Role.AGAIN_STRONG, State.STEADY: Role.MEMORY_STRONG}
METHODS = {
    Method.LEDGER: "counted",
    Method.REFAULTS: "kernel's count",
    Method.MINCORE: "at least",
    Method.NONE: "not counted",
}
LOAD_MODES = {
    LoadMode.MMAP: "mapped (mmap)",
    LoadMode.MMAP_MLOCK: "mapped and locked",
    LoadMode.MLOCK: "a locked copy, not mapped",
    LoadMode.NONE: "a copy, not mapped",
    LoadMode.DIO: "a copy, read directly",
    LoadMode.UNKNOWN: "load mode unknown",
}
LOSSES = {"rate": "against its best", "wait": "waiting for reads", "stall": "stalled for memory"}
_GAP_NAMES = {
    "process.blkio_delay_ns_total": "wait per thread",
    "process.read_bytes_total": "bytes read by the server",
    "process.majflt_total": "faults",
    "process": "the server's counters",
    "pressure": "memory stall",
    "cgroup": "memory limit",
    "residency": "shares in memory",
    "server": "tokens/s",
    "vm": "the kernel's counters",
    "devices": "the disk's counters",
    "memory": "the machine's memory",
    "others": "other programs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a screen is put together from; nothing in it changes while that happens."""

    frame: Frame | None
    history: History
    header: Header | None = None
    standstill: Ended | Waiting | None = None
    servers: tuple[tuple[int, str], ...] = ()
    notice: str = ""
    position: Position | None = None
    paused_at_ns: int | None = None  # wall time of the Frame that stays on screen
    newest_wall_ns: int = 0
    zoom: int = 1
    glyphs: Glyphs = BLOCKS
    zone: tzinfo | None = None  # None: the machine's own

    @property
    def summary(self) -> ModelSummary | None:
        """The model, as soon as it is known."""
        if self.frame is not None and self.frame.model is not None:
            return self.frame.model
        return self.header.model if self.header else None


def clock(wall_ns: int, zone: tzinfo | None, *, seconds: bool = True) -> str:
    """`12:31:07` or `12:31`, local time."""
    moment = datetime.fromtimestamp(wall_ns / S, tz=UTC).astimezone(zone)
    return moment.strftime("%H:%M:%S" if seconds else "%H:%M")


def duration(span_ns: int) -> str:
    """`3:12`, `1:42:10`."""
    minutes, seconds = divmod(max(0, span_ns) // S, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def model_name(view: View) -> str:
    """The model's name, cleaned."""
    if view.frame is not None and view.frame.target.model_name:
        return clean(view.frame.target.model_name)
    return clean(view.summary.name) if view.summary and view.summary.name else "no model yet"


# --- line 1 ------------------------------------------------------------------------------------------------------


def title(view: View, width: int) -> Row:
    """Model, how it is loaded, its disk, and the time of the sample; or, loudly, that this is not now."""
    if view.paused_at_ns is not None:
        return (Span(_paused(view, width).ljust(width), Role.ALARM),)
    if view.position is not None:
        return _replay(view, width)
    frame, glyphs = view.frame, view.glyphs
    size = f" {format_gib(view.summary.total_bytes)} GiB" if view.summary else ""
    name = f"{model_name(view)}{size}"
    at = clock(frame.wall_ns, view.zone) if frame else ""
    if width < 80:  # noqa: PLR2004 - the design's width classes
        return apart(
            (Span(fit(name, width - len(at) - 1, glyphs.ellipsis), Role.STRONG),), (Span(at, Role.DIM),), width
        )
    details = []
    if frame is not None:
        target = frame.target
        details.append(LOAD_MODES[target.load_mode])
        details.append(", ".join(device.name for device in target.devices) or target.file_system or "disk unknown")
        at = f"every {target.interval_ns / S:g} s  {at}"
    room = width - len(at) - len(" moewatch  ") - 2
    text = f" {glyphs.dot} ".join([name, *(clean(d) for d in details)])
    if len(text) > room and details:
        text = f" {glyphs.dot} ".join([name, *(clean(d) for d in details[:1])])
    rest = fit(text[len(name) :], max(0, room - len(name)), glyphs.ellipsis) if len(name) < room else ""
    left = (Span(" moewatch  ", Role.DIM), Span(fit(name, room, glyphs.ellipsis), Role.STRONG), Span(rest, Role.DIM))
    return apart(left, (Span(at + " ", Role.DIM),), width)


def _paused(view: View, width: int) -> str:
    assert view.paused_at_ns is not None  # noqa: S101 - asked only while paused
    at, age = clock(view.paused_at_ns, view.zone), duration(view.newest_wall_ns - view.paused_at_ns)
    if view.position is not None:
        said: tuple[str, ...] = (f" at {at} of the recording. p or space resumes", f" {at}. p resumes")
    else:
        said = (
            f" at {at}: what you see is {age} old. Recording goes on. p resumes",
            f" {at}, {age} old. p resumes",
            f" {age} old",
        )
    head = f"{view.glyphs.paused} PAUSED"
    return next((head + s for s in said if len(head + s) <= width), fit(head + said[-1], width, view.glyphs.ellipsis))


def _replay(view: View, width: int) -> Row:
    position, zone, dot = view.position, view.zone, view.glyphs.dot
    assert position is not None  # noqa: S101 - asked only in a replay
    where = f"{duration(position.elapsed_ns)} of {duration(position.total_ns)}"
    speed = "paused" if position.paused else f"{position.speed:g}x"
    at = clock(view.frame.wall_ns, zone) if view.frame else ""
    day = datetime.fromtimestamp(view.frame.wall_ns / S, tz=UTC).astimezone(zone) if view.frame else None
    name = clean(position.name)
    keys = "space ←→ [ ]"
    long = f" REPLAY {name} {dot} {f'{day:%d %b} ' if day else ''}{at} {dot} {speed} {dot} {where}"
    if len(long) + len(keys) + 3 <= width:
        return apart((Span(long, Role.STRONG),), (Span(view.glyphs.plain(keys) + " ", Role.DIM),), width)
    role = Role.STRONG
    texts = (long, f" REPLAY {at} {dot} {speed} {dot} {where}", f"REPLAY {at} {dot} {where}", f"REPLAY {at}")
    return (Span(next((t for t in texts if len(t) <= width), texts[-1][:width]), role),)


# --- banner ------------------------------------------------------------------------------------------------------


def word(frame: Frame) -> str:
    """The state in words: `THRASHING, severe`, `IDLE, cold`."""
    verdict = frame.verdict
    if verdict.state is State.IDLE:
        dense = frame.residency.dense_ratio
        cold = Note.COLD in verdict.notes or (dense is not None and dense < DENSE_READY_RATIO)
        if frame.target.load_mode.is_mapped is False:
            return "IDLE, ready"
        return "IDLE, cold" if cold else "IDLE, ready" if dense is not None else "IDLE"
    if verdict.state is State.THRASHING and verdict.severity is not None:
        return f"THRASHING, {verdict.severity.value}"
    return WORDS[verdict.state]


def state_role(view: View) -> Role:
    """The colour of the state's word and of the banner's edge."""
    if view.frame is None or view.standstill is not None:
        return Role.STRONG
    return STATE_ROLES.get(view.frame.verdict.state, Role.STRONG)


def symbol_and_word(view: View) -> str:
    """`▲ THRASHING, severe`."""
    glyphs = view.glyphs
    if isinstance(view.standstill, Ended):
        return f"{glyphs.ended} ENDED"
    if isinstance(view.standstill, Waiting):
        return f"{glyphs.states[State.UNKNOWN]} WAITING"
    if view.frame is None:
        return f"{glyphs.states[State.UNKNOWN]} WATCHING"
    return f"{glyphs.states[view.frame.verdict.state]} {word(view.frame)}"


def tokens_text(view: View) -> str:
    """`3.1`, or a dash."""
    rate = view.frame.rates.tokens_per_s if view.frame is not None and view.standstill is None else None
    return view.glyphs.plain(format_rate(rate))


def best_text(view: View) -> str:
    """`best 11.2 at 12:26`, or nothing."""
    rates = view.frame.rates if view.frame else None
    if rates is None or rates.best_tokens_per_s is None:
        return ""
    at = f" at {clock(rates.best_wall_ns, view.zone, seconds=False)}" if rates.best_wall_ns else ""
    return f"best {format_rate(rates.best_tokens_per_s)}{at}"


def since_text(view: View) -> str:
    """`since 12:30:25`, or nothing."""
    if view.standstill is not None:
        return f"at {clock(view.standstill.wall_ns, view.zone)}"
    if view.frame is None or view.frame.verdict.since_wall_ns is None:
        return ""
    return f"since {clock(view.frame.verdict.since_wall_ns, view.zone)}"


def headline(view: View, width: int) -> str:
    """The sentence with the number that decided, in its long or its short form."""
    if view.standstill is not None:
        return clean(view.standstill.text)
    if view.frame is None:
        return "0 of 10 s seen: too early to judge."
    verdict = view.frame.verdict
    if len(verdict.headline) <= width:
        return verdict.headline
    return verdict.headline_short or verdict.headline


def advice_text(advice: Advice, width: int) -> str:
    """One action, tagged when it needs a restart, and of its reason as many whole sentences as fit."""
    head = advice.title
    if advice.restart and "restart" not in head.lower():
        head = f"{head.rstrip('.')} (restart)" + ("." if head.endswith(".") else "")
    between = " " if head.endswith(".") else ": "
    first = advice.reason.partition(". ")[0].rstrip(".") + "."
    for reason in (advice.reason, first):
        if advice.reason and len(head) + len(between) + len(reason) <= width:
            return f"{head}{between}{reason[0].upper()}{reason[1:]}" if between == " " else f"{head}{between}{reason}"
    return head


def banner(view: View, width: int) -> list[Row]:
    """Three rows from 80 columns on: state | tokens/s, the headline, one action."""
    edge = Span(f" {view.glyphs.edge}", state_role(view))
    room = width - 3
    state = Span(symbol_and_word(view), state_role(view))
    since = since_text(view)
    left: list[Span] = [edge, state]
    if since:
        left.append(Span("   " + since, Role.DIM))
    right = (
        Span(f"{tokens_text(view):>6} tokens/s", Role.STRONG),
        Span(f"    {best_text(view):<19}", Role.DIM),
    )
    rows = [apart(left, right, width)]
    sentence = view.glyphs.plain(headline(view, room))
    if view.standstill is not None or not (advice := _advice(view)):
        lines = wrap(sentence, room, 2, view.glyphs.ellipsis)
        rows.extend((edge, Span(line, Role.STRONG)) for line in lines)
    else:
        rows.append((edge, Span(fit(sentence, room, view.glyphs.ellipsis), Role.STRONG)))
        more = "  a: more"
        text = view.glyphs.plain(advice_text(advice, room - 2 - len(more)))
        text = fit(f"{view.glyphs.pointer} {text}", room - len(more), view.glyphs.ellipsis)
        rows.append((edge, Span(text), Span(more, Role.DIM, "advice")))
    rows.extend([(edge,)] * (3 - len(rows)))
    return rows


def _advice(view: View) -> Advice | None:
    return view.frame.verdict.advice[0] if view.frame and view.frame.verdict.advice else None


def narrow_banner(view: View, width: int, height: int) -> list[Row]:
    """Below 80 columns: state, tokens/s, headline, action; the sentence wraps where there are rows to spare."""
    edge = Span(view.glyphs.edge, state_role(view))
    room = width - 1
    since = since_text(view)
    state = Span(symbol_and_word(view), state_role(view))
    first = (edge, state, Span("  " + since, Role.DIM)) if since else (edge, state)
    rows: list[Row] = [first if width_of(first) <= width else (edge, state)]
    best = best_text(view)
    rate = (edge, Span(f"{tokens_text(view)} tokens/s", Role.STRONG))
    rows.append(apart(rate, (Span(best + "  ", Role.DIM),), width))
    advice = _advice(view) if view.standstill is None else None
    sentence = view.glyphs.plain(headline(view, room))
    lines = wrap(sentence, room, max(1, height - 2 - bool(advice)), view.glyphs.ellipsis)
    rows.extend((edge, Span(line, Role.STRONG)) for line in lines)
    if advice is not None and len(rows) < height:
        text = f"{view.glyphs.pointer} {view.glyphs.plain(advice_text(advice, room - 2))}"
        lines = wrap(text, room, height - len(rows), view.glyphs.ellipsis)
        rows.extend((edge, Span(line)) for line in lines)
    return rows[:height]


def tiny(view: View, width: int) -> Row:
    """`▲ 3.1 t/s` and nothing else."""
    symbol = symbol_and_word(view).split(" ", 1)[0]
    return (Span(fit(f"{symbol} {tokens_text(view)} t/s", width, ""), state_role(view)),)


# --- the last lines ------------------------------------------------------------------------------------------------


def remarks(view: View) -> list[str]:
    """What stands beside the verdict, the most pressing first: a notice, then the verdict's own remarks."""
    said = [view.notice] if view.notice else []
    if view.frame is not None:
        said.extend(view.frame.verdict.remarks)
    if len(view.servers) > 1:
        pid, name = view.servers[0]
        others = ", ".join(f"{p} {clean(n)}" for p, n in view.servers[1:])
        said.append(f"{len(view.servers)} servers map a model. Watching {pid} {clean(name)}; Tab: {others}.")
    return [view.glyphs.plain(clean(text)) for text in said]


def counted(view: View, width: int) -> list[Span]:
    """How reads were told apart, and the four rates in MB/s over the window that is named once."""
    frame = view.frame
    if frame is None:
        return [Span("counted         "), Span(f"{view.glyphs.dash} nothing yet", Role.DIM)]
    rates = frame.rates
    window = f", {rates.window_ns / S:.0f} s" if rates.window_ns else ""
    again = rates.reread_bytes_per_s
    other = "other programs" if width >= _ROOMY_COLUMNS else "others"
    return [
        Span(f"{METHODS[rates.method] + window:<16}", Role.DIM),
        Span("again "),
        Span(_mb(view, again, 6), Role.AGAIN if again else Role.PLAIN),
        Span(f"  pushed out {_mb(view, rates.departed_bytes_per_s, 6)}"),
        Span(f"  first {_mb(view, rates.first_read_bytes_per_s, 5)}"),
        Span(" MB/s", Role.DIM),
        Span(f"  {other} {_mb(view, rates.other_read_bytes_per_s, 5)}"),
    ]


def _mb(view: View, value: float | None, width: int) -> str:
    """Right-aligned, so that no number moves when another one grows."""
    return f"{view.glyphs.plain(format_mb(value).removesuffix('.0')):>{width}}"


def lost(view: View) -> list[Span]:
    """What it costs: time lost and against what, stall, faults."""
    frame, dash = view.frame, view.glyphs.dash
    if frame is None:
        return [Span("time lost       ", Role.DIM), Span(dash, Role.DIM)]
    verdict, rates = frame.verdict, frame.rates
    how = LOSSES.get(verdict.loss_method or "", "")
    lost_ = f"{format_percent(verdict.loss_ratio)} % {how}" if verdict.loss_ratio is not None else f"{dash} not known"
    stall = f"{format_percent(rates.memory_stall_ratio)} %" if rates.memory_stall_ratio is not None else dash
    faults = "–" if rates.majflt_per_s is None else f"{rates.majflt_per_s:,.0f}/s"  # noqa: RUF001
    return [
        Span("time lost       ", Role.DIM),
        Span(f"{lost_.rstrip():<24} "),
        Span("memory stall ", Role.DIM),
        Span(f"{stall:<11}"),
        Span("faults ", Role.DIM),
        Span(view.glyphs.plain(faults)),
    ]


def gap_name(gap: Gap) -> str:
    """The missing reading in a person's words."""
    group = gap.field.partition(".")[0]
    known = _GAP_NAMES.get(gap.field) or (_GAP_NAMES.get(group) if gap.field == group else None)
    return known or clean(gap.field.rpartition(".")[2].removesuffix("_total").replace("_", " "))


def not_readable_names(view: View, width: int) -> Row:
    """Only what could not be read, for narrow screens."""
    names = list(dict.fromkeys(gap_name(gap) for gap in view.frame.gaps)) if view.frame else []
    text = f"not readable: {', '.join(names)}" if names else "nothing is missing"
    return (Span(fit(text, width, view.glyphs.ellipsis), Role.DIM),)


def not_readable(view: View, width: int) -> list[Span]:
    """What could not be read and why; how many more."""
    head = Span("not readable    ", Role.DIM)
    gaps: Sequence[Gap] = view.frame.gaps if view.frame else ()
    if not gaps:
        return [head, Span("nothing is missing" if view.frame else view.glyphs.dash, Role.DIM)]
    room = width - len(head.text)
    text = ""
    for n, gap in enumerate(gaps):
        entry = f"{gap_name(gap)}: {clean(gap.detail or gap.reason.value)}"
        more = f"  +{len(gaps) - n} more" if text else ""
        grown = f"{text}; {entry}" if text else entry
        left = len(gaps) - n - 1
        if len(grown) + (len(f"  +{left} more") if left else 0) > room:
            if not text:
                more = f"  +{left} more" if left else ""
                text = fit(entry, room - len(more), view.glyphs.ellipsis)
            return [head, Span(view.glyphs.plain(text)), Span(more, Role.DIM)]
        text = grown
    return [head, Span(view.glyphs.plain(text))]


def own(view: View) -> tuple[list[Span], list[Span]]:
    """What watching costs, and whether the sample was on time."""
    frame = view.frame
    if frame is None:
        return [Span("moewatch itself: not measured yet", Role.DIM)], []
    cost = frame.own
    if cost.cpu_ratio is None and cost.rss_bytes is None:
        return [Span("moewatch itself: its cost was not measured", Role.DIM)], []
    cpu = view.glyphs.plain("–") if cost.cpu_ratio is None else f"{100 * cost.cpu_ratio:.1f}"  # noqa: RUF001
    rss = view.glyphs.plain("–") if cost.rss_bytes is None else f"{cost.rss_bytes / MIB:.0f}"  # noqa: RUF001
    if cost.late_ns >= LATE_NS:
        late = Span(f"This sample is {cost.late_ns / S:.1f} s late: the machine stalls us too.")
    else:
        late = Span("sample on time", Role.DIM)
    return [Span(f"moewatch itself: {cpu} % of a core, {rss} MiB", Role.DIM)], [late]


def own_short(view: View, column: str, width: int) -> Row:
    """`moewatch 0.8 % of a core     10 s a step`; how late the sample is when it is."""
    cost = view.frame.own if view.frame else None
    cpu = view.glyphs.dash if cost is None or cost.cpu_ratio is None else f"{100 * cost.cpu_ratio:.1f}"
    late = f"  late {cost.late_ns / S:.1f} s" if cost is not None and cost.late_ns >= LATE_NS else ""
    left = Span(f"moewatch {cpu} % of a core{late}", Role.DIM)
    return apart((left,), (Span(f"{column} a step", Role.DIM),), width)


def layers(view: View, width: int) -> Row:
    """One bar a layer, the share of it in memory; layers share a bar where there are more than columns."""
    frame = view.frame
    by_layer = frame.residency.by_layer if frame else None
    if frame is None or not by_layer:
        return (Span(f"layers {view.glyphs.dash}", Role.DIM), Span(" share in memory by layer is not known", Role.DIM))
    age = frame.residency.age_ns
    tail = "share in memory" + ("" if age is None else f", {age / S:.0f} s old")
    head, last = "layers 0 ", f" {len(by_layer) - 1}"
    room = max(8, width - len(head) - len(last) - 3 - len(tail))
    per_bar = -(-len(by_layer) // room)
    stretch = max(1, min(_LAYER_COLUMNS, room // len(by_layer)))
    signs = []
    for start in range(0, len(by_layer), per_bar):
        known = [v for v in by_layer[start : start + per_bar] if v is not None]
        level = max(1, min(8, round(8 * sum(known) / len(known)))) if known else 0
        signs.append((view.glyphs.ramp[level] if known else "?") * stretch)
    grouped = f" ({per_bar} a bar)" if per_bar > 1 else ""
    return (
        Span(head, Role.DIM), Span("".join(signs), Role.MEMORY), Span(last + grouped, Role.DIM),
        Span("   " + tail, Role.DIM),
    )  # fmt: skip
