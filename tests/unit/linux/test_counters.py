"""diskstats, vmstat, meminfo, pressure."""

import errno

import psutil
import pytest

from moewatch.domain.sample import DeviceReading, GapReason
from moewatch.errors import ParseError
from moewatch.linux.cgroup import CgroupPaths
from moewatch.linux.diskstats import parse_diskstats, read_diskstats
from moewatch.linux.meminfo import parse_memory, read_memory, read_ram_bytes
from moewatch.linux.pressure import parse_pressure, read_pressure
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.linux.vmstat import parse_vm, read_vm
from tests.support.proctree import FIXTURES, ProcTree


@pytest.mark.parametrize(
    ("fixture", "name", "expected"),
    [
        ("fields-14", "cciss/c0d0", (5000, 400000 * 512, 9_000_000_000, 7_500_000_000)),
        ("fields-14", "sda", (35486, 2503464 * 512, 44_120_000_000, 30_110_000_000)),
        ("fields-18", "sda", (35486, 2503464 * 512, 44_120_000_000, 30_110_000_000)),
        ("fields-20", "nvme0n1", (1234567, 987654320 * 512, 345_678_000_000, 234_567_000_000)),
    ],
)
def test_rows_of_every_kernel(fixture: str, name: str, expected: tuple[int, int, int, int]) -> None:
    rows = parse_diskstats((FIXTURES / "diskstats" / fixture).read_bytes())
    reads, size, read_ns, busy_ns = expected
    assert rows[name] == DeviceReading(
        reads_total=reads, read_bytes_total=size, read_ns_total=read_ns, busy_ns_total=busy_ns
    )
    assert "cciss/c0d0p1" not in rows


def test_only_the_disks_asked_for(captured: ProcTree) -> None:
    assert set(read_diskstats(captured.root, ["vda", "gone"])) == {"vda"}


def test_a_malformed_row_is_no_zero(captured: ProcTree) -> None:
    captured.write("/proc/diskstats", "8 0 sda x 0 0 0 0 0 0 0 0 0 0 0 0\n")
    with pytest.raises(ReadingError) as caught:
        read_diskstats(captured.root, ["sda"])
    assert caught.value.reason is GapReason.MALFORMED


def test_diskstats_agree_with_psutil() -> None:
    theirs = psutil.disk_io_counters(perdisk=True)
    ours = read_diskstats(KernelRoot.system(), theirs)
    assert set(ours) == set(theirs)
    for name, row in theirs.items():
        assert ours[name].read_bytes_total is not None
        assert ours[name].read_bytes_total == pytest.approx(row.read_bytes, rel=0.2, abs=64 << 20)


def test_captured_vmstat(captured: ProcTree) -> None:
    reading = read_vm(captured.root)
    assert reading.pgmajfault_total is not None
    assert reading.pgmajfault_total > 0
    assert reading.workingset_refault_file_total is not None
    assert reading.pgscan_total is not None


def test_reclaim_by_anyone_counts() -> None:
    content = b"pgscan_kswapd 1\npgscan_direct 20\npgscan_khugepaged 300\npgscan_direct_throttle 9\npgsteal_direct 7\n"
    reading = parse_vm(content)
    assert (reading.pgscan_total, reading.pgsteal_total) == (321, 7)
    assert reading.pgmajfault_total is None


def test_refaults_of_kernels_before_5_9_were_of_files() -> None:
    assert parse_vm(b"workingset_refault 5\n").workingset_refault_file_total == 5
    assert parse_vm(b"workingset_refault 5\nworkingset_refault_file 4\n").workingset_refault_file_total == 4


def test_memory_agrees_with_psutil() -> None:
    root, theirs = KernelRoot.system(), psutil.virtual_memory()
    assert read_ram_bytes(root) == theirs.total
    available = read_memory(root).available_bytes
    assert available is not None
    assert available == pytest.approx(theirs.available, rel=0.2)


def test_captured_meminfo_and_swap(captured: ProcTree) -> None:
    assert read_memory(captured.root).swap_used_bytes == 0
    assert parse_memory(b"SwapTotal: 100 kB\nSwapFree: 40 kB\n").swap_used_bytes == 60 * 1024
    assert parse_memory(b"SwapTotal: 100 kB\n").swap_used_bytes is None
    with pytest.raises(ParseError):
        parse_memory(b"")


def test_pressure_is_the_machines_without_a_cgroup_of_its_own(captured: ProcTree) -> None:
    captured.write("/proc/pressure/memory", "some avg10=0.00 total=5\nfull avg10=0.00 total=3\n")
    reading = read_pressure(captured.root, None)
    assert (reading.scope, reading.memory_some_ns_total, reading.memory_full_ns_total) == ("system", 5000, 3000)


def test_pressure_of_the_cgroup_falls_back_to_the_machine(captured: ProcTree) -> None:
    paths = CgroupPaths(
        version=2, directories=("/sys/fs/cgroup/x",), root_name="x", pressure_directory="/sys/fs/cgroup/x"
    )
    assert read_pressure(captured.root, paths).scope == "system"
    captured.write("/sys/fs/cgroup/x/memory.pressure", "some total=7\nfull total=6\n")
    reading = read_pressure(captured.root, paths)
    assert (reading.scope, reading.memory_some_ns_total, reading.io_some_ns_total) == ("cgroup", 7000, None)


def test_pressure_that_is_off_says_how_to_turn_it_on(captured: ProcTree) -> None:
    captured.fail("/proc/pressure/memory", errno.EOPNOTSUPP)
    with pytest.raises(ReadingError, match="psi=1") as caught:
        read_pressure(captured.root, None)
    assert caught.value.reason is GapReason.UNSUPPORTED


def test_pressure_without_totals_is_refused() -> None:
    with pytest.raises(ParseError):
        parse_pressure(b"some avg10=0.00\n")
