"""Tokens counted from what /slots and /metrics say, over requests and slots."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moewatch.domain.sample import Phase
from moewatch.errors import ParseError
from moewatch.server.slots import SERIES_LIMIT, MetricsLedger, Slot, SlotLedger, parse_metrics, parse_slots
from tests.unit.server.fake_proc import FIXTURES

S = 1_000_000_000


def at(
    number: int = 0, task: int | None = None, decoded: int = 0, *, work: bool = True, prompt: int = 0, held: int = 0
) -> Slot:
    """One slot: `prompt` tokens processed so far, `held` tokens in its context."""
    text = {
        "id": number,
        "n_ctx": 4096,
        "is_processing": work,
        "id_task": task,
        "n_prompt_tokens": held,
        "n_prompt_tokens_processed": prompt,
        "next_token": [{"n_decoded": decoded}],
    }
    return parse_slots(json.dumps([text]).encode())[0]


def totals(*looks: list[Slot]) -> list[int | None]:
    ledger = SlotLedger()
    return [ledger.update(slots, second * S).tokens_total for second, slots in enumerate(looks)]


def test_real_replies_count_as_the_server_itself_counts() -> None:
    ledger = SlotLedger()
    unused, both, one, none = (
        parse_slots((FIXTURES / f"slots_{name}.json").read_bytes())
        for name in ("unused", "prompt_beside_generate", "one_ended", "ended")
    )
    reading = ledger.update(unused, 0)
    assert (reading.phase, reading.tokens_total, reading.n_active, reading.context_tokens) == (Phase.IDLE, 0, 0, 16384)
    reading = ledger.update(both, S)
    assert (reading.phase, reading.tokens_total, reading.n_active) == (Phase.GENERATE, 1, 2)
    reading = ledger.update(both, 2 * S)
    assert reading.phase is Phase.PROMPT  # slot 1 is held up
    assert reading.prompt_tokens_total == 78
    reading = ledger.update(one, 3 * S)
    assert (reading.phase, reading.tokens_total, reading.n_active) == (Phase.GENERATE, 1075, 1)
    reading = ledger.update(none, 4 * S)
    assert (reading.phase, reading.tokens_total, reading.n_active) == (Phase.IDLE, 4000, 0)  # the tail counted


def test_what_was_generated_before_the_first_look_is_not_counted() -> None:
    assert totals([at(task=1, decoded=500)], [at(task=1, decoded=510)]) == [0, 10]


def test_a_new_request_begins_at_nothing() -> None:
    assert totals([at(task=1, decoded=50)], [at(task=9, decoded=3)], [at(task=9, decoded=5)]) == [0, 3, 5]


def test_slots_add_up() -> None:
    looks = [[at(0, 1, 5), at(1, 2, 7)], [at(0, 1, 6), at(1, 2, 9)], [at(0, 3, 1), at(1, 2, 10)]]
    assert totals(*looks) == [0, 3, 5]


def test_the_tail_after_the_last_look_is_counted_once() -> None:
    end = [at(task=1, work=False, held=178)]  # prompt 100, of 79 tokens all but the last are held
    assert totals([at(task=1, decoded=50, prompt=100, held=150)], end, end) == [0, 29, 29]


def test_a_prompt_that_was_cut_off_counts_no_tokens() -> None:
    assert totals([at(task=1, prompt=512, held=1024)], [at(task=1, work=False, held=4096)]) == [0, 0]


def test_builds_whose_count_stands_still_after_the_end() -> None:
    # no task when idle; next_token an object
    old = b'[{"id":0,"id_task":%d,"is_processing":%s,"n_ctx":10,"next_token":{"n_decoded":%d}}]'
    looks = [
        old % (1, b"true", 4),
        old % (1, b"true", 6),
        old % (-1, b"false", 9),
        old % (-1, b"false", 9),
        old % (2, b"true", 2),
    ]
    assert totals(*(parse_slots(text) for text in looks)) == [0, 2, 5, 5, 7]


def test_builds_without_a_task_are_judged_by_their_count() -> None:
    assert totals([at(decoded=9)], [at(decoded=2)], [at(decoded=4)]) == [0, 2, 4]


def test_several_entries_of_one_slot_are_not_added() -> None:
    text = b'[{"id":0,"is_processing":true,"id_task":1,"next_token":[{"n_decoded":5},{"n_decoded":3}]}]'
    assert parse_slots(text)[0].decoded == 5


def test_time_to_first_token_is_known_to_one_look() -> None:
    ledger = SlotLedger()
    ledger.update([at(work=False)], 0)
    assert ledger.update([at(task=1)], 1 * S).phase is Phase.PROMPT
    ledger.update([at(task=1)], 2 * S)
    reading = ledger.update([at(task=1, decoded=4)], 3 * S)
    assert reading.first_token_ns == 2 * S  # began between 0 and 1, first token between 2 and 3
    assert ledger.update([at(task=1, decoded=9)], 4 * S).first_token_ns == 2 * S
    # a request that was never seen without a token is shorter than a look: not measured
    assert ledger.update([at(task=2, decoded=9)], 5 * S).first_token_ns is None


def test_time_to_first_token_is_unknown_for_a_request_that_was_at_work_already() -> None:
    ledger = SlotLedger()
    ledger.update([at(task=1)], 0)
    assert ledger.update([at(task=1, decoded=1)], S).first_token_ns is None


def test_prompt_tokens() -> None:
    ledger = SlotLedger()
    ledger.update([at(work=False)], 0)
    assert ledger.update([at(task=1, prompt=512)], S).prompt_tokens_total == 512
    assert ledger.update([at(task=1, prompt=700, decoded=1)], 2 * S).prompt_tokens_total == 700
    assert ledger.update([at(task=1, work=False)], 3 * S).prompt_tokens_total == 700


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"null", b"[1]", b'[{"id":0,"n_ctx":2147483648}]', b'[{"id":0,"n_ctx":NaN}]', b'[{"id":"a"}]', b'[{"id":0,"n_ctx":-1}]', b'[{"id":0},{"id":0}]',
        b'[{"id":0,"next_token":[{"n_decoded":1e300}]}]', b'[{"id":0,"next_token":[{"n_decoded":99999999999999999999}]}]',
        b"[" * 100_000, b'[{"id":0,"x":' + b"[" * 100_000, b"\xff\xfe", b"<html>",
    ],
)  # fmt: skip
def test_hostile_slots(text: bytes) -> None:
    with pytest.raises(ParseError, match="makes no sense"):
        parse_slots(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(text: bytes) -> None:
    for parse in (parse_slots, parse_metrics):
        try:
            parse(text)
        except ParseError:
            continue


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans(), st.integers(0, 99)), max_size=20))
def test_totals_never_fall(looks: list[tuple[int, int, bool, int]]) -> None:
    seen = totals(*([at(task=task, decoded=n, work=work, held=held, prompt=task)] for task, n, work, held in looks))
    assert seen == sorted(total or 0 for total in seen)


def test_metrics_count_ended_requests() -> None:
    ledger = MetricsLedger()
    unused, work, ended = (
        parse_metrics((FIXTURES / f"metrics_{name}.txt").read_bytes()) for name in ("unused", "at_work", "ended")
    )
    reading = ledger.update(unused)
    assert (reading.phase, reading.tokens_total, reading.source) == (Phase.IDLE, 0, "metrics")
    reading = ledger.update(work)
    assert (reading.phase, reading.n_active, reading.prompt_tokens_total) == (Phase.UNKNOWN, 2, 78)
    reading = ledger.update(ended)
    assert (reading.phase, reading.tokens_total, reading.prompt_tokens_total) == (Phase.IDLE, 5063, 7207)
    assert ledger.update(unused).tokens_total == 0  # started anew


def test_more_requests_than_slots_that_could_be_are_unknown() -> None:
    for at_work, n_active in ((b"3", 3), (b"1024", 1024), (b"1025", None), (b"1e14", None)):
        text = b"llamacpp:requests_processing " + at_work + b"\nllamacpp:tokens_predicted_total 5\n"
        reading = MetricsLedger().update(parse_metrics(text))
        assert (reading.n_active, reading.tokens_total) == (n_active, 0)


def test_more_series_than_a_server_has() -> None:
    lines = [f"llamacpp:x{number} 1\n".encode() for number in range(SERIES_LIMIT + 1)]
    assert len(parse_metrics(b"".join(lines[:-1]))) == SERIES_LIMIT
    with pytest.raises(ParseError, match="more than 256 series"):
        parse_metrics(b"".join(lines))


@pytest.mark.parametrize("text", [b"", b"llamacpp:x nan\n", b"llamacpp:x -1\n", b"other 1\n", b"llamacpp:x 1e300\n"])
def test_hostile_metrics(text: bytes) -> None:
    with pytest.raises(ParseError, match="no llamacpp series"):
        parse_metrics(text)
