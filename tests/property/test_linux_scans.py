"""Counting by mincore: bitmaps against sets of pages."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.clock import ManualClock
from moewatch.domain.sample import GapReason
from moewatch.linux.root import ReadingError
from moewatch.linux.scanner import ResidencyScanner
from tests.support.layouts import layout_of, moe_tensors, sparse_file
from tests.support.scripted_cache import NEVER, RESIDENT, ScriptedPageCache

PAGE, PAGES = 4096, 4096 + 64  # more than one chunk of 16 MiB
SETS = st.lists(st.sets(st.integers(0, PAGES - 1), max_size=40), min_size=2, max_size=5)


@settings(max_examples=40)
@given(visits=SETS, use_cachestat=st.booleans())
def test_arrivals_and_sums_are_those_of_sets(visits: list[set[int]], *, use_cachestat: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = sparse_file(Path(directory) / "m", PAGES * PAGE)
        tensors = moe_tensors(3, dense_bytes=5 * PAGE + 999, expert_bytes=1300 * PAGE + 7, start=3000)
        cache = ScriptedPageCache(PAGE)
        pages = cache.add(path)
        if not use_cachestat:
            cache.cachestat_error = ReadingError(GapReason.UNSUPPORTED, "off")
        scanner = ResidencyScanner(cache, layout_of([path], tensors), ManualClock())
        ever = set(visits[0])
        before = set(visits[0])
        for resident in visits:
            for page in range(PAGES):
                pages[page] = RESIDENT if page in resident else NEVER
            scanner.scan_once()
            reading, gaps = scanner.read()
            assert reading is not None
            assert not gaps
            assert reading.resident_bytes == len(resident) * PAGE
            for tensor in tensors:
                own = range(tensor.offset // PAGE, -(-(tensor.offset + tensor.size_bytes) // PAGE))
                share = len(resident.intersection(own)) * tensor.size_bytes / len(own)
                found, _ = scanner.tensor_resident()[tensor.name]
                # rounded down once per chunk or piece; pages that two chunks of a tensor weigh differently add a page
                assert abs(found - share) <= PAGE + 3
            if not use_cachestat:
                came = resident - before
                assert reading.arrived_first_bytes == len(came - ever) * PAGE
                assert reading.arrived_again_bytes == len(came & ever) * PAGE
                assert reading.departed_bytes == len(before - resident) * PAGE
                ever |= resident
                assert reading.never_seen_bytes == (PAGES - len(ever)) * PAGE
            before = resident
        scanner.stop()
