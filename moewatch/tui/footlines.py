"""The lines below the figures as words: remarks, what was counted, what it costs, what could not be read, own cost."""

from collections.abc import Sequence

from moewatch.domain.frame import Method
from moewatch.domain.labels import GAP_WORDS
from moewatch.domain.sample import Gap
from moewatch.tui.rows import Role, Row, Span, apart, clean, fit
from moewatch.tui.viewmodel import View
from moewatch.units import MIB, MS, S, format_mb, format_percent

_ROOMY_COLUMNS = 90  # from here lines spell things out
_LAYER_COLUMNS = 3  # a layer gets no more, however few there are
LATE_NS = 500 * MS  # a sample this late moved its window by 5 %
METHODS = {
    Method.LEDGER: "counted",
    Method.REFAULTS: "kernel's count",
    Method.MINCORE: "at least",
    Method.NONE: "not counted",
}
LOSSES = {"rate": "against its best", "wait": "waiting for reads", "stall": "stalled for memory"}


def remarks(view: View) -> list[str]:
    """What stands beside the verdict, the most pressing first: a notice, then the verdict's own remarks."""
    said = [text for text in (view.notice, view.warming) if text]
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
    how = METHODS[rates.method]
    how = how + window if len(how + window) < 16 else how  # noqa: PLR2004 - the column that the figures start in
    again = rates.reread_bytes_per_s
    other = "other programs" if width >= _ROOMY_COLUMNS else "others"
    return [
        Span(f"{how:<16}", Role.DIM),
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
    faults = "–" if rates.majflt_per_s is None else f"{rates.majflt_per_s:,.0f}/s"  # noqa: RUF001 - the sign for unknown
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
    known = GAP_WORDS.get(gap.field) or (GAP_WORDS.get(group) if gap.field == group else None)
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
    cpu = view.glyphs.plain("–") if cost.cpu_ratio is None else f"{100 * cost.cpu_ratio:.1f}"  # noqa: RUF001 - the sign for unknown
    rss = view.glyphs.plain("–") if cost.rss_bytes is None else f"{cost.rss_bytes / MIB:.0f}"  # noqa: RUF001 - the sign for unknown
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
