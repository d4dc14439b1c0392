"""The sentences on what is special here: each said when it is so, and not otherwise."""

import pytest
from msgspec.structs import replace

from moewatch.analysis import remarks
from moewatch.analysis.situation import Reader, Situation
from moewatch.domain.frame import Memory, Method, Note, Progress, Rates, Residency, Server, State
from moewatch.domain.sample import Gap, GapReason, LoadMode
from moewatch.units import GIB, UNKNOWN, S
from tests.support.situations import MODEL, situation

DENIED = (
    Gap(field="process.read_bytes_total", reason=GapReason.DENIED, detail="as its user: sudo -u ollama"),
    Gap(field="residency", reason=GapReason.DENIED),
)
STEADY = situation(State.STEADY, rates=Rates(process_read_bytes_per_s=0.0))

NOT_NEEDED = "The verdict does not need it: re-reads are counted."
NOT_WHY = "paging of the file cannot be why it is slow."

CASES: list[tuple[Situation, str]] = [
    (
        replace(STEADY, gaps=DENIED),
        "PID 48213 belongs to ollama: disk reads and memory shares are hidden. For all of it: sudo -u ollama moewatch",
    ),
    (
        replace(STEADY, gaps=(Gap(field="pressure", reason=GapReason.ABSENT),)),
        f"memory stall: {UNKNOWN} (this kernel has it off; boot with psi=1). {NOT_NEEDED}",
    ),
    (
        situation(State.STEADY, load_mode=LoadMode.NONE, memory=Memory(swap_used_bytes=0)),
        f"This server copied the model into its own memory (load mode none): {NOT_WHY} Swap in use: 0.0 GiB.",
    ),
    (
        replace(STEADY, residency=Residency(not_needed_bytes=round(22.4 * GIB))),
        "22.4 of 59.0 GiB are on the GPU and need no RAM; this page is about the other 36.6.",
    ),
    (
        situation(State.WARMING, rates=Rates(reread_bytes_per_s=640e6, method=Method.MINCORE)),
        "AGAIN: at least 640 MB/s (seen by sampling; a 6.5 kernel would count it).",
    ),
    (
        situation(State.STEADY, devices=(), file_system="9p"),
        "The model lies on 9p: reads are counted per process, this disk has no counters of its own.",
    ),
    (
        replace(STEADY, memory=Memory(limit_bytes=24 * GIB, limit_scope="docker-ab12.scope")),
        "Limit: 24.0 GiB, set by docker-ab12.scope, not the machine's 31.",
    ),
    (replace(STEADY, slept_ns=6130 * S), "The machine slept 1:42:10. Rates start again now."),
    (replace(STEADY, late_ns=2_300_000_000), "This sample is 2.3 s late: the machine stalls us too."),
    (
        replace(
            STEADY,
            notes=(Note.DISK_BUSY_ELSEWHERE,),
            reader=Reader(name="restic", pid=7, bytes_per_s=210e6),
        ),
        "restic reads 210 MB/s from the same disk; the server reads nothing.",
    ),
    (
        situation(
            State.STEADY,
            notes=(Note.DISK_BUSY_ELSEWHERE,),
            rates=Rates(process_read_bytes_per_s=30e6, other_read_bytes_per_s=210e6),
        ),
        "Another program reads 210 MB/s from the same disk; the server 30 MB/s.",
    ),
    (
        replace(STEADY, notes=(Note.LEDGER_SHARED,)),
        "Another program reads the same model file: again is for both together.",
    ),
    (
        situation(State.WARMING, progress=Progress(remaining_bytes=2 * GIB, eta_low_ns=12 * S, eta_high_ns=30 * S)),
        "About 2.0 GiB still to come: 12 s to 30 s.",
    ),
]


@pytest.mark.parametrize(("now", "wanted"), CASES)
def test_remark_is_said_alone(now: Situation, wanted: str) -> None:
    assert remarks.remarks(now) == (wanted,)


def test_nothing_special_says_nothing() -> None:
    assert remarks.remarks(STEADY) == ()


def test_parts_on_the_gpu_add_up_as_shown() -> None:
    # 59.04 less 22.47 are 36.57: each rounded by itself, 22.5 and 36.6 would make 59.1 of 59.0
    larger = replace(MODEL, total_bytes=round(59.04 * GIB))
    text = remarks.offloaded(
        situation(State.STEADY, model=larger, residency=Residency(not_needed_bytes=round(22.47 * GIB)))
    )
    assert text == "22.5 of 59.0 GiB are on the GPU and need no RAM; this page is about the other 36.5."


def test_a_denied_pressure_file_is_not_called_switched_off() -> None:
    assert remarks.no_stall_figures(replace(STEADY, gaps=(Gap(field="pressure", reason=GapReason.DENIED),))) is None


def expecting(
    state: State = State.STEADY, *, window_s: int = 10, rate: float | None = 3.6, n_active: int = 1
) -> Situation:
    now = situation(state, rates=Rates(window_ns=window_s * S, tokens_per_s=rate), server=Server(n_active=n_active))
    return replace(now, header=replace(now.header, estimate_tokens_per_s=(3.04, 5.0)))


@pytest.mark.parametrize("state", [State.STEADY, State.THRASHING])
def test_an_estimate_is_held_against_what_is_measured(state: State) -> None:
    assert remarks.estimated(expecting(state)) == "Estimated 3.0-5.0, measured 3.6 tokens/s."
    assert "Estimated 3.0-5.0, measured 3.6 tokens/s." in remarks.remarks(expecting(state))


def test_an_estimate_is_not_held_against_what_it_does_not_speak_of() -> None:
    assert remarks.estimated(expecting(State.WARMING)) is None
    assert remarks.estimated(expecting(window_s=5)) is None
    assert remarks.estimated(expecting(rate=None)) is None
    assert remarks.estimated(expecting(n_active=4)) is None
    assert remarks.estimated(STEADY) is None
