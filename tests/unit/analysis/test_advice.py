"""Advice as a table: what is said, what is not, in which order; and that every sentence carries what it must."""

from typing import Any

import pytest
from msgspec.structs import replace

from moewatch.analysis.advice import advise
from moewatch.analysis.quantisations import smaller
from moewatch.analysis.situation import Reader, Situation
from moewatch.domain.frame import Growth, Memory, Note, Rates, Residency, State, WorkingSet
from moewatch.domain.sample import Device, Host, LoadMode, OtherProcess
from moewatch.units import GIB, KIB, MIB
from tests.support.situations import DENSE_MODEL, MODEL, TOTAL, situation

CAUSE = Growth(pid=77, name="firefox", bytes=round(6.2 * GIB), since_ns=0)
NOW = Memory(
    limit_bytes=round(31.2 * GIB),
    limit_scope="host",
    target_anon_bytes=round(2.1 * GIB),
    model_resident_bytes=round(19.8 * GIB),
)
SHORT = WorkingSet(low_bytes=22 * GIB, high_bytes=40 * GIB, fits_bytes=round(19.8 * GIB), short_bytes=round(2.2 * GIB))


def thrashing(**changes: Any) -> Situation:
    changes.setdefault("argv", ("llama-server", "-m", "gpt-oss-120b.gguf", "-c", "32768", "-ngl", "0"))
    changes.setdefault("memory", NOW)
    changes.setdefault("working_set", SHORT)
    return situation(State.THRASHING, **changes)


def ids(now: Situation) -> list[str]:
    return [advice.id for advice in advise(now)]


def one(now: Situation, wanted: str) -> Any:
    return next(advice for advice in advise(now) if advice.id == wanted)


def disk(**fields: Any) -> tuple[Device, ...]:
    return (Device(name="sda", **fields),)


FAT = replace(NOW, target_anon_bytes=2 * GIB)
TOOK = replace(NOW, grew=(CAUSE,), model_lost_bytes=6 * GIB)
CGROUP = replace(NOW, limit_bytes=24 * GIB, limit_scope="docker-ab12.scope")
MXFP4 = replace(MODEL, quantisation="MXFP4", mxfp4_experts=True)

SAID: list[tuple[str, Situation]] = [
    ("close_program", thrashing(memory=TOOK)),
    ("close_program", thrashing(others=(OtherProcess(pid=9, name="java", anon_bytes=4 * GIB),))),
    ("raise_limit", thrashing(memory=CGROUP)),
    ("pause_reader", thrashing(notes=(Note.DISK_BUSY_ELSEWHERE,), rates=Rates(other_read_bytes_per_s=2e8))),
    ("no_repack", thrashing(notes=(Note.REPACK_DUPLICATE,))),
    ("load_mode", thrashing(load_mode=LoadMode.MMAP_MLOCK)),
    ("load_mode", situation(State.STEADY, load_mode=LoadMode.NONE, notes=(Note.SWAP_IN_USE,), memory=NOW)),
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=8192 * KIB))),
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=0))),
    ("n_cpu_moe", thrashing(argv=("s", "-ngl", "99", "--n-cpu-moe", "36"), residency=Residency(not_needed_bytes=GIB))),
    ("n_cpu_moe", thrashing(argv=("s", "-ngl", "99", "-ot", ".ffn_.*_exps.=CPU"))),
    ("prompt_cache", thrashing(memory=FAT)),
    ("context", thrashing()),
    ("context", thrashing(argv=("llama-server",))),
    ("kv_type", thrashing(argv=("llama-server", "-c", "4096", "-cram", "0", "-ngl", "0"))),
    ("quantisation", thrashing()),
    ("threads", thrashing(argv=("llama-server", "-t", "16"), model=MXFP4)),
    ("faster_disk", thrashing(devices=disk(rotational=True), model=MXFP4)),
    ("compute_bound", situation(State.STEADY)),
    ("threads", situation(State.STEADY, argv=("llama-server", "--threads", "16"))),
    ("wait", situation(State.LOADING)),
    ("wait", situation(State.WARMING)),
    ("wait", situation(State.RECOVERING)),
    ("warm", situation(State.IDLE, residency=Residency(dense_ratio=0.2))),
]

NOT_SAID: list[tuple[str, Situation]] = [
    # growth and loss do not match
    ("close_program", thrashing(memory=replace(TOOK, model_lost_bytes=2 * GIB))),
    # inside a cgroup another program's memory is not the server's
    ("close_program", thrashing(memory=CGROUP, others=(OtherProcess(pid=9, name="java", anon_bytes=4 * GIB),))),
    ("close_program", thrashing(others=(OtherProcess(pid=9, name="sh", anon_bytes=4 * MIB),))),
    ("raise_limit", thrashing()),
    # the machine has no more than the cgroup
    ("raise_limit", thrashing(memory=replace(CGROUP, limit_bytes=round(30 * GIB)))),
    ("no_repack", thrashing(notes=(Note.REPACK_DUPLICATE,), argv=("s", "-nr"))),
    ("load_mode", thrashing()),
    # the copy fits: nothing is wrong with it
    ("load_mode", situation(State.STEADY, load_mode=LoadMode.NONE, model=DENSE_MODEL, memory=NOW)),
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=128 * KIB))),
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=64 * KIB))),
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=None))),
    # btrfs has a read-ahead of its own, the disk's does not count
    ("read_ahead_sda", thrashing(devices=disk(read_ahead_bytes=8192 * KIB), file_system="btrfs")),
    # no GPU
    ("n_cpu_moe", thrashing(argv=("s", "--n-cpu-moe", "36"))),
    ("n_cpu_moe", thrashing(argv=("s", "-ngl", "0", "--n-cpu-moe", "36"))),
    ("n_cpu_moe", thrashing(argv=("s", "-dev", "none", "-ngl", "99", "--cpu-moe"))),
    ("n_cpu_moe", thrashing(argv=("s", "-ngl", "99", "--cpu-moe"), model=DENSE_MODEL)),
    ("n_cpu_moe", thrashing(argv=("s", "-ngl", "99", "--n-cpu-moe", "0"))),
    ("prompt_cache", thrashing(argv=("s", "--cache-ram", "0"), memory=FAT)),
    ("prompt_cache", thrashing(memory=replace(NOW, target_anon_bytes=100 * MIB))),
    ("context", thrashing(memory=replace(NOW, target_anon_bytes=100 * MIB))),
    ("context", thrashing(argv=("s", "-c", "4096"))),
    # the conversation lies on the GPU
    ("context", thrashing(argv=("s", "-c", "32768", "-ngl", "99"))),
    ("kv_type", thrashing(argv=("s", "-ctk", "q8_0", "-ctv", "q8_0", "-cram", "0", "-c", "4096"))),
    ("quantisation", thrashing(model=MXFP4)),
    ("quantisation", thrashing(model=replace(MODEL, quantisation=""))),
    ("threads", thrashing(argv=("s", "-t", "8"), model=MXFP4)),
    ("threads", thrashing(argv=("s",), model=MXFP4)),
    ("faster_disk", thrashing(model=MXFP4)),
    ("compute_bound", thrashing()),
    ("warm", situation(State.IDLE, residency=Residency(dense_ratio=1.0))),
    # nothing is known, or it holds a copy of its own: reading the file in would help nobody
    ("warm", situation(State.IDLE)),
    ("warm", situation(State.IDLE, residency=Residency(dense_ratio=0.2), load_mode=LoadMode.NONE)),
]


@pytest.mark.parametrize(("wanted", "now"), SAID, ids=[f"{c[0]}-{i}" for i, c in enumerate(SAID)])
def test_said(wanted: str, now: Situation) -> None:
    assert wanted in ids(now)


@pytest.mark.parametrize(("unwanted", "now"), NOT_SAID, ids=[f"{c[0]}-{i}" for i, c in enumerate(NOT_SAID)])
def test_not_said(unwanted: str, now: Situation) -> None:
    assert unwanted not in ids(now)


@pytest.mark.parametrize("now", [c[1] for c in SAID + NOT_SAID])
def test_every_advice_is_whole(now: Situation) -> None:
    found = advise(now)
    assert len({advice.id for advice in found}) == len(found) <= 6
    for advice in found:
        assert advice.title.endswith(".")
        assert advice.reason.endswith(".")
        assert advice.gain
        assert len(advice.title) <= 90
        texts = (advice.title, advice.reason, advice.gain, advice.command or "")
        assert not any("None" in text or "–" in text for text in texts)  # noqa: RUF001 - the dash of unknown figures
        if advice.restart and advice.command and "-" in advice.command:
            assert "now" in advice.title or "without" in advice.title, advice.title


def test_of_many_the_cheapest_six() -> None:
    now = thrashing(
        memory=replace(
            FAT, limit_bytes=24 * GIB, limit_scope="docker-ab12.scope", grew=(CAUSE,), model_lost_bytes=6 * GIB
        ),
        devices=disk(read_ahead_bytes=8192 * KIB, rotational=True),
        notes=(Note.DISK_BUSY_ELSEWHERE, Note.REPACK_DUPLICATE),
        argv=("s", "-ngl", "99", "--n-cpu-moe", "36", "-t", "16"),
        load_mode=LoadMode.MMAP_MLOCK,
        rates=Rates(other_read_bytes_per_s=2e8),
    )
    assert ids(now) == ["close_program", "raise_limit", "pause_reader", "no_repack", "load_mode", "read_ahead_sda"]


def test_who_took_the_memory_comes_first_with_what_was_measured_before() -> None:
    first = advise(thrashing(memory=TOOK, rates=Rates(best_tokens_per_s=11.2)))[0]
    assert first.title == "Close firefox: it took 6.2 GiB."
    assert first.reason.startswith("Before that, 11.2 tokens/s. ")
    assert first.gain == "back to 11.2 tokens/s (measured before)"
    assert not first.restart


def test_what_needs_no_restart_comes_first() -> None:
    reader = Reader(name="restic", pid=7, bytes_per_s=2.1e8)
    now = thrashing(
        memory=replace(TOOK, limit_bytes=24 * GIB, limit_scope="docker-ab12.scope"),
        notes=(Note.DISK_BUSY_ELSEWHERE, Note.REPACK_DUPLICATE),
        reader=reader,
        devices=disk(read_ahead_bytes=8192 * KIB),
    )
    restarts = [advice.restart for advice in advise(now)]
    assert restarts == sorted(restarts)


def test_current_value_and_command() -> None:
    context = one(thrashing(), "context")
    assert context.title == "Restart with -c 8192 (now 32768)."
    assert context.command == "-c 8192"
    assert context.restart
    ahead = one(thrashing(devices=disk(read_ahead_bytes=8192 * KIB)), "read_ahead_sda")
    assert ahead.command == "sudo blockdev --setra 256 /dev/sda"
    assert "now 8,192" in ahead.title
    moved = one(thrashing(argv=("s", "-ngl", "99", "--cpu-moe"), working_set=SHORT), "n_cpu_moe")
    assert (
        moved.title == "If the GPU has room, restart with --n-cpu-moe 34 (now --cpu-moe)."
    )  # 2.2 GiB short, 1.6 a layer
    assert moved.gain.startswith("3.1 GiB less")


@pytest.mark.parametrize(
    ("scope", "command"),
    [
        ("docker-ab12.scope", "docker update --memory 29901m --memory-swap 29901m ab12"),
        ("llama.service", "sudo systemctl set-property --runtime llama.service MemoryMax=29901M"),
        ("ci/box-7", None),
    ],
)
def test_limit_command_fits_who_sets_it(scope: str, command: str | None) -> None:
    found = one(thrashing(memory=replace(CGROUP, limit_scope=scope)), "raise_limit")
    assert found.command == command
    assert "now 24.0 GiB" in found.title


def test_restart_time_is_said_where_it_was_measured() -> None:
    assert "about 53 s" in one(thrashing(disk_bytes_per_s=1.2e9), "context").reason
    assert "about" not in one(thrashing(), "context").reason


def test_a_copy_by_old_flags_says_which_to_leave_out() -> None:
    now = thrashing(load_mode=LoadMode.MLOCK, argv=("s", "--no-mmap", "--mlock"))
    assert one(now, "load_mode").title == "Restart with -lm mmap and without --no-mmap --mlock."


def test_steady_says_to_stop_tuning_the_disk() -> None:
    first = advise(situation(State.STEADY, rates=Rates(cpu_ratio=7.6)))[0]
    assert "compute-bound" in first.title
    assert "7.6 of 8 cores" in first.reason


def test_idle_cores_are_not_called_compute_bound() -> None:
    first = advise(situation(State.STEADY, rates=Rates(cpu_ratio=0.1)))[0]
    assert first.title == "If this is slow: neither the disk nor memory is why."


def test_no_end_is_promised_while_as_much_leaves_as_comes() -> None:
    churning = Rates(reread_bytes_per_s=318e6, departed_bytes_per_s=317e6)
    assert advise(situation(State.WARMING, rates=churning))[0].title == "Look again in ten seconds."
    for again in (0.0, 0.4e6):  # a little comes back and leaves while much more arrives for the first time
        arriving = Rates(reread_bytes_per_s=again, first_read_bytes_per_s=43e6, departed_bytes_per_s=again)
        assert advise(situation(State.WARMING, rates=arriving))[0].title == "Wait: this ends by itself."


def test_unknown_and_idle_advise_nothing_of_paging() -> None:
    assert advise(situation(State.UNKNOWN)) == ()
    assert advise(situation(State.IDLE)) == ()


@pytest.mark.parametrize(
    ("quantisation", "room_gib", "wanted"),
    [
        ("Q8_0", 40, "Q5_K_M"),
        ("Q8_0", 36, "Q4_K_M"),
        ("Q4_K_M", 49, "Q3_K_M"),
        ("Q4_K", 49, "Q3_K_M"),
        ("Q8_0", 5, "Q4_K_M"),
        ("Q2_K", 20, None),
        ("MXFP4", 20, None),
        ("MXFP4_MOE", 20, None),
        ("NVFP4", 20, None),
    ],
)
def test_the_largest_quantisation_that_has_room(quantisation: str, room_gib: int, wanted: str | None) -> None:
    found = smaller(replace(MODEL, quantisation=quantisation), room_gib * GIB)
    assert (found[0] if found else None) == wanted
    if found is not None:
        assert found[1] < TOTAL


def test_experts_in_mxfp4_do_not_shrink_whatever_the_file_is_called() -> None:
    assert smaller(replace(MODEL, quantisation="Q8_0", mxfp4_experts=True), 20 * GIB) is None


def test_a_machine_of_unknown_cores_gets_no_thread_advice() -> None:
    assert "threads" not in ids(situation(State.STEADY, argv=("s", "-t", "64"), host=Host()))
