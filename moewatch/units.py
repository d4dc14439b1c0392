"""Bytes, rates and durations: parse what people type, format what people read.

Sizes are shown in GiB (2^30 bytes), rates in MB/s (10^6 bytes), as every screen says beside the figure.
"""

import re
from collections.abc import Sequence

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
MS, S = 10**6, 10**9  # in nanoseconds
MINUTE, HOUR = 60 * S, 3600 * S

UNKNOWN = "–"  # how a figure that could not be read is shown  # noqa: RUF001 - the dash of the design

_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": KB,
    "m": MIB, "mib": MIB, "mb": MB,
    "g": GIB, "gib": GIB, "gb": GB,
    "t": TIB, "tib": TIB, "tb": TB,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]{0,3})\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h)?\s*", re.IGNORECASE)
_DURATION_FACTORS = {"ms": MS, "s": S, "m": MINUTE, "h": HOUR}
LONGEST_NS = 100 * 365 * 24 * HOUR  # waits are given to the kernel in 63 bits of nanoseconds: 292 years


def parse_size(text: str) -> int:
    """Bytes from `32G`, `32GiB` (both 2^30 units), `32GB` (10^9) or a bare number; ValueError says what is accepted."""
    found = _SIZE.fullmatch(text)
    factor = _FACTORS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"{text!r} is no size; write for instance 32G, 32GiB, 34GB or a number of bytes")
    whole, _, fraction = found[1].partition(".")
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def parse_duration_ns(text: str) -> int:
    """Nanoseconds from `0.5`, `12s`, `200ms`, `5m`, `1h`; a bare number is seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration; write for instance 1, 0.5s, 200ms or 5m")
    duration_ns = float(found[1]) * _DURATION_FACTORS[(found[2] or "s").lower()]
    if duration_ns > LONGEST_NS:
        raise ValueError(f"{text!r} is longer than 100 years; leave it out to go on until interrupted")
    return round(duration_ns)


def format_gib(size_bytes: int | None, decimals: int = 1) -> str:
    """`19.8` for a number of bytes: GiB without the unit; a dash when unknown."""
    return UNKNOWN if size_bytes is None else f"{size_bytes / GIB:,.{decimals}f}"


def format_size(size_bytes: int | None) -> str:
    """`19.8 GiB`, `12.6 MiB`, `640 KiB`: the unit that fits."""
    if size_bytes is None:
        return UNKNOWN
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes} B"


def format_mb(amount_bytes: float | None) -> str:
    """`1,270`, `4.2`, `0`: millions of bytes without the unit; one decimal below ten."""
    if amount_bytes is None:
        return UNKNOWN
    mega = amount_bytes / MB
    return f"{mega:,.0f}" if mega >= 9.95 or mega < 0.05 else f"{mega:.1f}"  # noqa: PLR2004 - where rounding changes the digits


def format_rate(value: float | None) -> str:
    """`3.1`, `11.2`, `143`: per second, three digits at most before the thousands."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 99.95 or value == 0 else f"{value:.1f}"  # noqa: PLR2004 - where rounding changes the digits


def format_percent(ratio: float | None) -> str:
    """`72` for 0.72; never 100 for less than all and never 0 for more than nothing."""
    if ratio is None:
        return UNKNOWN
    percent = round(100 * ratio)
    if percent == 100 and ratio < 1:  # noqa: PLR2004 - the two ends of the scale
        percent = 99
    if percent == 0 and ratio > 0:
        return "<1"
    return str(percent)


def format_duration(duration_ns: int | None) -> str:
    """`0.4 s`, `42 s`, `3:12`, `1:42:10`."""
    if duration_ns is None:
        return UNKNOWN
    if duration_ns < 10 * S:
        return f"{duration_ns / S:.1f} s"
    seconds = round(duration_ns / S)
    if seconds < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def shares(sizes: Sequence[float], whole: int) -> list[int]:
    """`whole` units dealt out by size, the largest remainders first: they always add up to `whole`."""
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes)
    exact = [size * whole / total for size in sizes]
    dealt = [int(value) for value in exact]
    order = sorted(range(len(sizes)), key=lambda i: dealt[i] - exact[i])
    for i in order[: whole - sum(dealt)]:
        dealt[i] += 1
    return dealt
