from pathlib import Path

import pytest

from moewatch.cache.budget import derive_cgroup_room, derive_machine_room, kept_for, read_room, room_words
from moewatch.domain.sample import CgroupReading, MemoryReading
from moewatch.domain.warm import Room
from moewatch.errors import UnsupportedError
from moewatch.linux.cgroup import CgroupPaths
from moewatch.linux.root import KernelRoot
from moewatch.units import GIB, MIB

KIB = 1024


def test_the_margin_is_two_gib_or_six_percent_of_a_small_limit() -> None:
    assert kept_for(100 * GIB) == 2 * GIB
    assert kept_for(GIB) == int(0.06 * GIB)


def test_the_machines_room_is_what_is_available_the_models_own_pages_included() -> None:
    memory = MemoryReading(available_bytes=20 * GIB, free_bytes=12 * GIB, cached_bytes=8 * GIB)
    room = derive_machine_room(memory, resident_bytes=5 * GIB)
    assert room is not None
    assert room.room_bytes == 20 * GIB
    assert room.other_cache_bytes == 3 * GIB
    assert room.scope is None
    assert derive_machine_room(MemoryReading(), 0) is None


def test_a_cgroups_room_is_its_limit_less_what_is_no_files() -> None:
    reading = CgroupReading(
        limit_bytes=1000 * MIB, usage_bytes=700 * MIB, inactive_file_bytes=300 * MIB, active_file_bytes=100 * MIB
    )
    room = derive_cgroup_room(reading, resident_bytes=150 * MIB, scope="box")
    assert room is not None
    assert room.room_bytes == 700 * MIB
    assert room.other_cache_bytes == 250 * MIB
    # pages of the model that someone else pays for take nothing from this limit
    elsewhere = derive_cgroup_room(reading, resident_bytes=900 * MIB, scope="box")
    assert elsewhere is not None
    assert elsewhere.room_bytes - 900 * MIB == 700 * MIB - 400 * MIB
    assert derive_cgroup_room(CgroupReading(), 0, None) is None


def tree(tmp_path: Path, available_kib: int) -> KernelRoot:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        f"MemTotal: {64 * GIB // KIB} kB\nMemFree: 1000 kB\nMemAvailable: {available_kib} kB\n"
    )
    return KernelRoot(proc=proc, sys=tmp_path / "sys", page_bytes=4096, tick_hz=100)


def group(path: Path, *, limit_bytes: int | str, usage_bytes: int, file_bytes: int) -> str:
    path.mkdir(parents=True)
    (path / "memory.max").write_text(f"{limit_bytes}\n")
    (path / "memory.current").write_text(f"{usage_bytes}\n")
    (path / "memory.stat").write_text(f"anon 0\ninactive_file {file_bytes}\nactive_file 0\n")
    return str(path)


def test_the_tightest_on_the_way_up_decides(tmp_path: Path) -> None:
    root = tree(tmp_path, available_kib=20 * GIB // KIB)
    outer = tmp_path / "cg" / "outer"
    above = group(outer, limit_bytes=4 * GIB, usage_bytes=3 * GIB, file_bytes=GIB)  # siblings take 2 GiB of it
    own = group(outer / "own", limit_bytes=3 * GIB, usage_bytes=GIB // 2, file_bytes=GIB // 4)
    paths = CgroupPaths(version=2, directories=(own, above), root_name="outer")
    room = read_room(root, paths, 0)
    assert room.scope == "outer"
    assert room.room_bytes == 2 * GIB
    assert read_room(root, None, 0).room_bytes == 20 * GIB


def test_without_any_limit_the_machine_decides(tmp_path: Path) -> None:
    root = tree(tmp_path, available_kib=20 * GIB // KIB)
    own = group(tmp_path / "cg", limit_bytes="max", usage_bytes=GIB, file_bytes=0)
    assert read_room(root, CgroupPaths(version=2, directories=(own,), root_name="x"), 0).scope is None


def test_a_kernel_that_says_nothing_of_memory_is_one_sentence(tmp_path: Path) -> None:
    root = KernelRoot(proc=tmp_path, sys=tmp_path, page_bytes=4096, tick_hz=100)
    with pytest.raises(UnsupportedError, match="cannot be known"):
        read_room(root, None, 0)


def test_the_room_in_words() -> None:
    room = Room(room_bytes=int(27.4 * GIB), kept_bytes=2 * GIB)
    assert room_words(room) == "27.4 GiB less 2.0 GiB kept for programs; limit: the whole machine"
    small = Room(room_bytes=400 * MIB, kept_bytes=24 * MIB, scope="box")
    assert room_words(small) == "400.0 MiB less 24.0 MiB kept for programs; limit: box"
