"""A server with a model larger than memory, simulated: a page cache with least-recently-used eviction, a disk, a router.

Nothing here knows how the verdict is reached. Units of the cache are whole experts of a layer (9.4 MB); each token asks for 8
of 128 experts in each of 48 layers; what is not cached is read at the disk's rate while the token waits. The default is a
model of 60 GB with room for 27 GiB. Readings are what the kernel would have shown: totals.
"""

import random
from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct

from moewatch.domain.sample import (
    CgroupReading,
    Device,
    DeviceReading,
    Header,
    Host,
    LoadMode,
    ModelFile,
    ModelSummary,
    Phase,
    PressureReading,
    ProcessReading,
    ResidencyReading,
    Sample,
    ServerReading,
    TargetIdentity,
    VmReading,
)

GB, GIB = 10**9, 1 << 30
READ_AHEAD_BYTES = 128 << 10  # a fault brings in so much
PAGE_BYTES = 4096
LAYERS, EXPERTS, USED = 48, 128, 8
WALL_NS = 1_780_000_000_000_000_000


class Machine(Struct, frozen=True, kw_only=True):
    """The model, the memory and the disk."""

    model_bytes: int = 60 * GB
    dense_bytes: int = 2 * GB
    cache_bytes: int = 27 * GIB
    disk_bytes_per_s: float = 3 * GB
    token_s: float = 0.1  # when nothing is missing
    interval_s: float = 1.0
    page_bytes: int = PAGE_BYTES

    @property
    def expert_bytes(self) -> int:
        """One expert of one layer."""
        return (self.model_bytes - self.dense_bytes) // (LAYERS * EXPERTS)

    def header(self) -> Header:
        """Line 1 of the recording."""
        expert_bytes = self.expert_bytes * LAYERS * EXPERTS
        total = self.dense_bytes + expert_bytes
        return Header(
            host=Host(kernel="simulated", page_bytes=self.page_bytes, ram_bytes=32 * GIB),
            target=TargetIdentity(pid=4242, start_ticks=1, exe="llama-server", load_mode=LoadMode.MMAP),
            model=ModelSummary(
                files=(ModelFile(name="big.gguf", size_bytes=total),),
                total_bytes=total,
                dense_bytes=self.dense_bytes,
                expert_bytes=expert_bytes,
                architecture="simulated",
                n_layer=LAYERS,
                n_expert=EXPERTS,
                n_expert_used=USED,
            ),
            devices=(Device(name="nvme0n1", read_ahead_bytes=READ_AHEAD_BYTES),),
            interval_ns=round(self.interval_s * 1e9),
        )


class Server:
    """The simulated server; `generate` yields a Sample at each tick while it works."""

    def __init__(self, machine: Machine, seed: int = 1) -> None:
        self.machine = machine
        self.random = random.Random(seed)  # noqa: S311 - routing, not secrets
        self.now_s = 0.0
        self.next_s = 0.0
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.seen: set[int] = set()
        self.read = self.again = self.tokens = self.faults = 0
        self.busy_s = self.stalled_s = self.cpu_s = 0.0
        self.phase = Phase.IDLE
        self.dense_resident = 0
        self.slots = (machine.cache_bytes - machine.dense_bytes) // machine.expert_bytes

    def load(self) -> Iterator[Sample]:
        """Read the whole file once, in order, as MAP_POPULATE does."""
        self.phase = Phase.LOADING
        yield from self._read(self.machine.dense_bytes, again=False, fault=False)
        self.dense_resident = self.machine.dense_bytes
        for unit in range(LAYERS * EXPERTS):
            yield from self._touch(unit, fault=False)
        self.phase = Phase.IDLE

    def map_lazily(self) -> None:
        """Begin with nothing but the dense weights."""
        self.dense_resident = self.machine.dense_bytes
        self.read += self.machine.dense_bytes

    def idle(self, seconds: float) -> Iterator[Sample]:
        """Wait."""
        self.phase = Phase.IDLE
        yield from self._spend(seconds)

    def generate(self, seconds: float, hot: list[list[int]] | None = None) -> Iterator[Sample]:
        """Tokens for so long; `hot[layer]` are the experts that the topic picks from, None: all alike."""
        self.phase = Phase.GENERATE
        end_s = self.now_s + seconds
        everyone = list(range(EXPERTS))
        while self.now_s < end_s:
            for layer in range(LAYERS):
                for expert in self.random.sample(hot[layer] if hot else everyone, USED):
                    yield from self._touch(layer * EXPERTS + expert)
                    if self.now_s >= end_s:
                        return
                yield from self._spend(self.machine.token_s / LAYERS, cpu=4.0)
            self.tokens += 1

    def topic(self, share: float) -> list[list[int]]:
        """A topic that needs that share of each layer's experts."""
        return [self.random.sample(range(EXPERTS), round(share * EXPERTS)) for _ in range(LAYERS)]

    def squeeze(self, cache_bytes: int) -> None:
        """Memory was taken: the cache gives up its oldest at once."""
        self.slots = max(0, cache_bytes - self.machine.dense_bytes) // self.machine.expert_bytes
        while len(self.cached) > self.slots:
            self.cached.popitem(last=False)

    def _touch(self, unit: int, *, fault: bool = True) -> Iterator[Sample]:
        if unit in self.cached:
            self.cached.move_to_end(unit)
            return
        again = unit in self.seen
        yield from self._read(self.machine.expert_bytes, again=again, fault=fault)
        self.seen.add(unit)
        self.cached[unit] = None
        if len(self.cached) > self.slots:
            self.cached.popitem(last=False)

    def _read(self, amount: int, *, again: bool, fault: bool = True) -> Iterator[Sample]:
        seconds = amount / self.machine.disk_bytes_per_s
        self.busy_s += seconds
        if again:
            self.again += amount
            self.stalled_s += seconds
        self.read += amount
        self.faults += amount // READ_AHEAD_BYTES if fault else 0
        yield from self._spend(seconds, cpu=0.2)

    def _spend(self, seconds: float, cpu: float = 0.0) -> Iterator[Sample]:
        self.now_s += seconds
        self.cpu_s += cpu * seconds
        while self.next_s <= self.now_s:
            yield self._sample(self.next_s)
            self.next_s += self.machine.interval_s

    def _sample(self, at_s: float) -> Sample:
        size = self.machine.expert_bytes
        resident = self.dense_resident + len(self.cached) * size
        seen = self.dense_resident + len(self.seen) * size
        pages = self.again // self.machine.page_bytes
        return Sample(
            mono_ns=round(at_s * 1e9),
            wall_ns=WALL_NS + round(at_s * 1e9),
            process=ProcessReading(
                minflt_total=self.faults,
                majflt_total=self.faults,
                rss_bytes=resident,
                rss_anon_bytes=GIB,
                rss_file_bytes=resident,
                utime_ns=round(self.cpu_s * 1e9),
                stime_ns=0,
                read_bytes_total=self.read,
            ),
            devices={
                "nvme0n1": DeviceReading(
                    reads_total=self.read // READ_AHEAD_BYTES,
                    read_bytes_total=self.read,
                    read_ns_total=round(self.busy_s * 1e9),
                    busy_ns_total=round(self.busy_s * 1e9),
                )
            },
            vm=VmReading(workingset_refault_file_total=pages, pgmajfault_total=self.faults, pswpin_total=0),
            cgroup=CgroupReading(workingset_refault_file_total=pages),
            pressure=PressureReading(
                memory_some_ns_total=round(self.stalled_s * 0.3e9),
                memory_full_ns_total=round(self.stalled_s * 0.3e9),
                io_some_ns_total=round(self.busy_s * 0.5e9),
                io_full_ns_total=round(self.busy_s * 0.5e9),
            ),
            residency=ResidencyReading(
                backend="cachestat",
                age_ns=0,
                resident_bytes=resident,
                dense_resident_bytes=self.dense_resident,
                expert_resident_bytes=len(self.cached) * size,
                evicted_bytes=seen - resident,
                recently_evicted_bytes=seen - resident,
            ),
            server=ServerReading(phase=self.phase, tokens_total=self.tokens, source="slots", n_active=1),
        )
