"""Any runs survive the file; any bytes are a hot set or one sentence; what is held keeps to the budget."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from moewatch.cache.heat import HeatWatch
from moewatch.cache.hotset import (
    HotFile,
    HotModel,
    decode_hotset,
    decode_runs,
    encode_hotset,
    encode_runs,
    make_hotset,
)
from moewatch.cache.runs import Run, intersect, normalise, subtract, total
from moewatch.errors import ParseError

PAGE = 4096
PAGES = 300
SIZE = PAGES * PAGE - 77


def run_lists() -> st.SearchStrategy[list[Run]]:
    places = st.integers(0, PAGES - 1)
    pairs = st.tuples(places, st.integers(1, 40)).map(
        lambda pair: (pair[0] * PAGE, min((pair[0] + pair[1]) * PAGE, SIZE))
    )
    return st.lists(pairs, max_size=20).map(normalise)


def model() -> HotModel:
    return HotModel(name="m", files=(HotFile(name="a", size_bytes=SIZE, header_sha256="0" * 64),))


@given(run_lists())
def test_runs_survive(runs: list[Run]) -> None:
    assert decode_runs(encode_runs(runs, PAGE), PAGE, SIZE) == runs


@given(st.text(max_size=60), st.integers(0, 1 << 50))
def test_any_text_is_runs_inside_the_file_or_a_sentence(text: str, size: int) -> None:
    with contextlib.suppress(ValueError):
        runs = decode_runs(text, PAGE, size)
        assert runs == normalise(runs)
        assert all(0 <= start < end <= size for start, end in runs)


@given(st.lists(st.tuples(st.floats(0, 1), run_lists()), max_size=5))
def test_a_set_survives_and_has_no_page_twice(tiers: list[tuple[float, list[Run]]]) -> None:
    ordered = sorted(tiers, key=lambda tier: -tier[0])
    made = make_hotset(model(), [(heat, [runs]) for heat, runs in ordered], basis="residency")
    assert decode_hotset(encode_hotset(made), "x") == made
    everything = normalise(run for _, runs in tiers for run in runs)
    assert made.runs == [everything]
    assert made.size_bytes == total(everything)


@given(st.binary(max_size=300), st.integers(0, 400), run_lists())
def test_any_bytes_are_a_set_or_one_sentence(noise: bytes, at: int, runs: list[Run]) -> None:
    good = encode_hotset(make_hotset(model(), [(1.0, [runs])], basis="residency"))
    for content in (noise, good[:at] + noise + good[at:], good[:at] + noise + good[at + len(noise) :], good[:at]):
        try:
            hotset = decode_hotset(content, "x")
        except ParseError as error:
            assert str(error).startswith("x ")  # noqa: PT017 - either outcome is right
            assert "\n" not in str(error)  # noqa: PT017 - as above
        else:
            for file, found in zip(hotset.model.files, hotset.runs, strict=True):
                assert all(0 <= start < end <= file.size_bytes for start, end in found)


@given(run_lists(), st.lists(run_lists(), max_size=4))
def test_heat_has_every_page_once_and_none_that_left_for_good(first: list[Run], later: list[list[Run]]) -> None:
    heat = HeatWatch([first])
    for runs in later:
        heat.look([runs])
    tiers = [files[0] for _, files in heat.tiers()]
    together = normalise(run for runs in tiers for run in runs)
    assert sum(total(runs) for runs in tiers) == total(together)
    last = later[-1] if later else first
    assert subtract(last, together) == [], "all that is there is in it"
    came = normalise(
        run for before, after in zip([first, *later], later, strict=False) for run in subtract(after, before)
    )
    assert subtract(subtract(together, last), came) == [], "what is not there came in meanwhile"
    assert intersect(together, last) == last
