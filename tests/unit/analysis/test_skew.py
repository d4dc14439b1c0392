"""Evenness of use on recordings whose routing is known, and on figures that can be added up by hand."""

from pathlib import Path

import pytest

from moewatch import engine
from moewatch.domain.frame import Evenness, Frame
from moewatch.trace.reader import read_trace

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRACES, ROUTING = FIXTURES / "traces", FIXTURES / "routing"


def frames(name: str, where: Path = TRACES) -> list[Frame]:
    header, samples = read_trace(where / f"{name}.jsonl.gz")
    state = engine.start(header)
    found = []
    for number, sample in enumerate(samples):
        state, frame = engine.step(state, sample)
        if number % 10 == 0:
            found.append(frame)
    return found


@pytest.mark.parametrize("name", ["k-1", "c-2", "j-1", "c2-2"])
def test_skewed_routing_and_single_topics_are_called_so(name: str) -> None:
    told = [frame.skew for frame in frames(name) if frame.skew is not None]
    assert len(told) > 5
    assert {skew.evenness for skew in told} == {Evenness.SKEWED}
    assert "a hot set will help" in told[-1].text
    assert all(skew.use_share > skew.resident_share for skew in told)


@pytest.mark.parametrize("name", ["b30-1", "b50-1", "b70-2", "xra512-1"])
def test_uniform_routing_is_never_called_skewed(name: str) -> None:
    told = [frame.skew for frame in frames(name) if frame.skew is not None]
    assert told
    assert Evenness.SKEWED not in {skew.evenness for skew in told}
    assert "memory" in told[-1].text


@pytest.mark.parametrize(
    ("name", "is_skewed"),
    [
        ("uniform-50", False), ("uniform-70", False), ("uniform-85", False),
        ("popular-50", True), ("popular-70", True), ("topic-50", True),
    ],
)  # fmt: skip
def test_with_maps_a_set_that_rotates_is_told_from_one_that_stays(name: str, *, is_skewed: bool) -> None:
    """A real llama-server, memory for so many percent of the experts. With 85 % uniform use meets memory by 99 %, too."""
    told = [frame.skew for frame in frames(name, ROUTING) if frame.skew is not None]
    assert told
    assert all(skew.touched_ratio is not None for skew in told)
    assert (Evenness.EVEN in {skew.evenness for skew in told}) is not is_skewed
    assert ("hot set will help" in told[-1].text) is is_skewed
    assert {skew.evenness is Evenness.SKEWED for skew in told} == {is_skewed}


@pytest.mark.parametrize("name", ["a-1", "d-1", "f-1", "i-1", "b95-1"])
def test_nothing_is_told_where_it_cannot_be(name: str) -> None:
    """All in memory, nothing generated, no mapping, a dense model."""
    assert [frame.skew for frame in frames(name) if frame.skew is not None] == []


def test_the_top_tenth_gets_at_least_its_part_of_the_hits() -> None:
    skew = next(frame.skew for frame in frames("c2-2")[::-1] if frame.skew is not None)
    assert skew.top_share == pytest.approx(0.1 * skew.use_share / skew.resident_share)
    assert skew.touched_ratio is None, "these recordings have no maps"
