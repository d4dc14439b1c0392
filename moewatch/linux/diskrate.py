"""How fast this disk answers what page faults ask of it: random reads past the page cache, of the size of one fault.

O_DIRECT (open(2)): the page cache is neither used nor filled, so the measurement evicts nothing and is not flattered. A
sequential figure is another thing: 147 times apart on one drive (measured).
"""

import mmap
import os
import random
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.domain.sample import GapReason
from moewatch.linux.bursts import Event, rate_of
from moewatch.linux.root import ReadingError, reading_error
from moewatch.units import KIB, MIB, MS, S

MIN_FAULT_BYTES, MAX_FAULT_BYTES = 128 * KIB, 512 * KIB  # one fault in decoding, with a read-ahead of 128 to 512 KiB
DURATION_NS, WINDOW_NS = 2 * S, 250 * MS
RANK = 1  # the second best of eight windows: what others read meanwhile is left out, a lucky moment too
SCRATCH_BYTES = (
    256 * MIB
)  # where no model is there yet: small enough to write quickly, larger than most disks' own cache
LEAST_FILE_BYTES = 16 * MIB  # below that a disk answers from its own cache
_SEED = 7
_LEAST_READS = 8


class DiskRate(Struct, frozen=True, kw_only=True):
    """What was measured."""

    bytes_per_s: float
    block_bytes: int
    n_threads: int
    n_reads: int
    path: str


def fault_bytes_of(read_ahead_bytes: int | None) -> int:
    """The size to measure at: the disk's read-ahead, within what faults were seen to read."""
    return min(MAX_FAULT_BYTES, max(MIN_FAULT_BYTES, read_ahead_bytes or MIN_FAULT_BYTES))


def measure_file(
    path: str, clock: Clock, *, block_bytes: int, n_threads: int, duration_ns: int = DURATION_NS
) -> DiskRate:
    """Random reads of an existing file, which is only read; ReadingError when the file system has no O_DIRECT."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise reading_error(error, path) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size < max(LEAST_FILE_BYTES, 2 * block_bytes):
            raise ReadingError(GapReason.UNSUPPORTED, f"{path} is too small to measure its disk by")
        return _measure(fd, path, found.st_size, clock, block_bytes, n_threads, duration_ns)
    finally:
        os.close(fd)


def measure_folder(
    folder: str, clock: Clock, *, block_bytes: int, n_threads: int, duration_ns: int = DURATION_NS
) -> DiskRate:
    """The same with a scratch file of SCRATCH_BYTES, which is removed at once."""
    try:
        fd, name = tempfile.mkstemp(prefix=".moewatch-", dir=folder)
    except OSError as error:
        raise reading_error(error, folder) from None
    try:
        # content that no disk compresses away or leaves unwritten
        block = random.Random(_SEED).randbytes(4 * MIB)  # noqa: S311 - noise, no secret
        for _ in range(SCRATCH_BYTES // len(block)):
            os.write(fd, block)
        os.fsync(fd)
        return measure_file(name, clock, block_bytes=block_bytes, n_threads=n_threads, duration_ns=duration_ns)
    except OSError as error:
        raise reading_error(error, folder) from None
    finally:
        os.close(fd)
        with suppress(OSError):
            Path(name).unlink()


def _measure(  # noqa: PLR0917 - one caller
    fd: int, path: str, size_bytes: int, clock: Clock, block_bytes: int, n_threads: int, duration_ns: int
) -> DiskRate:
    """As many readers as the server has threads: each fault blocks the thread that met it."""
    began_ns = clock.mono_ns()
    end_ns = began_ns + duration_ns
    done: list[list[Event]] = []
    failed: list[OSError] = []
    stop = threading.Event()

    def read_until_end(seed: int) -> None:
        places = random.Random(seed)  # noqa: S311 - any places will do
        buffer = mmap.mmap(-1, block_bytes)  # page-aligned, as O_DIRECT wants it
        events: list[Event] = []
        done.append(events)
        try:
            while (now_ns := clock.mono_ns()) < end_ns and not stop.is_set():
                offset = places.randrange(size_bytes // block_bytes) * block_bytes
                events.append((now_ns, os.preadv(fd, [buffer], offset)))
        except OSError as error:
            failed.append(error)
            stop.set()
        finally:
            buffer.close()

    threads = [threading.Thread(target=read_until_end, args=(i,), daemon=True) for i in range(max(1, n_threads))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    if failed:
        raise reading_error(failed[0], path)
    reads = [event for events in done for event in events]
    rate = rate_of(reads, began_ns, min(WINDOW_NS, duration_ns // 8), RANK)
    if len(reads) < _LEAST_READS or not rate:
        raise ReadingError(GapReason.UNSUPPORTED, f"the disk answered {len(reads)} reads only, too few to judge")
    return DiskRate(bytes_per_s=rate, block_bytes=block_bytes, n_threads=len(threads), n_reads=len(reads), path=path)
