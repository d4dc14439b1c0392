"""Rates out of windows by arithmetic; the disk itself only for what must hold on any."""

import os
from pathlib import Path

import pytest

from moewatch.clock import SystemClock
from moewatch.linux import diskrate
from moewatch.linux.bursts import rate_of
from moewatch.linux.diskrate import fault_bytes_of, measure_file, measure_folder
from moewatch.linux.memoryrate import measure_memory_rate
from moewatch.linux.root import ReadingError
from moewatch.units import KIB, MIB, MS, S

SHORT_NS = 160 * MS


def test_the_best_window_counts() -> None:
    events = [(w * 100 * MS + 1, n_bytes) for w, n_bytes in enumerate((100, 900, 300, 500, 0))]
    rates = [rate_of(events, 0, 100 * MS, rank) for rank in range(5)]
    assert rates == [9000.0, 5000.0, 3000.0, 1000.0, None]


def test_a_window_that_has_not_ended_does_not_count() -> None:
    assert rate_of([(10, 1 << 30)], 0, 100 * MS) is None
    assert rate_of([], 0, 100 * MS) is None
    assert rate_of([(50 * MS, 5), (150 * MS, 1 << 30)], 0, 100 * MS) == 50.0


def test_the_size_of_a_fault() -> None:
    assert [fault_bytes_of(size) for size in (None, 0, 4096, 256 * KIB, 8 * MIB)] == [
        128 * KIB,
        128 * KIB,
        128 * KIB,
        256 * KIB,
        512 * KIB,
    ]


def direct_or_skip(folder: Path) -> None:
    probe = folder / "probe"
    probe.write_bytes(bytes(4096))
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")


def test_a_file_is_read_past_the_page_cache(tmp_path: Path) -> None:
    direct_or_skip(tmp_path)
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(MIB) * 32)
    found = measure_file(str(path), SystemClock(), block_bytes=128 * KIB, n_threads=2, duration_ns=SHORT_NS)
    assert found.bytes_per_s > 0
    assert found.n_threads == 2
    # what was read in all is not far from the rate times the time: the second best window is above the mean
    assert found.n_reads * found.block_bytes <= 2 * found.bytes_per_s * SHORT_NS / S
    assert path.stat().st_size == 32 * MIB


def test_a_scratch_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct_or_skip(tmp_path)
    monkeypatch.setattr(diskrate, "SCRATCH_BYTES", 32 * MIB)
    before = sorted(tmp_path.iterdir())
    measure_folder(str(tmp_path), SystemClock(), block_bytes=128 * KIB, n_threads=1, duration_ns=SHORT_NS)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [0, 4096])
def test_a_small_file_says_nothing(size: int, tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(size))
    with pytest.raises(ReadingError):
        measure_file(str(path), SystemClock(), block_bytes=128 * KIB, n_threads=1)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ReadingError):
            measure_file(str(path), SystemClock(), block_bytes=128 * KIB, n_threads=1)
    with pytest.raises(ReadingError):
        measure_folder(str(tmp_path / "absent"), SystemClock(), block_bytes=128 * KIB, n_threads=1)


def test_memory_is_faster_than_any_disk() -> None:
    found = measure_memory_rate(SystemClock(), 1, 200 * MS)
    assert found is not None
    assert found > 1e8
