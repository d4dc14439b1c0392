"""/proc/PID/mountinfo and /proc/self/fdinfo: which file system a file lies on (proc_pid_mountinfo(5))."""

import contextlib
import os
import re

from msgspec import Struct

from moewatch.errors import ParseError
from moewatch.linux.root import KernelRoot, ReadingError, parse_count

MOUNTINFO_LIMIT_BYTES = 8 << 20  # fs.mount-max is 100,000; container hosts have 5,000 lines of 200 bytes

_ESCAPE = re.compile(rb"\\([0-7]{3})")
_FIELDS_BEFORE_OPTIONAL = 6
_FIELDS_AFTER_DASH = 3


class Mount(Struct, frozen=True, kw_only=True):
    """One line of mountinfo."""

    mount_id: int
    device: tuple[int, int]  # (major, minor) of the super block; major 0 where no block device is behind it
    root: str  # what of the file system is mounted here; not "/" for bind mounts and in containers
    point: str
    file_system: str
    source: str
    options: tuple[str, ...]  # of the super block

    def option(self, name: str) -> str | None:
        """The value of `name=value` among the options."""
        return next((each[len(name) + 1 :] for each in self.options if each.startswith(name + "=")), None)


def parse_mountinfo(content: bytes) -> list[Mount]:
    """All mounts, the last mounted last; ParseError for a line that is none."""
    return [_parse_line(line) for line in content.split(b"\n") if line]


def parse_mnt_id(content: bytes) -> int:
    """`mnt_id` of /proc/PID/fdinfo/FD (Linux 3.15)."""
    for line in content.split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"mnt_id":
            return parse_count(value.strip())
    raise ParseError("it has no mnt_id")


def read_mounts(root: KernelRoot, pid: int | None = None) -> list[Mount]:
    """Of our own mount namespace, or of a process's."""
    return root.parse(f"/proc/{pid or 'self'}/mountinfo", parse_mountinfo, MOUNTINFO_LIMIT_BYTES)


def mount_of(root: KernelRoot, fd: int, path: str, pid: int | None = None) -> Mount | None:
    """The mount that an open file was reached through; None when it cannot be told.

    st_dev says nothing on btrfs, overlayfs, zfs, fuse and nfs, so the mount's id decides; where that is not to be had,
    the longest mount point above `path`. A file reached through /proc/PID/root lies in that process's mount namespace:
    give its `pid`.
    """
    mounts = read_mounts(root)
    if pid is not None:
        with contextlib.suppress(ReadingError):  # another user's: our own mounts are all we know
            mounts = mounts + read_mounts(root, pid)
    try:
        mount_id = root.parse(f"/proc/self/fdinfo/{fd}", parse_mnt_id)
    except ReadingError:
        above = [each for each in mounts if _is_above(each.point, path)]
        return max(above, key=lambda each: len(each.point), default=None)
    return next((each for each in mounts if each.mount_id == mount_id), None)


def _is_above(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _parse_line(line: bytes) -> Mount:
    fields = line.split(b" ")
    try:
        dash = fields.index(b"-", _FIELDS_BEFORE_OPTIONAL)
    except ValueError:
        raise ParseError(f"{line[:80]!r} is no mount") from None
    major, _, minor = fields[2].partition(b":")
    after = fields[dash + 1 :]
    if len(after) < _FIELDS_AFTER_DASH:
        raise ParseError(f"{line[:80]!r} is no mount")
    return Mount(
        mount_id=parse_count(fields[0]),
        device=(parse_count(major), parse_count(minor)),
        root=_text(fields[3]),
        point=_text(fields[4]),
        file_system=_text(after[0]),
        source=_text(after[1]),
        # options are joined by commas; a comma inside a value is escaped, so unescape after the split
        options=tuple(_text(each) for each in after[2].split(b",")),
    )


def _text(field: bytes) -> str:
    r"""Undo the octal escapes of space, tab, newline and backslash."""
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), field))
