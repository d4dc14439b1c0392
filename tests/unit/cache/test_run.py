"""The reading, on a real file of a real disk: exactly what was planned, stopped at once, nothing left behind."""

import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from moewatch.cache import run as run_module
from moewatch.cache.child import ReaderProcess, Result
from moewatch.cache.guard import GONE_FLOOR_BYTES, LOOK_CPU_NS, Guard, gone_limit
from moewatch.cache.residency import ShardCache
from moewatch.cache.run import BUSY_SHARE, JOBS_UNDER_WAY, Warming, cut
from moewatch.cache.runs import subtract, total
from moewatch.clock import ManualClock, SystemClock
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.domain.warm import FileRun, Plan, PlannedRange, Room, Step, StopReason, WarmProgress, What
from moewatch.linux.blockdev import disks_of
from moewatch.linux.pagecache import SystemPageCache
from moewatch.linux.root import KernelRoot
from moewatch.linux.shards import Shard, close_shards, open_shards
from moewatch.units import GIB, MIB
from tests.support.layouts import layout_of
from tests.support.model_disk import DISK_TOOLS, ModelDisk, evict
from tests.support.requirements import needs
from tests.support.scripted_cache import EVICTED, RESIDENT, ScriptedPageCache

SIZE = 48 * MIB + 1000
PAGE = 4096
FEW_BYTES = 64 << 10  # a kernel with DAMON takes idle pages away
CLOCK = SystemClock()


@pytest.fixture
def layout() -> Iterator[ModelLayout]:
    """A file on a disk, not in memory; /tmp may be a tmpfs, which has no page cache apart from itself."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield written(Path(directory))


@pytest.fixture
def shards(layout: ModelLayout) -> Iterator[list[Shard]]:
    found = open_shards(layout)
    yield found
    close_shards(found)


def written(directory: Path) -> ModelLayout:
    path = directory / "model.gguf"
    path.write_bytes(os.urandom(SIZE))
    evict(path)
    return layout_of([path], [])


def read_ahead_of(layout: ModelLayout) -> int | None:
    """What the kernel reads ahead on the disk below."""
    (device,) = disks_of(KernelRoot.system(), layout.paths[0]).devices
    return device.read_ahead_bytes


def plan_of(*runs: tuple[int, int], resident_bytes: int = 0, budget_bytes: int = GIB) -> Plan:
    return Plan(
        what=What.AUTO,
        budget_bytes=budget_bytes,
        ranges=tuple(
            PlannedRange(
                file_index=0, offset=start, length=end - start, weight_class=WeightClass.DENSE, step=Step.DENSE
            )
            for start, end in runs
        ),
        steps=(),
        classes=(),
        resident_bytes=resident_bytes,
    )


class Server:
    """What the run asks of the server."""

    def __init__(self, *, busy: bool | None = False, ended: bool = False) -> None:
        self.busy, self.ended = busy, ended

    def is_busy(self) -> bool | None:
        return self.busy

    def has_ended(self) -> bool:
        return self.ended


def warming(
    plan: Plan, layout: ModelLayout, guard: Guard, *, rate: int | None = None, server: Server | None = None,
    read_ahead_bytes: int | None = None, cgroup_procs: tuple[str, ...] = (),
) -> Warming:  # fmt: skip
    return Warming(
        plan,
        layout.paths,
        [file.name for file in layout.files],
        guard,
        CLOCK,
        server=server,
        rate_bytes_per_s=rate,
        read_ahead_bytes=read_ahead_bytes,
        cgroup_procs=cgroup_procs,
    )


def real_guard(plan: Plan, shards: list[Shard]) -> Guard:
    return Guard(plan, ShardCache(SystemPageCache(), shards), CLOCK)


def test_exactly_the_planned_bytes_are_in_memory_afterwards(layout: ModelLayout, shards: list[Shard]) -> None:
    """With this disk's own read-ahead, whatever it is."""
    assert_reads_exactly(layout, shards, read_ahead_of(layout))


def test_where_read_ahead_is_not_known_it_reads_exactly_too(layout: ModelLayout, shards: list[Shard]) -> None:
    assert_reads_exactly(layout, shards, None)


@needs(*DISK_TOOLS, root=True)
@pytest.mark.parametrize("read_ahead_kib", [16, 128, 256, 8192])
def test_every_read_ahead_of_a_disk_reads_exactly(read_ahead_kib: int) -> None:
    with ModelDisk(size_bytes=96 * MIB, read_ahead_kib=read_ahead_kib) as disk:
        layout = written(disk.path)
        assert read_ahead_of(layout) == read_ahead_kib << 10
        shards = open_shards(layout)
        try:
            assert_reads_exactly(layout, shards, read_ahead_kib << 10)
        finally:
            close_shards(shards)


def assert_reads_exactly(layout: ModelLayout, shards: list[Shard], read_ahead_bytes: int | None) -> None:
    wanted = [(0, PAGE), (2 * MIB, 2 * MIB + 3 * PAGE), (4 * MIB, 15 * MIB), (30 * MIB, 31 * MIB), (47 * MIB, SIZE)]
    plan = plan_of(*wanted)
    run = warming(plan, layout, real_guard(plan, shards), read_ahead_bytes=read_ahead_bytes)
    told = list(run.run())
    assert run.stopped is None
    assert run.read_bytes == plan.planned_bytes
    (found,) = ShardCache(SystemPageCache(), shards).resident()
    assert not subtract(found, wanted), "read beyond what was asked for"
    assert total(subtract(wanted, found)) <= FEW_BYTES
    assert told[-1].read_bytes == plan.planned_bytes
    assert [each.read_bytes for each in told] == sorted(each.read_bytes for each in told)


def test_what_is_wanted_and_in_memory_is_touched_first_and_not_counted(
    layout: ModelLayout, shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = msgspec.structs.replace(plan_of((8 * MIB, 12 * MIB)), held=(FileRun(0, 0, 4 * MIB), FileRun(0, MIB, PAGE)))
    sent: list[tuple[int, int]] = []
    real_send = ReaderProcess.send

    def send(self: ReaderProcess, *job: int) -> None:
        sent.append((job[2], job[3]))
        real_send(self, *job)

    monkeypatch.setattr(ReaderProcess, "send", send)
    run = warming(plan, layout, real_guard(plan, shards))
    list(run.run())
    assert sent == [(0, 4 * MIB), (MIB, PAGE)] * 2 + [(8 * MIB, 4 * MIB)]
    assert run.read_bytes == 4 * MIB


def test_jobs_cover_each_range_once_and_none_is_short() -> None:
    plan = plan_of((0, 41 * MIB + PAGE), (50 * MIB, 50 * MIB + PAGE))
    jobs = list(cut(plan.ranges, 128 << 10))
    assert sum(job.length for job, _ in jobs) == plan.planned_bytes
    at = 0
    for job, plain in jobs[:-1]:
        assert job.offset == at
        assert 2 * MIB < job.length < 7 * MIB
        assert 0 <= plain <= job.length
        at += job.length
    assert jobs[0][1] == jobs[0][0].length, "read-ahead everywhere but near the range's end"
    assert jobs[-2][1] <= jobs[-2][0].length - 512 * 1024
    assert jobs[-1][1] == 0
    assert all(plain == 0 for _, plain in cut(plan.ranges, 8 << 20)), "such a window would reach beyond any range"


def test_a_cancel_is_heard_at_once_and_the_reader_is_gone(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    children: list[ReaderProcess] = []
    run = Warming(
        plan, layout.paths, ["model.gguf"], real_guard(plan, shards), CLOCK,
        rate_bytes_per_s=4 * MIB, on_start=children.append,
    )  # fmt: skip
    for progress in run.run():
        if progress.read_bytes:
            run.cancel()
    assert run.reason is StopReason.CANCELLED
    assert 0 < run.read_bytes < plan.planned_bytes
    assert not Path(f"/proc/{children[0].pid}").exists()


def test_closing_the_iterator_is_a_cancel_too(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    run = warming(plan, layout, real_guard(plan, shards), rate=4 * MIB)
    progress = run.run()
    next(progress)
    progress.close()
    assert run.reason is StopReason.CANCELLED
    assert run.elapsed_ns > 0


def test_a_file_cut_meanwhile_is_said_and_ends_it(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    os.truncate(layout.paths[0], 20 * MIB)
    run = warming(plan, layout, real_guard(plan, shards))
    list(run.run())
    assert run.reason is StopReason.FILE
    assert run.stopped is not None
    assert "model.gguf ends before byte" in run.stopped
    assert run.read_bytes <= 20 * MIB


def test_a_file_that_vanished_is_said(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    Path(layout.paths[0]).rename(layout.paths[0] + ".away")
    run = warming(plan, layout, real_guard(plan, shards))
    list(run.run())
    assert run.reason is StopReason.FILE
    assert "No such file" in str(run.stopped)


def test_the_readers_death_is_said(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    run = Warming(
        plan, layout.paths, ["model.gguf"], real_guard(plan, shards), CLOCK, rate_bytes_per_s=4 * MIB,
        on_start=lambda child: os.kill(child.pid, signal.SIGKILL),
    )  # fmt: skip
    list(run.run())
    assert run.reason is StopReason.READER
    assert "signal 9" in str(run.stopped)


def test_the_servers_end_stops_it(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, SIZE))
    run = warming(plan, layout, real_guard(plan, shards), rate=4 * MIB, server=Server(ended=True))
    list(run.run())
    assert run.reason is StopReason.SERVER_ENDED


def test_a_rate_is_kept(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 24 * MIB))
    run = warming(plan, layout, real_guard(plan, shards), rate=24 * MIB)
    list(run.run())
    assert run.read_bytes == plan.planned_bytes
    assert run.elapsed_ns > 0.7e9  # the last 4 MiB are sent when 20 are paid for


def test_a_high_rate_is_not_slowed_by_the_waiting(
    layout: ModelLayout, shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two jobs it waits until the next one is paid for, not for a whole tick."""
    plan = plan_of((0, SIZE))
    rate = 400 * MIB
    waits: list[int] = []
    real_receive = ReaderProcess.receive

    def receive(self: ReaderProcess, wait_ns: int) -> list[Result]:
        waits.append(wait_ns)
        return real_receive(self, wait_ns)

    monkeypatch.setattr(ReaderProcess, "receive", receive)
    run = warming(plan, layout, real_guard(plan, shards), rate=rate)
    list(run.run())
    assert run.read_bytes == plan.planned_bytes
    longest_job_ns = 7 * MIB * 1_000_000_000 // rate
    assert sum(wait > longest_job_ns for wait in waits) <= JOBS_UNDER_WAY, "only for the last of them"


def test_it_gives_way_to_a_busy_server(
    layout: ModelLayout, shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch, then a rest of three times as long: so the time it reads is at most a quarter."""
    plan = plan_of((0, SIZE))
    spans: list[tuple[int, int]] = []
    began: list[int] = []

    def send(self: ReaderProcess, *job: int) -> None:
        if len(began) == len(spans):
            began.append(CLOCK.mono_ns())
        real_send(self, *job)

    def take(self: Warming, result: Result) -> None:
        real_take(self, result)
        if not self._under_way:
            spans.append((began[-1], CLOCK.mono_ns()))

    real_send, real_take = ReaderProcess.send, Warming._take
    monkeypatch.setattr(ReaderProcess, "send", send)
    monkeypatch.setattr(Warming, "_take", take)
    run = warming(plan, layout, real_guard(plan, shards), server=Server(busy=True))
    told = list(run.run())
    assert run.read_bytes == plan.planned_bytes
    assert len(spans) > 1
    for (start, end), (next_start, _) in itertools.pairwise(spans):
        assert next_start - end >= 0.9 * (BUSY_SHARE - 1) * (end - start)
    assert told[0].is_server_busy


def test_the_reader_ends_with_its_parent(layout: ModelLayout) -> None:
    """Kill -9 of the parent: the pipe ends, and so does the child."""
    code = (
        "import sys,time\nfrom moewatch.cache.child import ReaderProcess, Result\nfrom moewatch.clock import SystemClock\n"
        "with ReaderProcess([sys.argv[1]], SystemClock(), threads=2) as child:\n"
        "    print(child.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, layout.paths[0]], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    child_fd = os.pidfd_open(child_pid)
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    assert select.select([child_fd], [], [], 10)[0], "the reader outlived its parent"
    os.close(child_fd)


def test_the_reader_is_small_and_says_whose_it_is(layout: ModelLayout) -> None:
    with ReaderProcess(layout.paths, CLOCK, threads=run_module.THREADS) as child:
        for number in range(run_module.THREADS):
            child.send(number, 0, number * MIB, MIB, MIB)
        left = run_module.THREADS
        while left:
            left -= len(child.receive(10_000_000_000))
        status = Path(f"/proc/{child.pid}/status").read_text()
        words = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    assert int(line.split()[1]) < 16 << 10  # KiB
    assert b"warm" in words
    assert not any(word.endswith(b".gguf") for word in words), "it must not look like a server of that model"


def test_a_cgroup_that_may_not_be_joined_is_no_failure(
    layout: ModelLayout, shards: list[Shard], tmp_path: Path
) -> None:
    plan = plan_of((0, MIB))
    run = warming(plan, layout, real_guard(plan, shards), cgroup_procs=(str(tmp_path / "none" / "cgroup.procs"),))
    list(run.run())
    assert run.stopped is None
    assert run.joined_errno == 2


# ---- the guard, on a scripted page cache


def scripted(layout: ModelLayout, shards: list[Shard], plan: Plan, **more: object) -> tuple[Guard, bytearray]:
    cache = ScriptedPageCache()
    pages = cache.add(Path(layout.paths[0]))
    pages[-1] = RESIDENT  # else cachestat's nothing would be doubted
    return Guard(plan, ShardCache(cache, shards), CLOCK, **more), pages  # type: ignore[arg-type]  # as given


def mark(pages: bytearray, start: int, end: int, state: int) -> None:
    pages[start // PAGE : end // PAGE] = bytes([state]) * ((end - start) // PAGE)


def test_what_was_read_and_is_gone_again_stops_it(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 40 * MIB))
    guard, pages = scripted(layout, shards, plan)
    mark(pages, 0, 40 * MIB, RESIDENT)
    for start in range(0, 40, 4):
        guard.note(0, start * MIB, (start + 4) * MIB)
    assert guard.look().reason is None
    mark(pages, 0, GONE_FLOOR_BYTES, EVICTED)
    assert guard.look().reason is None, "up to the limit nothing is said"
    mark(pages, 0, GONE_FLOOR_BYTES + MIB, EVICTED)
    ruling = guard.look()
    assert ruling.reason is StopReason.EVICTING
    assert ruling.gone_bytes == GONE_FLOOR_BYTES + MIB
    assert "gone again" in str(ruling.words)


def test_pushing_out_what_was_there_before_stops_it(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 8 * MIB), resident_bytes=40 * MIB)
    guard, pages = scripted(layout, shards, plan)
    mark(pages, 0, 20 * MIB, RESIDENT)
    guard.note(0, 0, 8 * MIB)
    assert guard.look().reason is None, "once may be the server's own coming and going"
    ruling = guard.look()
    assert ruling.reason is StopReason.EVICTING
    assert "before" in str(ruling.words)


def test_parts_that_were_to_make_room_may_go(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 8 * MIB), resident_bytes=40 * MIB, budget_bytes=20 * MIB)
    guard, pages = scripted(layout, shards, plan)
    mark(pages, 0, 20 * MIB, RESIDENT)
    guard.note(0, 0, 8 * MIB)
    guard.look()
    assert guard.look().reason is None


@pytest.mark.parametrize(("room_mib", "words"), [(60, "another program took memory"), (100, None)])
def test_memory_that_vanishes_under_way_stops_it(
    layout: ModelLayout, shards: list[Shard], room_mib: int, words: str | None
) -> None:
    plan = plan_of((0, 40 * MIB))
    room = Room(room_bytes=100 * MIB, kept_bytes=30 * MIB)
    now = Room(room_bytes=room_mib * MIB, kept_bytes=30 * MIB)
    guard, pages = scripted(layout, shards, plan, room=room, read_room=lambda _resident: now)
    mark(pages, 0, 36 * MIB, RESIDENT)
    guard.note(0, 0, 36 * MIB)
    ruling = guard.look()
    assert (ruling.reason is StopReason.MEMORY) is (words is not None)
    assert words is None or words in str(ruling.words)


def test_a_budget_above_the_room_stops_at_the_margin(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 40 * MIB), budget_bytes=GIB)
    room = Room(room_bytes=40 * MIB, kept_bytes=16 * MIB)
    guard, pages = scripted(layout, shards, plan, room=room, read_room=lambda _resident: room)
    mark(pages, 0, 30 * MIB, RESIDENT)
    guard.note(0, 0, 30 * MIB)
    assert "above the room" in str(guard.look().words)


def test_a_look_stays_cheap_however_much_was_read(layout: ModelLayout, shards: list[Shard]) -> None:
    """Each look visits the oldest ranges and goes round the others; what it saw of one counts until it comes again."""
    clock = ManualClock()
    cache = ScriptedPageCache(clock=clock)
    pages = cache.add(Path(layout.paths[0]))
    pages[-1] = RESIDENT
    guard = Guard(plan_of((0, 40 * MIB)), ShardCache(cache, shards), clock)
    for page in range(5000):
        guard.note(0, page * PAGE, (page + 1) * PAGE)
    cache.ns_per_page = LOOK_CPU_NS // 400
    looks, visits = 0, []
    while guard.look().gone_bytes < 5000 * PAGE:
        looks += 1
        visits.append(len(cache.calls))
        assert looks < 100, "some are never looked at"
        cache.calls.clear()
    assert looks > 5
    assert max(visits[1:]) < 1000


def test_the_limit_of_what_may_be_gone() -> None:
    assert gone_limit(100 * GIB) == GIB // 2
    assert gone_limit(10 * GIB) == int(0.03 * 10 * GIB)
    assert gone_limit(MIB) == GONE_FLOOR_BYTES


def test_progress_says_speed_and_time_left(layout: ModelLayout, shards: list[Shard]) -> None:
    plan = plan_of((0, 40 * MIB))
    told: list[WarmProgress] = list(warming(plan, layout, real_guard(plan, shards), rate=40 * MIB).run())
    middle = told[len(told) // 2]
    assert middle.bytes_per_s is not None
    assert middle.bytes_per_s < 200 * MIB
    assert middle.eta_ns is not None
    assert told[-1].step is None
