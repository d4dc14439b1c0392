import pytest
from msgspec.structs import replace

from moewatch.analysis.window import MAX_SAMPLES, SPAN_NS, Window
from moewatch.domain.sample import OtherProcess
from moewatch.units import S
from tests.support.readings import GB, header, sample, window


def test_keeps_the_last_75_seconds() -> None:
    made = window(sample(t) for t in range(200))
    assert made.span_ns == SPAN_NS
    assert made.now.mono_ns == 199 * S
    assert made.carried.n_samples == 200
    assert [p.sample for p in made.points] == list(made.samples)


def test_is_bounded_however_fast_samples_come() -> None:
    made = window(sample(t / 50) for t in range(1000))
    assert len(made.samples) == MAX_SAMPLES


@pytest.mark.parametrize(("age_s", "at_s"), [(0, 40), (10, 30), (10.4, 30), (10.6, 29), (100, 0)])
def test_finds_the_sample_closest_to_an_age(age_s: float, at_s: int) -> None:
    made = window(sample(t) for t in range(41))
    assert made.samples[made.index_at(round(age_s * S))].mono_ns == at_s * S
    assert made.since(round(age_s * S))[0].mono_ns == at_s * S


@pytest.mark.parametrize(
    "after",
    [
        sample(11, read=5, cpu_s=2, slept_s=60),  # suspended
        sample(9, read=5, cpu_s=2),  # time went back
        sample(10, read=5, cpu_s=2),  # stood still
        sample(11, read=4, cpu_s=2),  # another process: it has read less
        sample(11, read=5, cpu_s=1),  # and used less CPU
    ],
)
def test_a_break_begins_a_new_window(after: object) -> None:
    made = window([sample(t, read=5, cpu_s=2) for t in range(11)] + [after])  # type: ignore[list-item]  # a Sample, parametrised
    assert made.samples == (after,)
    assert made.carried.breaks == 1
    assert made.carried.n_samples == 1


def test_says_how_long_the_machine_slept() -> None:
    made = window([sample(0), sample(1), sample(2, slept_s=3600)])
    assert made.carried.slept_ns == 3600 * S
    assert window([sample(0), sample(1), sample(2, slept_s=1)]).carried.breaks == 0  # a clock step


def test_scan_differences_are_added_up_from_the_windows_start() -> None:
    made = window(
        [
            sample(0, resident=GB, first=900, again=800, departed=700),  # reaches back before the window
            sample(1),
            sample(2, resident=GB, first=3, again=2, departed=1),
            sample(3, resident=GB, first=30, again=20, departed=10),
        ]
    )
    sums = [(p.arrived_first_bytes, p.arrived_again_bytes, p.departed_bytes) for p in made.points]
    assert sums == [(0, 0, 0), (0, 0, 0), (3, 2, 1), (33, 22, 11)]


def test_scans_without_differences_have_no_sums() -> None:
    made = window(sample(t, resident=GB) for t in range(3))
    assert made.points[-1].arrived_again_bytes is None


def test_residency_is_stale_after_five_seconds() -> None:
    fresh = window([sample(0, resident=GB), *(sample(t) for t in range(1, 4))])
    assert fresh.is_scanned
    assert not window([sample(0, resident=GB), *(sample(t) for t in range(1, 7))]).is_scanned
    assert not window([sample(0)]).is_scanned


def test_busy_time_of_a_disk_never_exceeds_the_time_that_passed() -> None:
    made = window([sample(0, read=0, busy_s=0), sample(1, read=0, busy_s=10), sample(2, read=0, busy_s=10.5)])
    assert made.points[-1].busy_ns == 1.5 * S


def test_lows_of_other_processes_are_remembered() -> None:
    def others(at_s: int, *sizes: int) -> object:
        listed = tuple(OtherProcess(pid=10 + i, name="p", anon_bytes=x) for i, x in enumerate(sizes))
        return replace(sample(at_s), others=listed)

    made = Window(header=header())
    for each in (others(0, 500, 100), sample(1), others(2, 300, 900), others(3, 700, 800), others(4, 700, 800, 400)):
        made = made.pushed(each)  # type: ignore[arg-type]  # replace() of a Sample is one
    lows = {low.pid: (low.anon_bytes, low.mono_ns // S) for low in made.carried.others_low}
    # the third was not among the largest before, so it held at most as much as the smallest that was
    assert lows == {10: (300, 2), 11: (100, 0), 12: (400, 4)}


def test_more_first_reads_than_the_files_hold_are_noticed() -> None:
    """10 GB of files: read whole, dropped without shadows, read once more."""

    def known(t: int) -> int:
        return min(t, 10) * GB if t < 30 else min(t - 30, 10) * GB

    made = window(sample(t, resident=known(t), evicted=0) for t in range(30))
    assert not made.has_forgotten
    made = window(sample(t, resident=known(t), evicted=0) for t in range(60))
    assert made.has_forgotten


def test_jitter_of_the_readings_does_not_add_up_to_first_reads() -> None:
    made = window(sample(t, resident=5 * GB + (t % 3) * GB // 50, evicted=5 * GB) for t in range(2000))
    assert made.carried.first_bytes == 0
