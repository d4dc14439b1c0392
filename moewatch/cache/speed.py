"""How fast the disk reads: a few MiB past the page cache, so that a plan can say how long it will take."""

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from moewatch.cache.runs import Run, normalise, subtract
from moewatch.clock import Clock
from moewatch.domain.layout import ModelLayout
from moewatch.domain.warm import PlannedRange
from moewatch.units import MIB, S

SAMPLE_BYTES = MIB
SAMPLES = 24  # 0.02 s on an NVMe disk, 0.3 s on a hard disk
THREADS = 4
LIMIT_NS = S  # no sample is begun after a second

Place = tuple[int, int]  # shard, offset


def measure_speed(layout: ModelLayout, ranges: Sequence[PlannedRange], clock: Clock) -> float | None:
    """Bytes per second over samples spread over the files; None where the cache cannot be passed by (tmpfs).

    The samples are taken from what is not going to be read, as far as there is any: no byte is read twice.
    """
    if not ranges:
        return None
    places = sample_places(layout, ranges)
    began_ns = clock.mono_ns()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            shares = [places[first::THREADS] for first in range(THREADS)]
            size = sum(pool.map(lambda share: _read(layout.paths, share, clock, began_ns + LIMIT_NS), shares))
    except OSError:
        return None
    elapsed_ns = clock.mono_ns() - began_ns
    return size * S / elapsed_ns if size and elapsed_ns else None


def sample_places(layout: ModelLayout, ranges: Sequence[PlannedRange]) -> list[Place]:
    """Where to read, evenly spread, whole samples only."""
    every: list[Place] = []
    spared: list[Place] = []
    for index, file in enumerate(layout.files):
        planned = normalise((each.offset, each.offset + each.length) for each in ranges if each.file_index == index)
        every += _whole([(0, file.size_bytes)], index)
        spared += _whole(subtract([(0, file.size_bytes)], planned), index)
    places = spared if len(spared) >= SAMPLES else every
    return places[:: max(1, len(places) // SAMPLES)][:SAMPLES]


def _whole(runs: Sequence[Run], file_index: int) -> list[Place]:
    return [
        (file_index, offset)
        for start, end in runs
        for offset in range(-(-start // SAMPLE_BYTES) * SAMPLE_BYTES, end - SAMPLE_BYTES + 1, SAMPLE_BYTES)
    ]


def _read(paths: Sequence[str], places: Sequence[Place], clock: Clock, end_ns: int) -> int:
    size = 0
    with mmap.mmap(-1, SAMPLE_BYTES) as buffer:  # aligned, as O_DIRECT wants it
        for file_index, offset in places:
            if clock.mono_ns() > end_ns:
                break
            fd = os.open(paths[file_index], os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            try:
                size += os.preadv(fd, [buffer], offset)
            finally:
                os.close(fd)
    return size
