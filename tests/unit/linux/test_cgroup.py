from pathlib import Path

import pytest

from moewatch.domain.sample import GapReason
from moewatch.linux.cgroup import CgroupPaths, locate, parse_membership, read_cgroup, tightest_limit
from moewatch.linux.pressure import read_pressure
from moewatch.linux.root import ReadingError
from tests.support.proctree import ProcTree

V1_MOUNT = "30 25 0:29 {root} {point} rw - cgroup cgroup rw,memory\n"
UNLIMITED = "9223372036854771712\n"


@pytest.fixture
def unified(tmp_path: Path) -> ProcTree:
    """tests/fixtures/proc/cgroup2-by-hand/ORIGIN.md."""
    return ProcTree.captured(tmp_path, "cgroup2-by-hand")


def located(tree: ProcTree, pid: int) -> CgroupPaths:
    paths = locate(tree.root, pid)
    assert paths is not None
    return paths


def test_captured_version_1(captured: ProcTree) -> None:
    paths = located(captured, 4242)
    base = "/sys/fs/cgroup/memory"
    assert paths.version == 1
    assert paths.directories == (f"{base}/moewatch-fixture/server", f"{base}/moewatch-fixture", base)
    assert tightest_limit(captured.root, paths) == (512 << 20, "moewatch-fixture")
    reading = read_cgroup(captured.root, paths)
    assert reading.limit_bytes == 512 << 20
    assert reading.usage_bytes is not None
    assert reading.anon_bytes is not None
    assert reading.inactive_file_bytes is not None
    assert reading.inactive_file_bytes + (reading.active_file_bytes or 0) >= 8 << 20  # the file it had read
    assert reading.pgmajfault_total is not None
    assert reading.workingset_refault_file_total == 116


def test_version_2_and_its_soft_limit(unified: ProcTree) -> None:
    paths = located(unified, 77)
    assert (paths.version, len(paths.directories)) == (2, 3)
    assert tightest_limit(unified.root, paths) == (12 << 30, "llama.service")
    reading = read_cgroup(unified.root, paths)
    assert reading.usage_bytes == 12884000768
    assert reading.anon_bytes == 2 << 30
    assert (reading.inactive_file_bytes, reading.active_file_bytes) == (7516192768, 3220324352)
    assert (reading.pgmajfault_total, reading.workingset_refault_file_total) == (123456, 5234567)
    assert read_pressure(unified.root, paths).scope == "cgroup"
    assert read_pressure(unified.root, paths).memory_some_ns_total == 123456789000


def test_the_slice_above_may_be_the_tightest(unified: ProcTree) -> None:
    unified.write("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n")
    assert tightest_limit(unified.root, located(unified, 77)) == (1 << 30, "system.slice")


def test_no_limit_is_none_and_not_huge(unified: ProcTree) -> None:
    for name in ("memory.max", "memory.high"):
        unified.write(f"/sys/fs/cgroup/system.slice/{name}", "max\n")
        unified.write(f"/sys/fs/cgroup/system.slice/llama.service/{name}", "max\n")
    assert tightest_limit(unified.root, located(unified, 77)) == (None, None)


def test_a_process_in_version_2s_root_degrades(unified: ProcTree) -> None:
    unified.write("/proc/78/cgroup", "0::/\n").write("/sys/fs/cgroup/memory.stat", "anon 5\npgmajfault 6\n")
    paths = located(unified, 78)
    reading = read_cgroup(unified.root, paths)
    assert (reading.limit_bytes, reading.usage_bytes, reading.anon_bytes) == (None, None, 5)
    assert read_pressure(unified.root, paths).scope == "system"


def test_version_2_beside_version_1_has_no_memory(captured: ProcTree) -> None:
    """Hybrid: the unified mount is there, the memory controller is version 1; the pressure may still be the cgroup's."""
    captured.write("/proc/5/cgroup", "4:memory:/\n0::/user.slice\n").write(
        "/sys/fs/cgroup/unified/user.slice/memory.pressure", "some total=1\nfull total=1\n"
    )
    paths = located(captured, 5)
    assert (paths.version, paths.directories) == (1, ("/sys/fs/cgroup/memory",))
    assert read_pressure(captured.root, paths).scope == "cgroup"
    captured.write("/proc/6/cgroup", "0::/user.slice\n")
    assert locate(captured.root, 6) is None


def test_a_container_that_sees_only_its_part_of_the_hierarchy(tree: ProcTree) -> None:
    """Without a cgroup namespace: the path is the host's, the mount shows /docker/abc and below."""
    tree.write("/proc/5/cgroup", "4:memory:/docker/abc/inner\n")
    tree.write("/proc/self/mountinfo", V1_MOUNT.format(root="/docker/abc", point="/sys/fs/cgroup/memory"))
    base = "/sys/fs/cgroup/memory"
    tree.write(f"{base}/memory.limit_in_bytes", "2147483648\n").write(f"{base}/inner/memory.limit_in_bytes", UNLIMITED)
    paths = located(tree, 5)
    assert paths.directories == (f"{base}/inner", base)
    assert tightest_limit(tree.root, paths) == (2 << 30, "abc")


def test_an_invisible_outer_limit_of_version_1_is_seen_in_its_stat(tree: ProcTree) -> None:
    tree.write("/proc/5/cgroup", "4:memory:/\n")
    tree.write("/proc/self/mountinfo", V1_MOUNT.format(root="/", point="/sys/fs/cgroup/memory"))
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n")
    assert tightest_limit(tree.root, located(tree, 5)) == (4 << 30, "container")
    tree.write("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 1073741824\n")
    assert tightest_limit(tree.root, located(tree, 5)) == (1 << 30, "outer cgroup")


@pytest.mark.parametrize("limit", ["9223372036854771712", "9223372036854775807", "9223372036854710272", "x", ""])
def test_every_way_to_write_unlimited(tree: ProcTree, limit: str) -> None:
    tree.write("/proc/5/cgroup", "4:memory:/\n")
    tree.write("/proc/self/mountinfo", V1_MOUNT.format(root="/", point="/sys/fs/cgroup/memory"))
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", limit)
    assert tightest_limit(tree.root, located(tree, 5)) == (None, None)


@pytest.mark.parametrize("path", ["/../sibling", "/gone", "/a/../../b"])
def test_a_cgroup_that_is_not_visible_from_here(captured: ProcTree, path: str) -> None:
    captured.write("/proc/5/cgroup", f"4:memory:{path}\n")
    assert locate(captured.root, 5) is None


def test_a_cgroup_that_is_removed_while_watched(captured: ProcTree) -> None:
    paths = CgroupPaths(version=1, directories=("/sys/fs/cgroup/memory/was",), root_name="was")
    with pytest.raises(ReadingError) as caught:
        read_cgroup(captured.root, paths)
    assert caught.value.reason is GapReason.VANISHED


def test_a_process_that_ended(captured: ProcTree) -> None:
    assert locate(captured.root, 99999) is None


def test_paths_with_colons() -> None:
    assert parse_membership(b"4:memory,cpu:/a:b\n0::/c\n") == {"memory": "/a:b", "cpu": "/a:b", "": "/c"}
