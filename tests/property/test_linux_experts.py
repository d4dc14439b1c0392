"""Shares, arrivals and departures of experts against sets of pages, whatever comes and goes and wherever slices begin."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.clock import ManualClock
from moewatch.domain.layout import Tensor, WeightClass
from moewatch.domain.sample import GapReason
from moewatch.linux.root import ReadingError
from moewatch.linux.scanner import ResidencyScanner
from moewatch.linux.scans import LOOK_ANYWAY
from tests.support.layouts import layout_of, sparse_file
from tests.support.scripted_cache import EVICTED, NEVER, RESIDENT, ScriptedPageCache

PAGE, PAGES, N_EXPERT, N_LAYER = 4096, 24 * 33, 4, 2
STRETCHES = st.lists(
    st.tuples(st.integers(0, PAGES - 1), st.integers(1, 120), st.sampled_from((NEVER, RESIDENT, EVICTED))), max_size=6
)


def tensors(each: int, start: int) -> list[Tensor]:
    return [
        Tensor(
            name=f"blk.{layer}.{part}",
            file_index=0,
            offset=start + (2 * layer + part) * N_EXPERT * each,
            size_bytes=N_EXPERT * each,
            weight_class=WeightClass.EXPERT,
            layer=layer,
            n_expert=N_EXPERT,
        )
        for layer in range(N_LAYER)
        for part in range(2)
    ]


@settings(max_examples=60)
@given(
    visits=st.lists(STRETCHES, min_size=2, max_size=6),
    each=st.integers(20 * PAGE, 33 * PAGE),
    start=st.integers(0, 3 * PAGE),
    use_cachestat=st.booleans(),
)
def test_figures_are_those_of_sets(
    visits: list[list[tuple[int, int, int]]], each: int, start: int, *, use_cachestat: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = sparse_file(Path(directory) / "m", PAGES * PAGE)
        layout = layout_of([path], tensors(each, start))
        cache = ScriptedPageCache(PAGE)
        pages = cache.add(path)
        if not use_cachestat:
            cache.cachestat_error = ReadingError(GapReason.UNSUPPORTED, "off")
        scanner = ResidencyScanner(cache, layout, ManualClock())
        before = [0] * N_LAYER * N_EXPERT  # at the first look
        for number, stretches in enumerate(visits):
            for first, count, state in stretches:
                pages[first : first + count] = bytes([state]) * len(pages[first : first + count])
            for _ in range(LOOK_ANYWAY + 2):  # as many may have come as went: found in the end
                scanner.scan_once()
            figures = scanner.experts()
            assert figures is not None
            for cell in range(N_LAYER * N_EXPERT):
                layer, expert = divmod(cell, N_EXPERT)
                slices = [t.expert_range(expert) for t in layout.tensors if t.layer == layer]
                there = sum(
                    min(at + size, (page + 1) * PAGE) - max(at, page * PAGE)
                    for at, size in slices
                    for page in range(at // PAGE, -(-(at + size) // PAGE))
                    if pages[page] == RESIDENT
                )
                # edge pages count in proportion: off by less than a page at each edge of each slice
                assert abs(figures.resident_bytes[cell] - there) <= 2 * len(slices) * PAGE
                assert 0 <= figures.resident_bytes[cell] <= 2 * each
                assert (figures.share[cell] == 255) == (there == 2 * each)
                if number:
                    net = figures.arrived_bytes[cell] - figures.departed_bytes[cell]
                    assert net == figures.resident_bytes[cell] - before[cell]
                    assert 0 <= figures.again_bytes[cell] <= figures.arrived_bytes[cell]
                else:
                    before[cell] = figures.resident_bytes[cell]
        scanner.stop()
