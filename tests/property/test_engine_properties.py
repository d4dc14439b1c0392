"""What must hold whatever the readings are: no state from nonsense, no negative rate, no looking ahead, no clock in the verdict."""

import math
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moewatch import engine
from moewatch.domain.frame import Frame, Rates, State
from moewatch.domain.sample import Header, Sample
from tests.support.readings import header, sample
from tests.support.score import load, thinned
from tests.support.simulate import GB, Machine, Server

TRACES = Path(__file__).parent.parent / "fixtures" / "traces"
NAMES = ["b50-1", "c2-2", "e-1", "g-1", "j2-1"]
LITTLE = settings(max_examples=12)


@cache
def recorded(name: str) -> tuple[Header, tuple[Sample, ...]]:
    """A recording thinned to two samples a second."""
    head, samples, _ = load(TRACES / f"{name}.jsonl.gz")
    return head, tuple(thinned(samples, 2))


def frames_of(head: Header, samples: tuple[Sample, ...]) -> list[Frame]:
    state = engine.start(head)
    frames = []
    for each in samples:
        state, frame = engine.step(state, each)
        frames.append(frame)
    return frames


def states_of(head: Header, samples: tuple[Sample, ...]) -> list[State]:
    return [f.verdict.state for f in frames_of(head, samples)]


@cache
def known_states(name: str) -> list[State]:
    return states_of(*recorded(name))


@LITTLE
@given(st.sampled_from(NAMES), st.integers(0, 2**60), st.integers(-(2**60), 2**60))
def test_verdict_does_not_depend_on_when_it_was(name: str, mono_ns: int, wall_ns: int) -> None:
    head, samples = recorded(name)
    moved = tuple(replace(s, mono_ns=s.mono_ns + mono_ns, wall_ns=s.wall_ns + wall_ns) for s in samples)
    assert states_of(head, moved) == known_states(name)


@LITTLE
@given(st.sampled_from(NAMES), st.floats(0.05, 0.95))
def test_the_future_changes_nothing(name: str, share: float) -> None:
    head, samples = recorded(name)
    cut = samples[: int(share * len(samples))]
    assert states_of(head, cut) == known_states(name)[: len(cut)]


@LITTLE
@given(st.sampled_from(NAMES), st.sampled_from([512, 1024, 2048]))
def test_verdict_does_not_depend_on_the_page_size(name: str, page_bytes: int) -> None:
    """The kernel counts refaults in pages: the same bytes in smaller pages are the same verdict."""
    head, samples = recorded(name)
    samples = tuple(thinned(samples, 1, ["io"]))  # so that refaults decide
    factor = head.host.page_bytes // page_bytes

    def paged(s: Sample) -> Sample:
        assert s.vm is not None
        assert s.cgroup is not None
        vm, group = s.vm.workingset_refault_file_total or 0, s.cgroup.workingset_refault_file_total or 0
        return replace(
            s,
            vm=replace(s.vm, workingset_refault_file_total=vm * factor),
            cgroup=replace(s.cgroup, workingset_refault_file_total=group * factor),
        )

    other = replace(head, host=replace(head.host, page_bytes=page_bytes))
    assert states_of(other, tuple(paged(s) for s in samples)) == states_of(head, samples)


@pytest.mark.parametrize("name", NAMES)
def test_verdict_is_the_same_with_pages_of_64_kib(name: str) -> None:
    head, samples = recorded(name)
    samples = tuple(thinned(samples, 1, ["io"]))

    def paged(s: Sample) -> Sample:
        assert s.cgroup is not None
        pages = (s.cgroup.workingset_refault_file_total or 0) // 16
        return replace(s, cgroup=replace(s.cgroup, workingset_refault_file_total=pages))

    other = replace(head, host=replace(head.host, page_bytes=1 << 16))
    pairs = list(zip(states_of(other, tuple(paged(s) for s in samples)), states_of(head, samples), strict=True))
    assert sum(a is b for a, b in pairs) >= 0.97 * len(pairs)  # a page more or less moves a boundary by a sample


@LITTLE
@given(st.floats(0.5, 12.0), st.integers(1, 5))
def test_thrashing_is_called_on_any_disk_within_a_turnover(disk: float, seed: int) -> None:
    machine = Machine(disk_bytes_per_s=disk * GB)
    server = Server(machine, seed)
    samples = tuple(server.load())
    start_s = server.now_s
    allowed_s = max(12.0, machine.cache_bytes / machine.disk_bytes_per_s) + 1
    samples += tuple(server.generate(allowed_s + 10))
    frames = frames_of(machine.header(), samples)
    for frame in frames:
        if frame.mono_ns / 1e9 >= start_s + allowed_s:
            assert frame.verdict.state is State.THRASHING
        elif frame.mono_ns / 1e9 < start_s:
            assert frame.verdict.state is not State.THRASHING


@LITTLE
@given(st.floats(0.5, 12.0), st.integers(1, 5), st.floats(0.1, 0.44))
def test_a_topic_that_fits_is_no_thrashing_on_any_disk(disk: float, seed: int, share: float) -> None:
    machine = Machine(disk_bytes_per_s=disk * GB)
    server = Server(machine, seed)
    samples = tuple(server.load())
    for _ in range(2):
        samples += tuple(server.generate(30 + 60 * share / disk, server.topic(share)))
    assert State.THRASHING not in states_of(machine.header(), samples)


COUNT = st.one_of(st.none(), st.integers(0, 2**63))
READINGS = st.fixed_dictionaries(
    {
        "read": COUNT,
        "resident": COUNT,
        "evicted": COUNT,
        "refaults": COUNT,
        "machine_refaults": COUNT,
        "device": COUNT,
        "tokens": COUNT,
        "readers": COUNT,
        "swapped_in": COUNT,
        "majflt": COUNT,
        "again": COUNT,
        "departed": COUNT,
        "first": COUNT,
        "n_active": st.one_of(st.none(), st.integers(0, 4)),
        "phase": st.sampled_from(["idle", "prompt", "generate", "loading", "unknown"]),
    }
)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(-(10**10), 10**11), READINGS), max_size=25))
def test_nonsense_gives_frames_without_nonsense(steps: list[tuple[int, dict[str, object]]]) -> None:
    """Any readings, jumps of time and resets: every figure is finite, no rate is negative, no share exceeds one."""
    state = engine.start(header())
    at_ns = 0
    for step_ns, values in steps:
        at_ns = max(0, at_ns + step_ns)
        read = {k: v for k, v in values.items() if k != "phase" and (k != "evicted" or values["resident"] is not None)}
        if values["resident"] is None:
            for key in ("first", "again", "departed"):
                read.pop(key)
        made = replace(sample(0, **read), mono_ns=at_ns, wall_ns=at_ns)
        made = replace(made, server=replace(made.server, phase=values["phase"]))
        state, frame = engine.step(state, made)
        assert_sound(frame)


def assert_sound(frame: Frame) -> None:
    for name in Rates.__struct_fields__:
        value = getattr(frame.rates, name)
        if isinstance(value, int | float):
            assert math.isfinite(value), name
            assert value >= 0, name
    verdict = frame.verdict
    assert 0 <= verdict.confidence <= 1
    if verdict.loss_ratio is not None:
        assert 0 <= verdict.loss_ratio <= 1
    for ratio in (frame.residency.resident_ratio, frame.residency.dense_ratio, frame.rates.memory_stall_ratio):
        assert ratio is None or 0 <= ratio <= 1
    assert (verdict.severity is None) or verdict.state is State.THRASHING
    assert (verdict.state is State.UNKNOWN) == (verdict.confidence == 0)
    assert verdict.since_ns <= frame.mono_ns
    assert msgspec.json.decode(msgspec.json.encode(frame), type=Frame) == frame


@settings(max_examples=40)
@given(st.sampled_from(["read", "resident", "evicted", "refaults", "majflt", "device", "tokens"]), st.integers(8, 30))
def test_no_state_from_a_reset(field: str, at: int) -> None:
    """A steady server whose counter begins again stays steady, or becomes unknown for a moment: nothing is made of it."""
    values = {"read": 10**10, "resident": 10**9, "evicted": 0, "refaults": 10**6, "majflt": 10**4, "device": 10**11}

    def made(t: int) -> Sample:
        now: dict[str, int] = {**values, "tokens": 1000 + 10 * t}
        if t >= at:
            now[field] = 0
        return sample(t, cpu_s=float(t), **now)

    states = states_of(header(), tuple(made(t) for t in range(45)))
    assert set(states) <= {State.STEADY, State.UNKNOWN, State.WARMING}
    assert states[-1] is State.STEADY
