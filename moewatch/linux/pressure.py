"""Pressure stall information: time lost waiting for memory and disk (Documentation/accounting/psi.rst of the kernel)."""

from moewatch.domain.sample import PressureReading
from moewatch.errors import ParseError
from moewatch.linux.cgroup import CgroupPaths
from moewatch.linux.root import KernelRoot, ReadingError, parse_count

NS_PER_US = 1000


def parse_pressure(content: bytes) -> dict[str, int]:
    """`some` and `full` stall totals in nanoseconds; `full` is missing for the CPU on kernels before 5.13."""
    totals: dict[str, int] = {}
    for line in content.split(b"\n"):
        kind, _, rest = line.partition(b" ")
        if kind in (b"some", b"full"):
            for pair in rest.split():
                key, _, value = pair.partition(b"=")
                if key == b"total":
                    totals[kind.decode()] = parse_count(value, NS_PER_US)
    if not totals:
        raise ParseError("it has no stall totals")
    return totals


def read_pressure(root: KernelRoot, cgroup: CgroupPaths | None) -> PressureReading:
    """Of the target's cgroup where version 2 keeps it, else of the machine; ReadingError where neither is kept."""
    if cgroup is not None and cgroup.pressure_directory is not None:
        try:
            return _read_pair(root, cgroup.pressure_directory + "/{}.pressure", "cgroup")
        except ReadingError:
            pass  # off for cgroups (cgroup.pressure), or the directory is gone: the machine's is still there
    try:
        return _read_pair(root, "/proc/pressure/{}", "system")
    except ReadingError as error:
        detail = f"pressure stall information is off ({error.detail}); boot with psi=1"
        raise ReadingError(error.reason, detail) from None


def _read_pair(root: KernelRoot, pattern: str, scope: str) -> PressureReading:
    memory = root.parse(pattern.format("memory"), parse_pressure)
    try:
        io = root.parse(pattern.format("io"), parse_pressure)
    except ReadingError:
        io = {}  # a cgroup without the io controller
    return PressureReading(
        scope=scope,
        memory_some_ns_total=memory.get("some"),
        memory_full_ns_total=memory.get("full"),
        io_some_ns_total=io.get("some"),
        io_full_ns_total=io.get("full"),
    )
