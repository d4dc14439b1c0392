"""How unequal the use of the experts is, and what follows: a hot set, or only more memory. Pure.

The router's choices cannot be seen. What can: the experts' bytes in memory are a share r of all, and of the bytes that
tokens need a share m comes from disk AGAIN. So the part in memory gets h = 1 - m of the use. Even use means h = r: any
set of experts of that size would do as well. Where h is much larger than r, few experts get most of the use and the
kernel keeps them.

Sorted by use, the share of use of the first x experts is a concave curve from 0 to 1, and no set of size r gets more than
the first r do. So the tenth that is used most gets at least 0.1 / r of h.

Checked on recordings of one model: uniform routing with memory for 30, 50 and 70 % of the experts, and skewed routing.
"""

import binascii
from typing import NamedTuple

from moewatch.analysis.active import derive_active_bytes
from moewatch.analysis.ledger import derive_ledger
from moewatch.analysis.rates import tokens_between
from moewatch.analysis.window import Window
from moewatch.domain.frame import Evenness, Method, Residency, Skew
from moewatch.domain.sample import Phase
from moewatch.units import S, format_percent

LOOK_BACK_NS = 60 * S
MIN_SPAN_NS = 15 * S  # a topic needs that long to show what it uses
MIN_TOKENS = 50  # of 8 experts a layer: every expert of 128 has had three chances
MAX_PROMPT_SHARE = 0.2  # of the time: a prompt uses nearly all experts at once
MIN_RESIDENT, MAX_RESIDENT = 0.02, 0.95  # below, the figures are noise; above, there is nothing to choose
TOP = 0.1
# (h - r) / (1 - r), how far use runs ahead of memory: 0.15 with a large read-ahead, 0.42 to 0.83 with uniform routing
# and memory for 30 to 70 % (tokens repeat, so their experts do), 0.88 and more with skewed routing or one topic
EVEN_BELOW, SKEWED_ABOVE = 0.5, 0.85
# A hot set helps when the set that is in memory stays the same. Share of the absent experts that were in memory within the
# minute: 0.75 to 0.91 with uniform routing and memory for 50 to 85 % (use ran ahead by 0.74 to 0.95 there), 0.32 to 0.49 with
# skewed routing and memory for 50 and 70 %.
ROTATES_ABOVE = 0.65
ROTATES = "Nearly all experts were used within a minute: no hot set, only more memory helps."
MIN_MAPS, MAX_MAPS = 2, 8  # of the minute that are joined: 6,144 experts in 1 ms
WASTE_BELOW = -0.25  # h so far below r: read-ahead brings more than the tokens need, and nothing can be told


def derive_skew(window: Window, residency: Residency) -> Skew | None:
    """None where it cannot be told: no experts, nothing generated, all in memory, or reads that are not counted."""
    there, needed = residency.expert_resident_bytes, residency.expert_needed_bytes
    active = derive_active_bytes(window.header.model, window.carried.residency)
    if not window.samples or there is None or not needed or active is None:
        return None
    r = there / needed
    per_token = active - (residency.dense_needed_bytes or 0)
    if not MIN_RESIDENT <= r <= MAX_RESIDENT or per_token <= 0:
        return None
    use = _count_use(window)
    if use is None:
        return None
    h = 1 - (use.churn_bytes + use.first_bytes) / (use.tokens * per_token)
    above = (h - r) / (1 - r)
    if above < WASTE_BELOW:
        return None
    touched = _touched(window)
    evenness = Evenness.BETWEEN
    rotates = _rotates(touched, r)
    if above < EVEN_BELOW or rotates:
        evenness = Evenness.EVEN
    elif above >= SKEWED_ABOVE:
        evenness = Evenness.SKEWED
    h = max(h, r)
    top = min(1.0, max(TOP, h * TOP / r)) if r > TOP else h
    return Skew(
        evenness=evenness,
        resident_share=r,
        use_share=h,
        top_share=top,
        touched_ratio=touched,
        text=ROTATES if rotates else _text(evenness, r, h),
    )


def _rotates(touched: float | None, r: float) -> bool:
    """Whether other experts are in memory all the time, so that no set stays the hot one; without maps it is not known."""
    return touched is not None and (touched - r) / (1 - r) > ROTATES_ABOVE


class _Use(NamedTuple):
    """What the last minute of generation read, and for how many tokens."""

    churn_bytes: int
    first_bytes: int
    tokens: int


def _count_use(window: Window) -> _Use | None:
    """None when it is not counted, or a prompt took part in it."""
    ledger = derive_ledger(window, min(LOOK_BACK_NS, window.loaded_ns))
    if ledger is None or ledger.span_ns < MIN_SPAN_NS or ledger.churn_bytes is None:
        return None
    if ledger.method not in (Method.LEDGER, Method.REFAULTS):
        return None
    samples = window.since(ledger.span_ns)
    if sum(s.server.phase in (Phase.PROMPT, Phase.LOADING) for s in samples) > MAX_PROMPT_SHARE * len(samples):
        return None
    tokens = tokens_between(samples[0], samples[-1])
    if tokens is None or tokens < MIN_TOKENS:
        return None
    return _Use(ledger.churn_bytes, ledger.first_bytes or 0, tokens)


def _text(evenness: Evenness, r: float, h: float) -> str:
    there, use = format_percent(r), format_percent(h)
    if evenness is Evenness.SKEWED:
        return f"The {there} % of the experts that are in memory get {use} % of the use: a hot set will help."
    if evenness is Evenness.EVEN:
        return f"Use is even, {use} % of it meets the {there} % in memory: only more memory helps."
    return f"The {there} % of the experts that are in memory get {use} % of the use: a hot set helps a little, memory more."


def _touched(window: Window) -> float | None:
    """Share of the routed bytes that were in memory at some time of the last minute; None without two maps."""
    maps = []
    for sample in window.since(LOOK_BACK_NS):
        if sample.residency is not None and sample.residency.experts:
            try:
                maps.append(binascii.a2b_base64(sample.residency.experts))
            except binascii.Error:
                continue
    alike = [shares for shares in maps if len(shares) == len(maps[-1])]
    model = window.header.model
    if len(alike) < MIN_MAPS or model is None:
        return None
    most = bytes(map(max, *alike[-MAX_MAPS:]))
    sizes = model.expert_bytes_by_layer or (1,)
    each = len(most) // len(sizes)
    total = sum(sizes) * each * 255
    rows = (sum(most[n * each : (n + 1) * each]) * size for n, size in enumerate(sizes))
    return sum(rows) / total if total else None
