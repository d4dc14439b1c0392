"""How fast this machine reads memory, all cores together: what bounds a token whose weights are all in memory."""

import ctypes
import mmap
import threading

from moewatch.clock import Clock
from moewatch.units import MIB, MS, S

BLOCK_BYTES = 64 * MIB  # of each thread: beyond the caches of most machines (32 MiB here)
DURATION_NS = 400 * MS


def measure_memory_rate(clock: Clock, n_threads: int, duration_ns: int = DURATION_NS) -> float | None:
    """Bytes read and written per second by copying on `n_threads` threads; None when there is no memory to do it."""
    copied: list[int] = []
    ready = threading.Barrier(max(1, n_threads) + 1)
    ends: list[int] = []

    def copy() -> None:
        with mmap.mmap(-1, BLOCK_BYTES) as source, mmap.mmap(-1, BLOCK_BYTES) as target:
            from_ = (ctypes.c_char * BLOCK_BYTES).from_buffer(source)
            to = (ctypes.c_char * BLOCK_BYTES).from_buffer(target)
            try:
                ctypes.memset(from_, 1, BLOCK_BYTES)  # real pages, not the kernel's shared zero page
                ctypes.memmove(to, from_, BLOCK_BYTES)
                ready.wait()
                end_ns = clock.mono_ns() + duration_ns
                count = 0
                while clock.mono_ns() < end_ns:
                    ctypes.memmove(to, from_, BLOCK_BYTES)  # without the interpreter's lock
                    count += 1
                copied.append(count * BLOCK_BYTES)
                ends.append(clock.mono_ns())
            finally:
                del from_, to  # else the mappings cannot be closed

    threads = [threading.Thread(target=copy, daemon=True) for _ in range(max(1, n_threads))]
    for thread in threads:
        thread.start()
    try:
        ready.wait(10)
    except threading.BrokenBarrierError:
        return None
    began_ns = clock.mono_ns()
    for thread in threads:
        thread.join()
    if not ends:
        return None
    return 2 * sum(copied) * S / max(1, max(ends) - began_ns)
