"""The other processes of the machine: who took the memory, and who else reads the model's files."""

import os
from collections.abc import Collection, Sequence
from heapq import nlargest

from moewatch.domain.sample import OtherProcess
from moewatch.errors import ParseError, TargetEndedError
from moewatch.linux.maps import read_maps
from moewatch.linux.pid import read_read_bytes, read_stat
from moewatch.linux.root import KernelRoot, ReadingError, parse_count

PROCESSES_LIMIT = 4096  # 16 us each: 65 ms at worst, every ten seconds
FDS_LIMIT = 4096  # of one process; llama-server has 50, a database a thousand
READER_MIN_BYTES = 16 << 20  # a process with less address space maps no model; spares 250 us for most of them


def parse_statm(content: bytes) -> tuple[int, int, int]:
    """(address space, resident, of these of files or shared) in pages (proc_pid_statm(5))."""
    fields = content.split()
    if len(fields) < 3:  # noqa: PLR2004 - size, resident, shared
        raise ParseError("it is no statm line")
    return parse_count(fields[0]), parse_count(fields[1]), parse_count(fields[2])


def read_others(root: KernelRoot, own_pids: Collection[int] = (), top: int = 8) -> tuple[OtherProcess, ...]:
    """The `top` processes with the most anonymous memory, largest first, without `own_pids` and this one.

    statm is open to everyone and cheap: resident less shared is RssAnon. Swapped memory is not in it.
    """
    skipped = {*own_pids, os.getpid()}
    sizes = [
        (anon_bytes, pid)
        for pid in root.pids(PROCESSES_LIMIT)
        if pid not in skipped and (anon_bytes := _anon_bytes(root, pid)) > 0
    ]
    found = (_describe(root, pid, anon_bytes) for anon_bytes, pid in nlargest(top, sizes))
    return tuple(each for each in found if each is not None)


def readers_of(root: KernelRoot, paths: Sequence[str | os.PathLike[str]]) -> tuple[int, ...]:
    """Processes that map or hold open one of these files, ascending, without this one; other users' are not seen.

    Slow (0.3 ms for each process of some size): for every half minute, not for every sample.
    """
    files: set[tuple[int, int]] = set()
    for path in paths:
        try:
            about = os.stat(path)  # noqa: PTH116 - the files are the machine's, not of the tree
        except OSError:
            continue
        files.add((about.st_dev, about.st_ino))
    names = {os.path.basename(path) for path in paths}  # noqa: PTH119 - text
    own = os.getpid()
    return tuple(
        pid
        for pid in root.pids(PROCESSES_LIMIT)
        if pid != own and (size := _address_space(root, pid)) and _reads(root, pid, size, files, names)
    )


def _reads(root: KernelRoot, pid: int, size: int, files: set[tuple[int, int]], names: set[str]) -> bool:
    return _has_open(root, pid, files, names) or (size >= READER_MIN_BYTES and _has_mapped(root, pid, files, names))


def _has_open(root: KernelRoot, pid: int, files: set[tuple[int, int]], names: set[str]) -> bool:
    try:
        fds = root.names(f"/proc/{pid}/fd", FDS_LIMIT)
    except ReadingError:
        return False
    for fd in fds:
        link = f"/proc/{pid}/fd/{fd}"
        try:
            # the name first: asking for the identity of a file on a dead network mount would hang
            if os.path.basename(root.link(link)) in names:  # noqa: PTH119 - text
                about = os.stat(root.locate(link))  # noqa: PTH116 - through the link, to what is open
                if (about.st_dev, about.st_ino) in files:
                    return True
        except (ReadingError, OSError):
            continue
    return False


def _has_mapped(root: KernelRoot, pid: int, files: set[tuple[int, int]], names: set[str]) -> bool:
    """By inode, and device or name: on btrfs and overlayfs maps shows another device than stat(2)."""
    try:
        mappings = read_maps(root, pid)
    except ReadingError:
        return False
    inodes = {inode for _, inode in files}
    return any(
        each.inode in inodes and ((each.dev, each.inode) in files or os.path.basename(each.path) in names)  # noqa: PTH119 - text
        for each in mappings
    )


def _anon_bytes(root: KernelRoot, pid: int) -> int:
    """0 for a process that ended meanwhile and for kernel threads."""
    try:
        _, resident, shared = root.parse(f"/proc/{pid}/statm", parse_statm, 256)
    except ReadingError:
        return 0
    return max(0, resident - shared) * root.page_bytes


def _address_space(root: KernelRoot, pid: int) -> int:
    try:
        return root.parse(f"/proc/{pid}/statm", parse_statm, 256)[0] * root.page_bytes
    except ReadingError:
        return 0


def _describe(root: KernelRoot, pid: int, anon_bytes: int) -> OtherProcess | None:
    try:
        name = read_stat(root, pid).comm
    except (ReadingError, TargetEndedError):
        return None
    try:
        read_bytes = read_read_bytes(root, pid)
    except ReadingError:
        read_bytes = None
    return OtherProcess(pid=pid, name=name, anon_bytes=anon_bytes, read_bytes_total=read_bytes)
