"""The page of `--once`: a person's words, not the ids that stand in JSON."""

import msgspec
import pytest

from moewatch.domain.frame import Advice, Note
from moewatch.domain.labels import GAP_REASON_WORDS, NOTE_WORDS, gap_words
from moewatch.domain.sample import Gap, GapReason
from moewatch.export.text import format_advice, format_page
from tests.support.frames import design_frame

NO_WAITS = Gap(field="process.blkio_delay_ns_total", reason=GapReason.ABSENT, detail="kernel.task_delayacct is 0")


def test_the_page_has_no_ids() -> None:
    frame = design_frame(gaps=(NO_WAITS, Gap(field="residency", reason=GapReason.DENIED)))
    frame = msgspec.structs.replace(frame, verdict=msgspec.structs.replace(frame.verdict, notes=tuple(Note)))
    page = format_page(frame)
    assert "notes           other programs keep the disk busy" in page
    assert f"{'':16}its memory group has a limit" in page
    assert "not readable    wait per thread: kernel.task_delayacct is 0 (not needed for the verdict)" in page
    assert f"{'':16}what is in memory: this user may not read it" in page
    text = "\n".join(page)
    assert not [note for note in Note if "_" in note and note in text]
    assert "blkio" not in text


def test_every_note_and_every_reason_has_words() -> None:
    assert set(NOTE_WORDS) == set(Note)
    assert set(GAP_REASON_WORDS) == set(GapReason)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("process.read_bytes_total", "bytes read by the server: it is gone"),
        ("process.rss_bytes", "the server's counters (rss bytes): it is gone"),
        ("pressure", "waiting for memory: it is gone (not needed for the verdict)"),
        ("new_group", "new_group: it is gone"),
    ],
)
def test_a_gap_says_what_is_missing(field: str, words: str) -> None:
    assert gap_words(Gap(field=field, reason=GapReason.VANISHED)) == words


def test_an_advice_and_its_command_are_one_sentence() -> None:
    advice = Advice(id="a", title="Warm it.", command="moewatch warm --pid 7", reason="", gain="", restart=False)
    assert format_advice(advice) == "Warm it: moewatch warm --pid 7"
    assert format_advice(msgspec.structs.replace(advice, command=None)) == "Warm it."
