"""Memory for half of the experts, then no work: the verdict, and every figure against the tools of today in the same run."""

import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

import pytest

from moewatch.domain.frame import Frame, Method, State
from moewatch.domain.sample import Sample
from tests.support.driver import Driver
from tests.support.judge import Span, assert_mostly, assert_thrashing, span
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import SMALL, write_model
from tests.support.tools import IostatSpan, Ps, PsReading, fincore_resident_bytes, iostat, vmtouch_resident_bytes
from tests.support.watch import Watching, between, moewatch, parse_frames, recorded, replayed, wait_mapped

INTERVAL_S = 0.5
WORK_S = 26
IDLE_S = 16
IOSTAT_AFTER_S, IOSTAT_S = 12, 10
WITHIN = 0.03  # MB for MiB would be off by 4.9 %


@dataclass
class Round:
    """One run, watched by moewatch and by others at once."""

    frames: list[Frame]
    replayed: list[Frame]
    samples: list[Sample]
    device: str
    work: Span
    idle: Span
    ps: list[PsReading]
    iostat: IostatSpan
    once: Frame
    vmtouch_bytes: int
    fincore_bytes: int


@pytest.fixture(scope="module")
def squeezed(model_disk: ModelDisk, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Round:
    folder = tmp_path_factory.mktemp("squeezed")
    files = write_model(models, SMALL)
    evict(*files)
    recording = folder / "squeezed.jsonl.gz"
    with (
        MemoryLimit("half", memory_for(files, SMALL.expert_bytes, 0.5)) as limit,
        LlamaServer(files[0], log=folder / "server.log", limit=limit) as server,
    ):
        wait_mapped(server.pid, files[0])
        server.wait_ready()
        with (
            Watching(server.pid, interval_s=INTERVAL_S, log=folder / "stream.log") as stream,
            Watching(server.pid, interval_s=INTERVAL_S, log=folder / "record.log", record_to=recording) as record,
            Ps(server.pid) as ps,
        ):
            with span("memory for half of the experts") as work, Driver(server.port) as driver:
                driver.hold(IOSTAT_AFTER_S)
                measured = iostat(model_disk.device, IOSTAT_S)
                driver.hold(WORK_S - IOSTAT_AFTER_S - IOSTAT_S)
            with span("no request") as idle:
                time.sleep(IDLE_S)
        once = moewatch("--once", "--for", "0", "--json", "--pid", str(server.pid))
        vmtouch_bytes, fincore_bytes = vmtouch_resident_bytes(files), fincore_resident_bytes(files)
    assert once.returncode == 0, once.stderr
    assert record.exit_code in (0, 130), record.said()
    return Round(
        frames=stream.frames(),
        replayed=replayed(recording),
        samples=recorded(recording)[1],
        device=model_disk.device,
        work=work,
        idle=idle,
        ps=ps.readings,
        iostat=measured,
        once=parse_frames([once.stdout])[0],
        vmtouch_bytes=vmtouch_bytes,
        fincore_bytes=fincore_bytes,
    )


@pytest.mark.live
@pytest.mark.parametrize("source", ["frames", "replayed"])
def test_memory_for_half_of_the_experts_is_called_thrashing_and_kept(squeezed: Round, source: str) -> None:
    frames: list[Frame] = getattr(squeezed, source)
    assert_thrashing(frames, squeezed.work)
    last = between(frames, squeezed.work.start_ns, squeezed.work.end_ns)[-1].verdict
    assert last.severity is not None
    assert last.loss_ratio, "thrashing costs time"
    assert last.headline


@pytest.mark.live
@pytest.mark.parametrize("source", ["frames", "replayed"])
def test_no_request_is_idle(squeezed: Round, source: str) -> None:
    assert_mostly(getattr(squeezed, source), squeezed.idle, State.IDLE)


@pytest.mark.live
def test_what_is_read_while_thrashing_is_read_again(squeezed: Round) -> None:
    last = between(squeezed.frames, squeezed.work.start_ns, squeezed.work.end_ns)[-1]
    rates = last.rates
    assert rates.method is Method.LEDGER
    assert rates.process_read_bytes_per_s is not None
    assert rates.process_read_bytes_per_s > 10e6
    assert rates.reread_bytes_per_s == pytest.approx(rates.process_read_bytes_per_s, rel=0.1)
    assert rates.departed_bytes_per_s == pytest.approx(rates.process_read_bytes_per_s, rel=0.15)
    assert rates.device_read_bytes_per_s == pytest.approx(rates.process_read_bytes_per_s, rel=0.05)
    assert rates.refault_bytes_per_s == pytest.approx(rates.reread_bytes_per_s, rel=0.15)
    assert rates.tokens_per_s
    assert rates.reread_bytes_per_s is not None
    assert rates.reread_bytes_per_token == pytest.approx(rates.reread_bytes_per_s / rates.tokens_per_s, rel=0.1)


@pytest.mark.live
def test_the_limit_is_the_cgroup_s(squeezed: Round) -> None:
    memory = squeezed.frames[-1].memory
    assert memory.limit_scope not in (None, "host")
    assert memory.limit_bytes is not None
    assert memory.limit_bytes < 0.6 * SMALL.expert_bytes + 200e6


@pytest.mark.live
def test_major_faults_and_memory_agree_with_ps(squeezed: Round) -> None:
    asked = [reading.asked_ns for reading in squeezed.ps]
    compared = 0
    for sample in squeezed.samples:
        after = bisect_left(asked, sample.mono_ns + (sample.collect_ns or 0))
        before = bisect_left(asked, sample.mono_ns) - 1
        while before >= 0 and squeezed.ps[before].answered_ns > sample.mono_ns:
            before -= 1
        if before < 0 or after >= len(asked):
            continue
        process, low, high = sample.process, squeezed.ps[before], squeezed.ps[after]
        assert process is not None
        assert process.majflt_total is not None
        assert process.rss_bytes is not None
        assert low.majflt_total <= process.majflt_total <= high.majflt_total
        # RSS moves both ways between two looks; the kernel's counters lag by up to 64 pages per CPU and thread
        slack = 0.05 * high.rss_bytes
        assert min(low.rss_bytes, high.rss_bytes) - slack <= process.rss_bytes
        assert process.rss_bytes <= max(low.rss_bytes, high.rss_bytes) + slack
        compared += 1
    assert compared >= 0.8 * len(squeezed.samples)
    assert squeezed.ps[-1].majflt_total > squeezed.ps[0].majflt_total + 100, "nothing was compared: no faults"


@pytest.mark.live
def test_disk_reads_agree_with_iostat_whose_mb_are_mib(squeezed: Round) -> None:
    def read_bytes_at(mono_ns: int) -> float:
        after = next(i for i, sample in enumerate(squeezed.samples) if sample.mono_ns >= mono_ns)
        one, two = squeezed.samples[after - 1], squeezed.samples[after]
        assert one.devices
        assert two.devices
        first = one.devices[squeezed.device].read_bytes_total
        second = two.devices[squeezed.device].read_bytes_total
        assert first is not None
        assert second is not None
        return first + (second - first) * (mono_ns - one.mono_ns) / (two.mono_ns - one.mono_ns)

    measured = squeezed.iostat
    ours = (read_bytes_at(measured.end_ns) - read_bytes_at(measured.start_ns)) / (
        (measured.end_ns - measured.start_ns) / 1e9
    )
    assert measured.read_bytes_per_s > 10e6
    assert ours == pytest.approx(measured.read_bytes_per_s, rel=WITHIN)
    shown = min(squeezed.frames, key=lambda frame: abs(frame.mono_ns - measured.end_ns)).rates.device_read_bytes_per_s
    assert shown == pytest.approx(measured.read_bytes_per_s, rel=2 * WITHIN)


@pytest.mark.live
def test_residency_agrees_with_vmtouch_and_fincore(squeezed: Round) -> None:
    residency, memory = squeezed.once.residency, squeezed.once.memory
    assert squeezed.vmtouch_bytes == pytest.approx(squeezed.fincore_bytes, rel=0.001)
    assert memory.model_resident_bytes == pytest.approx(squeezed.vmtouch_bytes, rel=0.001)
    assert residency.resident_ratio is not None
    assert 0.2 < residency.resident_ratio < 0.9
