"""Where the memory is, against the limit that counts for the target, and who took some of it while we watched. Pure."""

from msgspec import Struct

from moewatch.analysis.window import Window
from moewatch.domain.frame import Growth, Memory, Residency
from moewatch.domain.sample import Sample
from moewatch.units import MIB

# Smaller growth is everyday: a browser tab holds 50 to 300 MiB, and it could not explain a loss that a person notices
GREW_BYTES = 256 * MIB
# A cause is named only when what the others took and what the model lost agree this well (a rule of the design)
MATCH_RATIO = 0.2
MAX_GREW = 5
HOST = "host"


class GrowthBook(Struct, frozen=True, kw_only=True):
    """What must be remembered of the model's share of memory for as long as the target lives."""

    most_resident_bytes: int | None = None


def update(book: GrowthBook, sample: Sample) -> GrowthBook:
    """The book with one Sample more."""
    resident = sample.residency.resident_bytes if sample.residency else None
    if resident is None or (book.most_resident_bytes is not None and resident < book.most_resident_bytes):
        return book
    return GrowthBook(most_resident_bytes=resident)


def derive_memory(window: Window, residency: Residency, book: GrowthBook | None = None) -> Memory:
    """Limit, what is free, what the server and the model hold; None where it cannot be read.

    Sources: proc_meminfo(5), the cgroup's memory files (Documentation/admin-guide/cgroup-v2.rst), proc_pid_status(5).
    `other_cache_bytes` is the machine's page cache less the model's; it is None inside a cgroup of its own, where
    the machine's cache says nothing about the target.
    """
    now = window.now
    limit, scope = find_limit(window)
    process = now.process
    resident = _model_resident(window)
    anon = process.rss_anon_bytes if process else None
    cached = now.memory.cached_bytes if now.memory else None
    if scope != HOST:
        cached = _cgroup_cache(now)
    other = None if cached is None or resident is None else max(0, cached - resident)
    most = book.most_resident_bytes if book else None
    return Memory(
        limit_bytes=limit,
        limit_scope=scope,
        available_bytes=_available(now, limit, scope),
        free_bytes=now.memory.free_bytes if now.memory else None,
        target_anon_bytes=anon,
        target_rss_bytes=process.rss_bytes if process else None,
        model_resident_bytes=resident,
        model_lost_bytes=None if most is None or resident is None else max(0, most - resident),
        other_cache_bytes=other if residency.backend != "none" or resident is not None else None,
        swap_used_bytes=now.memory.swap_used_bytes if now.memory else None,
        grew=find_growth(window),
    )


def find_limit(window: Window) -> tuple[int | None, str | None]:
    """The memory that counts for the target, in bytes, and who sets it: `host` or the cgroup's name.

    A cgroup limit above the machine's RAM is none. The reading of this instant comes before the header's, for a limit
    can be moved while the server runs.
    """
    now, header = window.now, window.header
    ram = header.host.ram_bytes
    limit = now.cgroup.limit_bytes if now.cgroup else None
    if limit is None and (now.cgroup is None or now.cgroup.usage_bytes is None):
        limit = header.memory_limit_bytes
    if limit is None or (ram is not None and limit >= ram):
        return ram, None if ram is None else HOST
    return limit, header.memory_limit_scope or "a cgroup"


def find_growth(window: Window) -> tuple[Growth, ...]:
    """Other processes that hold more anonymous memory than at their least while we watched, the largest first."""
    lows = {low.pid: low for low in window.carried.others_low}
    grew = []
    for other in window.carried.others or ():
        low = lows.get(other.pid)
        if low is None or other.anon_bytes - low.anon_bytes < GREW_BYTES:
            continue
        grew.append(
            Growth(
                pid=other.pid,
                name=other.name,
                bytes=other.anon_bytes - low.anon_bytes,
                since_ns=low.mono_ns,
                since_wall_ns=low.wall_ns,
                anon_bytes=other.anon_bytes,
            )
        )
    return tuple(sorted(grew, key=lambda growth: (-growth.bytes, growth.pid))[:MAX_GREW])


def who_took(memory: Memory) -> Growth | None:
    """The process to name as the cause: the largest that grew, when all growth and the model's loss match within 20 %.

    One that grew by as much as the model lost is named even when others grew as well.
    """
    lost = memory.model_lost_bytes
    if not lost or not memory.grew:
        return None
    largest = memory.grew[0]
    together = sum(growth.bytes for growth in memory.grew)
    for taken in (largest.bytes, together):
        if abs(taken - lost) <= MATCH_RATIO * max(taken, lost):
            return largest
    return None


def _available(now: Sample, limit: int | None, scope: str | None) -> int | None:
    """What programs could still take without pushing the model out of reach of its limit."""
    machine = now.memory.available_bytes if now.memory else None
    cgroup = now.cgroup
    if scope in (HOST, None) or cgroup is None or limit is None or cgroup.usage_bytes is None:
        return machine
    # in a cgroup, as the kernel counts MemAvailable: what is free, and the cache that can be dropped
    inside = max(0, limit - cgroup.usage_bytes) + (_cgroup_cache(now) or 0)
    return inside if machine is None else min(inside, machine)


def _cgroup_cache(now: Sample) -> int | None:
    cgroup = now.cgroup
    if cgroup is None or cgroup.active_file_bytes is None or cgroup.inactive_file_bytes is None:
        return None
    return cgroup.active_file_bytes + cgroup.inactive_file_bytes


def _model_resident(window: Window) -> int | None:
    scan = window.carried.residency
    return scan.resident_bytes if scan else None
