"""Every state's both forms, word for word, and that the figures of a sentence agree."""

import re

import pytest

from moewatch.analysis.situation import Situation
from moewatch.analysis.words import headline, headline_short, is_cold
from moewatch.domain.frame import (
    Cause,
    Memory,
    Method,
    Progress,
    Rates,
    Residency,
    Server,
    State,
    Verdict,
)
from moewatch.domain.labels import state_label
from moewatch.domain.sample import Gap, GapReason, LoadMode, Phase
from moewatch.units import GIB, MB, S
from tests.support.situations import ACTIVE, DENSE, DENSE_MODEL, TOTAL, situation


def denied() -> tuple[Gap, ...]:
    detail = "/proc/48213/io belongs to another user; run moewatch as its user: sudo -u ollama"
    return (
        Gap(field="process.read_bytes_total", reason=GapReason.DENIED, detail=detail),
        Gap(field="residency", reason=GapReason.DENIED, detail="owned by ollama"),
    )


def ready(dense: float = 1.0, experts: float = 0.43) -> Residency:
    return Residency(
        dense_ratio=dense,
        expert_ratio=experts,
        dense_needed_bytes=DENSE,
        dense_resident_bytes=round(DENSE * dense),
        backend="cachestat",
    )


def rates(**more: float | Method) -> Rates:
    base = {"window_ns": 10 * S, "method": Method.LEDGER}
    return Rates(**{**base, **more})  # type: ignore[arg-type]  # a mapping of mixed values


THRASHING = rates(tokens_per_s=3.1, reread_bytes_per_token=410 * MB, reread_bytes_per_s=1271 * MB)

CASES: list[tuple[Situation, str]] = [
    (situation(State.UNKNOWN, seen_ns=6 * S), "6 of 10 s seen: too early to judge."),
    (situation(State.UNKNOWN, gaps=denied()), "Cannot judge: this needs sudo -u ollama."),
    (
        situation(State.IDLE, residency=ready()),
        "Ready: the 1.7 GiB every token needs are in memory, and 43 % of the experts.",
    ),
    (
        situation(State.IDLE, residency=ready(0.24), disk_bytes_per_s=1.2e9),
        "Cold: the next answer first reads at least 1.3 GiB, about 1 s.",
    ),
    (situation(State.IDLE, residency=ready(0.24)), "Cold: the next answer first reads at least 1.3 GiB."),
    (
        situation(
            State.LOADING,
            progress=Progress(
                read_bytes=round(12.4 * GIB), remaining_bytes=round(46.6 * GIB), eta_low_ns=36 * S, eta_high_ns=44 * S
            ),
        ),
        "12.4 of 59.0 GiB read, about 40 s left.",
    ),
    (
        situation(State.LOADING, progress=Progress(read_bytes=71 * GIB)),
        "71.0 GiB read; reading parts twice is normal while loading.",
    ),
    (
        situation(State.WARMING, progress=Progress(first_bytes=round(3.1 * GIB), levels_off=True)),
        "3.1 GiB read for the first time, less each minute. Too early to say if it will fit.",
    ),
    (situation(State.WARMING, cause=Cause.TOPIC_CHANGE), "New topic: other experts come in. Not a fault yet."),
    (situation(State.STEADY, rates=rates(process_read_bytes_per_s=0.0)), "Nothing is read from disk."),
    (
        situation(State.STEADY, rates=rates(process_read_bytes_per_s=3e6), loss_ratio=0.03, loss_method="wait"),
        "3 % of the time waits for the disk. If this is slow, the disk is not why.",
    ),
    (
        situation(State.THRASHING, rates=THRASHING),
        f"Every token reads 410 MB from disk AGAIN, of the {ACTIVE / MB:,.0f} MB a token needs.",
    ),
    (
        situation(State.THRASHING, rates=rates(reread_bytes_per_s=380e6), server=Server(phase=Phase.PROMPT)),
        "The prompt reads 380 MB/s AGAIN; no tokens yet.",
    ),
    (
        situation(
            State.RECOVERING,
            came_back_bytes=round(2.1 * GIB),
            memory=Memory(model_resident_bytes=TOTAL - round(4.0 * GIB)),
        ),
        "Nothing is pushed out any more; 2.1 GiB came back, at most 4.0 still missing.",
    ),
]


@pytest.mark.parametrize(("now", "wanted"), CASES, ids=[f"{c[0].state}-{i}" for i, c in enumerate(CASES)])
def test_headline_is_the_designs_word_for_word(now: Situation, wanted: str) -> None:
    assert headline(now) == wanted


@pytest.mark.parametrize("now", [c[0] for c in CASES])
def test_every_headline_has_a_short_form_for_forty_columns(now: Situation) -> None:
    assert 0 < len(headline_short(now)) <= 38
    assert headline_short(now).endswith(".")


@pytest.mark.parametrize("now", [c[0] for c in CASES if c[0].progress.first_bytes is None])
def test_headline_fits_eighty_columns(now: Situation) -> None:
    # the one exception is the design's own sentence on warming, which is 83 columns long
    assert len(headline(now)) <= 77


@pytest.mark.parametrize("state", list(State))
def test_nothing_known_still_makes_a_sentence_without_figures(state: State) -> None:
    blank = situation(state, residency=Residency(), memory=Memory(), active_bytes=None, rates=Rates())
    for text in (headline(blank), headline_short(blank)):
        assert text.endswith(".")
        assert not re.search(r"\d|None|–", text), text  # noqa: RUF001 - the dash of unknown figures


def test_thrashing_figures_agree_with_each_other() -> None:
    per_token = THRASHING.reread_bytes_per_token
    assert per_token is not None
    shown = re.search(r"reads ([\d,]+) MB", headline(situation(State.THRASHING, rates=THRASHING)))
    assert shown is not None
    figure = float(shown[1].replace(",", ""))
    assert figure * 3.1 == pytest.approx(1271, rel=0.01)


def test_what_came_back_is_not_called_a_first_read() -> None:
    back = rates(first_read_bytes_per_s=1e6, reread_bytes_per_s=8e7)
    now = situation(State.WARMING, cause=Cause.TOPIC_CHANGE, seen_ns=12 * S, came_back_bytes=GIB, rates=back)
    assert headline(now) == "1.0 GiB came back that had left memory. Too early to say if it will fit."
    assert headline_short(now) == "1.0 GiB came back; it may yet fit."


def test_no_other_experts_in_a_model_without_experts() -> None:
    assert "experts" not in headline(situation(State.WARMING, cause=Cause.TOPIC_CHANGE, model=DENSE_MODEL))


def test_a_prompts_reading_is_not_put_on_its_first_tokens() -> None:
    mixed = rates(reread_bytes_per_token=12 * ACTIVE, reread_bytes_per_s=380e6, tokens_per_s=0.2)
    assert headline(situation(State.THRASHING, rates=mixed)).startswith("The server reads 380 MB/s from disk AGAIN")


def test_nothing_came_back_is_no_figure() -> None:
    now = situation(State.RECOVERING, came_back_bytes=0, memory=Memory(model_resident_bytes=TOTAL - GIB))
    assert headline(now) == "Nothing is pushed out any more; at most 1.0 GiB still missing."


def test_again_is_in_capitals_and_first_reads_are_not() -> None:
    assert "AGAIN" in headline(situation(State.THRASHING, rates=THRASHING))
    warming = headline(situation(State.WARMING, progress=Progress(first_bytes=GIB)))
    assert "again" not in warming.lower()


def test_what_does_not_agree_with_the_rates_beside_it_is_said_per_second() -> None:
    # half of the window was a prompt: 40 MB a token x 10 tokens/s is not 1,000 MB/s
    now = situation(
        State.THRASHING, rates=rates(reread_bytes_per_token=40e6, reread_bytes_per_s=1000e6, tokens_per_s=10.0)
    )
    assert headline(now) == "The server reads 1,000 MB/s from disk AGAIN: it had been in memory."
    assert headline_short(now) == "Reads 1,000 MB/s AGAIN."


def test_read_ahead_that_exceeds_the_need_is_no_part_of_it() -> None:
    text = headline(
        situation(
            State.THRASHING, rates=rates(reread_bytes_per_token=5000e6, reread_bytes_per_s=5000e6, tokens_per_s=1.0)
        )
    )
    assert text == f"Every token reads 5,000 MB from disk AGAIN; it needs only {ACTIVE / MB:,.0f} MB."


def test_what_sampling_saw_is_at_least() -> None:
    sampled = rates(reread_bytes_per_s=640e6, reread_bytes_per_token=410e6, tokens_per_s=1.6, method=Method.MINCORE)
    text = headline(situation(State.THRASHING, rates=sampled))
    assert text == "AGAIN: at least 640 MB/s (seen by sampling; a 6.5 kernel would count it)."


def test_prompt_form_is_left_when_tokens_flow() -> None:
    now = situation(State.THRASHING, rates=THRASHING, server=Server(phase=Phase.PROMPT, n_active=2))
    assert headline(now).startswith("Every token reads 410 MB")


def test_a_dense_model_has_no_experts_to_speak_of() -> None:
    now = situation(
        State.IDLE, model=DENSE_MODEL, residency=Residency(dense_ratio=1.0, dense_needed_bytes=GIB, expert_ratio=None)
    )
    assert headline(now) == "Ready: the 1.0 GiB every token needs are in memory."


def test_unmapped_model_is_never_cold() -> None:
    now = situation(State.IDLE, load_mode=LoadMode.NONE, residency=ready(0.0))
    assert not is_cold(now)
    assert "own copy" in headline(now)


def test_the_word_and_the_headline_agree_on_cold() -> None:
    """The label of the state is made elsewhere, from the same ratio."""
    for ratio in (0.0, 0.5, 0.97, 0.98, 1.0):
        label = state_label(Verdict(state=State.IDLE, since_ns=0), ratio)
        said = headline(situation(State.IDLE, residency=ready(ratio)))
        assert ("cold" in label) is said.startswith("Cold")


@pytest.mark.parametrize("state", [State.IDLE, State.STEADY, State.UNKNOWN])
def test_a_stopped_server_is_called_stopped(state: State) -> None:
    now = situation(state, is_stopped=True)
    pid = now.header.target.pid
    assert headline(now) == f"The server is stopped and does nothing; kill -CONT {pid} lets it go on."
    assert headline_short(now) == f"Stopped: kill -CONT {pid}"


def test_unknown_says_what_is_missing() -> None:
    hidden = (
        Gap(field="process.read_bytes_total", reason=GapReason.UNSUPPORTED),
        Gap(field="residency", reason=GapReason.UNSUPPORTED),
    )
    assert "disk reads and memory shares" in headline(situation(State.UNKNOWN, gaps=hidden))
    wait = Gap(field="process.blkio_delay_ns_total", reason=GapReason.ABSENT)  # on most machines; hides nothing else
    for some in ((wait,), (wait, hidden[0]), (wait, hidden[1])):
        assert "disk reads and memory shares" not in headline(situation(State.UNKNOWN, gaps=some))
    quoted = (Gap(field="residency", reason=GapReason.DENIED, detail="as its user: sudo -u '#1001'"),)
    assert headline(situation(State.UNKNOWN, gaps=quoted)) == "Cannot judge: this needs sudo -u '#1001'."
