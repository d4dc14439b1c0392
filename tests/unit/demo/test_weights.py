import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.demo import model
from moewatch.demo.weights import PAGE_BYTES, Weights
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.linux.pagecache import SystemPageCache
from moewatch.modelfile.layout import read_layout


class Cache:
    """The model's pages in the page cache."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._size = path.stat().st_size
        self._cache = SystemPageCache()

    def resident(self) -> set[int]:
        pages = self._cache.mincore(self._fd, 0, self._size)
        return {n for n, page in enumerate(pages) if page & 1}

    def evicted_bytes(self) -> int:
        return self._cache.cachestat(self._fd, 0, self._size).nr_evicted

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def layout(model_path: Path) -> ModelLayout:
    return read_layout(model_path)


@pytest.fixture
def cache(model_path: Path) -> Iterator[Cache]:
    model.drop_cache(model_path)
    opened = Cache(model_path)
    yield opened
    opened.close()


# Folios that a CPU holds back in a batch before they are on the LRU (PAGEVEC_SIZE, mm/swap.c) cannot be paged out yet.
HELD_BACK = 31 * (os.cpu_count() or 1)


def pages_of(layout: ModelLayout, layer: int, expert: int) -> set[int]:
    pages: set[int] = set()
    for tensor in layout.of_class(WeightClass.EXPERT):
        if tensor.layer == layer:
            offset, length = tensor.expert_range(expert)
            pages |= set(range(offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES + 1))
    return pages


def test_touching_an_expert_brings_its_pages_and_no_others(model_path: Path, layout: ModelLayout, cache: Cache) -> None:
    weights = Weights(model_path, layout)
    before = cache.resident()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    weights.touch_expert(2, 5)
    assert cache.resident() - before == pages_of(layout, 2, 5) - before
    assert len(pages_of(layout, 2, 5) - before) > 300
    # Real major faults, as a server has: one for each 128 KiB of its three matrices of 512 KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults >= 12


def test_touching_all_dense_weights_leaves_the_experts_on_the_disk(
    model_path: Path, layout: ModelLayout, cache: Cache
) -> None:
    weights = Weights(model_path, layout)
    for layer in range(weights.n_layer + 1):
        weights.touch_dense(layer)
    resident = cache.resident()
    for tensor in layout.of_class(WeightClass.DENSE):
        first, last = tensor.offset // PAGE_BYTES, (tensor.offset + tensor.size_bytes - 1) // PAGE_BYTES
        assert resident >= set(range(first, last + 1)), tensor.name
    assert len(resident & pages_of(layout, 1, 3)) <= 6  # edges shared with neighbours


def test_a_budget_pages_out_what_was_used_least_recently_and_keeps_its_shadow(
    model_path: Path, layout: ModelLayout, cache: Cache
) -> None:
    weights = Weights(model_path, layout)
    weights.touch_expert(0, 1)
    weights.touch_expert(1, 2)
    each = sum(t.expert_range(0)[1] for t in layout.of_class(WeightClass.EXPERT) if t.layer == 0)
    weights.limit_experts(2 * each)
    weights.touch_expert(2, 3)
    resident = cache.resident()
    gone, kept = pages_of(layout, 0, 1), pages_of(layout, 1, 2) | pages_of(layout, 2, 3)
    assert len(resident & gone) <= HELD_BACK
    assert len(resident & kept) > 0.98 * len(kept)
    assert cache.evicted_bytes() >= (len(gone) - HELD_BACK) * PAGE_BYTES
    # It comes back: the shadows are used up, another expert takes its place outside.
    weights.touch_expert(0, 1)
    assert len(cache.resident() & gone) > 0.98 * len(gone)
    assert len(cache.resident() & pages_of(layout, 1, 2)) <= HELD_BACK
    # Without a budget nothing leaves.
    weights.limit_experts(None)
    weights.touch_expert(3, 3)
    assert len(cache.resident() & gone) > 0.98 * len(gone)
