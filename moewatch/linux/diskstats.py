"""/proc/diskstats: what each disk has read (Documentation/admin-guide/iostats.rst of the kernel)."""

from collections.abc import Iterable

from moewatch.domain.sample import DeviceReading
from moewatch.linux.root import KernelRoot, parse_count

SECTOR_BYTES = 512  # whatever the disk's own block size: iostats.rst, field 3
NS_PER_MS = 1_000_000

_FIELDS_MIN = 14  # Linux 2.6: 14; 4.18 adds discards: 18; 5.5 adds flushes: 20


def parse_diskstats(content: bytes) -> dict[str, DeviceReading]:
    """Every row by device name; rows with fewer than 14 fields (partitions of old kernels) are skipped."""
    rows: dict[str, DeviceReading] = {}
    for line in content.splitlines():
        fields = line.split()
        if len(fields) < _FIELDS_MIN:
            continue
        rows[fields[2].decode(errors="replace")] = DeviceReading(
            reads_total=parse_count(fields[3]),
            read_bytes_total=parse_count(fields[5], SECTOR_BYTES),
            read_ns_total=parse_count(fields[6], NS_PER_MS),
            busy_ns_total=parse_count(fields[12], NS_PER_MS),
        )
    return rows


def read_diskstats(root: KernelRoot, names: Iterable[str]) -> dict[str, DeviceReading]:
    """The rows of these devices; one without a row is missing in the answer."""
    rows = root.parse("/proc/diskstats", parse_diskstats)
    return {name: rows[name] for name in names if name in rows}
