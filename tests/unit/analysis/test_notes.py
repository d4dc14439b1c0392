"""Each note with a case in which it must stand and one in which it must not."""

from collections.abc import Callable
from typing import Any

import pytest

from moewatch.analysis.notes import derive_notes, find_reader
from moewatch.analysis.window import Window
from moewatch.domain.frame import Growth, Memory, Note, Rates, Residency, State
from moewatch.domain.sample import Device, Header, LoadMode, OtherProcess, Phase, ServerReading, VmReading
from moewatch.units import GIB, KIB, MB, MIB, S
from tests.support.situations import DENSE as MODEL_DENSE
from tests.support.situations import DENSE_MODEL, MODEL, TOTAL, header, process, scan, window

HOST = Memory(limit_scope="host")
IN = Residency(dense_ratio=1.0, expert_ratio=0.3, age_ns=0, backend="cachestat")


def notes(
    found: Window | None = None,
    rates: Rates | None = None,
    residency: Residency = IN,
    memory: Memory = HOST,
    state: State = State.STEADY,
) -> tuple[Note, ...]:
    return derive_notes(found or window(), rates or Rates(window_ns=10 * S), residency, memory, state)


def test_a_quiet_server_has_no_notes() -> None:
    assert notes() == ()


def phase(phase: Phase, tokens: int = 0) -> ServerReading:
    return ServerReading(phase=phase, tokens_total=tokens, source="slots")


def grown(bytes_grown: int) -> tuple[Growth, ...]:
    return (Growth(pid=1, name="firefox", bytes=bytes_grown, since_ns=0),)


def disk(ahead: int) -> Header:
    return header(devices=(Device(name="vda", read_ahead_bytes=ahead),))


def anon(size: int, mode: LoadMode = LoadMode.MMAP) -> Window:
    return window(lambda _: {"process": process(rss_anon_bytes=size)}, of=header(load_mode=mode))


def dense(ratio: float, age_ns: int = 0) -> Residency:
    return Residency(dense_ratio=ratio, age_ns=age_ns, backend="cachestat")


OTHER_READS = Rates(
    window_ns=10 * S, process_read_bytes_per_s=0, device_read_bytes_per_s=245e6, other_read_bytes_per_s=245e6
)
OWN_READS = Rates(
    window_ns=10 * S, process_read_bytes_per_s=400e6, device_read_bytes_per_s=430e6, other_read_bytes_per_s=30e6
)
SMALL_REQUESTS = Rates(
    window_ns=10 * S, process_read_bytes_per_s=50e6, mean_request_bytes=4.2 * KIB, other_read_bytes_per_s=0
)
OTHERS_SMALL = Rates(
    window_ns=10 * S, process_read_bytes_per_s=5e6, mean_request_bytes=4.2 * KIB, other_read_bytes_per_s=90e6
)
NORMAL_REQUESTS = Rates(window_ns=10 * S, process_read_bytes_per_s=50e6, mean_request_bytes=107 * KIB)

PAIRS: list[tuple[Note, Callable[[], tuple[Note, ...]], Callable[[], tuple[Note, ...]]]] = [
    (Note.DISK_BUSY_ELSEWHERE, lambda: notes(rates=OTHER_READS), lambda: notes(rates=OWN_READS)),
    (
        Note.DENSE_WEIGHTS_EVICTED,
        lambda: notes(residency=dense(0.9), state=State.THRASHING),
        lambda: notes(residency=dense(0.99), state=State.THRASHING),
    ),
    (
        Note.DENSE_WEIGHTS_EVICTED,
        lambda: notes(window(of=header(model=DENSE_MODEL)), residency=dense(0.7), state=State.THRASHING),
        lambda: notes(residency=dense(0.7), state=State.IDLE),
    ),
    (
        Note.DENSE_WEIGHTS_EVICTED,
        lambda: notes(residency=dense(0.9, 2 * S), state=State.STEADY),
        lambda: notes(residency=dense(0.9, 60 * S), state=State.STEADY),
    ),
    (
        Note.MEMORY_TAKEN,
        lambda: notes(memory=Memory(limit_scope="host", grew=grown(6 * GIB), model_lost_bytes=6 * GIB)),
        lambda: notes(memory=Memory(limit_scope="host", grew=grown(6 * GIB), model_lost_bytes=2 * GIB)),
    ),
    (Note.READAHEAD_OFF, lambda: notes(rates=SMALL_REQUESTS), lambda: notes(rates=NORMAL_REQUESTS)),
    (Note.READAHEAD_OFF, lambda: notes(rates=SMALL_REQUESTS), lambda: notes(rates=OTHERS_SMALL)),
    (Note.READAHEAD_LARGE, lambda: notes(window(of=disk(8192 * KIB))), lambda: notes(window(of=disk(128 * KIB)))),
    (
        Note.LEDGER_SHARED,
        # 50 MB a second arrive for the first time, and the server reads nothing
        lambda: notes(window(lambda t: {"residency": scan(resident_bytes=GIB + int(t) * 50 * MB)})),
        lambda: notes(
            window(
                lambda t: {
                    "residency": scan(resident_bytes=GIB + int(t) * 50 * MB),
                    "process": process(read_bytes_total=int(t) * 50 * MB),
                }
            )
        ),
    ),
    (
        Note.SWAP_IN_USE,
        lambda: notes(window(lambda _: {"process": process(swap_bytes=64 * MIB)})),
        lambda: notes(window(lambda _: {"process": process(swap_bytes=4 * MIB)})),
    ),
    (
        Note.SWAP_IN_USE,
        lambda: notes(window(lambda t: {"vm": VmReading(pswpin_total=int(t) * 1000)})),
        lambda: notes(window(lambda t: {"vm": VmReading(pswpin_total=int(t) * 10)})),
    ),
    (
        Note.REPACK_DUPLICATE,
        lambda: notes(anon(round(0.9 * TOTAL))),
        lambda: notes(anon(round(0.9 * TOTAL), LoadMode.NONE)),
    ),
    (Note.REPACK_DUPLICATE, lambda: notes(anon(TOTAL)), lambda: notes(anon(2 * GIB))),
    (Note.NOT_MAPPED, lambda: notes(anon(TOTAL, LoadMode.NONE)), lambda: notes(anon(TOTAL, LoadMode.UNKNOWN))),
    (Note.LOCKED, lambda: notes(anon(GIB, LoadMode.MMAP_MLOCK)), lambda: notes(anon(GIB, LoadMode.MMAP))),
    (
        Note.LOCKED,
        lambda: notes(window(lambda _: {"process": process(locked_bytes=TOTAL)})),
        # asked for, and refused by RLIMIT_MEMLOCK
        lambda: notes(window(lambda _: {"process": process(locked_bytes=0)}, of=header(load_mode=LoadMode.MMAP_MLOCK))),
    ),
    (Note.LIMIT_IS_CGROUP, lambda: notes(memory=Memory(limit_scope="docker-1.scope")), notes),
    (
        Note.COLD,
        lambda: notes(window(lambda _: {"server": phase(Phase.IDLE)}), residency=dense(0.1), state=State.IDLE),
        lambda: notes(window(lambda _: {"server": phase(Phase.IDLE)}), residency=dense(0.9), state=State.IDLE),
    ),
    (
        Note.COLD,
        lambda: notes(window(lambda _: {"server": phase(Phase.IDLE)}), residency=dense(0.1), state=State.IDLE),
        lambda: notes(window(lambda _: {"server": phase(Phase.IDLE, 50)}), residency=dense(0.1), state=State.IDLE),
    ),
]


@pytest.mark.parametrize(("note", "holds", "does_not"), PAIRS, ids=[f"{p[0]}-{i}" for i, p in enumerate(PAIRS)])
def test_note_stands_when_it_holds_and_only_then(
    note: Note, holds: Callable[[], tuple[Note, ...]], does_not: Callable[[], tuple[Note, ...]]
) -> None:
    assert note in holds()
    assert note not in does_not()


def burst(from_s: float) -> Window:
    """30 s of work; from `from_s` on 20 MB a second come in for the first time."""

    def change(t: float) -> dict[str, Any]:
        arrived = int(max(0.0, t - from_s) * 20 * MB)
        return {
            "residency": scan(resident_bytes=GIB + arrived),
            "process": process(read_bytes_total=arrived),
        }

    return window(change)


def test_topic_change_needs_calm_before_the_burst() -> None:
    arriving = Rates(window_ns=10 * S, first_read_bytes_per_s=20e6, reread_bytes_per_s=0.0)
    assert Note.TOPIC_CHANGE in notes(burst(22), arriving, state=State.WARMING)
    assert Note.TOPIC_CHANGE not in notes(burst(0), arriving, state=State.WARMING)  # a cold start
    assert Note.TOPIC_CHANGE not in notes(burst(22), arriving, state=State.THRASHING)
    assert Note.TOPIC_CHANGE not in notes(burst(22), arriving, dense(0.5), state=State.WARMING)


def test_the_token_tables_absence_is_no_alarm_where_it_is_counted_among_the_dense() -> None:
    tied = header(model=MODEL.__class__(**{**_fields(), "embedding_bytes": 0}))
    assert Note.DENSE_WEIGHTS_EVICTED not in notes(window(of=tied), residency=dense(0.95), state=State.THRASHING)
    assert Note.DENSE_WEIGHTS_EVICTED in notes(residency=dense(0.95), state=State.THRASHING)


def _fields() -> dict[str, Any]:
    return {name: getattr(MODEL, name) for name in MODEL.__struct_fields__}


def test_a_moments_swing_of_the_dense_weights_is_no_alarm() -> None:
    def swings(low_share: float) -> Window:
        # of ten scans so many are below the bar
        return window(
            lambda t: {
                "residency": scan(dense_resident_bytes=int((0.9 if t % 10 < 10 * low_share else 1.0) * MODEL_DENSE))
            }
        )

    now = Residency(dense_ratio=0.9, dense_needed_bytes=MODEL_DENSE, age_ns=0, backend="cachestat")
    assert Note.DENSE_WEIGHTS_EVICTED in notes(swings(0.8), residency=now, state=State.THRASHING)
    assert Note.DENSE_WEIGHTS_EVICTED not in notes(swings(0.3), residency=now, state=State.THRASHING)


def readers(rate_mb: int) -> Window:
    def change(t: float) -> dict[str, Any]:
        if int(t) % 5:
            return {}
        return {
            "others": (
                OtherProcess(pid=7, name="restic", anon_bytes=GIB, read_bytes_total=int(t) * rate_mb * MB),
                OtherProcess(pid=8, name="idle", anon_bytes=GIB, read_bytes_total=None),
            )
        }

    return window(change)


def test_the_reader_is_named_when_it_did_most_of_it() -> None:
    reader = find_reader(readers(240), OTHER_READS)
    assert reader is not None
    assert (reader.name, reader.pid, reader.bytes_per_s) == ("restic", 7, 240e6)
    assert find_reader(readers(20), OTHER_READS) is None
    assert find_reader(readers(240), OWN_READS) is None


def test_notes_keep_the_order_of_the_reference() -> None:
    found = notes(anon(TOTAL), OTHER_READS, dense(0.5), Memory(limit_scope="docker-1.scope"), State.THRASHING)
    assert found == (
        Note.DISK_BUSY_ELSEWHERE,
        Note.DENSE_WEIGHTS_EVICTED,
        Note.REPACK_DUPLICATE,
        Note.LIMIT_IS_CGROUP,
    )
