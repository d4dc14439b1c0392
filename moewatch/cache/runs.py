"""Sets of bytes as sorted runs (start, end) that neither touch nor overlap. Pure."""

import bisect
from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]


def normalise(runs: Iterable[Run]) -> list[Run]:
    """Sorted and merged; empty ones are dropped."""
    merged: list[Run] = []
    for start, end in sorted(runs):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def add(runs: list[Run], run: Run) -> None:
    """Put one run into a sorted list, in place; what it touches is merged with it."""
    start, end = run
    if start >= end:
        return
    first = bisect.bisect_left(runs, start, key=lambda each: each[1])
    last = bisect.bisect_right(runs, end, lo=first, key=lambda each: each[0])
    if first < last:
        start, end = min(start, runs[first][0]), max(end, runs[last - 1][1])
    runs[first:last] = [(start, end)]


def total(runs: Iterable[Run]) -> int:
    """Bytes in them."""
    return sum(end - start for start, end in runs)


def intersect(one: Sequence[Run], other: Sequence[Run]) -> list[Run]:
    """What is in both."""
    if len(one) > len(other):
        one, other = other, one
    return [part for run in one for part in within(run, other)]


def subtract(runs: Sequence[Run], taken: Sequence[Run]) -> list[Run]:
    """What is in `runs` and not in `taken`."""
    left: list[Run] = []
    for start, end in runs:
        at = start
        for begin, until in within((start, end), taken):
            if at < begin:
                left.append((at, begin))
            at = until
        if at < end:
            left.append((at, end))
    return left


def within(run: Run, runs: Sequence[Run]) -> Iterator[Run]:
    """The parts of `runs` inside one run, in order."""
    start, end = run
    position = bisect.bisect_right(runs, start, key=lambda each: each[0])
    if position and runs[position - 1][1] > start:
        position -= 1
    while position < len(runs) and runs[position][0] < end:
        yield max(start, runs[position][0]), min(end, runs[position][1])
        position += 1


def first_bytes(runs: Iterable[Run], limit: int, unit: int = 1) -> list[Run]:
    """The first `limit` bytes of them; a run that is cut is cut at a whole number of units."""
    kept: list[Run] = []
    for start, end in runs:
        length = end - start
        if length > limit:
            if cut := limit // unit * unit:
                kept.append((start, start + cut))
            break
        kept.append((start, end))
        limit -= length
    return kept


def whole_pages(start: int, end: int, page_bytes: int, size_bytes: int) -> Run:
    """The pages that [start, end) touches; the last page of a file ends with the file."""
    return start // page_bytes * page_bytes, min(-(-end // page_bytes) * page_bytes, size_bytes)
