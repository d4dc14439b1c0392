import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from moewatch.clock import ManualClock, SystemClock
from moewatch.domain.layout import ModelLayout
from moewatch.domain.sample import GapReason, ResidencyReading
from moewatch.linux import scanner as scanner_module
from moewatch.linux import scans
from moewatch.linux.pagecache import SystemPageCache
from moewatch.linux.root import ReadingError
from moewatch.linux.rotation import Rotation
from moewatch.linux.scanner import (
    BUDGET_NS_PER_S,
    FIRST_BUDGET_NS_PER_S,
    FIRST_STEP_CPU_NS,
    PASS_CPU_LIMIT_NS,
    ROTATION_NS,
    STEP_CPU_NS,
    ResidencyScanner,
)
from moewatch.units import MIB, MS, S
from tests.support.layouts import layout_of, moe_tensors, sparse_file
from tests.support.scripted_cache import EVICTED, NEVER, RESIDENT, ScriptedPageCache

PAGE = 4096
MISSING = ReadingError(GapReason.UNSUPPORTED, "this kernel has no cachestat")
DENIED = ReadingError(GapReason.DENIED, "denied")

# pages: 1 header, 4 embedding, then per layer 4 dense and 16 experts
N_LAYER, DENSE, EXPERT = 2, 4 * PAGE, 16 * PAGE
PAGES = 1 + 4 + N_LAYER * 20


class Bench:
    """A scripted model of two layers, watched."""

    def __init__(self, directory: Path, page_bytes: int = PAGE) -> None:
        factor = page_bytes // PAGE
        self.path = sparse_file(directory / "model.gguf", PAGES * page_bytes)
        self.layout: ModelLayout = layout_of(
            [self.path],
            moe_tensors(N_LAYER, dense_bytes=DENSE * factor, expert_bytes=EXPERT * factor, start=page_bytes),
        )
        self.clock = ManualClock()
        self.cache = ScriptedPageCache(page_bytes, self.clock)
        self.pages = self.cache.add(self.path)
        self.scanner = ResidencyScanner(self.cache, self.layout, self.clock)

    def read(self) -> ResidencyReading:
        """A reading that must be there, without gaps."""
        reading, gaps = self.scanner.read()
        assert gaps == []
        assert reading is not None
        return reading

    def scan(self) -> ResidencyReading:
        self.scanner.scan_once()
        return self.read()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.scanner.stop()


def test_classes_layers_and_totals(bench: Bench) -> None:
    bench.pages[0:5] = bytes([RESIDENT]) * 5  # header and embedding
    bench.pages[5:9] = bytes([RESIDENT]) * 4  # layer 0 dense
    bench.pages[9:17] = bytes([EVICTED]) * 8  # half of layer 0's experts went
    bench.pages[25:27] = bytes([RESIDENT]) * 2  # half of layer 1's dense
    reading = bench.scan()
    assert reading.backend == "cachestat"
    assert reading.resident_bytes == 11 * PAGE
    assert reading.evicted_bytes == reading.recently_evicted_bytes == 8 * PAGE
    assert reading.embedding_resident_bytes == 4 * PAGE
    assert reading.dense_resident_bytes == 6 * PAGE
    assert reading.expert_resident_bytes == 0
    assert reading.by_layer == (0.2, 0.1)
    assert (reading.totals_age_ns, reading.age_ns) == (0, 0)
    assert reading.arrived_first_bytes is None


def test_nothing_is_known_of_parts_before_they_were_reached(bench: Bench) -> None:
    """What every token needs comes first; a rotation that was cut short has no experts yet."""
    bench.pages[:] = bytes([RESIDENT]) * PAGES
    bench.cache.ns_per_page = MS
    bench.scanner._open()
    rotation = bench.scanner._rotation
    assert rotation is not None
    rotation.step(8 * MS, threading.Event())
    bench.cache.ns_per_page = 0
    reading = bench.read()
    assert reading.resident_bytes == PAGES * PAGE
    assert (reading.dense_resident_bytes, reading.expert_resident_bytes) == (8 * PAGE, None)
    assert (reading.by_layer, reading.age_ns) == (None, None)
    assert set(bench.scanner.tensor_resident()) == {"blk.0.attn.weight", "blk.1.attn.weight"}


def test_totals_are_of_now_and_parts_keep_their_age(bench: Bench) -> None:
    bench.scan()
    bench.clock.advance(3 * S)
    bench.pages[5:9] = bytes([RESIDENT]) * 4
    reading = bench.read()
    assert reading.resident_bytes == 4 * PAGE
    assert reading.totals_age_ns == 0
    assert reading.dense_resident_bytes == 0
    assert reading.age_ns == 3 * S


def test_a_page_shared_by_two_tensors_counts_in_proportion(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "m", 3 * PAGE)
    layout = layout_of([path], moe_tensors(1, dense_bytes=PAGE // 2, expert_bytes=PAGE, start=PAGE // 2))
    cache = ScriptedPageCache(PAGE)
    cache.add(path)[:] = bytes([RESIDENT, NEVER, NEVER])
    for error in (None, MISSING):
        cache.cachestat_error = error
        scanner = ResidencyScanner(cache, layout, ManualClock())
        scanner.scan_once()
        resident = {name: size for name, (size, _) in scanner.tensor_resident().items()}
        assert resident == {
            "token_embd.weight": PAGE // 2,
            "blk.0.attn.weight": 0,
            "blk.0.ffn_up_exps.weight": 0,
        }
        scanner.stop()


def test_what_is_on_the_gpu_leaves_every_part(bench: Bench) -> None:
    bench.pages[5:9] = bytes([RESIDENT]) * 4
    bench.scanner.not_needed = frozenset({"blk.0.attn.weight", "blk.1.attn.weight", "blk.1.ffn_up_exps.weight"})
    bench.scanner.not_needed_assumed = True
    reading = bench.scan()
    assert reading.dense_resident_bytes == 0
    assert (reading.not_needed_dense_bytes, reading.not_needed_expert_bytes) == (2 * DENSE, EXPERT)
    assert reading.not_needed_assumed
    assert reading.by_layer == (0.0, None)
    assert reading.resident_bytes == 4 * PAGE
    bench.scanner.not_needed = frozenset()
    assert not bench.read().not_needed_assumed
    assert bench.read().dense_resident_bytes == 4 * PAGE


@pytest.mark.parametrize("page_bytes", [4096, 65536])
def test_mincore_agrees_with_cachestat(tmp_path: Path, page_bytes: int) -> None:
    bench = Bench(tmp_path, page_bytes)
    for page in (0, 1, 5, 6, 7, 9, 24, 25, 26, PAGES - 1):
        bench.pages[page] = RESIDENT
    by_cachestat = bench.scan()
    bench.scanner.stop()
    bench.cache.cachestat_error = MISSING
    bench.scanner = ResidencyScanner(bench.cache, bench.layout, bench.clock)
    by_mincore = bench.scan()
    assert by_mincore.backend == "mincore"
    assert by_mincore.evicted_bytes is None
    for field in ("resident_bytes", "dense_resident_bytes", "expert_resident_bytes", "by_layer"):
        assert getattr(by_mincore, field) == getattr(by_cachestat, field)
    bench.scanner.stop()


def test_mincore_tells_first_from_second_arrivals(bench: Bench) -> None:
    bench.cache.cachestat_error = MISSING
    bench.pages[10:14] = bytes([RESIDENT]) * 4
    first = bench.scan()
    # what was there at the first look has not arrived
    assert (first.arrived_first_bytes, first.arrived_again_bytes, first.departed_bytes) == (0, 0, 0)
    assert first.never_seen_bytes == (PAGES - 4) * PAGE
    bench.pages[10:12] = bytes([EVICTED]) * 2
    bench.pages[20:23] = bytes([RESIDENT]) * 3
    second = bench.scan()
    assert (second.arrived_first_bytes, second.arrived_again_bytes, second.departed_bytes) == (3 * PAGE, 0, 2 * PAGE)
    bench.pages[10] = RESIDENT
    bench.scanner.scan_once()
    bench.pages[20] = EVICTED
    assert second.resident_bytes == 5 * PAGE
    both = bench.scan()  # two rotations between readings add up
    assert (both.arrived_first_bytes, both.arrived_again_bytes, both.departed_bytes) == (0, PAGE, PAGE)
    assert both.never_seen_bytes == (PAGES - 7) * PAGE
    nothing = bench.read()
    assert (nothing.arrived_first_bytes, nothing.arrived_again_bytes, nothing.departed_bytes) == (0, 0, 0)


def test_the_last_page_of_a_file_is_cut_to_the_file(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "m", 2 * PAGE + 100)
    cache = ScriptedPageCache(PAGE)
    cache.add(path)[:] = bytes([RESIDENT]) * 3
    for error in (None, MISSING):
        cache.cachestat_error = error
        scanner = ResidencyScanner(cache, layout_of([path], []), ManualClock())
        scanner.scan_once()
        reading, _ = scanner.read()
        assert reading is not None
        assert reading.resident_bytes == 2 * PAGE + 100
        scanner.stop()


def test_a_pass_that_cost_much_rests_until_the_budget_allows_another(bench: Bench) -> None:
    bench.scan()
    bench.clock.advance(S)
    bench.cache.ns_per_page = 16 * MS // PAGES + 1  # two seconds' worth of budget
    assert bench.read().totals_age_ns == 0
    bench.pages[5:9] = bytes([RESIDENT]) * 4
    bench.clock.advance(S)
    stale = bench.read()
    assert (stale.totals_age_ns, stale.resident_bytes) == (S, 0)
    bench.clock.advance(S + S // 10)
    assert bench.read().resident_bytes == 4 * PAGE


def test_totals_that_would_make_a_sample_late_are_left_to_the_scan(bench: Bench) -> None:
    bench.cache.ns_per_page = PASS_CPU_LIMIT_NS // PAGES + MS
    bench.scan()
    bench.cache.calls.clear()
    bench.clock.advance(2 * S)
    first = bench.read()
    assert (first.totals_age_ns, first.evicted_bytes) == (2 * S, 0)
    bench.pages[5:9] = bytes([EVICTED]) * 4
    bench.cache.calls.clear()
    bench.clock.advance(S)
    second = bench.read()
    assert bench.cache.calls == []  # never again by itself
    assert (second.totals_age_ns, second.evicted_bytes) == (3 * S, 0)
    third = bench.scan()
    assert third.evicted_bytes == 4 * PAGE
    bench.cache.ns_per_page = 0
    bench.clock.cpu_ns += 1
    bench.cache.ns_per_page = 1
    bench.scanner.scan_once()  # folios have grown: it is cheap again
    bench.clock.advance(S)
    assert bench.read().totals_age_ns == 0


def test_a_costly_pass_is_noticed_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "PASS_STEP_BYTES", 4 * PAGE)
    bench = Bench(tmp_path)
    bench.cache.ns_per_page = 10 * MS
    bench.scanner._open()
    bench.cache.calls.clear()
    reading, (gap,) = bench.scanner.read()
    assert len(bench.cache.calls) == 1
    assert reading is not None
    assert reading.resident_bytes is None
    assert (gap.field, gap.detail) == ("residency.resident_bytes", "the first look at the page cache is under way, 0 %")
    bench.scanner.stop()


def test_before_the_first_look_is_over_an_older_count_is_told_with_its_age(bench: Bench) -> None:
    bench.scanner._open()
    bench.pages[5:9] = bytes([RESIDENT]) * 4
    assert bench.read().resident_bytes == 4 * PAGE
    bench.cache.ns_per_page = PASS_CPU_LIMIT_NS // PAGES + MS  # folios have become small
    bench.clock.advance(2 * S)
    second = bench.read()
    assert (second.resident_bytes, second.totals_age_ns) == (4 * PAGE, 2 * S)
    bench.scanner.stop()


def test_the_scan_keeps_to_its_budget(bench: Bench) -> None:
    """Simulated: the thread's own loop on a clock that jumps, until 200 s are over."""
    bench.cache.ns_per_page = MS // 4
    bench.scanner._open()
    began = bench.clock.mono_ns()

    class Stopping(ManualClock):
        def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
            bench.clock.sleep_until(mono_ns, stop)
            if bench.clock.mono_ns() - began > 200 * S and stop is not None:
                stop.set()
            return stop is not None and stop.is_set()

        def mono_ns(self) -> int:
            return bench.clock.mono_ns()

        def thread_cpu_ns(self) -> int:
            return bench.clock.thread_cpu_ns()

    before = bench.clock.cpu_ns
    bench.scanner._clock = Stopping()
    bench.scanner._run()
    seconds = (bench.clock.mono_ns() - began) / S
    spent = bench.clock.cpu_ns - before
    rotation_ns = PAGES * MS // 4
    # the first rotation and the doubt after it (one cachestat, one mincore) are free; a step may run over its 2 ms by one piece, which the sleep after it makes up for
    assert spent <= 3 * rotation_ns + BUDGET_NS_PER_S * seconds + STEP_CPU_NS
    assert spent > BUDGET_NS_PER_S * seconds / 2


def test_the_first_look_is_over_sooner_and_still_within_a_budget(bench: Bench) -> None:
    """Simulated: a file of which one look costs seconds of CPU time, as mincore's of hundreds of GiB."""
    bench.cache.ns_per_page = 100 * MS
    bench.scanner._open()
    assert bench.scanner._rotation is not None
    rotation: Rotation = bench.scanner._rotation
    began, cpu = bench.clock.mono_ns(), bench.clock.cpu_ns

    class Stopping(ManualClock):
        def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
            bench.clock.sleep_until(mono_ns, stop)
            return bool(rotation.count) or bench.clock.mono_ns() - began > 1000 * S

        def mono_ns(self) -> int:
            return bench.clock.mono_ns()

        def thread_cpu_ns(self) -> int:
            return bench.clock.thread_cpu_ns()

    bench.scanner._clock = Stopping()
    bench.scanner._run()
    spent_ns, lasted_ns = bench.clock.cpu_ns - cpu, bench.clock.mono_ns() - began
    assert rotation.count == 1
    within = FIRST_BUDGET_NS_PER_S * lasted_ns / S
    assert within / 2 < spent_ns - FIRST_STEP_CPU_NS <= 1.1 * within  # the last piece is not slept off any more
    bench.scanner.stop()


def test_a_small_model_is_counted_once_a_second(bench: Bench) -> None:
    bench.scanner._open()
    sleeps: list[int] = []

    class Counting(ManualClock):
        def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
            sleeps.append(mono_ns)
            return super().sleep_until(mono_ns, stop) or len(sleeps) > 5

    bench.scanner._clock = Counting()
    bench.scanner._run()
    assert sleeps == [0, *(ROTATION_NS * n for n in range(1, 6))]


def test_a_failing_call_is_a_gap_and_the_scan_goes_on_later(bench: Bench) -> None:
    bench.scan()
    bench.cache.cachestat_error = DENIED
    bench.scanner.scan_once()
    reading, gaps = bench.scanner.read()
    assert reading is None or reading.resident_bytes is not None
    assert {gap.reason for gap in gaps} == {GapReason.DENIED}
    bench.cache.cachestat_error = None
    bench.clock.advance(10 * S)
    assert bench.scan().resident_bytes == 0


def test_residency_that_cannot_be_known_is_no_reading(bench: Bench) -> None:
    bench.cache.cachestat_error = bench.cache.mincore_error = DENIED
    bench.scanner.start()
    reading, gaps = bench.scanner.read()
    assert reading is None
    assert [(gap.field, gap.reason) for gap in gaps] == [("residency", GapReason.DENIED)]


def test_a_model_that_is_gone_is_no_reading(bench: Bench) -> None:
    bench.path.unlink()
    reading, gaps = bench.scanner.start().read()
    assert reading is None
    assert gaps[0].reason is GapReason.VANISHED


def test_a_cachestat_that_turns_out_to_be_silent_is_given_up(bench: Bench) -> None:
    bench.cache.cachestat_is_silent = True
    bench.scanner._open()  # cold: both say nothing, so cachestat is believed
    assert bench.scan().backend == "cachestat"
    bench.pages[:] = bytes([RESIDENT]) * PAGES
    bench.scanner.scan_once()
    rotation = bench.scanner._rotation
    assert rotation is not None
    assert bench.read().resident_bytes == 0  # as cachestat says
    bench.scanner._doubt_nothing(rotation)
    meanwhile, (gap,) = bench.scanner.read()
    assert meanwhile is not None
    assert meanwhile.resident_bytes is None, "unknown until mincore has looked, never the zero of the other"
    assert gap.field == "residency.resident_bytes"
    bench.scanner.scan_once()
    reading = bench.read()
    assert (reading.backend, reading.resident_bytes) == ("mincore", PAGES * PAGE)


def replace_a_linked_file(path: Path) -> None:
    os.link(path, path.with_name("kept"))
    sparse_file(path.with_name("new"), PAGE).rename(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: os.truncate(path, PAGE), "was cut by"),
        (lambda path: path.unlink(), "was deleted"),
        (lambda path: sparse_file(path.with_name("new"), 9 * PAGE).rename(path), "was deleted"),
        (replace_a_linked_file, "replaced"),
        (lambda path: path.rename(path.with_name("moved")), "no longer where"),
        (lambda path: os.utime(path, ns=(1, 1)), "was written to"),
    ],
)
def test_a_file_that_changes_under_the_watch_is_a_gap(bench: Bench, damage: object, words: str) -> None:
    bench.scan()
    assert callable(damage)
    damage(bench.path)
    _, gaps = bench.scanner.read()
    assert len(gaps) == 1
    assert words in gaps[0].detail


def test_after_the_stop_nothing_is_read_and_nothing_is_open(bench: Bench) -> None:
    before = psutil.Process().num_fds()
    bench.scanner.start()
    bench.scanner.stop()
    assert bench.scanner.read() == (None, [])
    assert bench.scanner.tensor_resident() == {}
    assert psutil.Process().num_fds() == before
    bench.scanner.stop()


def test_history_of_huge_models_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "HISTORY_LIMIT_BYTES", PAGE)
    bench.cache.cachestat_error = MISSING
    reading = bench.scan()
    assert reading.resident_bytes == 0
    assert reading.arrived_first_bytes is None


def test_pieces_cover_every_byte_once(tmp_path: Path) -> None:
    from moewatch.linux.scanplan import PIECE_BYTES, plan_pieces  # noqa: PLC0415 - nothing eager

    path = sparse_file(tmp_path / "m", 400 * MIB)
    tensors = moe_tensors(2, dense_bytes=3 * MIB + 17, expert_bytes=150 * MIB, start=5 * PAGE)
    pieces = plan_pieces(layout_of([path], tensors), PAGE)
    at = 0
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        assert piece.offset == at
        assert 0 < piece.length <= PIECE_BYTES
        at += piece.length
    assert at == 400 * MIB
    assert sum(piece.is_last for piece in pieces if piece.tensor >= 0) == len(tensors)


def test_a_real_file_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(PAGES * PAGE))  # just written: all of it is in the cache
    layout = layout_of([path], moe_tensors(N_LAYER, dense_bytes=DENSE, expert_bytes=EXPERT, start=PAGE))
    scanner = ResidencyScanner(SystemPageCache(), layout, SystemClock()).start()
    try:
        for _ in range(100):
            reading, gaps = scanner.read()
            assert gaps == []
            assert reading is not None
            if reading.by_layer is not None:
                break
            threading.Event().wait(0.05)
        assert reading is not None
        assert reading.resident_bytes == PAGES * PAGE
        assert (reading.dense_resident_bytes, reading.by_layer) == (N_LAYER * DENSE, (1.0, 1.0))
    finally:
        scanner.stop()
