"""How fast this machine reads memory, all cores together: what bounds a token whose weights are all in memory."""

import ctypes
import mmap
import threading

from moewatch.clock import Clock
from moewatch.linux.bursts import Event, rate_of
from moewatch.units import MIB, MS

TOTAL_BYTES = 192 * MIB  # of all threads; beyond the caches of most machines (32 MiB where it was tried)
PIECE_BYTES = 2 * MIB  # copied at a time, 0.2 ms
LEAST_BLOCK_BYTES = 4 * MIB
# Beside other work all our threads run at once for some milliseconds only; the third best of eighty such windows
DURATION_NS, WINDOW_NS, RANK = 800 * MS, 10 * MS, 2
_READY_S = 10.0


def measure_memory_rate(clock: Clock, n_threads: int, duration_ns: int = DURATION_NS) -> float | None:
    """Bytes read and written per second by copying on `n_threads` threads; None when there is no memory to do it."""
    count = max(1, n_threads)
    block_bytes = max(LEAST_BLOCK_BYTES, TOTAL_BYTES // (2 * count) // PIECE_BYTES * PIECE_BYTES)
    ready = threading.Barrier(count + 1)
    found: list[list[Event]] = []

    def copy() -> None:
        events: list[Event] = []
        found.append(events)
        try:
            with mmap.mmap(-1, block_bytes) as source, mmap.mmap(-1, block_bytes) as target:
                from_ = (ctypes.c_char * block_bytes).from_buffer(source)
                to = (ctypes.c_char * block_bytes).from_buffer(target)
                try:
                    ctypes.memset(from_, 1, block_bytes)  # real pages, not the kernel's shared page of zeros
                    ctypes.memmove(to, from_, block_bytes)
                    ready.wait(_READY_S)
                    end_ns = clock.mono_ns() + duration_ns
                    at, first, second = 0, ctypes.addressof(from_), ctypes.addressof(to)
                    while (now_ns := clock.mono_ns()) < end_ns:
                        ctypes.memmove(second + at, first + at, PIECE_BYTES)  # without the interpreter's lock
                        events.append((now_ns, 2 * PIECE_BYTES))
                        at = (at + PIECE_BYTES) % block_bytes
                finally:
                    del from_, to  # else the mappings cannot be closed
        except (OSError, threading.BrokenBarrierError):
            ready.abort()

    threads = [threading.Thread(target=copy, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        ready.wait(_READY_S)
    except threading.BrokenBarrierError:
        return None
    finally:
        began_ns = clock.mono_ns()
    for thread in threads:
        thread.join()
    return rate_of([event for events in found for event in events], began_ns, WINDOW_NS, RANK)
