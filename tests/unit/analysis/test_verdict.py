"""The state machine on a simulated model of 60 GB with room for 27 GiB: nothing here was used to choose a threshold."""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from moewatch import engine
from moewatch.analysis import verdict
from moewatch.domain.frame import Cause, Frame, Severity, State
from moewatch.domain.sample import CgroupReading, LoadMode, Sample
from moewatch.units import S
from tests.support.score import thinned
from tests.support.simulate import GB, GIB, Machine, Server

DISKS = [0.5, 3.0, 7.0]  # GB/s: SATA, NVMe of generation 3 and 4
INTERVALS = [0.2, 1.0, 5.0]


def watch(machine: Machine, samples: Iterable[Sample]) -> list[Frame]:
    state = engine.start(machine.header())
    frames = []
    for sample in samples:
        state, frame = engine.step(state, sample)
        frames.append(frame)
    return frames


def between(frames: Sequence[Frame], start_s: float, end_s: float = 1e9) -> list[Frame]:
    return [f for f in frames if start_s * 1e9 <= f.mono_ns < end_s * 1e9]


def states(frames: Iterable[Frame]) -> set[State]:
    return {f.verdict.state for f in frames}


def allowed_s(machine: Machine) -> float:
    """12 s, or one turnover of the cache where that is longer, and an interval."""
    return max(12.0, machine.cache_bytes / machine.disk_bytes_per_s) + machine.interval_s


@pytest.mark.parametrize("interval_s", INTERVALS)
@pytest.mark.parametrize("disk", DISKS)
def test_sustained_thrashing_is_called_in_time_and_kept(disk: float, interval_s: float) -> None:
    machine = Machine(disk_bytes_per_s=disk * GB, interval_s=interval_s)
    server = Server(machine)
    loading = list(server.load())
    start_s = server.now_s
    allowed = allowed_s(machine)
    frames = watch(machine, [*loading, *server.generate(allowed + 40)])
    assert states(between(frames, 0, start_s)) <= {State.LOADING, State.UNKNOWN}
    first = next(f.mono_ns / 1e9 - start_s for f in frames if f.verdict.state is State.THRASHING)
    assert 3 < first <= allowed
    after = between(frames, start_s + first)
    assert states(after) == {State.THRASHING}
    assert after[-1].verdict.severity is Severity.SEVERE
    assert after[-1].verdict.cause is Cause.WORKING_SET
    assert after[-1].verdict.confidence > 0.9
    # before it is called it must not sound certain
    early = [f for f in between(frames, start_s, start_s + first) if f.verdict.state is State.WARMING]
    assert all(f.verdict.confidence < 0.5 for f in early)


@pytest.mark.parametrize("interval_s", INTERVALS)
@pytest.mark.parametrize("disk", DISKS)
def test_changes_of_topic_that_fit_are_never_thrashing(disk: float, interval_s: float) -> None:
    machine = Machine(disk_bytes_per_s=disk * GB, interval_s=interval_s)
    server = Server(machine)
    server.map_lazily()
    seconds = max(40.0, 30 / disk + 30)
    samples: list[Sample] = []
    changes = []
    for _ in range(4):
        changes.append(server.now_s)
        samples += server.generate(seconds, server.topic(0.45))
    frames = watch(machine, samples)
    assert State.THRASHING not in states(frames)
    for change_s in changes[1:]:
        soon = between(frames, change_s + 0.1, change_s + max(6.0, 3 * interval_s))
        warming = [f.verdict.cause for f in soon if f.verdict.state is State.WARMING]
        assert set(warming) == {Cause.TOPIC_CHANGE}
        assert states(between(frames, change_s + seconds - 5, change_s + seconds)) == {State.STEADY}


@pytest.mark.parametrize("share", [0.49, 0.6])
def test_light_thrashing_is_no_warm_up_for_ever(share: float) -> None:
    machine = Machine()
    server = Server(machine)
    server.map_lazily()
    frames = watch(machine, server.generate(120, server.topic(share)))
    assert frames[-1].verdict.state is State.THRASHING


def test_steady_always_means_less_than_five_percent() -> None:
    machine = Machine()
    server = Server(machine)

    def life() -> Iterator[Sample]:
        yield from server.load()
        for share in (0.3, 0.45, 0.5, 0.2):
            yield from server.generate(30, server.topic(share))
            yield from server.idle(8)

    steady = [frame.verdict for frame in watch(machine, life()) if frame.verdict.state is State.STEADY]
    losses = [each.loss_ratio for each in steady if each.loss_ratio is not None]
    assert len(losses) > 30
    assert max(losses) < 0.05


def test_squeeze_recovery_and_pause() -> None:
    machine = Machine()
    server = Server(machine)
    server.map_lazily()
    topic = server.topic(0.3)
    samples = list(server.generate(50, topic))
    squeezed_s = server.now_s
    server.squeeze(12 * GIB)
    samples += server.generate(40, topic)
    released_s = server.now_s
    server.slots = Server(machine).slots
    samples += server.generate(40, topic)
    idle_s = server.now_s
    samples += server.idle(20)
    frames = watch(machine, samples)
    assert states(between(frames, squeezed_s - 20, squeezed_s)) == {State.STEADY}
    assert states(between(frames, squeezed_s + 14, released_s)) == {State.THRASHING}
    assert State.THRASHING not in states(between(frames, released_s + 6))
    assert State.RECOVERING in states(between(frames, released_s, released_s + 8))
    assert states(between(frames, idle_s - 10, idle_s)) == {State.STEADY}
    assert states(between(frames, idle_s + 6)) == {State.IDLE}
    lost = [f.verdict for f in between(frames, squeezed_s + 14, released_s)]
    assert {v.loss_method for v in lost} == {"rate"}  # it had been steady before
    assert lost[-1].loss_ratio is not None
    assert lost[-1].loss_ratio > 0.3


def test_a_limit_that_was_lowered_is_the_cause() -> None:
    machine = Machine()
    server = Server(machine)
    server.map_lazily()
    topic = server.topic(0.3)
    before = [
        replace(s, cgroup=CgroupReading(limit_bytes=30 * GIB, workingset_refault_file_total=0))
        for s in server.generate(50, topic)
    ]
    server.squeeze(12 * GIB)
    after = [
        replace(s, cgroup=CgroupReading(limit_bytes=14 * GIB, workingset_refault_file_total=0))
        for s in server.generate(30, topic)
    ]
    assert watch(machine, [*before, *after])[-1].verdict.cause is Cause.LIMIT_LOWERED


def test_thrashing_in_short_requests_adds_up_over_the_pauses() -> None:
    machine = Machine(disk_bytes_per_s=0.5 * GB)
    server = Server(machine)
    samples = list(server.load())
    called = []
    for _ in range(6):
        begun_s = server.now_s
        samples += server.generate(20)
        called.append((begun_s, server.now_s))
        samples += server.idle(15)
    frames = watch(machine, samples)
    in_last = between(frames, called[-1][0] + 5, called[-1][1])
    assert states(in_last) == {State.THRASHING}


def test_new_topics_in_short_requests_that_level_off_do_not_add_up() -> None:
    machine = Machine()
    server = Server(machine)
    samples = list(server.load())
    for _ in range(6):
        samples += server.generate(25, server.topic(0.4))
        samples += server.idle(15)
    assert State.THRASHING not in states(watch(machine, samples))


@pytest.mark.parametrize(
    "without",
    [
        "server",
        "io",
        "cachestat",
        "cgroup",
        "pressure",
        "devices",
        "server,pressure",
        "cachestat,io",
        "cachestat,cgroup",
        "io,cgroup,server",
        "devices,pressure,server",
        "devices,io,server,pressure,cgroup,cachestat",
    ],
)
def test_readings_fall_away_and_the_state_stays_right(without: str) -> None:
    machine = Machine()
    server = Server(machine)
    thrashing = [*server.load(), *server.generate(40)]
    end = watch(machine, thinned(thrashing, 1, without.split(",")))[-1].verdict
    whole = watch(machine, thrashing)[-1].verdict
    assert end.state is State.THRASHING
    assert end.confidence <= whole.confidence
    server = Server(machine)
    server.map_lazily()
    fits = [s for _ in range(3) for s in server.generate(45, server.topic(0.42))]
    assert State.THRASHING not in states(watch(machine, thinned(fits, 1, without.split(","))))


def test_another_users_process_is_unknown_where_it_cannot_be_told() -> None:
    machine = Machine()
    server = Server(machine)
    frames = watch(machine, thinned([*server.load(), *server.generate(40)], 1, ["denied", "cgroup"]))
    assert frames[-1].verdict.state is State.UNKNOWN
    assert frames[-1].verdict.confidence == 0
    missing = {e.id for e in frames[-1].verdict.evidence if e.id.startswith("missing:")}
    assert missing == {"missing:process.read_bytes_total", "missing:residency"}


def test_large_read_ahead_is_not_taken_for_a_load() -> None:
    """A disk of a virtual machine that reads 8 MiB ahead has few faults for many bytes; without HTTP it could pass for a load."""
    machine = Machine()
    server = Server(machine)
    header = machine.header()
    ahead = 8 << 20
    header = replace(header, devices=tuple(replace(d, read_ahead_bytes=ahead) for d in header.devices))
    samples = thinned([*server.load(), *server.generate(40)], 1, ["server"])
    start = next(i for i, s in enumerate(samples) if s.process and s.process.majflt_total)
    state = engine.start(header)
    for i, sample in enumerate(samples):
        assert sample.process is not None
        faults = (
            (sample.process.majflt_total or 0) * (128 << 10) // (3 * ahead)
        )  # async read-ahead: two more windows a fault
        state, frame = engine.step(state, replace(sample, process=replace(sample.process, majflt_total=faults)))
        if i > start + 4:
            assert frame.verdict.state is not State.LOADING
    assert frame.verdict.state is State.THRASHING


def test_all_that_departed_at_once_and_comes_back_is_no_thrashing() -> None:
    machine = Machine()
    server = Server(machine)
    server.map_lazily()
    topic = server.topic(0.4)
    samples = list(server.generate(40, topic))
    server.cached.clear()  # as `echo 1 > /proc/sys/vm/drop_caches`, with shadows kept
    samples += server.generate(40, topic)
    frames = watch(machine, samples)
    assert State.THRASHING not in states(frames)
    assert State.RECOVERING in states(between(frames, 40, 55))


def test_an_unmapped_model_cannot_be_paged() -> None:
    machine = Machine()
    server = Server(machine)
    header = machine.header()
    header = replace(header, target=replace(header.target, load_mode=LoadMode.NONE))
    state = engine.start(header)
    seen = set()
    for sample in server.generate(40):
        state, frame = engine.step(state, sample)
        seen.add(frame.verdict.state)
    assert State.THRASHING not in seen


def test_a_restart_and_a_suspend_begin_anew() -> None:
    machine = Machine()
    server = Server(machine)
    samples = [*server.load(), *server.generate(40)]
    slept = [replace(s, wall_ns=s.wall_ns + 3600 * 10**9) for s in server.generate(30)]
    frames = watch(machine, [*samples, *slept])
    assert frames[len(samples) - 1].verdict.state is State.THRASHING
    first = frames[len(samples)]
    assert first.verdict.state is State.UNKNOWN
    assert first.verdict.since_ns == first.mono_ns
    assert first.rates.window_ns == 0
    assert first.rates.process_read_bytes_per_s is None
    assert frames[-1].verdict.state is State.THRASHING


def test_the_end_of_a_request_is_idle_and_no_warm_up() -> None:
    for interval_s in INTERVALS:
        machine = Machine(interval_s=interval_s)
        server = Server(machine)
        samples = [*server.load(), *server.generate(40)]
        ended_s = server.now_s
        frames = watch(machine, [*samples, *server.idle(20)])
        after = between(frames, ended_s)
        assert states(after) <= {State.THRASHING, State.IDLE}
        assert states(between(after, ended_s + 4 + interval_s)) == {State.IDLE}


@pytest.mark.parametrize("share", [0.46, 0.47, 0.475])  # just about fits: loss wanders around 5 %
def test_states_do_not_flap(share: float) -> None:
    machine = Machine(interval_s=0.2)
    server = Server(machine)
    server.map_lazily()
    frames = watch(machine, server.generate(120, server.topic(share)))
    assert 3 <= len({frame.verdict.since_ns for frame in frames}) <= 5  # unknown and warming are two of them


@pytest.mark.parametrize(
    ("before", "wanted", "hot", "held"),
    [
        (State.WARMING, State.RECOVERING, False, True),
        (State.RECOVERING, State.STEADY, False, True),
        (State.STEADY, State.WARMING, False, True),
        (State.STEADY, State.WARMING, True, False),  # steady is a promise
        (State.WARMING, State.THRASHING, True, False),
        (State.STEADY, State.IDLE, False, False),
    ],
)
def test_paging_alone_changes_a_state_every_five_seconds_at_most(
    before: State, wanted: State, *, hot: bool, held: bool
) -> None:
    memo = verdict.Memo(state=before, since_ns=10 * S)
    assert verdict._held(memo, 15 * S - 1, wanted, hot=hot) is (before if held else wanted)
    assert verdict._held(memo, 15 * S, wanted, hot=hot) is wanted
