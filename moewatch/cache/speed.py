"""How fast the disk reads: a few MiB past the page cache, so that a plan can say how long it will take."""

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from moewatch.clock import Clock
from moewatch.domain.warm import PlannedRange
from moewatch.units import S

SAMPLE_BYTES = 1 << 20
SAMPLES = 64  # 64 MiB: 0.05 s on an NVMe disk, 0.5 s on SATA, 1 s on a hard disk
LIMIT_NS = S  # no sample is begun after a second
THREADS = 4


def measure_speed(paths: Sequence[str], ranges: Sequence[PlannedRange], clock: Clock) -> float | None:
    """Bytes per second over samples spread over what is to be read; None where the cache cannot be passed by (tmpfs)."""
    large = [each for each in ranges if each.length >= 2 * SAMPLE_BYTES]
    if not large:
        return None
    places = []
    step = sum(each.length for each in large) // SAMPLES
    position = 0  # of the next sample, within all large ranges end to end
    passed = 0
    for each in large:
        while position < passed + each.length - SAMPLE_BYTES:
            start = each.offset + (position - passed) // SAMPLE_BYTES * SAMPLE_BYTES
            places.append((each.file_index, -(-start // SAMPLE_BYTES) * SAMPLE_BYTES))
            position += max(step, SAMPLE_BYTES)
        passed += each.length
        position = max(position, passed)
    began_ns = clock.mono_ns()

    def read(place: tuple[int, int]) -> int:
        if clock.mono_ns() - began_ns > LIMIT_NS:
            return 0
        file_index, offset = place
        fd = os.open(paths[file_index], os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            with mmap.mmap(-1, SAMPLE_BYTES) as buffer:  # aligned, as O_DIRECT wants it
                return os.preadv(fd, [buffer], offset)
        finally:
            os.close(fd)

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            size = sum(pool.map(read, places[:SAMPLES]))
    except OSError:
        return None
    elapsed_ns = clock.mono_ns() - began_ns
    return size * S / elapsed_ns if size and elapsed_ns else None
