import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from moewatch.domain.sample import Device, GapReason
from moewatch.linux.blockdev import FileDisks, disks_of
from moewatch.linux.disk import udev_properties
from moewatch.linux.mounts import parse_mountinfo
from moewatch.linux.root import KernelRoot, ReadingError
from tests.support.proctree import ProcTree


class OpenFile:
    """A real fd whose mount the tree invents."""

    def __init__(self, tree: ProcTree, fd: int) -> None:
        self.tree, self.fd = tree, fd

    def on(self, mount: str) -> FileDisks:
        """Its disks when mountinfo has these words for its mount: device, file system, source, options."""
        device, file_system, source, options = mount.split()
        self.tree.write(
            "/proc/self/mountinfo",
            f"1 0 0:99 / / rw - tmpfs none rw\n36 1 {device} / /models rw shared:7 - {file_system} {source} {options}\n",
        )
        self.tree.write(f"/proc/self/fdinfo/{self.fd}", "pos:\t0\nflags:\t0100000\nmnt_id:\t36\nino:\t5\n")
        return disks_of(self.tree.root, self.fd)


@pytest.fixture
def opened(tree: ProcTree, tmp_path: Path) -> Iterator[OpenFile]:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    yield OpenFile(tree, fd)
    os.close(fd)


def nvme(tree: ProcTree, name: str = "nvme0n1", number: str = "259:0") -> None:
    tree.disk(
        f"pci0000:00/0000:01:00.0/nvme/nvme0/{name}",
        number,
        queue__rotational="0",
        queue__read_ahead_kb="128",
        device__model="Samsung SSD 990 PRO 2TB   ",
    )


def test_a_disk_of_its_own(opened: OpenFile) -> None:
    nvme(opened.tree)
    found = opened.on("259:0 ext4 /dev/nvme0n1 rw")
    assert found.devices == (
        Device(
            name="nvme0n1",
            model="Samsung SSD 990 PRO 2TB",
            rotational=False,
            transport="nvme",
            read_ahead_bytes=128 << 10,
        ),
    )
    assert (found.file_system, found.detail, found.read_ahead_from, found.gaps) == ("ext4", "", "nvme0n1", ())


def test_a_partition_is_its_disk(opened: OpenFile) -> None:
    nvme(opened.tree)
    opened.tree.disk("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", "259:2", partition="2")
    found = opened.on("259:2 xfs /dev/nvme0n1p2 rw")
    assert [device.name for device in found.devices] == ["nvme0n1"]


def test_lvm_on_crypt_on_two_disks_counts_each_once(opened: OpenFile) -> None:
    """dm-1 (LVM) on dm-0 (crypt) on a partition of sda, and on sda and sdb themselves."""
    tree = opened.tree
    for letter, number in (("a", "8:0"), ("b", "8:16")):
        tree.disk(f"pci0/ata{number[2:]}/host/sd{letter}", number, queue__rotational="1", queue__read_ahead_kb="128")
    tree.disk("pci0/ata0/host/sda/sda3", "8:3", partition="3")
    tree.disk("virtual/block/dm-0", "253:0", dm__name="crypt").disk(
        "virtual/block/dm-1", "253:1", dm__name="vg-models", queue__read_ahead_kb="4096"
    )
    tree.link("/sys/devices/virtual/block/dm-0/slaves/sda3", "/sys/class/block/sda3")
    for slave in ("dm-0", "sda", "sdb"):
        tree.link(f"/sys/devices/virtual/block/dm-1/slaves/{slave}", f"/sys/class/block/{slave}")
    found = opened.on("253:1 ext4 /dev/mapper/vg-models rw")
    assert [device.name for device in found.devices] == ["sda", "sdb"]
    assert {device.transport for device in found.devices} == {"sata"}
    # the file system reads ahead as the topmost device says
    assert found.read_ahead_from == "dm-1"
    assert {device.read_ahead_bytes for device in found.devices} == {4 << 20}


def test_devices_that_stand_on_each_other_end(opened: OpenFile) -> None:
    tree = opened.tree
    tree.disk("virtual/block/dm-0", "253:0").disk("virtual/block/dm-1", "253:1")
    tree.link("/sys/devices/virtual/block/dm-0/slaves/dm-1", "/sys/class/block/dm-1")
    tree.link("/sys/devices/virtual/block/dm-1/slaves/dm-0", "/sys/class/block/dm-0")
    assert opened.on("253:0 ext4 /dev/dm-0 rw").devices == ()


def test_every_member_of_a_btrfs(opened: OpenFile) -> None:
    tree = opened.tree
    for letter, number in (("a", "8:0"), ("b", "8:16"), ("c", "8:32")):
        tree.disk(f"pci0/ata1/host/sd{letter}", number, queue__read_ahead_kb="128")
    tree.link("/sys/fs/btrfs/11-22/devices/sda", "/sys/class/block/sda")
    tree.link("/sys/fs/btrfs/11-22/devices/sdc", "/sys/class/block/sdc")
    tree.link("/sys/fs/btrfs/33-44/devices/sdb", "/sys/class/block/sdb")
    (tree.root.sys / "fs/btrfs/features").mkdir()
    found = opened.on("0:45 btrfs /dev/sda rw,subvol=/")
    assert [device.name for device in found.devices] == ["sda", "sdc"]
    assert found.read_ahead_from is None


def test_a_btrfs_on_a_mapped_device_is_found_by_the_mappers_name(opened: OpenFile) -> None:
    tree = opened.tree
    nvme(tree)
    tree.disk("virtual/block/dm-0", "253:0", dm__name="luks-models")
    tree.link("/sys/devices/virtual/block/dm-0/slaves/nvme0n1", "/sys/class/block/nvme0n1")
    tree.link("/sys/fs/btrfs/11-22/devices/dm-0", "/sys/class/block/dm-0")
    assert [each.name for each in opened.on("0:45 btrfs /dev/mapper/luks-models rw").devices] == ["nvme0n1"]


def test_a_loop_device_counts_itself_and_is_named_by_its_image(opened: OpenFile) -> None:
    opened.tree.disk(
        "virtual/block/loop3", "7:3", loop__backing_file="/srv/images/models.img", queue__read_ahead_kb="128"
    )
    (device,) = opened.on("7:3 ext4 /dev/loop3 rw").devices
    assert (device.name, device.model, device.transport) == ("loop3", "models.img", "loop")


def test_a_slash_in_the_name_is_an_exclamation_mark_in_sys(opened: OpenFile) -> None:
    opened.tree.disk("pci0/cciss!c0d0", "104:0", queue__rotational="1")
    (device,) = opened.on("104:0 ext3 /dev/cciss/c0d0 rw").devices
    assert (device.name, device.rotational) == ("cciss/c0d0", True)


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("0:50 zfs tank/models rw", "ARC"),
        ("0:50 9p share rw,trans=virtio", "host machine"),
        ("0:50 nfs4 server:/models rw", "another machine"),
        ("0:50 fuse.sshfs me@there:/ rw", "fuse"),
        ("0:50 tmpfs tmpfs rw", "memory"),
        ("0:50 overlay overlay rw,lowerdir=/none/a:/none/b,upperdir=/none/c", "overlay"),
        ("0:50 somefs none rw", "somefs"),
        ("8:99 ext4 /dev/sdz rw", "ext4"),
    ],
)
def test_no_disk_has_one_clear_sentence(opened: OpenFile, mount: str, words: str) -> None:
    found = opened.on(mount)
    assert found.devices == ()
    assert words in found.detail


def test_an_overlay_is_the_layer_below_it(opened: OpenFile, tmp_path: Path) -> None:
    nvme(opened.tree)
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "model.gguf").write_bytes(b"x")
    where = tmp_path / "model.gguf"
    opened.tree.write(
        "/proc/self/mountinfo",
        f"36 1 0:50 / {tmp_path} rw - overlay overlay rw,lowerdir=/none:{lower},upperdir=/none/up\n"
        f"37 1 259:0 / {lower} rw - ext4 /dev/nvme0n1 rw\n",
    )
    # the fd of the layer's file is not known beforehand, so its mount is found by the longest mount point
    found = disks_of(opened.tree.root, where)
    assert [device.name for device in found.devices] == ["nvme0n1"]
    assert found.file_system == "overlay on ext4"


def test_libudev_is_asked_and_its_absence_is_a_gap(opened: OpenFile) -> None:
    nvme(opened.tree)
    opened.on("259:0 ext4 /dev/nvme0n1 rw")

    def knows(name: str) -> Mapping[str, str]:
        assert name == "nvme0n1"
        return {"ID_MODEL": "WD_BLACK_SN850X", "ID_BUS": "nvme"}

    def is_missing(name: str) -> Mapping[str, str]:
        raise ReadingError(GapReason.ABSENT, f"libudev is not installed, so {name} is not known")

    (device,) = disks_of(opened.tree.root, opened.fd, udev=knows).devices
    assert device.model == "WD BLACK SN850X"
    found = disks_of(opened.tree.root, opened.fd, udev=is_missing)
    assert found.devices[0].model == "Samsung SSD 990 PRO 2TB"
    assert [(gap.field, gap.reason) for gap in found.gaps] == [("devices.nvme0n1.model", GapReason.ABSENT)]


def test_a_file_of_another_mount_namespace_is_found_by_its_pid(opened: OpenFile) -> None:
    nvme(opened.tree)
    opened.tree.write("/proc/self/mountinfo", "1 0 0:99 / / rw - tmpfs none rw\n")
    opened.tree.write(f"/proc/self/fdinfo/{opened.fd}", "mnt_id:\t700\n")
    assert disks_of(opened.tree.root, opened.fd).devices == ()
    opened.tree.write("/proc/9/mountinfo", "700 1 259:0 / /models rw - ext4 /dev/nvme0n1 rw\n")
    assert len(disks_of(opened.tree.root, opened.fd, pid=9).devices) == 1


def test_a_file_that_is_not_there(tree: ProcTree, tmp_path: Path) -> None:
    with pytest.raises(ReadingError) as caught:
        disks_of(tree.root, tmp_path / "none")
    assert caught.value.reason is GapReason.ABSENT


def test_without_mountinfo_nothing_is_claimed(tree: ProcTree, tmp_path: Path) -> None:
    found = disks_of(tree.root, tmp_path)
    assert found.devices == ()
    assert "mountinfo" in found.detail


def test_escapes_in_mountinfo() -> None:
    (mount,) = parse_mountinfo(rb"36 1 8:1 /a\040b /mnt/x\134y rw master:1 - ext4 /dev/a\011b rw,x=1\054 2" + b"\n")
    assert (mount.root, mount.point, mount.source) == ("/a b", "/mnt/x\\y", "/dev/a\tb")


def test_this_machines_files_are_on_a_disk_with_a_row(tmp_path: Path) -> None:
    """Against df, which asks by st_dev: they agree wherever st_dev is a disk."""
    root = KernelRoot.system()
    found = disks_of(root, tmp_path)
    device = tmp_path.stat().st_dev
    if os.major(device):
        assert found.devices
        rows = root.read("/proc/diskstats").split()
        assert all(each.name.encode() in rows for each in found.devices)
    else:
        assert found.detail or found.devices


def test_pyudev_knows_a_disk_of_this_machine() -> None:
    names = [name for name in KernelRoot.system().names("/sys/block") if not name.startswith(("loop", "ram", "zram"))]
    properties = udev_properties(names[0])
    assert properties["DEVTYPE"] == "disk"
    with pytest.raises(ReadingError):
        udev_properties("no-such-disk")
