"""The four pages of a warm-up: plan, running, done, refused. Rows that find no room leave by their order; no Textual.

Every page is a banner of three lines that says all in words, then figures, then buttons and keys: the last two and the
banner stay however small the terminal is.
"""

from moewatch.domain.labels import READY_DENSE_RATIO
from moewatch.domain.layout import WeightClass
from moewatch.domain.warm import Step
from moewatch.domain.warm_events import WarmOffer
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit, pad, thin_out, width_of, wrap
from moewatch.tui.viewmodel import clock
from moewatch.tui.warmfigures import TABLE_COLUMNS, Body, Scene, ended, offered, reading, refused
from moewatch.tui.warmstate import Stage, WarmState, about
from moewatch.units import S, format_gib, format_percent, format_size

TINY_COLUMNS, TINY_ROWS = 20, 4  # below: one line


def page(scene: Scene, width: int, height: int) -> list[Row]:
    """Exactly `height` rows of `width` columns."""
    lines = _banner(scene)
    role = {Stage.REFUSED: Role.AGAIN_STRONG, Stage.FAILED: Role.AGAIN_STRONG, Stage.DONE: Role.MEMORY_STRONG}
    edge = Span(f" {scene.glyphs.edge}", role.get(scene.state.stage, Role.STRONG))
    if width < TINY_COLUMNS or height < TINY_ROWS:
        rows: list[Row] = [(Span(fit(scene.glyphs.plain(lines[0]), width, "")),), _buttons(scene, 0)]
        return [pad(row, width) for row in (rows * height)[:height]]
    head: list[Row] = [_title(scene, width)]
    for n, line in enumerate(lines):
        wrapped = wrap(scene.glyphs.plain(clean(line)), width - 3, 3, scene.glyphs.ellipsis)
        head.extend((edge, Span(text, Role.STRONG if not n else Role.PLAIN)) for text in wrapped)
    foot: list[Row] = [_buttons(scene, 13 if width >= TABLE_COLUMNS else 1), _keys(scene, width)]
    body = _BODIES.get(scene.state.stage, _nothing)(scene, width)
    said = wrap(scene.glyphs.plain(clean(scene.state.said)), width - 2, 3, scene.glyphs.ellipsis)
    body.extend((1, (Span(f" {line}", Role.STRONG),)) for line in said if line)
    room = max(0, height - len(foot) - 1)
    head = head[:room]
    room -= len(head)
    rows = [*head, *thin_out(body, room)]
    rows.extend([()] * (height - len(rows) - len(foot)))
    return [pad(row, width) for row in (*rows, *foot)[:height]]


# --- the frame of every page -------------------------------------------------------------------------------------


def _title(scene: Scene, width: int) -> Row:
    frame = scene.frame
    at = clock(frame.wall_ns, scene.zone) if frame is not None else ""
    name = clean(frame.target.model_name) if frame is not None else ""
    size = f" {format_gib(frame.model.total_bytes)} GiB" if frame is not None and frame.model is not None else ""
    left = (Span(f" moewatch {scene.glyphs.dot} warm", Role.DIM),)
    for text in (f"{name}{size}   {at} ", f"{at} "):
        right = (Span(text.removesuffix(f"{at} "), Role.STRONG), Span(f"{at} ", Role.DIM))
        if width_of((*left, *right)) < width:
            return apart(left, right, width)
    return left


def _banner(scene: Scene) -> list[str]:
    """Three sentences: where it stands, what that means, what to know."""
    state, offer, ended = scene.state, scene.state.offer, scene.glyphs.ended
    if state.stage is Stage.FAILED:
        return [f"{ended} NOT STARTED   Nothing was read, nothing has changed.", state.text]
    if offer is None:
        return ["LOOKING   what is in memory and what would fit.", "Nothing is read yet."]
    if state.stage is Stage.REFUSED:
        return [f"{ended} NOT STARTED   Nothing was read, nothing has changed.", *offer.refusal]
    if state.stage is Stage.OFFERED:
        return _offer_banner(offer)
    if state.stage is Stage.READING:
        return _reading_banner(state)
    return _ended_banner(scene)


def _offer_banner(offer: WarmOffer) -> list[str]:
    plan = offer.plan
    if not plan.planned_bytes:
        is_short = any(each.after_bytes < each.size_bytes for each in plan.steps)
        missing = format_size(plan.left_cold_bytes)
        why = f"the {missing} that are not in memory do not fit" if is_short else "all that helps is in memory already"
        return ["PLAN   Nothing to read.", f"Nothing to read: {why}."]
    speed = offer.disk_bytes_per_s
    time = f" in about {about(round(plan.planned_bytes / speed * S))}" if speed else ""
    lines = [
        "PLAN   Nothing has been read yet.",
        f"Reads {format_size(plan.planned_bytes)}{time}. The next answer will wait less at its start.",
    ]
    cold = sum(each.left_cold_bytes for each in plan.classes if each.weight_class is not WeightClass.EMBEDDING)
    has_hot = any(each.step is Step.HOT for each in plan.steps)
    if cold and not has_hot:
        lines.append("Without a saved hot set this helps the first answer only a little.")
    elif cold:
        lines.append(f"It does not raise the lasting speed: {format_size(cold)} stay on disk, they do not fit.")
    return lines


def _reading_banner(state: WarmState) -> list[str]:
    now = state.progress
    if now is None:
        return ["READING   starts", "Esc stops; what has been read stays in memory."]
    left = f", about {about(now.eta_ns)} left" if now.eta_ns is not None else ""
    speed = f", {now.bytes_per_s / 1e9:.2f} GB/s" if now.bytes_per_s is not None else ""
    pushed = now.pushed_out_bytes
    out = f"{format_size(pushed)} of the model were pushed out." if pushed else "Nothing was pushed out so far."
    return [
        f"READING   {format_percent(now.read_bytes / max(1, now.planned_bytes))} %{left}",
        f"{format_size(now.read_bytes)} of {format_size(now.planned_bytes)} read{speed}. {out}",
        "Esc stops; what has been read stays in memory.",
    ]


def _ended_banner(scene: Scene) -> list[str]:
    state, glyphs = scene.state, scene.glyphs
    outcome = state.outcome
    assert outcome is not None  # noqa: S101 - asked only when it has ended
    last = state.later or outcome.after
    dense, hot = last.dense_ratio, last.hot_ratio
    hot_set = f", and {format_percent(hot)} % of the hot set" if hot is not None else ""
    there = f"{format_percent(dense)} % of the weights that every token needs are in memory{hot_set}."
    if dense is None:
        there = f"{format_size(last.resident_bytes)} of the model are in memory{hot_set}."
    elif dense >= READY_DENSE_RATIO:
        there = f"All weights that every token needs are in memory{hot_set}."
    if state.stage is Stage.STOPPED:
        return [f"{glyphs.ended} STOPPED   {outcome.stopped}.", there]
    if state.stage is Stage.PROVING:
        return ["READ   looking again in 10 s, whether it stayed.", there]
    is_ready = dense is None or dense >= READY_DENSE_RATIO
    word = "● READY" if is_ready else "○ COLD"
    return [
        f"{word}   looked up twice, 10 s apart",
        there,
        "Now send one short prompt: it wakes the GPU and the prompt cache too." if is_ready else "w tries again.",
    ]


def _buttons(scene: Scene, indent: int) -> Row:
    row: list[Span] = [Span(" " * indent)]
    pointer = f"{scene.glyphs.pointer} "
    buttons = scene.buttons
    for n, (label, action) in enumerate(buttons):
        is_chosen = n == scene.chosen % len(buttons)
        row.append(Span(pointer if is_chosen else "  ", Role.STRONG))
        row.append(Span(label, Role.ALARM if is_chosen else Role.PLAIN, action))
        row.append(Span("    "))
    return tuple(row)


def _keys(scene: Scene, width: int) -> Row:
    stage = scene.state.stage
    many = len(scene.buttons) > 1
    entries: list[tuple[str, str, str]] = [("←→", "choose", "")] if many else []
    entries.append(("Enter", "do it" if many else "back", ""))
    if stage is Stage.OFFERED:
        entries += [
            ("-/+", "budget", ""),
            ("d", "dry run to a file", "dry_run"),
            ("c", "copy", "copy"),
            ("Esc", "back", "close"),
        ]
    elif stage is Stage.READING:
        entries += [("z", "to the background", "background"), ("Esc", "stop", "stop")]
    elif stage in (Stage.DONE, Stage.STOPPED):
        entries += [
            ("m", 'mark "ready"', "mark"),
            ("c", "copy the command", "copy"),
            ("h", "save as a hot set", "save"),
        ]
    elif stage is Stage.REFUSED:
        entries += [("c", "copy the commands", "copy")]
    else:
        entries += [("Esc", "back", "close")]
    for is_worded in (True, False):
        row: list[Span] = [Span(" ")]
        for key, label, action in entries:
            row.append(Span(scene.glyphs.plain(key), Role.KEY, action))
            row.append(Span(f" {label}   " if is_worded else " ", Role.DIM, action))
        row[-1] = row[-1]._replace(text=row[-1].text.rstrip())
        if width_of(row) <= width:
            break
    return tuple(row)


def _nothing(scene: Scene, width: int) -> Body:
    del scene, width
    return []


_BODIES = {
    Stage.OFFERED: offered,
    Stage.READING: reading,
    Stage.PROVING: ended,
    Stage.DONE: ended,
    Stage.STOPPED: ended,
    Stage.REFUSED: refused,
}
