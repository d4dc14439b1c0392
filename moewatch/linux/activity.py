"""Whether any page of any file came into memory or left it: /proc/vmstat's word for the whole machine.

Asking what of a file is cached costs time for every folio; that nothing at all moved is known for 20 us. Pages come in
from a disk (`pgpgin`) and leave by reclaim (`pgsteal_file`, cgroups included: mm/vmscan.c, shrink_inactive_list). What
moves otherwise (network file systems, DONTNEED, PAGEOUT, truncation) changes the level `nr_file_pages`, which the kernel
brings up to date once a second (vm.stat_interval): seen two seconds later at most.
"""

import re

from msgspec import Struct

from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.units import KIB

_WANTED = re.compile(rb"^(nr_file_pages|pgpgin|pgsteal_file) (\d+)$", re.MULTILINE)
_N_WANTED = 3


class Level(Struct, frozen=True, kw_only=True):
    """The machine's counters at one moment, in bytes."""

    read_in: int
    reclaimed: int
    file_cache: int

    def moved_bytes(self, since: "Level") -> int:
        """At most so much of any file came or left; a counter that went back counts as movement, too."""
        return (
            abs(self.read_in - since.read_in)
            + abs(self.reclaimed - since.reclaimed)
            + abs(self.file_cache - since.file_cache)
        )


def parse_level(content: bytes, page_bytes: int) -> Level | None:
    """None on kernels that lack one of the three (pgsteal_file is of Linux 5.8): then nothing can be said."""
    found = {key: int(value) for key, value in _WANTED.findall(content)}
    if len(found) < _N_WANTED:
        return None
    return Level(
        read_in=found[b"pgpgin"] * KIB,
        reclaimed=found[b"pgsteal_file"] * page_bytes,
        file_cache=found[b"nr_file_pages"] * page_bytes,
    )


class FileCacheActivity:
    """Reads the level of one machine."""

    def __init__(self, root: KernelRoot) -> None:
        self._root = root

    def read(self) -> Level | None:
        """The level now; None where the kernel does not say."""
        try:
            return parse_level(self._root.read("/proc/vmstat"), self._root.page_bytes)
        except ReadingError:
            return None
