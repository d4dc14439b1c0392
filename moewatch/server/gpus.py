"""The machine's GPUs and their memory, by whoever knows: llama-server itself, NVIDIA's library, the kernel's files."""

import re
from collections.abc import Sequence
from pathlib import Path

from moewatch.domain.estimate import Gpu
from moewatch.linux.root import KernelRoot, ReadingError, parse_count
from moewatch.units import MIB

# "  Vulkan0: NVIDIA GeForce RTX 3060 (12288 MiB, 11800 MiB free)": `llama-server --list-devices`
_DEVICE = re.compile(r"\s+(\w+): (.+) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)")
_SOFTWARE = ("llvmpipe", "swiftshader", "lavapipe")  # Vulkan on the CPU: its memory is the machine's own
_NOT_A_CARD = ("CPU", "BLAS", "RPC")
_MAX_CARDS = 64
# amdgpu (Documentation/gpu/amdgpu/driver-misc.rst) and i915 (its sysfs of discrete cards)
_TOTAL_FILES = ("device/mem_info_vram_total", "lmem_total_bytes")
_USED_FILES = ("device/mem_info_vram_used", "")
# below that it is a part of the machine's memory that an integrated GPU has set aside
_LEAST_CARD_BYTES = 1 << 30


def find_gpus(root: KernelRoot, device_list: str = "") -> tuple[Gpu, ...]:
    """The graphics cards llama.cpp could use; `device_list` is what `llama-server --list-devices` printed, "" without it.

    A server that is installed is the authority: it knows which of the cards its build can use. Never raises.
    """
    if listed := parse_devices(device_list):
        return listed
    return read_nvidia() or read_sys(root)


def parse_devices(text: str) -> tuple[Gpu, ...]:
    """The cards in the output of `llama-server --list-devices`, without software renderers."""
    found: list[Gpu] = []
    for line in text.splitlines()[:1000]:
        device = _DEVICE.fullmatch(line)
        if device is None or device[1].rstrip("0123456789").upper() in _NOT_A_CARD:
            continue
        if any(name in device[2].lower() for name in _SOFTWARE):
            continue
        found.append(
            Gpu(
                name=f"{device[2].strip()} ({device[1]})",
                total_bytes=int(device[3]) * MIB,
                free_bytes=int(device[4]) * MIB,
                source="llama-server --list-devices",
            )
        )
    return tuple(found)


def read_nvidia() -> tuple[Gpu, ...]:
    """By NVML, when the extra `nvidia` is installed and the driver is there."""
    try:
        import pynvml  # noqa: PLC0415 - an extra, and 20 ms
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - NVML's errors have no common name across versions; no driver is no finding
        return ()
    try:
        found: list[Gpu] = []
        for index in range(min(_MAX_CARDS, pynvml.nvmlDeviceGetCount())):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory, name = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetName(handle)
            shown = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            found.append(Gpu(name=shown, total_bytes=int(memory.total), free_bytes=int(memory.free), source="NVML"))
    except Exception:  # noqa: BLE001 - the same: a card that falls off the bus midway is no card
        return ()
    else:
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def read_sys(root: KernelRoot) -> tuple[Gpu, ...]:
    """By /sys/class/drm: AMD's cards, and Intel's where the driver tells."""
    try:
        names = [name for name in root.names("/sys/class/drm") if re.fullmatch(r"card\d{1,3}", name)]
    except ReadingError:
        return ()
    found: list[Gpu] = []
    for name in sorted(names)[:_MAX_CARDS]:
        folder = Path("/sys/class/drm") / name
        for total_file, used_file in zip(_TOTAL_FILES, _USED_FILES, strict=True):
            total = _count(root, folder / total_file)
            if total is None or total < _LEAST_CARD_BYTES:
                continue
            used = _count(root, folder / used_file) if used_file else None
            found.append(
                Gpu(
                    name=name,
                    total_bytes=total,
                    free_bytes=None if used is None else max(0, total - used),
                    source=str(folder / total_file),
                )
            )
            break
    return tuple(found)


def _count(root: KernelRoot, path: Path) -> int | None:
    try:
        return root.parse(path, lambda content: parse_count(content.strip()), 64)
    except ReadingError:
        return None


def total_bytes(gpus: Sequence[Gpu]) -> int:
    """Memory of all cards together."""
    return sum(gpu.total_bytes for gpu in gpus)


def free_bytes(gpus: Sequence[Gpu]) -> int:
    """What of it is free; all of a card that does not say."""
    return sum(gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes for gpu in gpus)
