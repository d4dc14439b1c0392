"""/proc/meminfo: the machine's memory (proc_meminfo(5)); "kB" there means KiB."""

from moewatch.domain.sample import MemoryReading
from moewatch.errors import ParseError
from moewatch.linux.root import KernelRoot, ReadingError, parse_keyed

_KEYS = (b"MemTotal", b"MemFree", b"MemAvailable", b"Cached", b"SwapTotal", b"SwapFree")
_WANTED = dict.fromkeys(_KEYS, 1024)


def parse_memory(content: bytes) -> MemoryReading:
    """In bytes; `MemAvailable` is the kernel's own estimate of what can be had without swapping."""
    found = parse_keyed(content, _WANTED)
    if not found:
        raise ParseError("it has none of the known lines")
    total, free = found.get(b"SwapTotal"), found.get(b"SwapFree")
    return MemoryReading(
        available_bytes=found.get(b"MemAvailable"),
        free_bytes=found.get(b"MemFree"),
        cached_bytes=found.get(b"Cached"),
        swap_used_bytes=max(0, total - free) if total is not None and free is not None else None,
    )


def parse_ram_bytes(content: bytes) -> int:
    """`MemTotal`: memory less what the firmware and the kernel's own code keep."""
    found = parse_keyed(content, _WANTED)
    if b"MemTotal" not in found:
        raise ParseError("it has no MemTotal")
    return found[b"MemTotal"]


def read_memory(root: KernelRoot) -> MemoryReading:
    """The machine's memory now."""
    return root.parse("/proc/meminfo", parse_memory)


def read_ram_bytes(root: KernelRoot) -> int:
    """How much memory the machine has."""
    return root.parse("/proc/meminfo", parse_ram_bytes)


def read_swap_bytes(root: KernelRoot) -> int | None:
    """How much swap the machine has; None when it does not say."""
    try:
        return parse_keyed(root.read("/proc/meminfo"), _WANTED).get(b"SwapTotal")
    except (ReadingError, ParseError):
        return None
