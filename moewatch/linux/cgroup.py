"""The target's memory cgroup, v1, v2 or hybrid: where it is, what limits it, what it counts.

Sources: cgroups(7), Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the kernel. Version 1 was
verified on a real kernel; version 2 only against files written after the kernel's documentation.
"""

import os

from msgspec import Struct

from moewatch.domain.sample import CgroupReading, GapReason
from moewatch.linux.mounts import Mount, read_mounts
from moewatch.linux.root import KernelRoot, ReadingError, parse_count, parse_keyed

# Version 1 writes "no limit" as LONG_MAX rounded down to a page: 0x7ffffffffffff000, with 64 KiB pages
# 0x7fffffffffff0000; no machine has 2^62 bytes.
UNLIMITED_BYTES = 1 << 62
DEPTH_LIMIT = 64  # Kubernetes nests 6 deep, systemd 5
OUTER_NAME = "outer cgroup"  # sets a limit, but is not visible from here (a container's mount ends below it)
CONTAINER_NAME = "container"  # the topmost cgroup that is visible here, when its own name is hidden by a namespace

_V1_STAT = dict.fromkeys(
    (
        b"total_rss",
        b"total_inactive_file",
        b"total_active_file",
        b"total_pgmajfault",
        b"total_workingset_refault_file",
        b"total_workingset_refault",
        b"hierarchical_memory_limit",
    ),
    1,
)
_V2_STAT = dict.fromkeys(
    (
        b"anon",
        b"inactive_file",
        b"active_file",
        b"pgmajfault",
        b"workingset_refault_file",
        b"workingset_refault",
    ),
    1,
)


class CgroupPaths(Struct, frozen=True, kw_only=True):
    """Where the files of a process's memory cgroup are."""

    version: int  # 1 or 2: of the memory controller
    directories: tuple[str, ...]  # its own first, then each above it up to the mount's root
    root_name: str  # what to call the last of them
    pressure_directory: str | None = None  # of version 2, also beside a version 1 controller; None at the root

    def name_of(self, directory: str) -> str:
        """Last component of the cgroup's path."""
        return self.root_name if directory == self.directories[-1] else os.path.basename(directory)  # noqa: PTH119 - text


def parse_membership(content: bytes) -> dict[str, str]:
    """/proc/PID/cgroup: path by controller name; the unified hierarchy's under the name ""."""
    found: dict[str, str] = {}
    for line in content.split(b"\n"):
        fields = line.split(b":", 2)  # the path itself may hold colons
        if len(fields) == 3:  # noqa: PLR2004 - id, controllers, path
            path = os.fsdecode(fields[2])
            for controller in fields[1].decode(errors="replace").split(","):
                found.setdefault(controller, path)
    return found


def locate(root: KernelRoot, pid: int) -> CgroupPaths | None:
    """The memory cgroup of a process; None when there is none to be seen from here."""
    try:
        paths = root.parse(f"/proc/{pid}/cgroup", parse_membership)
        mounts = read_mounts(root)
    except ReadingError:
        return None
    v1 = next((each for each in mounts if each.file_system == "cgroup" and "memory" in each.options), None)
    v2 = next((each for each in mounts if each.file_system == "cgroup2"), None)
    unified = _directories(root, v2, paths[""]) if v2 and "" in paths else ()
    pressure = unified[0] if len(unified) > 1 else None
    if v1 and "memory" in paths and (directories := _directories(root, v1, paths["memory"])):
        name = _root_name(v1)
        return CgroupPaths(version=1, directories=directories, root_name=name, pressure_directory=pressure)
    if v2 and unified and _has_memory(root, unified):
        return CgroupPaths(version=2, directories=unified, root_name=_root_name(v2), pressure_directory=pressure)
    return None


def tightest_limit(root: KernelRoot, paths: CgroupPaths) -> tuple[int | None, str | None]:
    """(bytes, name of the cgroup that sets it): the least of all limits on the way up; (None, None) without any."""
    files = ("memory.limit_in_bytes",) if paths.version == 1 else ("memory.max", "memory.high")
    limits = [
        (limit, paths.name_of(directory))
        for directory in paths.directories
        for file in files
        if (limit := _read_limit(root, f"{directory}/{file}")) is not None
    ]
    if paths.version == 1:
        outer = _read_stat(root, paths).get(b"hierarchical_memory_limit", UNLIMITED_BYTES)
        if outer < min((limit for limit, _ in limits), default=UNLIMITED_BYTES):
            limits.append((outer, OUTER_NAME))
    return min(limits, key=lambda each: each[0], default=(None, None))


def read_cgroup(root: KernelRoot, paths: CgroupPaths) -> CgroupReading:
    """Limit, usage and counters, descendants included; what a kernel or the root cgroup lacks is None.

    ReadingError when nothing at all can be read (the cgroup was removed).
    """
    own = paths.directories[0]
    stat = _read_stat(root, paths)
    usage = _read_usage(root, f"{own}/{'memory.usage_in_bytes' if paths.version == 1 else 'memory.current'}")
    if not stat and usage is None:
        reason = GapReason.ABSENT if root.exists(own) else GapReason.VANISHED
        raise ReadingError(reason, f"the cgroup {own} has no memory counters")
    prefix = b"total_" if paths.version == 1 else b""
    refault = prefix + b"workingset_refault"
    return CgroupReading(
        limit_bytes=tightest_limit(root, paths)[0],
        usage_bytes=usage,
        inactive_file_bytes=stat.get(prefix + b"inactive_file"),
        active_file_bytes=stat.get(prefix + b"active_file"),
        anon_bytes=stat.get(b"total_rss" if paths.version == 1 else b"anon"),
        pgmajfault_total=stat.get(prefix + b"pgmajfault"),
        # before Linux 5.9 there was no _file: all refaults were of files
        workingset_refault_file_total=stat.get(refault + b"_file", stat.get(refault)),
    )


def _directories(root: KernelRoot, mount: Mount, path: str) -> tuple[str, ...]:
    """The cgroup's directory and those above it. The mount may show only a part of the hierarchy (containers)."""
    if ".." in path.split("/"):
        return ()  # outside of our cgroup namespace
    inside = path
    if mount.root != "/" and (path + "/").startswith(mount.root + "/"):
        inside = path[len(mount.root) :]
    own = (mount.point + "/" + inside.strip("/")).rstrip("/")
    if not root.exists(own):
        return ()
    directories = [own]
    while directories[-1] != mount.point and len(directories) < DEPTH_LIMIT:
        directories.append(os.path.dirname(directories[-1]))  # noqa: PTH120 - text, never resolved
    return tuple(directories)


def _root_name(mount: Mount) -> str:
    return mount.root.rpartition("/")[2] or CONTAINER_NAME


def _has_memory(root: KernelRoot, directories: tuple[str, ...]) -> bool:
    """Whether version 2 has the memory controller here; beside version 1 it has not."""
    if len(directories) > 1:
        return any(root.exists(f"{directory}/memory.max") for directory in directories)
    return root.exists(f"{directories[0]}/memory.stat")


def _read_limit(root: KernelRoot, path: str) -> int | None:
    """Bytes, or None for no limit and for a file that is not there (root cgroups have none)."""
    try:
        text = root.read(path, 64).strip()
    except ReadingError:
        return None
    if not text.isdigit():
        return None  # "max"
    limit = int(text)
    return limit if limit < UNLIMITED_BYTES else None


def _read_usage(root: KernelRoot, path: str) -> int | None:
    try:
        return root.parse(path, lambda content: parse_count(content.strip()), 64)
    except ReadingError:
        return None


def _read_stat(root: KernelRoot, paths: CgroupPaths) -> dict[bytes, int]:
    wanted = _V1_STAT if paths.version == 1 else _V2_STAT
    try:
        return root.parse(f"{paths.directories[0]}/memory.stat", lambda content: parse_keyed(content, wanted))
    except ReadingError:
        return {}
