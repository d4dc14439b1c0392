"""Drop a model's files from memory, for experiments: its own files, nobody else's, and only when no process maps them."""

import os

from moewatch.domain.layout import ModelLayout
from moewatch.errors import ForbiddenError
from moewatch.linux.others import readers_of
from moewatch.linux.pagecache import open_for_asking
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.server.discovery import read_mapped_ranges


def who_maps(layout: ModelLayout) -> tuple[int, ...]:
    """Processes that map one of the files; their pages cannot be dropped (posix_fadvise(2))."""
    root = KernelRoot.system()
    found = []
    for pid in readers_of(root, layout.paths):
        try:
            if any(read_mapped_ranges(root, pid, layout.paths).values()):
                found.append(pid)
        except ReadingError:
            continue
    return tuple(found)


def evict(layout: ModelLayout) -> None:
    """POSIX_FADV_DONTNEED on all of each file; it leaves no shadow entries: the next read counts as the first.

    Raises:
        ForbiddenError: a file belongs to someone else.
    """
    fds: list[int] = []
    try:
        for path, file in zip(layout.paths, layout.files, strict=True):
            try:
                fds.append(open_for_asking(path))
            except ReadingError as error:
                raise ForbiddenError(f"{error.detail}.") from None
            if os.geteuid() not in (0, os.fstat(fds[-1]).st_uid):
                raise ForbiddenError(f"{file.name} belongs to another user; only its owner may drop it from memory.")
        for fd in fds:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        for fd in fds:
            os.close(fd)
