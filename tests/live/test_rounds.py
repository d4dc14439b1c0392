"""The long rounds: what was done to a real server, and what moewatch must and must not say of it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from moewatch.domain.frame import Frame, Note, State
from moewatch.domain.sample import LoadMode
from tests.support.driver import Driver
from tests.support.judge import Span, assert_mostly, assert_never_thrashing, assert_thrashing, span
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import NO_LIMIT, MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import DENSE, LARGE, SMALL, MoeShape, make_room, write_model
from tests.support.watch import Watching, between, wait_mapped

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
CPU_ONLY = ("--device", "none", "-ngl", "0")
INTERVAL_S = 1.0  # what people use
SPLIT_BYTES = 500_000_000
SKEWED = replace(LARGE, popularity_spread=1.5)
TOPICAL = replace(
    LARGE, topic_gain=6.0
)  # a quarter of the experts takes nearly all of a topic: 0.4 GB once, then quiet
CALM = (State.STEADY, State.WARMING, State.RECOVERING)
OTHER_BYTES = 300 << 20
SLOW_BYTES_PER_S = 120_000_000
SPLIT = ("-ngl", "99", "-ot", r".ffn_.*_exps.=CPU")  # the commonest way to share a model between GPU and CPU
SOFTWARE_DEVICE = {"GGML_VK_VISIBLE_DEVICES": "0"}
GPU_SHARE = 0.15  # a software GPU computes for so long that with more memory the reads cost less than 5 % of the time
OFFLOADED = replace(SMALL, topic_gain=0.0)
READER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    while os.read(fd, 4 << 20):
        pass
"""


@dataclass
class Stage:
    """A running server under a limit, being watched."""

    server: LlamaServer
    limit: MemoryLimit
    files: tuple[Path, ...]
    watching: Watching
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def work(self, name: str, **how: int) -> Iterator[Driver]:
        """Requests in work, and the span they took."""
        with span(name) as timed, Driver(self.server.port, **how) as driver:
            self.spans.append(timed)
            yield driver

    def frames(self) -> list[Frame]:
        return self.watching.frames()


@contextmanager
def staged(
    models: Path, folder: Path, shape: MoeShape, share: float | None = None, arguments: tuple[str, ...] = ()
) -> Iterator[Stage]:
    """A loaded server with memory for `share` of its experts (None: for everything)."""
    files = write_model(models, shape)
    evict(*files)
    limit_bytes = NO_LIMIT if share is None else memory_for(files, shape.expert_bytes, share)
    with (
        MemoryLimit("round", limit_bytes) as limit,
        LlamaServer(files[0], log=folder / "server.log", limit=limit, arguments=CPU_ONLY + arguments) as server,
    ):
        if not arguments:
            wait_mapped(server.pid, files[0])
        server.wait_ready()
        with Watching(server.pid, interval_s=INTERVAL_S, log=folder / "moewatch.log") as watching:
            yield Stage(server, limit, files, watching)


def anonymous_bytes(limit: MemoryLimit) -> int:
    """What in the cgroup no file backs, so that it cannot be pushed out."""
    pairs = (line.split() for line in (limit.path / "memory.stat").read_text(encoding="ascii").splitlines())
    stat = {name: int(value) for name, value in pairs}
    names = ("total_rss", "total_shmem") if limit.is_v1 else ("anon", "shmem")
    return sum(stat[name] for name in names)


@pytest.mark.parametrize("share", [0.7, 0.5, 0.3])
def test_uniform_routing_with_memory_for_a_share_of_the_experts_thrashes(
    models: Path, tmp_path: Path, share: float
) -> None:
    with staged(models, tmp_path, LARGE, share) as stage, stage.work("thrash") as driver:
        driver.hold(30)
    assert_thrashing(stage.frames(), stage.spans[0])


def test_shards_are_watched_as_one_model(models: Path, tmp_path: Path) -> None:
    shape = replace(LARGE, split_bytes=SPLIT_BYTES)
    with staged(models, tmp_path, shape, 0.5) as stage, stage.work("thrash") as driver:
        driver.hold(30)
    frames = stage.frames()
    assert_thrashing(frames, stage.spans[0])
    assert len(stage.files) > 2
    assert [file["name"] for file in frames[-1].target.files] == [file.name for file in stage.files]


def test_memory_for_nearly_all_experts_is_a_harmless_trickle(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, LARGE, 1.0) as stage, stage.work("light paging") as driver:
        driver.hold(30)
    assert_mostly(stage.frames(), stage.spans[0], *CALM)


def test_a_skewed_router_lives_well_with_memory_below_the_file(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, SKEWED, 0.85) as stage, stage.work("light paging") as driver:
        driver.hold(40)
    assert_mostly(stage.frames(), stage.spans[0], *CALM)


def test_a_squeeze_thrashes_and_its_end_recovers(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, LARGE) as stage:
        with stage.work("steady") as driver:
            driver.hold(12)
        stage.limit.set(memory_for(stage.files, LARGE.expert_bytes, 0.5))
        with stage.work("thrash") as driver:
            driver.hold(25)
        stage.limit.set(NO_LIMIT)
        with stage.work("recover") as driver:
            driver.hold(25)
    steady, thrash, recover = stage.spans
    frames = stage.frames()
    assert_mostly(frames, steady, *CALM)
    assert_thrashing(frames, thrash)
    assert_mostly(frames, recover, *CALM)
    assert between(frames, recover.start_ns, recover.end_ns)[-1].verdict.state is State.STEADY


def test_everything_evicted_with_memory_to_spare_recovers(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, SKEWED) as stage:
        stage.limit.evict_all()
        with stage.work("come back") as driver:
            driver.hold(25)
    frames = stage.frames()
    assert_never_thrashing(frames, stage.spans[0], grace=False)
    assert_mostly(frames, stage.spans[0], *CALM)


def test_a_change_of_topic_that_fits_is_no_thrashing(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, TOPICAL, 0.6) as stage:
        for topic in (0, 1, 2):
            with stage.work(f"topic {topic}", topic=topic) as driver:
                driver.hold(20)
    for calm in stage.spans[1:]:
        assert_mostly(stage.frames(), calm, *CALM)


def test_a_dense_model_with_memory_for_nine_tenths_falls_off_the_cliff(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, DENSE) as stage:
        stage.limit.set(int(0.9 * sum(file.stat().st_size for file in stage.files)) + (48 << 20))
        with stage.work("thrash") as driver:
            driver.hold(35)
    frames = stage.frames()
    assert_thrashing(frames, stage.spans[0])
    assert frames[-1].verdict.severity == "severe"


def test_a_long_prompt_under_tight_memory_thrashes_before_any_token(models: Path, tmp_path: Path) -> None:
    arguments = ("-ub", "128", "-b", "512")
    with (
        staged(models, tmp_path, LARGE, 0.35, arguments) as stage,
        stage.work("prompt", prompt_tokens=3000) as driver,
    ):
        driver.hold(30)
    assert_thrashing(stage.frames(), stage.spans[0])


def test_another_reader_of_the_disk_is_not_the_server_s_fault(models: Path, tmp_path: Path) -> None:
    other = models / "other.bin"
    make_room(models, OTHER_BYTES + (16 << 20))
    other.write_bytes(b"\1" * OTHER_BYTES)
    evict(other)
    with staged(models, tmp_path, LARGE) as stage, stage.work("another reads") as driver:
        reader = subprocess.Popen([sys.executable, "-c", READER, str(other)])
        try:
            driver.hold(25)
        finally:
            reader.kill()
            reader.wait()
            other.unlink()
    frames = stage.frames()
    assert_mostly(frames, stage.spans[0], State.STEADY)
    last = between(frames, stage.spans[0].settled_ns, stage.spans[0].end_ns)[-1]
    assert Note.DISK_BUSY_ELSEWHERE in last.verdict.notes
    assert (last.rates.other_read_bytes_per_s or 0) > 50e6


@pytest.mark.parametrize(
    ("arguments", "mode"), [(("-lm", "none"), LoadMode.NONE), (("-lm", "mlock"), LoadMode.MLOCK)], ids=["none", "mlock"]
)
def test_a_model_that_is_not_mapped_cannot_page(
    models: Path, tmp_path: Path, arguments: tuple[str, ...], mode: LoadMode
) -> None:
    with staged(models, tmp_path, LARGE, None, arguments) as stage, stage.work("work") as driver:
        driver.hold(15)
    frames = stage.frames()
    assert_never_thrashing(frames)
    assert frames[-1].target.load_mode is mode
    assert Note.NOT_MAPPED in frames[-1].verdict.notes


def test_idle_stays_idle_and_work_after_it_is_no_alarm(models: Path, tmp_path: Path) -> None:
    with staged(models, tmp_path, LARGE) as stage:
        with stage.work("work") as driver:
            driver.hold(8)
        with span("idle") as idle:
            time.sleep(25)
        with stage.work("work again") as driver:
            driver.hold(10)
    frames = stage.frames()
    assert_never_thrashing(frames)
    assert_mostly(frames, idle, State.IDLE)
    assert_mostly(frames, stage.spans[1], *CALM)


@pytest.mark.parametrize(("share", "wanted"), [(0.5, (State.THRASHING,)), (None, CALM)], ids=["half", "ample"])
def test_several_requests_at_once(models: Path, tmp_path: Path, share: float | None, wanted: tuple[State, ...]) -> None:
    arguments = ("-np", "3", "-c", "6144")
    with (
        staged(models, tmp_path, LARGE, share, arguments) as stage,
        stage.work("three at once", seed=1) as driver,
        Driver(stage.server.port, seed=2),
        Driver(stage.server.port, seed=3, prompt_tokens=400),
    ):
        driver.hold(30)
    frames = stage.frames()
    assert max(frame.server.n_active or 0 for frame in frames) > 1
    if State.THRASHING in wanted:
        assert_thrashing(frames, stage.spans[0])
    else:
        assert_mostly(frames, stage.spans[0], *wanted)


def test_the_load_of_a_file_above_memory_is_a_load(model_disk: ModelDisk, models: Path, tmp_path: Path) -> None:
    files = write_model(models, LARGE)
    evict(*files)
    limit_bytes = memory_for(files, LARGE.expert_bytes, 0.5)
    with (
        MemoryLimit("load", limit_bytes, slow_disk=model_disk.device, read_bytes_per_s=SLOW_BYTES_PER_S) as limit,
        LlamaServer(files[0], log=tmp_path / "server.log", limit=limit) as server,
    ):
        wait_mapped(server.pid, files[0])
        with Watching(server.pid, interval_s=INTERVAL_S, log=tmp_path / "moewatch.log") as watching:
            with span("load") as load:
                server.wait_ready()
            time.sleep(2)
    frames = between(watching.frames(), load.start_ns, load.end_ns)
    assert_mostly(frames, load, State.LOADING)
    assert_never_thrashing(frames)


def test_experts_on_the_cpu_and_the_rest_on_a_gpu_thrash_as_well(models: Path, tmp_path: Path) -> None:
    files = write_model(models, OFFLOADED)
    evict(*files)
    with (
        MemoryLimit("gpu") as limit,
        LlamaServer(
            files[0], log=tmp_path / "server.log", limit=limit, arguments=SPLIT, environment=SOFTWARE_DEVICE
        ) as server,
    ):
        server.wait_ready()
        with Driver(server.port) as driver:
            driver.hold(15)  # the device and its compiler take their memory with the first tokens
        limit.set(anonymous_bytes(limit) + int(GPU_SHARE * OFFLOADED.expert_bytes))
        with (
            Watching(server.pid, interval_s=INTERVAL_S, log=tmp_path / "moewatch.log") as watching,
            span("on the GPU") as work,
            Driver(server.port, seed=2) as driver,
        ):
            driver.hold(60)
    frames = watching.frames()
    assert_thrashing(frames, work)
    assert frames[-1].residency.not_needed_bytes
