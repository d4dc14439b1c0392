"""The expert map from Samples: what of each expert is in memory, and what was read AGAIN in the last minute. Pure.

A Sample carries a map every few seconds, and only when it has changed. What was read again comes with it (the scan
looks more often than it tells); from recordings without it, as far as the shares tell: what came, less what may never
have been there. Both are *at least*: what came and left between two looks was not seen.
"""

import binascii
import operator

from msgspec import Struct

from moewatch.domain.frame import ExpertMap
from moewatch.domain.sample import ModelSummary, ResidencyReading, Sample
from moewatch.units import S

AGAIN_WINDOW_NS = 60 * S
AGAIN_UNITS = 16  # ResidencyReading.experts_again is in sixteenths of an expert
WHOLE = 255
_IS_ABOVE_HALF = bytes(share > WHOLE // 2 for share in range(256))
LONG_AGO_S = 255  # ExpertMap.left_s: not within 254 s


class _Came(Struct, frozen=True, kw_only=True):
    """Sixteenths of each expert that were read again up to one moment."""

    mono_ns: int
    again: bytes


class ExpertBook(Struct, frozen=True, kw_only=True):
    """What is handed from one Sample to the next."""

    map: ExpertMap | None = None
    most: bytes = b""  # the largest share each expert was seen with; kept up only while nobody tells what came again
    came: tuple[_Came, ...] = ()  # of the last minute, oldest first
    sums: tuple[int, ...] = ()  # of `came`
    from_ns: int = 0  # when the first map was seen
    breaks: int = 0  # of the window that this belongs to


def update_experts(book: ExpertBook, model: ModelSummary | None, sample: Sample, breaks: int) -> ExpertBook:
    """Take one Sample in; without a map in it only what is older than a minute is let go. 1 ms for 6,144 experts."""
    if breaks != book.breaks:
        book = ExpertBook(breaks=breaks)
    scan = sample.residency
    shares = _decoded(scan.experts) if scan is not None else None
    if scan is None or shares is None:
        if book.came and sample.mono_ns - book.came[0].mono_ns > AGAIN_WINDOW_NS:
            return _aged(book, sample)
        return book
    n_layer = _n_layer(model, scan)
    if not n_layer or len(shares) % n_layer:
        return book  # of no use without knowing where a layer ends
    if book.map is None or len(shares) != len(book.map.resident):
        return _first(book, model, sample, shares=shares, n_layer=n_layer)
    again, most = _decoded(scan.experts_again), book.most
    if again is None or len(again) != len(shares):
        again, most = _derive_again(book, shares), bytes(map(max, book.most, shares))
    came, sums = book.came, book.sums
    if any(again):
        came = (*came, _Came(mono_ns=sample.mono_ns, again=again))
        sums = tuple(map(operator.add, sums, again))
    came, sums = _without_old(came, sums, sample.mono_ns)
    return ExpertBook(
        map=_map(book.map, scan, sample, shares=shares, sums=sums, from_ns=book.from_ns),
        most=most,
        came=came,
        sums=sums,
        from_ns=book.from_ns,
        breaks=book.breaks,
    )


def _first(book: ExpertBook, model: ModelSummary | None, sample: Sample, *, shares: bytes, n_layer: int) -> ExpertBook:
    """The first map: nothing is known of before, so nothing in it came again."""
    scan = sample.residency or ResidencyReading()
    n_expert = len(shares) // n_layer
    new = ExpertMap(
        n_layer=n_layer,
        n_expert=n_expert,
        bytes_per_expert=_sizes(model, n_layer, n_expert),
        not_needed_layers=scan.experts_not_needed,
        resident=shares,
        again_bytes=(0,) * len(shares),
        again_window_ns=0,
        left_s=bytes([LONG_AGO_S]) * len(shares),
        seen_ns=sample.mono_ns - (scan.age_ns or 0),
        seen_wall_ns=sample.wall_ns - (scan.age_ns or 0),
    )
    return ExpertBook(map=new, most=shares, sums=(0,) * len(shares), from_ns=sample.mono_ns, breaks=book.breaks)


def _map(
    before: ExpertMap, scan: ResidencyReading, sample: Sample, *, shares: bytes, sums: tuple[int, ...], from_ns: int
) -> ExpertMap:
    seen_ns = sample.mono_ns - (scan.age_ns or 0)
    return ExpertMap(
        n_layer=before.n_layer,
        n_expert=before.n_expert,
        bytes_per_expert=before.bytes_per_expert,
        not_needed_layers=scan.experts_not_needed,
        resident=shares,
        again_bytes=_in_bytes(before, sums),
        again_window_ns=min(AGAIN_WINDOW_NS, sample.mono_ns - from_ns),
        left_s=_left(before, shares, max(0, seen_ns - before.seen_ns) // S),
        seen_ns=seen_ns,
        seen_wall_ns=sample.wall_ns - (scan.age_ns or 0),
    )


def _aged(book: ExpertBook, sample: Sample) -> ExpertBook:
    """No new map: what was read again more than a minute ago leaves the old one."""
    came, sums = _without_old(book.came, book.sums, sample.mono_ns)
    old = book.map
    if old is None:
        return book
    new = ExpertMap(
        n_layer=old.n_layer,
        n_expert=old.n_expert,
        bytes_per_expert=old.bytes_per_expert,
        not_needed_layers=old.not_needed_layers,
        resident=old.resident,
        again_bytes=_in_bytes(old, sums),
        again_window_ns=min(AGAIN_WINDOW_NS, sample.mono_ns - book.from_ns),
        left_s=old.left_s,
        seen_ns=old.seen_ns,
        seen_wall_ns=old.seen_wall_ns,
    )
    return ExpertBook(map=new, most=book.most, came=came, sums=sums, from_ns=book.from_ns, breaks=book.breaks)


def _without_old(
    came: tuple[_Came, ...], sums: tuple[int, ...], now_ns: int
) -> tuple[tuple[_Came, ...], tuple[int, ...]]:
    while came and now_ns - came[0].mono_ns > AGAIN_WINDOW_NS:
        sums = tuple(map(operator.sub, sums, came[0].again))
        came = came[1:]
    return came, sums


def _derive_again(book: ExpertBook, shares: bytes) -> bytes:
    """Sixteenths that must have been there before: what came is more than was never seen."""
    before = book.map.resident if book.map is not None else shares
    again = bytearray(len(shares))
    if before == shares:
        return bytes(again)
    for cell, (then, now) in enumerate(zip(before, shares, strict=True)):
        if now > then:
            again[cell] = max(0, now - then - (WHOLE - book.most[cell])) * AGAIN_UNITS // WHOLE
    return bytes(again)


def _left(before: ExpertMap, shares: bytes, passed_s: int) -> bytes:
    """Seconds since each expert fell below half: older by what has passed, 0 for those that did so now."""
    aged = bytearray(before.left_s.translate(bytes(min(LONG_AGO_S, age + passed_s) for age in range(256))))
    # as whole numbers, since most experts stay where they are: 1 in the byte of each that was above half and is not any more
    then, now = (int.from_bytes(shares.translate(_IS_ABOVE_HALF)) for shares in (before.resident, shares))
    left = (then & ~now).to_bytes(len(aged))
    cell = left.find(1)
    while cell >= 0:
        aged[cell] = 0
        cell = left.find(1, cell + 1)
    return bytes(aged)


def _in_bytes(shape: ExpertMap, sums: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for layer, size in enumerate(shape.bytes_per_expert):
        row = sums[layer * shape.n_expert : (layer + 1) * shape.n_expert]
        found += [amount * size // AGAIN_UNITS for amount in row] if any(row) else row
    return tuple(found)


def _n_layer(model: ModelSummary | None, scan: ResidencyReading) -> int:
    """Rows of the map: all blocks, those without experts too; 0 when unknown."""
    if model is not None and model.expert_bytes_by_layer:
        return len(model.expert_bytes_by_layer)
    return len(scan.by_layer or ()) or (model.n_layer if model is not None else None) or 0


def _sizes(model: ModelSummary | None, n_layer: int, n_expert: int) -> tuple[int, ...]:
    """One expert of each layer; where a recording does not say, all experts alike."""
    if model is None:
        return (0,) * n_layer
    if model.expert_bytes_by_layer:
        return model.expert_bytes_by_layer
    return ((model.expert_bytes or 0) // (n_layer * n_expert),) * n_layer


def _decoded(text: str | None) -> bytes | None:
    """None for what is no map, as a foreign recording may hold."""
    if not text:
        return None
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None
