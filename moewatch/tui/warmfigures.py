"""The figures of a warm-up's pages: tables, bars and what they rest on. Rows carry the order in which they leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

import msgspec

from moewatch.domain.frame import Frame
from moewatch.domain.labels import PHASE_WORDS, STEP_WORDS
from moewatch.domain.sample import ModelSummary
from moewatch.domain.warm import Levels, Plan, Step
from moewatch.domain.warm_events import WarmOffer
from moewatch.tui import bars
from moewatch.tui.bars import Bar, Part
from moewatch.tui.glyphs import Glyphs
from moewatch.tui.plots import nice_top, sparkline
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, wrap
from moewatch.tui.viewmodel import timed_advice
from moewatch.tui.warmstate import Stage, WarmState
from moewatch.units import MB, format_gib, format_percent, format_size, shares

TABLE_COLUMNS = 64  # from here tables; below only bars and words
NAME = 38  # of a table's first column
_TENTHS = 10
_ADVICE_SHOWN = 3
_LEAST_SPEED_MB = 100.0  # the foot of the speed's axis

Body = list[tuple[int, Row]]  # rows with the order in which they leave, the highest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a page is made from."""

    state: WarmState
    frame: Frame | None
    glyphs: Glyphs
    zone: tzinfo | None = None
    chosen: int = 0  # the button that Enter presses

    @property
    def buttons(self) -> tuple[tuple[str, str], ...]:
        """Label and action of each; the harmless one first."""
        stage = self.state.stage
        if stage is Stage.OFFERED and self.state.offer is not None and self.state.offer.plan.planned_bytes:
            return (("[ Cancel ]", "close"), ("[ Start ]", "start"))
        if stage is Stage.READING:
            return (("[ Background ]", "background"), ("[ Stop ]", "stop"))
        return (("[ Cancel ]" if stage is Stage.LOOKING else "[ Back ]", "close"),)


# --- plan --------------------------------------------------------------------------------------------------------


def offered(scene: Scene, width: int) -> Body:
    """The plan: what is read in which order, the memory before and after, and what it rests on."""
    offer = scene.state.offer
    assert offer is not None  # noqa: S101 - its stage
    plan, room, glyphs = offer.plan, offer.room, scene.glyphs
    body: Body = [(9, ())]
    if width >= TABLE_COLUMNS:
        body.extend((1, row) for row in plan_table(offer, *scene.state.unit))
        body.append((8, ()))
    resident = plan.resident_bytes
    after = resident + plan.planned_bytes - plan.displaced_bytes
    body.extend(_memory_bars(scene, width, (("RAM now", resident), ("RAM after", after))))
    body.append((8, ()))
    lines: list[tuple[str, str]] = []
    if offer.disk_bytes_per_s:
        lines.append(
            ("speed", f"{offer.disk_bytes_per_s / MB:,.0f} MB/s, measured on this disk just now, past the cache")
        )
    limit = "the whole machine" if room.scope is None else clean(room.scope)
    lines.append(
        (
            "room",
            f"{format_size(room.room_bytes)} less {format_size(room.kept_bytes)} kept for programs; limit: {limit}",
        )
    )
    if plan.budget_bytes != room.budget_bytes:
        lines.append(("budget", f"{format_size(plan.budget_bytes)} of the model in memory, as you said"))
    if plan.displaced_bytes:
        lines.append(
            (
                "pushed out",
                f"{format_size(plan.displaced_bytes)} of other parts of the model, which are in no proven order",
            )
        )
    elif room.other_cache_bytes and plan.planned_bytes:
        size = format_size(room.other_cache_bytes)
        lines.append(("pushed out", f"at most {size} of other cache. No program, no part of the model."))
    if plan.planned_bytes:
        lines.append(("undone", f"by any program that takes more than {format_size(room.kept_bytes)} afterwards"))
    lines.extend((("charged to", clean(offer.charged_to)), ("the server", PHASE_WORDS[offer.phase])))
    body.extend((4 + (n > 1), row) for n, row in enumerate(_labelled(lines, width, glyphs)))
    return body


def plan_table(offer: WarmOffer, unit: int, name: str) -> list[Row]:
    """Now, after and to read of every step, and of what else is there; the columns add up."""
    plan = offer.plan
    steps: list[tuple[str, int, int, int]] = []
    for number, each in enumerate(plan.steps, 1):
        words = STEP_WORDS[each.step]
        if each.step is Step.HOT and offer.hot_name:
            words = f'{words} "{clean(offer.hot_name)}"'
        steps.append((f"{number}  {words}", each.resident_bytes, each.after_bytes, each.planned_bytes))
    other = max(0, plan.resident_bytes - sum(now for _, now, _, _ in steps))
    if other:
        steps.append(("   other parts, already in memory", other, max(0, other - plan.displaced_bytes), 0))
    columns = []
    for sizes in ([step[1] for step in steps], [step[2] for step in steps], [step[3] for step in steps]):
        whole = round(sum(sizes) * _TENTHS / unit)
        columns.append([*shares(sizes, whole), whole])
    rows: list[Row] = [
        (
            Span(f"   {'in this order':<{NAME}}", Role.DIM),
            Span(f"{'now':>8}{'after':>9}{'to read':>10}   {name}", Role.DIM),
        )
    ]
    for n, label in enumerate([*(step[0] for step in steps), "   model in memory"]):
        now, after, read = (column[n] / _TENTHS for column in columns)
        to_read = f"{read:>10,.1f}" if read else f"{'-':>10}"
        rows.append((Span(f"   {fit(label, NAME - 1):<{NAME}}"), Span(f"{now:>8,.1f}{after:>9,.1f}{to_read}")))
    return rows


def _memory_bars(scene: Scene, width: int, levels: Sequence[tuple[str, int]]) -> Body:
    """The memory with so much of the model in it, for each of the levels, and the legend of the last one."""
    frame = scene.frame
    if frame is None or frame.memory.limit_bytes is None:
        return []
    body: Body = []
    bar: Bar | None = None
    for name, resident in levels:
        bar = memory_with(frame, resident, scene.glyphs)
        label = f" {name:<11} " if width >= TABLE_COLUMNS else f" {name:<9} "
        body.append((2, (Span(label, Role.DIM), *bars.cells(bar, max(1, width - len(label) - 1), scene.glyphs))))
    if bar is not None:
        total = f"{format_gib(bar.label_bytes, bar.decimals)} GiB"
        indent = 13 if width >= TABLE_COLUMNS else 1
        legend = bars.legend(bar, width - indent - len(total) - 3, compact=width < TABLE_COLUMNS)
        body.append((3, apart((Span(" " * indent), *legend), (Span(f"{total} ", Role.DIM),), width)))
    return body


def memory_with(frame: Frame, resident_bytes: int, glyphs: Glyphs) -> Bar:
    """The memory's bar, were so much of the model in it: what is free goes first, then other cache, then nothing."""
    memory = frame.memory
    more = resident_bytes - (memory.model_resident_bytes or 0)
    free, cache = memory.free_bytes, memory.other_cache_bytes
    if more >= 0:
        from_free = min(more, free or 0)
        free = None if free is None else free - from_free
        cache = None if cache is None else max(0, cache - (more - from_free))
    elif free is not None:
        free -= more
    changed = msgspec.structs.replace(
        memory, model_resident_bytes=resident_bytes, free_bytes=free, other_cache_bytes=cache
    )
    return bars.memory_bar(msgspec.structs.replace(frame, memory=changed), glyphs)


# --- running -----------------------------------------------------------------------------------------------------


def reading(scene: Scene, width: int) -> Body:
    """How far each part is, the memory now, and what would make it stop by itself."""
    state, glyphs = scene.state, scene.glyphs
    now, offer = state.progress, state.offer
    if now is None or offer is None:
        return []
    body: Body = [(9, ())]
    body.append((0, (Span(" "), *_gauge(now.read_bytes, now.planned_bytes, width - 2, glyphs))))
    body.append((8, ()))
    unit, name = state.unit
    if width >= TABLE_COLUMNS:
        for number, (step, done, planned) in enumerate(now.steps, 1):
            figures = f"{done / unit:>7,.1f} of{planned / unit:>7,.1f} {name}"
            gauge = _gauge(done, planned, max(1, width - NAME - len(figures) - 5), glyphs)
            body.append((1, (Span(f"   {f'{number}  {STEP_WORDS[step]}':<{NAME}} "), *gauge, Span(figures))))
        body.append((8, ()))
    resident = now.resident_bytes if now.resident_bytes is not None else offer.plan.resident_bytes + now.read_bytes
    body.extend(_memory_bars(scene, width, (("RAM now", resident),)))
    body.append((8, ()))
    before = offer.plan.resident_bytes
    left = now.left_for_programs_bytes
    busy = {
        None: f"{glyphs.dash:>10}   not known whether it works",
        True: f"{'at work':>10}   reads at 1/4 until the answer is finished",
        False: f"{'idle':>10}   if a request comes: reads at 1/4",
    }
    lines = [
        (
            "in memory",
            f"{format_size(resident):>10}   looked up: {format_size(before)} before + {format_size(now.read_bytes)} read",
        ),
        (
            "gone again",
            f"{format_size(now.gone_bytes):>10}   stops by itself at {format_size(offer.gone_limit_bytes)}",
        ),
        ("for programs", f"{format_size(left):>10}   stops by itself below {format_size(offer.room.kept_bytes)}"),
        ("the server", busy[now.is_server_busy]),
    ]
    body.extend((4, row) for row in _labelled(lines, width, glyphs, label=12))
    columns = width - 24
    if state.speeds and columns > 0:
        top = nice_top([speed / MB for speed in state.speeds[-columns:]], _LEAST_SPEED_MB)
        line = sparkline([speed / MB for speed in state.speeds[-columns:]], top, glyphs)
        body.append((6, ()))
        body.append((5, (Span(f"   MB/s, 0 to {top:>7,.0f}  ", Role.DIM), Span(line, Role.MEMORY))))
    return body


def _gauge(done: int, whole: int, width: int, glyphs: Glyphs) -> Row:
    filled = min(width, done * width // max(1, whole))
    return (Span(glyphs.server * filled, Role.MEMORY), Span(glyphs.disk * (width - filled), Role.DIM))


# --- done, or stopped --------------------------------------------------------------------------------------------


def ended(scene: Scene, width: int) -> Body:
    """Before, after and a little later; what was read; whether it stayed."""
    state, glyphs = scene.state, scene.glyphs
    outcome, offer = state.outcome, state.offer
    assert outcome is not None  # noqa: S101 - its stage
    body: Body = [(9, ())]
    levels = [outcome.before, outcome.after, *([state.later] if state.later else [])]
    if width >= TABLE_COLUMNS:
        body.extend((1, row) for row in _levels_table(levels, *state.unit))
        body.append((8, ()))
    summary = scene.frame.model if scene.frame is not None else None
    if summary is not None:
        bar: Bar | None = None
        for name, level in (("before", outcome.before), ("after", levels[-1])):
            bar = model_with(summary, level, glyphs)
            body.append((2, (Span(f" {name:<9} ", Role.DIM), *bars.cells(bar, max(1, width - 12), glyphs))))
        if bar is not None:
            indent = 11 if width >= TABLE_COLUMNS else 1
            legend = bars.legend(bar, width - indent - 1, compact=width < TABLE_COLUMNS)
            body.append((3, (Span(" " * indent), *legend)))
        body.append((8, ()))
    rate = outcome.read_bytes / outcome.seconds / 1e9 if outcome.seconds else 0.0
    read, gone = format_size(outcome.read_bytes), format_size(outcome.gone_bytes)
    lines = [("read", f"{read} in {outcome.seconds:.1f} s, {rate:.2f} GB/s; {gone} of it left again")]
    left = state.progress.left_for_programs_bytes if state.progress is not None else None
    if left is not None:
        lines.append(("free", f"{format_size(left)} for programs; the next big program undoes this"))
    lines.append(("not known", "how fast the first answer is: watch tokens/s when you send it"))
    body.extend((4 + n, row) for n, row in enumerate(_labelled(lines, width, glyphs)))
    if offer is not None:
        body.extend(((8, ()), (6, (Span(" The same from a script:", Role.DIM),))))
        body.append((6, (Span(f"   {fit(clean(offer.command), width - 4, glyphs.ellipsis)}", Role.KEY),)))
    if state.stage is Stage.DONE:
        watch = state.text
        if state.left_bytes:
            watch = f"{format_size(state.left_bytes)} of the model have left memory again; w brings them back."
        elif not watch and offer is not None:
            limit = format_size(offer.watch_limit_bytes)
            watch = f"Watching on: a line appears here if more than {limit} leaves before the first request."
        body.append((8, ()))
        lines_ = wrap(glyphs.plain(clean(watch)), width - 2, 3, glyphs.ellipsis)
        body.extend((2, (Span(f" {line}", Role.STRONG if state.left_bytes else Role.PLAIN),)) for line in lines_)
    return body


def _levels_table(levels: Sequence[Levels], unit: int, name: str) -> list[Row]:
    heads = ("before", "after", "10 s later")[: len(levels)]
    rows: list[Row] = [
        (
            Span(f"   {f'{name} in memory':<{NAME - 8}}", Role.DIM),
            Span("".join(f"{head:>12}" for head in heads), Role.DIM),
        )
    ]
    for label, key in ((STEP_WORDS[Step.DENSE], "dense"), (STEP_WORDS[Step.HOT], "hot"), ("experts", "expert")):
        ratio = getattr(levels[-1], f"{key}_ratio")
        if ratio is not None:
            sizes = "".join(f"{getattr(each, f'{key}_bytes') / unit:>12,.1f}" for each in levels)
            rows.append((Span(f"   {label:<{NAME - 8}}{sizes}{format_percent(ratio):>8} %"),))
    sizes = "".join(f"{each.resident_bytes / unit:>12,.1f}" for each in levels)
    rows.append((Span(f"   {'all of the model':<{NAME - 8}}{sizes}"),))
    return rows


def model_with(summary: ModelSummary, levels: Levels, glyphs: Glyphs) -> Bar:
    """The model's bar with so much of it in memory; its parts add up to its files."""
    left = summary.total_bytes
    parts: list[Part] = []
    other = levels.resident_bytes - levels.dense_bytes - levels.expert_bytes
    for sign, name, size, role, keep in (
        (glyphs.dense, "every token", levels.dense_bytes, Role.MEMORY_STRONG, 0),
        (glyphs.experts, "experts", levels.expert_bytes, Role.MEMORY, 0),
        (glyphs.table, "other parts", other, Role.MEMORY, 2),
    ):
        taken = max(0, min(size, left))
        left -= taken
        if taken or name != "other parts":
            parts.append(Part(sign=sign, name=name, size_bytes=taken, role=role, keep=keep))
    parts.append(Part(sign=glyphs.disk, name="on disk", size_bytes=left, role=Role.DIM, keep=1))
    return Bar(label="MODEL", total_bytes=summary.total_bytes, parts=tuple(parts))


# --- refused -----------------------------------------------------------------------------------------------------


def refused(scene: Scene, width: int) -> Body:
    """Why nothing was started, and what would make it possible."""
    offer, frame, glyphs = scene.state.offer, scene.frame, scene.glyphs
    assert offer is not None  # noqa: S101 - its stage
    plan: Plan = offer.plan
    rate = frame.rates.tokens_per_s if frame is not None else None
    speed = f", {rate:.1f} tokens/s" if rate else ""
    lines = [
        ("room for the model", f"{format_size(plan.budget_bytes):>10}, without what is kept for programs"),
        ("in memory already", f"{format_size(plan.resident_bytes):>10}"),
        ("left to fill", f"{format_size(max(0, plan.budget_bytes - plan.resident_bytes)):>10}"),
        ("the server is", f"{PHASE_WORDS[offer.phase]:>10}{speed}"),
    ]
    body: Body = [(9, ()), *((3, row) for row in _labelled(lines, width, glyphs, label=18)), (8, ())]
    body.extend(_memory_bars(scene, width, (("RAM", plan.resident_bytes),)))
    body.append((8, ()))
    body.append((2, (Span(" What would make it possible", Role.STRONG),)))
    ways = [advice.title for advice in timed_advice(frame, scene.zone)[:_ADVICE_SHOWN]]
    ways.append("Wait until the answer is finished, then w.")
    for number, way in enumerate(ways, 1):
        wrapped = wrap(glyphs.plain(clean(way)), max(8, width - 7), 2, glyphs.ellipsis)
        body.extend((2, (Span(f"   {number if not n else ' '}  {line}"),)) for n, line in enumerate(wrapped))
    body.append((8, ()))
    why = (
        "There is no way to force it: reading a model larger than its room from front to back left 42 % of the weights "
        "every token needs in memory (measured)."
    )
    body.extend((6, (Span(f" {line}", Role.DIM),)) for line in wrap(why, max(8, width - 2), 4, glyphs.ellipsis))
    return body


def _labelled(lines: Sequence[tuple[str, str]], width: int, glyphs: Glyphs, *, label: int = 11) -> list[Row]:
    rows: list[Row] = []
    for name, text in lines:
        said, room = glyphs.plain(text), max(8, width - label - 4)
        wrapped = [said] if len(said) <= room else wrap(said, room, 2, glyphs.ellipsis)
        rows.extend(
            (Span(f"   {name if not n else '':<{label}} ", Role.DIM), Span(line)) for n, line in enumerate(wrapped)
        )
    return rows
