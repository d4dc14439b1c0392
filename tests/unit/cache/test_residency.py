import os
from pathlib import Path

import pytest

from moewatch.cache.residency import ShardCache, levels
from moewatch.domain.layout import WeightClass
from moewatch.domain.sample import GapReason
from moewatch.errors import ForbiddenError
from moewatch.linux.root import ReadingError
from moewatch.linux.shards import Shard
from tests.support.layouts import sparse_file
from tests.support.scripted_cache import EVICTED, RESIDENT, ScriptedPageCache

PAGE = 4096
PIECES = 3 * (64 << 20) // PAGE


def shard_of(path: Path) -> Shard:
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    return Shard(path=str(path), name=path.name, fd=fd, size_bytes=size, mtime_ns=0, identity=(0, 0))


@pytest.mark.parametrize("backend", ["cachestat", "mincore"])
def test_runs_are_exact_to_the_page_and_end_with_the_file(tmp_path: Path, backend: str) -> None:
    path = sparse_file(tmp_path / "model.gguf", PIECES * PAGE - 100)
    cache = ScriptedPageCache()
    if backend == "mincore":
        cache.cachestat_error = ReadingError(GapReason.UNSUPPORTED, "no cachestat here")
    pages = cache.add(path)
    for first, count in ((0, 1), (7, 16377), (PIECES // 3, PIECES // 3 + 1), (PIECES - 2, 2)):
        pages[first : first + count] = bytes([RESIDENT]) * count
    pages[3] = EVICTED
    shard = shard_of(path)
    found = ShardCache(cache, [shard])
    third = PIECES // 3 * PAGE  # two pieces end here: a run that crosses goes on
    assert found.resident() == [[(0, PAGE), (7 * PAGE, 2 * third + PAGE), ((PIECES - 2) * PAGE, shard.size_bytes)]]
    assert found.count(0, [(0, 4 * PAGE)]) == PAGE
    # by cachestat the file's last page counts whole
    assert 0 <= found.total() - sum(end - start for start, end in found.resident()[0]) < PAGE
    os.close(shard.fd)


def test_pieces_that_are_wholly_in_or_out_cost_one_call(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "model.gguf", PIECES * PAGE)
    cache = ScriptedPageCache()
    pages = cache.add(path)
    pages[: PIECES // 3] = bytes([RESIDENT]) * (PIECES // 3)
    shard = shard_of(path)
    found = ShardCache(cache, [shard])
    cache.calls.clear()
    found.resident()
    assert [call for call, _, _ in cache.calls] == ["cachestat"] * 3
    os.close(shard.fd)


def test_where_the_kernel_would_not_tell_the_truth_nothing_is_planned(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "model.gguf", PAGE)
    cache = ScriptedPageCache()
    cache.add(path)
    cache.cachestat_error = cache.mincore_error = ReadingError(GapReason.DENIED, "not yours")
    shard = shard_of(path)
    with pytest.raises(ForbiddenError, match="owner"):
        ShardCache(cache, [shard])
    os.close(shard.fd)


def test_levels_are_shares_of_what_is_needed() -> None:
    classes: dict[WeightClass, list[list[tuple[int, int]]]] = {
        WeightClass.DENSE: [[(0, 100)], [(0, 100)]],
        WeightClass.EXPERT: [[(100, 500)], []],
        WeightClass.EMBEDDING: [[], []],
    }
    found = levels([[(0, 300)], [(50, 60)]], classes, [[(250, 350)], []])
    assert (found.resident_bytes, found.dense_bytes, found.expert_bytes, found.hot_bytes) == (310, 110, 200, 50)
    assert (found.dense_ratio, found.expert_ratio, found.hot_ratio) == (0.55, 0.5, 0.5)
    classes[WeightClass.EXPERT] = [[], []]
    assert levels([[], []], classes).expert_ratio is None
