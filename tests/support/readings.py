"""Samples and windows in a line each, for tests of what is derived from them."""

from collections.abc import Iterable
from typing import Any

from moewatch.analysis.window import Window
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
from moewatch.units import GB, MB, S

WALL_NS = 1_780_000_000 * S
MODEL = ModelSummary(
    files=(ModelFile(name="m.gguf", size_bytes=10 * GB),),
    total_bytes=10 * GB,
    dense_bytes=1 * GB,
    expert_bytes=9 * GB,
    n_layer=10,
    n_expert=90,
    n_expert_used=10,
)


def header(**changes: Any) -> Header:
    """A model of 10 GB (A = 2 GB) on one disk."""
    return Header(
        **{
            "host": Host(page_bytes=4096, ram_bytes=8 * GB),
            "target": TargetIdentity(pid=1, start_ticks=1, exe="llama-server", load_mode=LoadMode.MMAP),
            "model": MODEL,
            "devices": (Device(name="sda"),),
            **changes,
        }
    )


def sample(at_s: float, **values: Any) -> Sample:
    """One Sample from flat values: read, resident, evicted, refaults (pages), majflt, tokens, phase, busy_s, device ..."""
    at_ns = round(at_s * S)
    take = values.pop
    read = take("read", None)
    resident = take("resident", None)
    process = ProcessReading(
        read_bytes_total=read,
        majflt_total=take("majflt", 0),
        minflt_total=take("minflt", 0),
        utime_ns=round(take("cpu_s", 0.0) * S),
        stime_ns=0,
        swap_bytes=take("swap", None),
    )
    scan = None
    if resident is not None:
        scan = ResidencyReading(
            backend="cachestat",
            resident_bytes=resident,
            evicted_bytes=take("evicted", None),
            arrived_first_bytes=take("first", None),
            arrived_again_bytes=take("again", None),
            departed_bytes=take("departed", None),
        )
    device = take("device", read)
    refaults, machine_refaults = take("refaults", None), take("machine_refaults", None)
    stalled_s = take("stalled_s", None)
    made = Sample(
        mono_ns=at_ns,
        wall_ns=WALL_NS + at_ns + round(take("slept_s", 0) * S),
        process=process,
        devices=None
        if device is None
        else {
            "sda": DeviceReading(
                read_bytes_total=device,
                reads_total=device // (128 * 1024),
                busy_ns_total=round(take("busy_s", 0.0) * S),
            )
        },
        vm=VmReading(workingset_refault_file_total=machine_refaults, pswpin_total=take("swapped_in", None)),
        cgroup=None if refaults is None else CgroupReading(workingset_refault_file_total=refaults),
        pressure=None if stalled_s is None else PressureReading(memory_some_ns_total=round(stalled_s * S)),
        residency=scan,
        readers_read_bytes_total=take("readers", None),
        server=ServerReading(
            phase=take("phase", Phase.GENERATE), tokens_total=take("tokens", None), n_active=take("n_active", None)
        ),
    )
    assert not values, f"unknown: {values}"
    return made


def window(samples: Iterable[Sample], **changes: Any) -> Window:
    """The window after these Samples."""
    made = Window(header=header(**changes))
    for each in samples:
        made = made.pushed(each)
    return made


__all__ = ["GB", "MB", "MODEL", "header", "sample", "window"]
