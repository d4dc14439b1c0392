"""How much of the model memory can hold: the tightest of the machine and the target's cgroups, less a margin for programs."""

import msgspec

from moewatch.domain.sample import CgroupReading, MemoryReading
from moewatch.domain.warm import Room
from moewatch.errors import UnsupportedError
from moewatch.linux.cgroup import CgroupPaths, read_cgroup, tightest_limit
from moewatch.linux.meminfo import read_memory
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.units import GIB, format_size

# Left for programs to grow: a browser tab is 0.1 to 0.5 GiB, a compiler 1 to 2. On small limits a share: there the
# server is alone, and grows by its context only (measured: 33 MB for 4,096 tokens under a limit of 0.4 GiB).
KEPT_BYTES = 2 * GIB
KEPT_RATIO = 0.06


def kept_for(limit_bytes: int) -> int:
    """The margin under a limit."""
    return min(KEPT_BYTES, int(KEPT_RATIO * limit_bytes))


def derive_machine_room(memory: MemoryReading, resident_bytes: int) -> Room | None:
    """MemAvailable counts what is free and what cache could be given up, the model's own included (proc_meminfo(5))."""
    if memory.available_bytes is None:
        return None
    # what little the kernel holds back of the model's own pages must not make it look as if they did not fit
    room = max(memory.available_bytes, min(resident_bytes, memory.cached_bytes or 0))
    free = memory.free_bytes if memory.free_bytes is not None else room
    return Room(
        room_bytes=room,
        kept_bytes=kept_for(room),
        other_cache_bytes=max(0, room - free - resident_bytes),
    )


def derive_cgroup_room(reading: CgroupReading, resident_bytes: int, scope: str | None) -> Room | None:
    """The limit less all that is no file's; model pages that another cgroup pays for take no room here."""
    if reading.limit_bytes is None or reading.usage_bytes is None:
        return None
    files = (reading.inactive_file_bytes or 0) + (reading.active_file_bytes or 0)
    programs = max(0, reading.usage_bytes - files)
    paid_elsewhere = max(0, resident_bytes - files)
    return Room(
        room_bytes=max(0, reading.limit_bytes - programs) + paid_elsewhere,
        kept_bytes=kept_for(reading.limit_bytes),
        scope=scope,
        other_cache_bytes=max(0, files - resident_bytes),
    )


def read_room(root: KernelRoot, cgroup: CgroupPaths | None, resident_bytes: int) -> Room:
    """The tightest room now.

    Raises:
        UnsupportedError: not even the machine's memory can be read.
    """
    rooms: list[Room] = []
    try:
        machine = derive_machine_room(read_memory(root), resident_bytes)
    except ReadingError as error:
        raise UnsupportedError(f"How much memory is available cannot be known: {error.detail}.") from None
    if machine is None:
        raise UnsupportedError("This kernel does not say how much memory is available; give --budget SIZE.")
    rooms.append(machine)
    for depth in range(len(cgroup.directories) if cgroup is not None else 0):
        assert cgroup is not None  # noqa: S101 - the range is empty without one
        above = msgspec.structs.replace(cgroup, directories=cgroup.directories[depth:])
        try:
            room = derive_cgroup_room(read_cgroup(root, above), resident_bytes, tightest_limit(root, above)[1])
        except ReadingError:
            continue
        if room is not None:
            rooms.append(room)
    return min(rooms, key=lambda room: room.budget_bytes)


def room_words(room: Room) -> str:
    """`27.4 GiB less 2.0 GiB kept for programs; limit: the whole machine`."""
    limit = "the whole machine" if room.scope is None else room.scope
    return f"{format_size(room.room_bytes)} less {format_size(room.kept_bytes)} kept for programs; limit: {limit}"
