"""The one thread that waits: order of events, following a restarted target, and a recorder that fails."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from moewatch import engine
from moewatch.clock import ManualClock
from moewatch.domain.events import Ended, Event, FrameReady, Notice, Started, Waiting
from moewatch.domain.sample import Header, Host, ProcessReading, Sample, TargetIdentity
from moewatch.errors import MoewatchError, TargetEndedError, TargetError
from moewatch.sampler import Sampler
from moewatch.sources import Source
from moewatch.sources.replay import ReplaySource
from moewatch.trace.writer import TraceWriter
from moewatch.units import S


def header(pid: int = 7) -> Header:
    return Header(host=Host(), target=TargetIdentity(pid=pid, start_ticks=1, exe="llama-server"))


def sample(mono_ns: int) -> Sample:
    return Sample(mono_ns=mono_ns, wall_ns=mono_ns, process=ProcessReading(majflt_total=mono_ns // S, minflt_total=0))


class Scripted:
    """A live-like source: so many Samples a second apart, then the target ends."""

    patience_ns = 3600 * S
    stays = False

    def __init__(self, clock: ManualClock, count: int, pid: int = 7) -> None:
        self.header = header(pid)
        self._clock = clock
        self._left = count
        self._next_ns = clock.mono_ns()
        self.closed = False

    def due_ns(self) -> int:
        return self._next_ns

    def read(self) -> Sample:
        assert self._clock.mono_ns() >= self._next_ns, "read before it was due"
        if not self._left:
            raise TargetEndedError(f"PID {self.header.target.pid} ended.")
        self._left -= 1
        self._next_ns += S
        return sample(self._clock.mono_ns())

    def took_jump(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def opener(steps: Iterator[Source | MoewatchError]) -> Callable[[], Source]:
    def open_source() -> Source:
        step = next(steps)
        if isinstance(step, MoewatchError):
            raise step
        return step

    return open_source


def test_frames_come_in_order_and_the_end_is_told() -> None:
    clock, events = ManualClock(), list[Event]()
    source = Scripted(clock, 3)
    sampler = Sampler(opener(iter([source])), clock, events.append)
    sampler.run()
    assert [type(event) for event in events] == [Started, FrameReady, FrameReady, FrameReady, Ended]
    assert [event.frame.mono_ns for event in events if isinstance(event, FrameReady)] == [0, S, 2 * S]
    assert source.closed
    assert sampler.failure is None


def test_a_restarted_target_is_followed_and_waiting_is_said_once() -> None:
    clock, events = ManualClock(), list[Event]()
    wait = TargetError("No llama-server yet; waiting.")
    steps = list[Source | MoewatchError](
        [Scripted(clock, 1), wait, wait, wait, Scripted(clock, 1, pid=8), MoewatchError("enough")]
    )
    sampler = Sampler(opener(iter(steps)), clock, events.append, follow=True)
    sampler.run()
    assert [type(event) for event in events] == [Started, FrameReady, Ended, Waiting, Started, FrameReady, Ended, Ended]
    assert [event.header.target.pid for event in events if isinstance(event, Started)] == [7, 8]
    assert str(sampler.failure) == "enough"
    last = events[-1]
    assert isinstance(last, Ended)
    assert last.final


def test_without_following_a_missing_target_is_a_failure() -> None:
    clock, events = ManualClock(), list[Event]()
    sampler = Sampler(opener(iter([TargetError("No process 9.")])), clock, events.append)
    sampler.run()
    assert str(sampler.failure) == "No process 9."


class FullDisk:
    """A recorder whose disk is full after two Samples."""

    def __init__(self) -> None:
        self.taken, self.closed = 0, 0

    def begin(self, _header: Header) -> None:
        pass

    def take(self, _sample: Sample) -> None:
        if self.taken == 2:
            raise MoewatchError("Recording stopped: no space left.")
        self.taken += 1

    def close(self) -> None:
        self.closed += 1


def test_watching_goes_on_when_the_recording_cannot() -> None:
    clock, events, recorder = ManualClock(), list[Event](), FullDisk()
    Sampler(opener(iter([Scripted(clock, 5)])), clock, events.append, recorder=recorder).run()
    assert sum(isinstance(event, FrameReady) for event in events) == 5
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert notices == ["Recording stopped: no space left. Watching goes on."]
    assert (recorder.taken, recorder.closed) == (2, 1)


def test_stop_ends_the_thread_at_once() -> None:
    clock, frames = ManualClock(), threading.Event()

    def sink(event: Event) -> None:
        if isinstance(event, FrameReady):
            frames.set()

    sampler = Sampler(opener(iter([Scripted(clock, 10**9)])), clock, sink)
    sampler.start()
    assert frames.wait(10)
    sampler.stop()
    assert sampler._thread is not None
    assert not sampler._thread.is_alive()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with TraceWriter(path, header()) as writer:
        for second in range(20):
            writer.write(sample(second * S))
    return path


def test_a_replay_gives_the_same_frames_as_live(recording: Path) -> None:
    state, live = engine.start(header()), []
    for second in range(20):
        state, frame = engine.step(state, sample(second * S))
        live.append(frame)
    clock, events = ManualClock(), list[Event]()
    Sampler(opener(iter([ReplaySource(recording, clock)])), clock, events.append).run()
    replayed = [event.frame for event in events if isinstance(event, FrameReady)]
    assert [msgspec.json.encode(frame) for frame in replayed] == [msgspec.json.encode(frame) for frame in live]
    assert clock.mono_ns() == pytest.approx(19 * S, abs=S // 10)


def test_a_replay_on_a_screen_can_be_moved_back_after_its_end(recording: Path) -> None:
    clock, events = ManualClock(), list[Event]()
    source = ReplaySource(recording, clock, stays=True)
    sampler = Sampler(opener(iter([source])), clock, events.append)
    sampler.start()

    def wait_for(count: int) -> None:
        end = time.monotonic() + 20
        while sum(isinstance(event, Ended) for event in events) < count:
            assert time.monotonic() < end, "the end was not reached"
            time.sleep(0.01)

    wait_for(1)
    seen = sum(isinstance(event, FrameReady) for event in events)
    source.seek(-5 * S)
    wait_for(2)
    sampler.stop()
    assert seen == 20
    assert (
        sum(isinstance(event, FrameReady) for event in events) == 40
    )  # played from the beginning, at once up to there
    assert sum(isinstance(event, Started) for event in events) == 2


def test_speed_pause_and_seeking(recording: Path) -> None:
    clock = ManualClock()
    source = ReplaySource(recording, clock, speed=4)
    assert (source.total_ns, source.elapsed_ns) == (19 * S, 0)
    source.read()
    due_ns = source.due_ns()
    assert due_ns is not None
    assert due_ns - clock.mono_ns() == S // 4
    source.set_paused(True)
    clock.advance(100 * S)
    due_ns = source.due_ns()
    assert due_ns is not None
    assert due_ns > clock.mono_ns()
    source.set_paused(False)
    source.seek(10 * S)
    assert not source.took_jump()
    played = []
    while source.due_ns() == clock.mono_ns():
        played.append(source.read().mono_ns)
    assert played == [second * S for second in range(1, 11)]
    source.seek(-5 * S)
    assert source.took_jump()
    assert not source.took_jump()
    played.clear()
    while source.due_ns() == clock.mono_ns():
        played.append(source.read().mono_ns)
    assert played == [second * S for second in range(6)]
