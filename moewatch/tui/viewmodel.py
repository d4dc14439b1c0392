"""A Frame as words: every line of the dashboard, for a width. No Textual, no clock, no I/O."""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from msgspec import structs

from moewatch.domain.events import Ended, Position, Waiting
from moewatch.domain.frame import Advice, Frame, State
from moewatch.domain.labels import is_ready, state_word
from moewatch.domain.sample import Header, LoadMode, ModelSummary
from moewatch.tui.glyphs import BLOCKS, Glyphs
from moewatch.tui.history import ZOOM_DEFAULT, History
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, width_of, wrap
from moewatch.units import S, format_gib, format_rate

_UNBOUNDED = 1_000_000

STATE_ROLES = {State.THRASHING: Role.AGAIN_STRONG, State.STEADY: Role.MEMORY_STRONG}
LOAD_MODES = {
    LoadMode.MMAP: "mapped (mmap)",
    LoadMode.MMAP_MLOCK: "mapped and locked",
    LoadMode.MLOCK: "a locked copy, not mapped",
    LoadMode.NONE: "a copy, not mapped",
    LoadMode.DIO: "a copy, read directly",
    LoadMode.UNKNOWN: "load mode unknown",
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
    warming: str = ""  # a warm-up in the background
    position: Position | None = None
    paused_at_ns: int | None = None  # wall time of the Frame that stays on screen
    newest_wall_ns: int = 0
    zoom: int = ZOOM_DEFAULT
    glyphs: Glyphs = BLOCKS
    has_plots: bool = True  # False: what draws them is not loaded yet
    has_shades: bool = False  # the terminal has colours enough for a shade of its own for every half cell
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
            f" at {at}: what you see is {age} old. Watching goes on. p resumes",
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
    return f"{glyphs.states[view.frame.verdict.state]} {state_word(view.frame.verdict, ready=is_ready(view.frame))}"


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
    rows.extend([()] * (3 - len(rows)))  # an edge beside nothing would look like something missing
    return rows


def banner_text(view: View) -> list[str]:
    """The banner in whole sentences, for the clipboard and the scrollback."""
    rate = f"{tokens_text(view)} tokens/s"
    parts = [part for part in (symbol_and_word(view), since_text(view), rate, best_text(view)) if part]
    lines = ["  ".join(parts), headline(view, _UNBOUNDED)]
    advice = _advice(view)
    if advice is not None and view.standstill is None:
        lines.append(f"{view.glyphs.pointer} {advice_text(advice, _UNBOUNDED)}")
    return [view.glyphs.plain(clean(line)) for line in lines]


def _advice(view: View) -> Advice | None:
    listed = timed_advice(view.frame, view.zone)
    return listed[0] if listed else None


def timed_advice(frame: Frame | None, zone: tzinfo | None) -> list[Advice]:
    """The advice; where it is to close a program, with the time of day at which that took memory (`at 12:28`)."""
    if frame is None:
        return []
    listed = []
    for advice in frame.verdict.advice:
        grown = (g for g in frame.memory.grew if advice.title.startswith(f"Close {g.name}: it took"))
        growth = next(grown, None) if advice.id == "close_program" else None
        if growth is None or growth.since_wall_ns is None:
            listed.append(advice)
            continue
        at = clock(growth.since_wall_ns, zone, seconds=False)
        listed.append(structs.replace(advice, title=f"{advice.title.rstrip('.')} at {at}."))
    return listed


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
