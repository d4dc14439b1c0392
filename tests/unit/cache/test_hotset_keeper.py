"""Ten good minutes, three kept, none overwritten, offered to the same model again."""

from pathlib import Path

import msgspec
import pytest

from moewatch.cache import hotset_keeper
from moewatch.cache.hotset import HotFile, HotModel, Hotset, Seen, make_hotset
from moewatch.cache.hotset_file import identify, read_hotset
from moewatch.cache.hotset_keeper import (
    GoodTime,
    HotsetKeeper,
    keep,
    kept_sets,
    offered_for,
    should_save,
    with_frame,
)
from moewatch.clock import ManualClock
from moewatch.domain.events import FrameReady, Started
from moewatch.domain.frame import Frame, State
from moewatch.domain.layout import ModelLayout
from moewatch.modelfile.layout import read_layout
from moewatch.units import MINUTE, S
from tests.support.frames import HEADER, design_frame
from tests.support.gguf_models import ModelSpec, TensorSpec, write_model

WALL_NS = 1_780_000_000 * S


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "moewatch" / "hotsets"


@pytest.fixture
def layout(tmp_path: Path) -> ModelLayout:
    spec = ModelSpec("llama", (TensorSpec("output.weight", (256, 320)),))
    return read_layout(write_model(spec, tmp_path / "model.gguf")[0])


def frames(*spans: tuple[State, int, int]) -> list[Frame]:
    """(state, minutes, tokens a second), one Frame a second."""
    made: list[Frame] = []
    tokens = 0
    base = design_frame()
    for state, minutes, rate in spans:
        for _ in range(minutes * 60):
            tokens += rate
            made.append(
                msgspec.structs.replace(
                    base,
                    mono_ns=len(made) * S,
                    verdict=msgspec.structs.replace(base.verdict, state=state),
                    server=msgspec.structs.replace(base.server, tokens_total=tokens),
                )
            )
    return made


def good_after(*spans: tuple[State, int, int]) -> GoodTime:
    good = GoodTime()
    for frame in frames(*spans):
        good = with_frame(good, frame)
    return good


def test_ten_good_minutes() -> None:
    assert not should_save(good_after((State.STEADY, 10, 5)))  # the first frame is no second yet
    assert should_save(good_after((State.STEADY, 11, 5)))


def test_without_tokens_there_is_nothing_to_learn() -> None:
    assert not should_save(good_after((State.STEADY, 30, 0)))
    assert not should_save(good_after((State.IDLE, 30, 5)))


@pytest.mark.parametrize("state", [State.THRASHING, State.RECOVERING, State.LOADING])
def test_thrashing_starts_the_ten_minutes_again(state: State) -> None:
    assert not should_save(good_after((State.STEADY, 9, 5), (state, 1, 5), (State.STEADY, 9, 5)))


@pytest.mark.parametrize("state", [State.IDLE, State.WARMING, State.UNKNOWN])
def test_pauses_only_interrupt_them(state: State) -> None:
    assert should_save(good_after((State.STEADY, 6, 5), (state, 30, 0), (State.STEADY, 6, 5)))


def test_a_gap_between_frames_is_no_good_time() -> None:
    first, *_, last = frames((State.STEADY, 60, 5))
    assert not should_save(with_frame(with_frame(GoodTime(), first), last))


def test_another_target_starts_again() -> None:
    good = good_after((State.STEADY, 11, 5))
    frame = design_frame()
    other = msgspec.structs.replace(frame, target=msgspec.structs.replace(frame.target, id="1:1"))
    assert with_frame(good, other).good_ns == 0


def test_the_next_comes_after_an_hour() -> None:
    saved = msgspec.structs.replace(good_after((State.STEADY, 11, 5)), saved_ns=10 * MINUTE)
    assert not should_save(saved)
    assert should_save(msgspec.structs.replace(saved, good_ns=70 * MINUTE))


def some_set(name: str = "A model/../x", size: int = 8192) -> Hotset:
    model = HotModel(name=name, files=(HotFile(name="a.gguf", size_bytes=size, header_sha256="0" * 64),))
    return make_hotset(model, [(1.0, [[(0, 4096)]])], basis="residency", seen=Seen(state="steady", tokens=1))


def test_three_are_kept_and_none_is_overwritten(state_home: Path) -> None:
    paths = [keep(some_set(), WALL_NS + minute * 60 * S) for minute in range(5)]
    assert len(set(paths)) == 5
    assert kept_sets(some_set().model) == paths[:1:-1]
    assert {path.parent.parent for path in paths} == {state_home}  # a name with slashes leads nowhere else


def test_two_in_one_second_have_two_names() -> None:
    assert keep(some_set(), WALL_NS) != keep(some_set(), WALL_NS)
    assert len(kept_sets(some_set().model)) == 2


def test_files_of_other_names_are_left_alone() -> None:
    mine = keep(some_set(), WALL_NS).with_name("mine.hotset")
    mine.write_text("x")
    for minute in range(1, 6):
        keep(some_set(), WALL_NS + minute * 60 * S)
    assert mine.read_text() == "x"


def test_other_models_have_other_folders() -> None:
    keep(some_set(), WALL_NS)
    assert kept_sets(some_set(size=4096).model) == []


def test_offered_to_the_same_model_newest_first(layout: ModelLayout) -> None:
    assert offered_for(layout) == []
    made = make_hotset(identify(layout), [(1.0, [[(0, 4096)]])], basis="residency")
    older, newer = keep(made, WALL_NS), keep(made, WALL_NS + S)
    assert offered_for(layout) == [newer, older]
    newer.write_bytes(b"damaged")
    assert offered_for(layout) == [older]


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hotset_keeper.state_directory() == tmp_path / ".local/state/moewatch/hotsets"


def test_the_keeper_saves_once_and_says_so(layout: ModelLayout) -> None:
    Path(layout.paths[0]).read_bytes()  # into memory
    said: list[str] = []
    keeper = HotsetKeeper(ManualClock(), lambda: layout, said.append)
    keeper(Started(header=HEADER, wall_ns=0))
    for frame in frames((State.STEADY, 15, 5)):
        keeper(FrameReady(frame=frame))
        keeper.join()  # a minute of frames is over before a thread has begun
    (path,) = offered_for(layout)
    hotset = read_hotset(path)
    assert hotset.is_proven
    assert hotset.size_bytes > 0
    assert hotset.basis == "watched", "weighed against a look when the work began"
    assert len(said) == 1
    assert str(path) in said[0]


def test_the_keeper_says_why_it_could_not(layout: ModelLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    said: list[str] = []
    keeper = HotsetKeeper(ManualClock(), lambda: layout, said.append)
    for frame in frames((State.STEADY, 11, 5)):
        keeper(FrameReady(frame=frame))
        keeper.join()
    assert len(said) == 1
    assert "not saved" in said[0]


def test_a_saved_set_is_offered_when_experts_are_missing(layout: ModelLayout) -> None:
    Path(layout.paths[0]).read_bytes()
    saving = HotsetKeeper(ManualClock(), lambda: layout)
    for frame in frames((State.STEADY, 11, 5)):
        saving(FrameReady(frame=frame))
        saving.join()
    (path,) = offered_for(layout)
    for expert_ratio, wanted in ((0.3, [path.stem]), (0.95, [])):
        said: list[str] = []
        keeper = HotsetKeeper(ManualClock(), lambda: layout, said.append)
        keeper(Started(header=HEADER, wall_ns=0))
        base = frames((State.IDLE, 1, 0))[0]
        residency = msgspec.structs.replace(base.residency, expert_ratio=expert_ratio)
        keeper(FrameReady(frame=msgspec.structs.replace(base, residency=residency)))
        keeper.join()
        assert [each for each in wanted if not any(each in text for text in said)] == []
        assert len(said) == len(wanted)
