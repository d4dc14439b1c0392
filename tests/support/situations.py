"""Situations and windows for tests of the judging rooms: the model of the mock-ups (59.0 GiB, 36 x 128 experts), and a small one."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from moewatch.analysis.situation import Situation
from moewatch.analysis.window import Window
from moewatch.domain.frame import Memory, Rates, Residency, State
from moewatch.domain.sample import (
    CgroupReading,
    Device,
    DeviceReading,
    Header,
    Host,
    LoadMode,
    MemoryReading,
    ModelFile,
    ModelSummary,
    Phase,
    ProcessReading,
    ResidencyReading,
    Sample,
    ServerReading,
    TargetIdentity,
    VmReading,
)
from moewatch.units import GIB, KIB, S

WALL_NS = 1_780_000_000_000_000_000
TOTAL = round(59.0 * GIB)
DENSE, TABLE = round(1.7 * GIB), round(0.6 * GIB)
EXPERTS = TOTAL - DENSE - TABLE
ACTIVE = DENSE + EXPERTS * 4 // 128

MODEL = ModelSummary(
    files=(ModelFile(name="gpt-oss-120b.gguf", size_bytes=TOTAL),),
    total_bytes=TOTAL,
    expert_bytes=EXPERTS,
    dense_bytes=DENSE,
    embedding_bytes=TABLE,
    architecture="gpt-oss",
    n_layer=36,
    n_expert=128,
    n_expert_used=4,
    quantisation="Q4_K_M",
)
DENSE_MODEL = ModelSummary(
    files=(ModelFile(name="dense.gguf", size_bytes=GIB),),
    total_bytes=GIB,
    expert_bytes=0,
    dense_bytes=GIB,
    architecture="qwen3",
    n_layer=22,
    n_expert=0,
    n_expert_used=0,
    quantisation="F16",
)


def header(**changes: Any) -> Header:
    """Of a mapped model on one NVMe disk, 31.2 GiB of RAM, 8 cores; `load_mode`, `argv` and `pid` go to the target."""
    target = {key: changes.pop(key) for key in ("load_mode", "argv", "pid") if key in changes}
    base = Header(
        host=Host(kernel="6.12", ram_bytes=round(31.2 * GIB), cpus_physical=8, cpus_logical=16),
        target=TargetIdentity(pid=48213, exe="llama-server", load_mode=LoadMode.MMAP),
        model=MODEL,
        devices=(Device(name="nvme0n1", rotational=False, transport="nvme", read_ahead_bytes=128 * KIB),),
        file_system="ext4",
    )
    return replace(base, target=replace(base.target, **target), **changes)


def situation(state: State, **changes: Any) -> Situation:
    """A situation in that state; keys of `header` are handed on to it."""
    of_header = {
        key: changes.pop(key)
        for key in ("load_mode", "argv", "pid", "model", "devices", "file_system", "host")
        if key in changes
    }
    base = Situation(
        header=header(**of_header),
        state=state,
        active_bytes=ACTIVE,
        seen_ns=60 * S,
        rates=Rates(window_ns=10 * S),
        residency=Residency(backend="cachestat", age_ns=0),
        memory=Memory(limit_bytes=round(31.2 * GIB), limit_scope="host"),
    )
    return replace(base, **changes)


def sample(at_ns: int, **changes: Any) -> Sample:
    """One Sample at that monotonic time, all quiet; groups are replaced as they are handed in."""
    base = Sample(
        mono_ns=at_ns,
        wall_ns=WALL_NS + at_ns,
        process=ProcessReading(
            minflt_total=0,
            majflt_total=0,
            rss_bytes=GIB,
            rss_anon_bytes=40 << 20,
            rss_file_bytes=GIB,
            utime_ns=at_ns // 2,
            stime_ns=0,
            read_bytes_total=0,
            swap_bytes=0,
        ),
        devices={"nvme0n1": DeviceReading(reads_total=0, read_bytes_total=0, read_ns_total=0, busy_ns_total=0)},
        vm=VmReading(workingset_refault_file_total=0, pswpin_total=0, pswpout_total=0),
        memory=MemoryReading(available_bytes=20 * GIB, free_bytes=GIB, cached_bytes=20 * GIB, swap_used_bytes=0),
        residency=ResidencyReading(backend="cachestat", age_ns=0, resident_bytes=19 * GIB, evicted_bytes=0),
        server=ServerReading(phase=Phase.GENERATE, tokens_total=0, source="slots", n_active=1),
    )
    return replace(base, **changes)


def window(
    change: Callable[[float], dict[str, Any]] | None = None, *, seconds: int = 30, of: Header | None = None
) -> Window:
    """A window of one Sample a second; `change` gives what differs at second t."""
    found = Window(header=of or header())
    for t in range(seconds + 1):
        found = found.pushed(sample(t * S, **(change(float(t)) if change else {})))
    return found


def process(**changes: Any) -> ProcessReading:
    """The quiet process of `sample` with changes."""
    base = sample(0).process
    assert base is not None
    return replace(base, **changes)


def scan(**changes: Any) -> ResidencyReading:
    """The residency reading of `sample` with changes."""
    base = sample(0).residency
    assert base is not None
    return replace(base, **changes)


def cgroup(**changes: Any) -> CgroupReading:
    """A cgroup of 24 GiB, nearly full."""
    return replace(
        CgroupReading(
            limit_bytes=24 * GIB, usage_bytes=23 * GIB, active_file_bytes=12 * GIB, inactive_file_bytes=8 * GIB
        ),
        **changes,
    )
