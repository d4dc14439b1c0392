from typing import Any

import pytest
from msgspec.structs import replace

from moewatch.analysis.ledger import Ledger, between, derive_ledger
from moewatch.domain.frame import Method
from moewatch.domain.sample import CgroupReading
from moewatch.units import MB, S
from tests.support.readings import GB, sample, window

PAGE = 4096


def ledger(first: dict[str, Any], last: dict[str, Any]) -> Ledger:
    points = window([sample(0, **first), sample(10, **last)]).points
    return between(points[0], points[-1], PAGE)


def test_tells_first_from_again_from_departed() -> None:
    # 300 MB read; the cache grew by 100, 150 more were evicted than before: 250 never seen, 50 again, 200 departed
    found = ledger(
        {"read": 0, "resident": 1000 * MB, "evicted": 500 * MB},
        {"read": 300 * MB, "resident": 1100 * MB, "evicted": 650 * MB},
    )
    assert found.method is Method.LEDGER
    assert (found.first_bytes, found.again_bytes, found.departed_bytes) == (250 * MB, 50 * MB, 200 * MB)
    assert found.churn_bytes == 50 * MB
    assert found.read_bytes == 300 * MB
    assert not found.shared


def test_single_steps_that_are_negative_cancel_out() -> None:
    # the three readings are not of one instant: the middle one alone would give -50 MB
    made = window(
        [
            sample(0, read=0, resident=GB, evicted=0),
            sample(5, read=50 * MB, resident=GB, evicted=100 * MB),
            sample(10, read=300 * MB, resident=GB, evicted=100 * MB),
        ]
    )
    found = derive_ledger(made, 10 * S)
    assert found is not None
    assert found.again_bytes == 200 * MB


def test_thrashing_by_refaults_without_cachestat() -> None:
    found = ledger(
        {"read": 0, "resident": GB, "refaults": 0},
        {"read": 300 * MB, "resident": GB, "refaults": 200 * MB // PAGE},
    )
    assert found.method is Method.REFAULTS
    assert found.again_bytes == 200 * MB // PAGE * PAGE
    assert found.first_bytes == 300 * MB - found.again_bytes
    assert found.departed_bytes == 300 * MB


def test_thrashing_by_refaults_without_reads() -> None:
    found = ledger(
        {"resident": GB, "evicted": 0, "refaults": 0},
        {"resident": GB, "evicted": 100 * MB, "refaults": 50_000},
    )
    assert found.method is Method.REFAULTS
    assert found.first_bytes == 100 * MB
    assert found.again_bytes == 50_000 * PAGE
    assert found.departed_bytes == 100 * MB + 50_000 * PAGE


def test_the_machines_refaults_stand_in_for_the_cgroups() -> None:
    found = ledger(
        {"read": 0, "resident": GB, "machine_refaults": 0},
        {"read": 300 * MB, "resident": GB, "machine_refaults": 10_000},
    )
    assert found.again_bytes == 10_000 * PAGE


def test_scans_are_the_last_resort() -> None:
    made = window(
        [
            sample(0, resident=GB, first=0, again=0, departed=0),
            sample(5, resident=GB, first=1, again=20, departed=21),
            sample(10, resident=GB, first=2, again=30, departed=32),
        ]
    )
    found = derive_ledger(made, 10 * S)
    assert found is not None
    assert found.method is Method.MINCORE
    assert (found.first_bytes, found.again_bytes, found.departed_bytes) == (3, 50, 53)


def test_nothing_known_is_none_and_never_zero() -> None:
    found = ledger({}, {})
    assert found.method is Method.NONE
    assert (found.first_bytes, found.again_bytes, found.departed_bytes, found.churn_bytes) == (None,) * 4


def test_another_users_process_by_the_cgroups_cache() -> None:
    def group(size: int, refaults: int) -> CgroupReading:
        return CgroupReading(active_file_bytes=size, inactive_file_bytes=0, workingset_refault_file_total=refaults)

    points = window(
        [replace(sample(0), cgroup=group(GB, 0)), replace(sample(10), cgroup=group(GB + 20 * MB, 25_000))]
    ).points
    found = between(points[0], points[-1], PAGE)
    assert found.again_bytes == 25_000 * PAGE
    assert found.departed_bytes == 25_000 * PAGE - 20 * MB
    assert found.resident_bytes == GB + 20 * MB


def test_another_reader_of_the_same_file_is_noticed() -> None:
    # the cache took in 900 MB for the first time, the target read 100
    found = ledger(
        {"read": 0, "resident": 0, "evicted": 0, "refaults": 0},
        {"read": 100 * MB, "resident": 900 * MB, "evicted": 0, "refaults": 1000},
    )
    assert found.shared
    assert found.method is Method.REFAULTS
    assert found.again_bytes == 1000 * PAGE


def test_known_readers_are_summed_and_nothing_is_shared() -> None:
    found = ledger(
        {"read": 0, "readers": 0, "resident": 0, "evicted": 0},
        {"read": 100 * MB, "readers": 900 * MB, "resident": 900 * MB, "evicted": 0},
    )
    assert not found.shared
    assert (found.first_bytes, found.again_bytes) == (900 * MB, 0)
    assert found.read_bytes == 100 * MB


@pytest.mark.parametrize(("swap", "again"), [(5 * MB, 200 * MB), (None, 200 * MB), (0, 300 * MB)])
def test_swap_ins_are_no_re_reads(swap: int | None, again: int) -> None:
    pages = 100 * MB // PAGE
    found = ledger(
        {"read": 0, "resident": GB, "evicted": 0, "swapped_in": 0, "swap": swap},
        {"read": 300 * MB, "resident": GB, "evicted": 0, "swapped_in": pages, "swap": swap},
    )
    assert found.again_bytes == pytest.approx(again, rel=1e-4)


def test_ends_at_samples_that_carry_residency() -> None:
    made = window(sample(t, read=t * MB, **({"resident": GB, "evicted": 0} if t % 2 == 0 else {})) for t in range(22))
    found = derive_ledger(made, 10 * S)
    assert found is not None
    assert found.span_ns == 10 * S  # 10 to 20; the newest, 21, has no scan
    assert derive_ledger(window([sample(0, read=0, resident=GB, evicted=0), sample(1, read=1)]), 10 * S) is None


def test_a_scan_that_stopped_is_not_taken_for_now() -> None:
    samples = [sample(0, read=0, resident=GB, evicted=0, refaults=0)]
    samples += [sample(1, read=1, resident=GB, evicted=0, refaults=0)]
    samples += [sample(t, read=t * MB, refaults=100 * t) for t in range(2, 20)]
    found = derive_ledger(window(samples), 10 * S)
    assert found is not None
    assert found.span_ns == 10 * S
    assert found.resident_bytes is None
    assert found.again_bytes == 1000 * PAGE
