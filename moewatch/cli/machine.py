"""The machine an estimate is for: this one, or the one that flags describe."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from moewatch.analysis.speed import DISK_ASSUMED, ROTATING_ASSUMED
from moewatch.cache.budget import kept_for, read_room
from moewatch.clock import Clock
from moewatch.domain.estimate import Machine, Range
from moewatch.domain.sample import Device
from moewatch.errors import UsageError
from moewatch.linux.blockdev import disks_of
from moewatch.linux.cgroup import locate, tightest_limit
from moewatch.linux.diskrate import DiskRate, fault_bytes_of, measure_file, measure_folder
from moewatch.linux.meminfo import read_ram_bytes, read_swap_bytes
from moewatch.linux.memoryrate import measure_memory_rate
from moewatch.linux.others import parse_statm
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.server.gpus import find_gpus, free_bytes, total_bytes
from moewatch.server.installed import InstalledServer
from moewatch.units import KIB, MB, format_mb


def read_machine(options: argparse.Namespace, server: InstalledServer, local_path: str | None, clock: Clock) -> Machine:
    """What is here, with what flags say put in its place; measured when `--measure` asks for it.

    Raises MoewatchError with one sentence when memory cannot be read and is not given.
    """
    root = KernelRoot.system()
    n_cores, n_threads = cores()
    memory = _memory(options.ram, root)
    where = options.dir or local_path or "."
    device = _device(root, where)
    fault_bytes = (device.read_ahead_bytes if device is not None else None) or 128 * KIB
    gpus = () if options.vram is not None else find_gpus(root, server.device_list)
    disk, words = _disk(options, device, lambda: _measure(options.dir, local_path, fault_bytes, n_cores or 1, clock))
    if options.disk_rate is not None:
        fault_bytes = 128 * KIB  # of another machine, or of this one as it comes
    return Machine(
        ram_bytes=memory.ram_bytes,
        room_bytes=memory.room_bytes,
        swap_bytes=memory.swap_bytes,
        ram_scope=memory.ram_scope,
        taken_bytes=memory.taken_bytes,
        vram_bytes=total_bytes(gpus) if options.vram is None else options.vram,
        vram_room_bytes=free_bytes(gpus) if options.vram is None else options.vram,
        gpus=gpus,
        disk_bytes_per_s=disk,
        disk_scope=words,
        fault_bytes=fault_bytes,
        memory_bytes_per_s=measure_memory_rate(clock, n_cores or 1) if options.measure else None,
        n_cores=n_cores,
        n_threads=n_threads,
    )


def _memory(given_bytes: int | None, root: KernelRoot) -> Machine:
    """The parts of a Machine that speak of memory."""
    if given_bytes is not None:
        left = given_bytes - kept_for(given_bytes)
        return Machine(ram_bytes=given_bytes, room_bytes=left, ram_scope="given, less what other programs need")
    try:
        total = read_ram_bytes(root)
    except ReadingError as error:
        raise UsageError(
            f"How much memory this machine has cannot be read ({error.detail}); give it: --ram 32G."
        ) from None
    cgroup = locate(root, os.getpid())
    limit, name = tightest_limit(root, cgroup) if cgroup is not None else (None, None)
    room = read_room(root, cgroup, 0)
    ram = total if limit is None else min(total, limit)
    own = min(_own_bytes(root), max(0, ram - room.room_bytes))
    return Machine(
        ram_bytes=ram,
        room_bytes=max(0, room.room_bytes) + own,  # page cache may fill all of it; what we hold ourselves goes with us
        swap_bytes=read_swap_bytes(root),
        ram_scope="this machine" if limit is None or limit >= total else f"limit of the cgroup {name}",
        taken_bytes=max(0, ram - room.room_bytes - own),
    )


def _own_bytes(root: KernelRoot) -> int:
    """This process's anonymous memory."""
    try:
        _, resident, shared = root.parse("/proc/self/statm", parse_statm)
    except ReadingError:
        return 0
    return max(0, resident - shared) * root.page_bytes


def cores() -> tuple[int | None, int | None]:
    """(physical cores, hardware threads) that this process may use."""
    import psutil  # noqa: PLC0415 - 33 ms

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count(logical=True)
    if allowed is not None:
        physical = min(physical or allowed, allowed)
        logical = min(logical or allowed, allowed)
    return physical, logical


def _device(root: KernelRoot, where: str) -> Device | None:
    """The disk under a path; the first of several, which are of a kind."""
    try:
        found = disks_of(root, where).devices
    except ReadingError:
        return None
    return found[0] if found else None


def _disk(
    options: argparse.Namespace, device: Device | None, measure: Callable[[], DiskRate]
) -> tuple[Range | None, str]:
    """(bytes per second of random reads, where the figure comes from)."""
    if options.disk_rate is not None:
        return Range(options.disk_rate, options.disk_rate), f"{format_mb(options.disk_rate)} MB/s (given)"
    name = f"{device.name}{f' {device.model}' if device.model else ''}" if device is not None else "disk not known"
    why = "add --measure to measure it"
    if options.measure:
        try:
            rate = measure()
        except ReadingError as error:
            why = f"it could not be measured: {error.detail}"
        else:
            return Range(rate.bytes_per_s, rate.bytes_per_s), (
                f"{format_mb(rate.bytes_per_s)} MB/s measured: random reads of {rate.block_bytes // KIB} KiB by "
                f"{rate.n_threads} threads ({name})"
            )
    # disks of virtual machines call themselves rotating
    turns = device is not None and device.rotational and device.transport not in ("virtio", "loop")
    assumed = ROTATING_ASSUMED if turns else DISK_ASSUMED
    return assumed, f"{assumed.low / MB:,.0f} to {assumed.high / MB:,.0f} MB/s assumed ({name}); {why}"


def _measure(folder: str | None, local_path: str | None, fault_bytes: int, n_threads: int, clock: Clock) -> DiskRate:
    block_bytes = fault_bytes_of(fault_bytes)
    if folder is None and local_path is not None:
        try:
            return measure_file(local_path, clock, block_bytes=block_bytes, n_threads=n_threads)
        except ReadingError:
            folder = str(Path(local_path).parent)  # a small model: a scratch file beside it
    return measure_folder(folder or ".", clock, block_bytes=block_bytes, n_threads=n_threads)
