"""The expert map from Samples, and what evenness can be told of."""

import base64

import pytest
from msgspec.structs import replace

from moewatch.analysis.experts import AGAIN_WINDOW_NS, ExpertBook, update_experts
from moewatch.domain.sample import ModelSummary, ResidencyReading, Sample
from moewatch.units import S

SIZE = 1600  # of an expert
MODEL = ModelSummary(files=(), total_bytes=9000, n_layer=2, n_expert=2, expert_bytes_by_layer=(SIZE, SIZE))


def told(values: list[int]) -> str:
    return base64.b64encode(bytes(values)).decode()


def sample(at_s: float, shares: list[int] | None = None, again: list[int] | None = None) -> Sample:
    at_ns = int(at_s * S)
    reading = ResidencyReading(
        age_ns=S, experts=told(shares) if shares else None, experts_again=told(again) if again else None
    )
    return Sample(mono_ns=at_ns, wall_ns=at_ns + 7 * S, residency=reading)


def run(*samples: Sample, model: ModelSummary | None = MODEL) -> ExpertBook:
    book = ExpertBook()
    for each in samples:
        book = update_experts(book, model, each, 0)
    return book


def test_the_first_map_says_what_is_there_and_nothing_of_before() -> None:
    book = run(sample(10), sample(11, [0, 255, 128, 7], [16, 16, 16, 16]))
    assert book.map is not None
    assert (book.map.n_layer, book.map.n_expert, book.map.bytes_per_expert) == (2, 2, (SIZE, SIZE))
    assert list(book.map.resident) == [0, 255, 128, 7]
    assert book.map.again_bytes == (0, 0, 0, 0)
    assert (book.map.seen_ns, book.map.seen_wall_ns, book.map.again_window_ns) == (10 * S, 17 * S, 0)
    assert set(book.map.left_s) == {255}
    assert book.map.share(0, 1) == 1


def test_again_adds_up_over_a_minute_and_then_goes() -> None:
    samples = [sample(5 * n, [255] * 4, [0, 8, 0, 32]) for n in range(20)]
    book = run(*samples)
    assert book.map is not None
    assert book.map.again_bytes == (0, 13 * SIZE // 2, 0, 13 * 2 * SIZE)  # at 35, 40 ... 95 s
    assert book.map.again_window_ns == AGAIN_WINDOW_NS
    same = update_experts(book, MODEL, sample(96), 0)
    assert same.map is not None
    assert same.map.again_bytes == (0, 6 * SIZE, 0, 24 * SIZE)
    gone = update_experts(book, MODEL, sample(156), 0)
    assert gone.map is not None
    assert gone.map.again_bytes == (0, 0, 0, 0)
    assert gone.map.resident == book.map.resident
    assert update_experts(gone, MODEL, sample(157), 0) is gone, "nothing to do"


def test_without_it_again_is_what_must_have_been_there_before() -> None:
    book = run(
        sample(0, [0, 0, 0, 100]), sample(5, [255, 0, 0, 50]), sample(10, [15, 0, 0, 0]), sample(15, [255, 255, 0, 200])
    )
    assert book.map is not None
    # expert 0 was whole once: all that came had been there; 1 never was; 3: at most 155 of its 255ths were never seen
    assert book.map.again_bytes == (15 * SIZE // 16, 0, 0, 45 * 16 // 255 * SIZE // 16)


def test_when_it_left() -> None:
    book = run(sample(0, [255, 255, 0, 0]), sample(5, [0, 255, 0, 0]), sample(10, [0, 100, 0, 0]))
    assert book.map is not None
    assert list(book.map.left_s) == [5, 0, 255, 255]
    later = update_experts(book, MODEL, sample(400, [0, 100, 1, 0]), 0)
    assert later.map is not None
    assert list(later.map.left_s) == [255] * 4


def test_a_break_forgets() -> None:
    book = run(sample(0, [255] * 4), sample(5, [255] * 4, [16] * 4))
    after = update_experts(book, MODEL, sample(6), 1)
    assert after.map is None
    assert after.came == ()


@pytest.mark.parametrize("text", ["!!", "AAA", told([1, 2, 3])])
def test_what_is_no_map_is_left_out(text: str) -> None:
    bad = replace(sample(0), residency=ResidencyReading(experts=text))
    assert run(bad).map is None


def test_a_map_of_another_length_begins_anew() -> None:
    book = run(sample(0, [255] * 4), sample(5, [255] * 8), sample(10, [255] * 8, [16] * 4))
    assert book.map is not None
    assert (book.map.n_expert, book.map.again_bytes) == (4, (0,) * 8)


def test_recordings_that_do_not_say_how_large_an_expert_is() -> None:
    model = ModelSummary(files=(), total_bytes=9000, n_layer=2, n_expert=2, expert_bytes=4000)
    book = run(sample(0, [0] * 4), model=model)
    assert book.map is not None
    assert book.map.bytes_per_expert == (1000, 1000)
    assert run(sample(0, [0] * 4), model=None).map is None


def test_experts_on_the_gpu_have_no_share() -> None:
    reading = ResidencyReading(experts=told([255] * 4), experts_not_needed=(1,))
    book = run(replace(sample(0), residency=reading))
    assert book.map is not None
    assert (book.map.share(0, 0), book.map.share(1, 0)) == (1, None)
