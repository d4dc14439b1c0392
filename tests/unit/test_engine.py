"""The one path from Samples to Frames: what a Frame says, what it costs, and what it never says."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from moewatch import engine
from moewatch.domain.frame import Frame, Method, State
from moewatch.domain.sample import Gap, GapReason, Header, OwnReading, Phase, Sample, ServerReading
from moewatch.trace.reader import read_trace
from moewatch.trace.writer import TraceWriter
from tests.support import situations
from tests.support.readings import GB, MB, header, sample

TRACES = Path(__file__).parent.parent / "fixtures" / "traces"


def frames_of(head: Header, samples: list[Sample]) -> list[Frame]:
    state = engine.start(head)
    frames = []
    for each in samples:
        state, frame = engine.step(state, each)
        frames.append(frame)
    return frames


def recorded(name: str) -> tuple[Header, list[Sample]]:
    head, samples = read_trace(TRACES / f"{name}.jsonl.gz")
    return head, list(samples)


def test_first_frame_is_honest() -> None:
    frame = frames_of(header(), [sample(0, read=5)])[0]
    assert frame.verdict.state is State.UNKNOWN
    assert frame.verdict.confidence == 0
    assert frame.rates.window_ns == 0
    assert frame.rates.process_read_bytes_per_s is None
    assert frame.verdict.headline
    assert frame.target.id == "1:1"
    assert frame.active_bytes_per_token == 2 * GB


def test_a_sample_with_nothing_in_it_gives_a_frame() -> None:
    frames = frames_of(header(model=None, devices=()), [Sample(mono_ns=t * 10**9, wall_ns=t) for t in range(20)])
    assert {f.verdict.state for f in frames} == {State.UNKNOWN}
    assert frames[-1].rates.method is Method.NONE
    assert frames[-1].active_bytes_per_token is None


def test_gaps_of_the_sample_are_the_frames() -> None:
    gap = Gap(field="pressure", reason=GapReason.ABSENT, detail="off")
    frame = frames_of(header(), [replace(sample(0), gaps=(gap,), late_ns=7)])[0]
    assert frame.gaps == (gap,)
    assert frame.own.late_ns == 7


def test_own_cost_is_the_share_of_the_time() -> None:
    samples = [replace(sample(t), own=OwnReading(cpu_ns_total=t * 10**7, rss_bytes=MB)) for t in range(3)]
    own = frames_of(header(), samples)[-1].own
    assert own.cpu_ratio == pytest.approx(0.01)
    assert own.rss_bytes == MB


def test_the_first_advice_for_a_cold_server_is_to_warm_it() -> None:
    cold = situations.scan(dense_resident_bytes=situations.DENSE // 5)
    idle = ServerReading(phase=Phase.IDLE, source="slots", n_active=0)
    samples = [situations.sample(t * 10**9, residency=cold, server=idle) for t in range(3)]
    verdict = frames_of(situations.header(pid=7), samples)[-1].verdict
    assert verdict.state is State.IDLE
    assert verdict.advice[0].command == "moewatch warm --pid 7"


def test_frame_is_the_documented_json() -> None:
    head, samples = recorded("b50-1")
    line = msgspec.json.encode(frames_of(head, samples)[100])
    frame = msgspec.json.decode(line)
    assert frame["schema"] == "moewatch-frame/1"
    assert {
        "mono_ns", "wall_ns", "target", "rates", "residency", "memory", "server", "working_set", "progress", "verdict", "self", "gaps",
    } <= set(frame)  # fmt: skip
    assert frame["target"]["files"] == [{"name": "moe.gguf", "size_bytes": 1665262400}]
    assert frame["verdict"]["state"] == "thrashing"
    assert {e["id"] for e in frame["verdict"]["evidence"]} >= {"time_lost", "turnovers", "miss_ratio"}
    assert all(e["text"].endswith(".") for e in frame["verdict"]["evidence"])
    assert msgspec.json.decode(line, type=Frame) == frames_of(head, samples)[100]


def test_thrashing_says_since_when_and_how_much() -> None:
    head, samples = recorded("g-1")
    verdicts = [f.verdict for f in frames_of(head, samples)]
    thrashing = [v for v in verdicts if v.state is State.THRASHING]
    assert len({v.since_ns for v in thrashing}) == 1
    assert 10.6e9 < thrashing[0].since_ns < 22.7e9
    assert all(v.severity is not None and v.loss_ratio is not None for v in thrashing)
    assert all(v.severity is None for v in verdicts if v.state is not State.THRASHING)


def test_best_speed_is_only_taken_while_steady() -> None:
    for name in ("b30-1", "b50-1", "i-1"):  # these thrash from the first token on
        head, samples = recorded(name)
        assert {f.rates.best_tokens_per_s for f in frames_of(head, samples)} == {None}
    head, samples = recorded("c-2")
    steady = False
    for frame in frames_of(head, samples):
        steady |= frame.verdict.state is State.STEADY
        assert steady or frame.rates.best_tokens_per_s is None
    assert steady
    head, samples = recorded("a-1")
    best = frames_of(head, samples)[-1].rates
    assert best.best_tokens_per_s == pytest.approx(69, abs=3)
    assert best.best_wall_ns is not None


def test_replay_gives_the_frames_that_were_live(tmp_path: Path) -> None:
    head, samples = recorded("g-1")
    path = tmp_path / "again.jsonl.gz"
    with TraceWriter(path, head) as writer:
        for each in samples:
            writer.write(each)
    again_head, again = read_trace(path)
    assert frames_of(again_head, list(again)) == frames_of(head, samples)


def test_what_a_step_looks_at_is_bounded() -> None:
    state = engine.start(header())
    for t in range(2000):
        state, _ = engine.step(state, sample(t * 0.2, read=t * MB, resident=GB, evicted=0, tokens=t))
    assert len(state.window.samples) <= 376
    assert state.window.carried.n_samples == 2000
