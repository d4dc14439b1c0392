"""A rate out of many short windows. Pure.

What else the machine does makes single windows slow, never fast: so not the mean counts, but what it could do while it was
let. Beside six busy processes on two cores the mean of memory traffic was a fifth of what an idle machine made (measured).
"""

from collections.abc import Iterable

from moewatch.units import S

Event = tuple[int, int]  # (when it ended, in ns; bytes)


def rate_of(events: Iterable[Event], began_ns: int, window_ns: int, rank: int = 0) -> float | None:
    """Bytes per second of the window at place `rank` (0: the best); None when there are not so many whole windows."""
    sums: dict[int, int] = {}
    last_ns = began_ns
    for ended_ns, n_bytes in events:
        index = max(0, ended_ns - began_ns) // window_ns
        sums[index] = sums.get(index, 0) + n_bytes
        last_ns = max(last_ns, ended_ns)
    whole = (last_ns - began_ns) // window_ns
    rates = sorted((sums.get(index, 0) for index in range(whole)), reverse=True)
    return rates[rank] * S / window_ns if rank < len(rates) else None
