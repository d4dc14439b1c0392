"""From a file to the disks under it, and what those disks are.

st_dev is anonymous on btrfs, overlayfs, zfs, fuse and nfs, so the way goes file -> mount -> super block -> block
device -> leaves: through device mapper, md and LVM by `slaves` (Documentation/ABI/testing/sysfs-block), through btrfs by
its list of members, from a partition to its disk. A loop device is a leaf: its own row in /proc/diskstats counts.
"""

import os

from msgspec import Struct

from moewatch.domain.sample import Device, Gap
from moewatch.linux.disk import UdevLookup, read_disk, udev_properties
from moewatch.linux.mounts import Mount, mount_of
from moewatch.linux.overlay import resolve_overlay
from moewatch.linux.root import KernelRoot, ReadingError, reading_error

DEVICES_LIMIT = 256  # leaves of one file system; a large ZFS-less array has 60
SLAVES_DEPTH = 16  # md on LVM on crypt on partition is 4
OVERLAY_DEPTH = 4  # the kernel allows overlays to be stacked twice

# Why a file system has no disk of its own, by name or by the name's beginning
_DISKLESS = {
    "zfs": "zfs keeps its own cache (ARC) and names no disks; use the process's own reads",
    "9p": "9p is a share of the host machine; its disk is not seen from here",
    "virtiofs": "virtiofs is a share of the host machine; its disk is not seen from here",
    "nfs": "the file is on another machine (nfs); this machine's disks do not read it",
    "cifs": "the file is on another machine (cifs); this machine's disks do not read it",
    "smb3": "the file is on another machine (smb3); this machine's disks do not read it",
    "ceph": "the file is on other machines (ceph); this machine's disks do not read it",
    "fuse": "a program of its own serves this file system (fuse); its disk cannot be told",
    "tmpfs": "tmpfs lives in memory and swap; no disk is read",
    "ramfs": "ramfs lives in memory; no disk is read",
    "overlay": "the layers of this overlay could not be opened, so its disk cannot be told",
}


class FileDisks(Struct, frozen=True, kw_only=True):
    """The disks whose rows in /proc/diskstats a file's reads appear in."""

    devices: tuple[Device, ...] = ()
    file_system: str = ""
    detail: str = ""  # one sentence: why there are no devices; "" when there are
    read_ahead_from: str | None = None  # whose read-ahead the file system uses: the topmost device, not always a disk
    gaps: tuple[Gap, ...] = ()  # what could not be told of the devices


def disks_of(
    root: KernelRoot,
    path_or_fd: str | os.PathLike[str] | int,
    *,
    pid: int | None = None,
    udev: UdevLookup | None = None,
) -> FileDisks:
    """The disks under one file; never raises for a file system without disks, ReadingError for a file that cannot be opened.

    `pid` is the process through whose /proc/PID/root the file was reached (taken from such a path by itself).
    """
    if isinstance(path_or_fd, int):
        return _disks_of_fd(root, path_or_fd, _path_of(path_or_fd), pid=pid, udev=udev, depth=OVERLAY_DEPTH)
    path = os.fspath(path_or_fd)
    return _disks_of_path(root, path, pid=_pid_in(path) if pid is None else pid, udev=udev, depth=OVERLAY_DEPTH)


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - text, as the kernel wrote it
    except OSError:
        return ""


def _pid_in(path: str) -> int | None:
    parts = path.split("/", 4)
    is_through = len(parts) > 3 and parts[1] == "proc" and parts[3] == "root"  # noqa: PLR2004 - /proc/PID/root
    return int(parts[2]) if is_through and parts[2].isdecimal() else None


def _disks_of_path(root: KernelRoot, path: str, *, pid: int | None, udev: UdevLookup | None, depth: int) -> FileDisks:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # needs no permission to read
    except (OSError, ValueError) as error:
        failed = error if isinstance(error, OSError) else OSError(0, "it is no path")
        raise reading_error(failed, path) from None
    try:
        return _disks_of_fd(root, fd, os.path.realpath(path), pid=pid, udev=udev, depth=depth)
    finally:
        os.close(fd)


def _disks_of_fd(
    root: KernelRoot, fd: int, path: str, *, pid: int | None, udev: UdevLookup | None, depth: int
) -> FileDisks:
    try:
        mount = mount_of(root, fd, path, pid)
    except ReadingError as error:
        return FileDisks(detail=error.detail)
    if mount is None:
        return FileDisks(detail="the file's mount is not among those this process can see, so its disk cannot be told")
    if mount.file_system == "overlay" and depth > 0:
        for real in resolve_overlay(mount, path, pid):
            try:
                found = _disks_of_path(root, real, pid=pid, udev=udev, depth=depth - 1)
            except ReadingError:
                continue
            return FileDisks(
                devices=found.devices,
                file_system=f"overlay on {found.file_system}",
                detail=found.detail,
                read_ahead_from=found.read_ahead_from,
                gaps=found.gaps,
            )
    return _disks_of_mount(root, mount, udev)


def _disks_of_mount(root: KernelRoot, mount: Mount, udev: UdevLookup | None) -> FileDisks:
    top = _super_block_devices(root, mount)
    leaves: dict[str, str] = {}  # directory in /sys by name, each once
    for directory in top:
        _collect_leaves(root, directory, leaves, SLAVES_DEPTH)
    if not leaves:
        return FileDisks(file_system=mount.file_system, detail=_why_no_disk(mount))
    # The file system reads ahead as its own super block's device says; a disk below dm or md may say otherwise
    ruling = _whole_disk(root, top[0]) if len(top) == 1 else None
    lookup = udev or (udev_properties if root.is_system else None)
    gaps: list[Gap] = []
    devices = tuple(read_disk(root, each, lookup, gaps, ruling=ruling) for each in leaves.values())
    return FileDisks(
        devices=devices,
        file_system=mount.file_system,
        read_ahead_from=_name_of(ruling) if ruling else None,
        gaps=tuple(gaps),
    )


def _why_no_disk(mount: Mount) -> str:
    for name, detail in _DISKLESS.items():
        if mount.file_system == name or (name in ("fuse", "nfs") and mount.file_system.startswith(name)):
            return detail
    return f"no disk is known under this file system ({mount.file_system})"


def _super_block_devices(root: KernelRoot, mount: Mount) -> list[str]:
    """Directories in /sys of the block devices that the file system itself lies on."""
    if mount.device[0] != 0:
        directory = f"/sys/dev/block/{mount.device[0]}:{mount.device[1]}"
        return [directory] if root.exists(directory) else []
    if mount.file_system == "btrfs":
        return _btrfs_members(root, mount)
    # bcachefs and others with an anonymous super block name their devices as the source, joined by colons
    named = [_device_named(root, each) for each in mount.source.split(":") if each.startswith("/dev/")]
    return [each for each in named if each is not None]


def _btrfs_members(root: KernelRoot, mount: Mount) -> list[str]:
    """All members of the btrfs that the mount's source belongs to."""
    source = _device_named(root, mount.source)
    try:
        for uuid in root.names("/sys/fs/btrfs", DEVICES_LIMIT):
            members = f"/sys/fs/btrfs/{uuid}/devices"
            names = root.names(members, DEVICES_LIMIT) if root.exists(members) else []
            if source is not None and _name_of(source) in names:
                return [f"/sys/class/block/{name}" for name in names]
    except ReadingError:
        pass  # an old kernel without that tree: the source alone is better than nothing
    return [source] if source is not None else []


def _device_named(root: KernelRoot, source: str) -> str | None:
    """/sys/class/block directory of /dev/NAME, also of /dev/mapper/NAME and other links."""
    name = os.path.basename(source)  # noqa: PTH119 - text
    if root.exists(f"/sys/class/block/{name}"):
        return f"/sys/class/block/{name}"
    try:
        for each in root.names("/sys/class/block"):
            if each.startswith("dm-") and root.read_text(f"/sys/class/block/{each}/dm/name") == name:
                return f"/sys/class/block/{each}"
    except ReadingError:
        return None
    real = os.path.basename(os.path.realpath(source))  # noqa: PTH119 - links such as /dev/disk/by-uuid
    return f"/sys/class/block/{real}" if root.exists(f"/sys/class/block/{real}") else None


def _real(root: KernelRoot, directory: str) -> str:
    """The directory without links, still in this tree."""
    return os.path.realpath(root.locate(directory))


def _name_of(directory: str) -> str:
    return os.path.basename(directory)  # noqa: PTH119 - text


def _whole_disk(root: KernelRoot, directory: str) -> str:
    """The disk of a partition; anything else is itself."""
    real = _real(root, directory)
    return os.path.dirname(real) if root.exists(real + "/partition") else real  # noqa: PTH120 - text


def _collect_leaves(root: KernelRoot, directory: str, leaves: dict[str, str], depth: int) -> None:
    real = _whole_disk(root, directory)
    if depth == 0 or len(leaves) >= DEVICES_LIMIT or not root.exists(real):
        return
    try:
        slaves = root.names(real + "/slaves", DEVICES_LIMIT)
    except ReadingError:
        slaves = []
    for slave in slaves:
        _collect_leaves(root, f"{real}/slaves/{slave}", leaves, depth - 1)
    if not slaves:
        leaves[_name_of(real)] = real
