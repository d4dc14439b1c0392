"""/proc/PID/maps: which files a process has mapped, and where (proc_pid_maps(5))."""

import os
import re

from msgspec import Struct

from moewatch.errors import ParseError
from moewatch.linux.root import KernelRoot

MAPS_LIMIT_BYTES = 16 << 20  # vm.max_map_count is 65,530 by default: 7 MiB of lines

# device numbers have 12 and 20 bits (include/linux/kdev_t.h)
_LINE = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([-rwxsp]{4}) ([0-9a-f]{1,16}) ([0-9a-f]{1,3}):([0-9a-f]{1,5}) (\d{1,20}) *(.*)"
)
_DELETED = b" (deleted)"


class Mapping(Struct, frozen=True, kw_only=True):
    """One line: `[start, end)` in the process, `offset` in the file, all in bytes."""

    start: int
    end: int
    perms: str
    offset: int
    dev: int  # as st_dev; on btrfs and overlayfs it differs from what stat(2) says, so compare inodes and names as well
    inode: int
    path: str  # "" for anonymous memory; "[heap]", "[stack]" and the like
    deleted: bool

    @property
    def length(self) -> int:
        """Bytes mapped."""
        return self.end - self.start


def parse_maps(content: bytes) -> list[Mapping]:
    """All mappings, in address order; ParseError for a line that is none."""
    return [_parse_line(line) for line in content.split(b"\n") if line]


def read_maps(root: KernelRoot, pid: int) -> list[Mapping]:
    """Of one process; another user's maps are denied (ReadingError)."""
    return root.parse(f"/proc/{pid}/maps", parse_maps, MAPS_LIMIT_BYTES)


def _parse_line(line: bytes) -> Mapping:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ParseError(f"{line[:80]!r} is no mapping")
    path = found[8]
    # a file that was unlinked keeps its mapping; a living file whose name ends in " (deleted)" cannot be told apart
    deleted = path.startswith(b"/") and path.endswith(_DELETED)
    if deleted:
        path = path.removesuffix(_DELETED)
    # of all characters the kernel escapes only the newline; a backslash in a name stays as it is
    path = path.replace(b"\\012", b"\n")
    return Mapping(
        start=int(found[1], 16),
        end=int(found[2], 16),
        perms=found[3].decode(),
        offset=int(found[4], 16),
        dev=os.makedev(int(found[5], 16), int(found[6], 16)),
        inode=int(found[7]),
        path=os.fsdecode(path),
        deleted=deleted,
    )
