"""What a disk is: model, transport, rotation, read-ahead, from libudev where it can be had and from /sys."""

import os
from collections.abc import Callable, Mapping

from moewatch.domain.sample import Device, Gap, GapReason
from moewatch.linux.root import KernelRoot, ReadingError, parse_count

UdevLookup = Callable[[str], Mapping[str, str]]
"""Properties of a block device by name in /sys/block; raises ReadingError when libudev cannot be had."""


def udev_properties(name: str) -> Mapping[str, str]:
    """What libudev knows of a block device; without udevd only what the kernel says. 0.5 ms, so once per device."""
    try:
        import pyudev  # noqa: PLC0415 - 19 ms and 5 MiB, and libudev may be missing

        context = pyudev.Context()  # type: ignore[no-untyped-call]  # pyudev has no types
        device = pyudev.Devices.from_name(context, "block", name)  # type: ignore[no-untyped-call]  # the same
        return {str(key): str(value) for key, value in device.properties.items()}
    except ImportError as error:
        raise ReadingError(GapReason.ABSENT, f"libudev is not installed ({error})") from None
    except Exception as error:  # noqa: BLE001 - pyudev's errors are not one tree, and a disk's model is worth no crash
        raise ReadingError(GapReason.UNSUPPORTED, f"libudev knows nothing of {name} ({error})") from None


def read_disk(
    root: KernelRoot, directory: str, lookup: UdevLookup | None, gaps: list[Gap], *, ruling: str | None = None
) -> Device:
    """Describe the disk whose directory in /sys (without links) is given.

    `ruling` is the directory of the device whose read-ahead applies (dm and md have their own); the disk itself by
    default. What libudev does not tell is taken from /sys, and a Gap says so.
    """
    name = os.path.basename(directory)  # noqa: PTH119 - text
    properties: Mapping[str, str] = {}
    is_loop = root.exists(f"{directory}/loop/backing_file")
    if lookup is not None and not is_loop:
        try:
            properties = lookup(name)
        except ReadingError as error:
            gaps.append(error.gap(f"devices.{name}.model"))
    if is_loop:
        model = os.path.basename(_attribute(root, f"{directory}/loop/backing_file") or "") or None  # noqa: PTH119 - text
    else:
        model = properties.get("ID_MODEL", "").replace("_", " ").strip() or _attribute(
            root, f"{directory}/device/model"
        )
    rotational = _attribute(root, f"{directory}/queue/rotational")
    return Device(
        name=name.replace("!", "/"),  # /sys writes cciss!c0d0 for what /proc/diskstats calls cciss/c0d0
        model=model,
        rotational=None if rotational is None else rotational == "1",
        transport="loop" if is_loop else properties.get("ID_BUS") or _transport_of(directory),
        read_ahead_bytes=_read_ahead_bytes(root, ruling or directory),
    )


def _attribute(root: KernelRoot, path: str) -> str | None:
    try:
        return root.read_text(path) or None
    except ReadingError:
        return None


def _read_ahead_bytes(root: KernelRoot, directory: str) -> int | None:
    try:
        return root.parse(f"{directory}/queue/read_ahead_kb", lambda content: parse_count(content.strip(), 1024))
    except ReadingError:
        return None


def _transport_of(directory: str) -> str | None:
    """From the bus in the device's path: /sys/devices/pci.../nvme/nvme0/nvme0n1, .../ata1/..., .../usb2/..."""
    for part in directory.split("/"):
        if part.startswith("virtio") and part != "virtio":
            return "virtio"
        if part in ("nvme", "nvme-subsystem"):
            return "nvme"
        if part.startswith("mmc"):
            return "mmc"
        if part.startswith("usb") and part[3:].isdecimal():
            return "usb"
        if part.startswith("ata") and part[3:].isdecimal():
            return "sata"
    return None
