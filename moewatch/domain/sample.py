"""One instant's raw readings, and the header that says of whom: exactly what a recording stores.

Only raw readings live here: counters are totals, sizes bytes, times nanoseconds. A reading that failed is None and has
a Gap that says why; it is never a number. docs/reference/trace.md describes the file format, key by key.
"""

import enum
from typing import Annotated

from msgspec import Meta, Struct

# Larger numbers are damage: the kernel's "no limit" (cgroup v1) is a page less, and what is divided must become a float
MOST = (1 << 63) - 1
Count = Annotated[int, Meta(ge=0, le=MOST)]
Moment = Annotated[int, Meta(ge=-MOST, le=MOST)]  # of a clock
Ratio = Annotated[float, Meta(ge=0)]


class GapReason(enum.StrEnum):
    """Why a reading is missing."""

    DENIED = "denied"  # a permission forbids it
    ABSENT = "absent"  # this machine does not have it (no cgroup, PSI off, no disk row)
    UNSUPPORTED = "unsupported"  # this kernel or file system cannot tell
    VANISHED = "vanished"  # it was there before
    MALFORMED = "malformed"  # it was read and made no sense


class Gap(Struct, frozen=True, kw_only=True):
    """A reading that could not be had: which (`process.read_bytes_total`, or a whole group), why, and in words."""

    field: str
    reason: GapReason
    detail: str = ""


class Phase(enum.StrEnum):
    """What the server says it is doing."""

    IDLE = "idle"
    PROMPT = "prompt"
    GENERATE = "generate"
    LOADING = "loading"
    UNKNOWN = "unknown"


class LoadMode(enum.StrEnum):
    """How the weights really are in memory, judged by /proc/PID/maps and never by argv alone."""

    MMAP = "mmap"
    MMAP_MLOCK = "mmap+mlock"
    MLOCK = "mlock"  # not mapped, anonymous and locked
    NONE = "none"  # not mapped, anonymous
    DIO = "dio"  # not mapped, read past the page cache
    UNKNOWN = "unknown"

    @property
    def is_mapped(self) -> bool | None:
        """Whether the model's file is mapped; None when that is unknown."""
        return None if self is LoadMode.UNKNOWN else self in (LoadMode.MMAP, LoadMode.MMAP_MLOCK)


class Host(Struct, frozen=True, kw_only=True):
    """The machine."""

    kernel: str = ""
    page_bytes: Annotated[int, Meta(ge=512, le=MOST)] = 4096
    ram_bytes: Count | None = None
    cpus_physical: Count | None = None
    cpus_logical: Count | None = None


class TargetIdentity(Struct, frozen=True, kw_only=True):
    """The watched process: a pid alone is no identity, pids are reused."""

    pid: Count
    start_ticks: Count = 0
    exe: str = ""
    argv: tuple[str, ...] = ()  # secrets replaced by "***"
    load_mode: LoadMode = LoadMode.UNKNOWN

    @property
    def id(self) -> str:
        """`pid:start_ticks`."""
        return f"{self.pid}:{self.start_ticks}"


class ModelFile(Struct, frozen=True, kw_only=True):
    """One shard: its base name, never its path."""

    name: str
    size_bytes: Count
    mtime_ns: Moment = 0


class ModelSummary(Struct, frozen=True, kw_only=True):
    """The model in figures; classes as in docs/reference/cli.md (dense, embedding, expert). Source: the GGUF header."""

    files: tuple[ModelFile, ...]
    total_bytes: Count
    expert_bytes: Count | None = None
    dense_bytes: Count | None = None
    embedding_bytes: Count = 0
    architecture: str = ""
    n_layer: Count | None = None
    n_expert: Count | None = None
    n_expert_used: Count | None = None
    expert_bytes_by_layer: tuple[Count, ...] = ()  # one expert of each layer, over all its tensors; 0: it has none
    name: str = ""
    quantisation: str = ""
    mxfp4_experts: bool = False

    @property
    def active_bytes_per_token(self) -> int | None:
        """A: bytes one token needs = what every token needs whole + used/total of the expert bytes."""
        if self.dense_bytes is None:
            return None
        if not self.n_expert:
            return self.dense_bytes
        if self.expert_bytes is None or self.n_expert_used is None:
            return None
        return self.dense_bytes + self.expert_bytes * self.n_expert_used // self.n_expert


class Device(Struct, frozen=True, kw_only=True):
    """A disk under the model's files."""

    name: str
    model: str | None = None
    rotational: bool | None = None
    transport: str | None = None
    read_ahead_bytes: Count | None = None


class Header(Struct, frozen=True, kw_only=True):
    """Of whom and of what the Samples speak: line 1 of a recording."""

    format: str = "moewatch-trace"
    version: int = 1
    created: str = ""
    host: Host
    target: TargetIdentity
    model: ModelSummary | None = None
    devices: tuple[Device, ...] = ()
    memory_limit_bytes: Count | None = None
    memory_limit_scope: str | None = None  # the cgroup that sets it
    file_system: str | None = None  # under the model's files
    interval_ns: Annotated[int, Meta(gt=0, le=MOST)] = 1_000_000_000
    estimate_tokens_per_s: tuple[float, float] | None = None  # low and high, where `moewatch estimate` was asked before


class ProcessReading(Struct, frozen=True, kw_only=True):
    """Sources: /proc/PID/stat, status, io, task/*/stat (proc_pid_stat(5), proc_pid_io(5))."""

    minflt_total: Count | None = None
    majflt_total: Count | None = None
    rss_bytes: Count | None = None
    rss_anon_bytes: Count | None = None
    rss_file_bytes: Count | None = None
    utime_ns: Count | None = None
    stime_ns: Count | None = None
    read_bytes_total: Count | None = None  # fetched from the storage layer for this process, mmap read-ahead included
    blkio_delay_ns_total: Count | None = None  # None when kernel.task_delayacct is 0
    threads_running: Count | None = None
    threads_blocked: Count | None = None
    swap_bytes: Count | None = None
    locked_bytes: Count | None = None
    is_stopped: bool | None = None  # by a signal or a debugger (states T and t)

    @property
    def cpu_ns(self) -> int | None:
        """CPU time of all its threads since it began; None when either part is unknown."""
        return None if self.utime_ns is None or self.stime_ns is None else self.utime_ns + self.stime_ns


class DeviceReading(Struct, frozen=True, kw_only=True):
    """One row of /proc/diskstats (Documentation/admin-guide/iostats.rst); sectors are 512 bytes."""

    reads_total: Count | None = None
    read_bytes_total: Count | None = None
    read_ns_total: Count | None = None
    busy_ns_total: Count | None = None


class VmReading(Struct, frozen=True, kw_only=True):
    """/proc/vmstat; all but faults in pages."""

    pgmajfault_total: Count | None = None
    workingset_refault_file_total: Count | None = None
    workingset_activate_file_total: Count | None = None
    pgscan_total: Count | None = None
    pgsteal_total: Count | None = None
    pswpin_total: Count | None = None
    pswpout_total: Count | None = None


class CgroupReading(Struct, frozen=True, kw_only=True):
    """The target's memory cgroup: v1 memory.stat and memory.*_in_bytes, or v2 memory.stat, memory.max and memory.current."""

    limit_bytes: Count | None = None  # the tightest on the way up
    usage_bytes: Count | None = None
    inactive_file_bytes: Count | None = None
    active_file_bytes: Count | None = None
    anon_bytes: Count | None = None
    pgmajfault_total: Count | None = None
    workingset_refault_file_total: Count | None = None


class PressureReading(Struct, frozen=True, kw_only=True):
    """Pressure stall totals (Documentation/accounting/psi.rst), of the system or of the target's cgroup."""

    scope: str = "system"
    memory_some_ns_total: Count | None = None
    memory_full_ns_total: Count | None = None
    io_some_ns_total: Count | None = None
    io_full_ns_total: Count | None = None


class MemoryReading(Struct, frozen=True, kw_only=True):
    """/proc/meminfo."""

    available_bytes: Count | None = None
    free_bytes: Count | None = None
    cached_bytes: Count | None = None
    swap_used_bytes: Count | None = None


class ResidencyReading(Struct, frozen=True, kw_only=True):
    """Page cache of the model's files: cachestat(2) and mincore(2), summed over the shards.

    The totals (`resident_bytes`, `evicted_bytes`) are `totals_age_ns` old: of this Sample's instant when the backend is
    cachestat and counting is cheap, else of the scan, and then sums over its rotation. The
    parts (`dense_`, `expert_`, `by_layer`) come from a scan that is `age_ns` old. The four differences are sums since
    the previous Sample that carried residency. What is on the GPU counts in `not_needed_*` and leaves every part.
    """

    backend: str = "none"
    age_ns: Count | None = None
    cost_ns: Count | None = None
    totals_age_ns: Count = 0  # of resident_, evicted_, recently_evicted_bytes: 0 when counted at this Sample's instant
    resident_bytes: Count | None = None
    dense_resident_bytes: Count | None = None
    expert_resident_bytes: Count | None = None
    embedding_resident_bytes: Count | None = None
    by_layer: tuple[Ratio | None, ...] | None = None
    # The expert map, every few seconds and only when it has changed: layer x expert, a byte each, in base64
    experts: str | None = None  # resident ratio, 0 to 255
    experts_again: str | None = None  # read again since the previous map, in sixteenths of the expert; None: nothing
    experts_not_needed: tuple[Count, ...] = ()  # layers whose experts are on the GPU
    evicted_bytes: Count | None = None
    recently_evicted_bytes: Count | None = None
    arrived_first_bytes: Count | None = None
    arrived_again_bytes: Count | None = None
    departed_bytes: Count | None = None
    never_seen_bytes: Count | None = None
    not_needed_dense_bytes: Count = 0
    not_needed_expert_bytes: Count = 0
    not_needed_embedding_bytes: Count = 0
    not_needed_assumed: bool = False  # known from argv only, not yet seen


class ServerReading(Struct, frozen=True, kw_only=True):
    """llama-server's own word: /health, /slots, /metrics (tools/server/README.md of llama.cpp)."""

    phase: Phase = Phase.UNKNOWN
    tokens_total: Count | None = None  # generated, over all requests since the watch began
    prompt_tokens_total: Count | None = None
    source: str = "none"  # slots, metrics, client, none
    n_active: Count | None = None
    first_token_ns: Count | None = None  # of the last request that began while watched
    context_tokens: Count | None = None  # n_ctx over all slots


class OtherProcess(Struct, frozen=True, kw_only=True):
    """One of the largest other processes, by anonymous memory (psutil)."""

    pid: Count
    name: str
    anon_bytes: Count
    read_bytes_total: Count | None = None


class OwnReading(Struct, frozen=True, kw_only=True):
    """moewatch's own cost."""

    cpu_ns_total: Count
    rss_bytes: Count | None = None


class Sample(Struct, frozen=True, kw_only=True, rename={"own": "self"}):
    """Everything that was read at one instant."""

    mono_ns: Moment
    wall_ns: Moment
    collect_ns: Count | None = None
    late_ns: Count = 0
    load_mode: LoadMode | None = (
        None  # when it is another one than the header says: a server is often met while it loads
    )
    process: ProcessReading | None = None
    devices: dict[str, DeviceReading] | None = None
    vm: VmReading | None = None
    cgroup: CgroupReading | None = None
    pressure: PressureReading | None = None
    memory: MemoryReading | None = None
    residency: ResidencyReading | None = None
    server: ServerReading = ServerReading()
    others: tuple[OtherProcess, ...] | None = None  # read every few seconds; None between
    readers_read_bytes_total: Count | None = (
        None  # read_bytes of all processes known to map the same files, target included
    )
    own: OwnReading | None = None
    gaps: tuple[Gap, ...] = ()
