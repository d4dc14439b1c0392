"""What the scanner says of single experts, and how little it asks."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.clock import ManualClock
from moewatch.domain.experts import ExpertFigures
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import GapReason, ResidencyReading
from moewatch.linux.activity import FileCacheActivity, Level, parse_level
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.linux.scanner import EXPERTS_EVERY_NS, LOOK_ANYWAY_NS, ResidencyScanner
from moewatch.linux.scanplan import PIECE_BYTES, plan_pieces
from moewatch.linux.scans import LOOK_ANYWAY
from moewatch.units import GIB, MIB, MS, S
from tests.support.layouts import layout_of, sparse_file
from tests.support.scripted_cache import EVICTED, NEVER, RESIDENT, ScriptedPageCache

PAGE, SLICE = 4096, 16  # pages of an expert in one tensor
MISSING = ReadingError(GapReason.UNSUPPORTED, "this kernel has no cachestat")
N_LAYER, N_EXPERT = 2, 4
PARTS = ("gate", "down")
PAGES = N_LAYER * len(PARTS) * N_EXPERT * SLICE


def expert_tensors(n_layer: int, n_expert: int, slice_bytes: int, parts: tuple[str, ...] = PARTS) -> list[Tensor]:
    size = n_expert * slice_bytes
    return [
        Tensor(
            name=f"blk.{layer}.ffn_{part}_exps.weight",
            file_index=0,
            offset=(layer * len(parts) + n) * size,
            size_bytes=size,
            weight_class=WeightClass.EXPERT,
            layer=layer,
            n_expert=n_expert,
        )
        for layer in range(n_layer)
        for n, part in enumerate(parts)
    ]


class Quiet(FileCacheActivity):
    """A machine that says what the test says."""

    def __init__(self) -> None:
        super().__init__(KernelRoot.system())
        self.level: Level | None = Level(read_in=0, reclaimed=0, file_cache=0)

    def read(self) -> Level | None:
        return self.level


class Bench:
    def __init__(self, directory: Path) -> None:
        path = sparse_file(directory / "m.gguf", PAGES * PAGE)
        self.layout: ModelLayout = layout_of([path], expert_tensors(N_LAYER, N_EXPERT, SLICE * PAGE))
        self.clock = ManualClock()
        self.cache = ScriptedPageCache(PAGE, self.clock)
        self.pages = self.cache.add(path)
        self.activity = Quiet()
        self.scanner = ResidencyScanner(self.cache, self.layout, self.clock, activity=self.activity)

    def set(self, layer: int, expert: int, state: int, n: int = SLICE) -> None:
        """The first `n` pages of each of its slices."""
        for part in range(len(PARTS)):
            at = ((layer * len(PARTS) + part) * N_EXPERT + expert) * SLICE
            self.pages[at : at + n] = bytes([state]) * n

    def scan(self) -> ExpertFigures:
        self.clock.advance(S)
        self.scanner.scan_once()
        figures = self.scanner.experts()
        assert figures is not None
        return figures

    def read(self) -> ResidencyReading:
        reading, gaps = self.scanner.read()
        assert reading is not None
        assert not gaps
        return reading


@pytest.fixture(params=["cachestat", "mincore"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    if request.param == "mincore":
        bench.cache.cachestat_error = MISSING
    yield bench
    bench.scanner.stop()


def test_share_of_each_expert_over_all_its_tensors(bench: Bench) -> None:
    bench.set(0, 1, RESIDENT)
    bench.set(1, 3, RESIDENT, SLICE // 2)
    figures = bench.scan()
    assert figures.bytes_per_expert == (2 * SLICE * PAGE,) * 2
    assert list(figures.share) == [0, 255, 0, 0, 0, 0, 0, 127]
    assert list(figures.resident_bytes) == [0, 2 * SLICE * PAGE, 0, 0, 0, 0, 0, SLICE * PAGE]
    assert set(figures.arrived_bytes) == {0}, "what was there at first has not arrived"
    assert set(figures.came_ns) == {-1}


def test_what_comes_and_goes_and_comes_again(bench: Bench) -> None:
    size = 2 * SLICE * PAGE
    bench.scan()
    bench.set(0, 2, RESIDENT)
    first = bench.scan()
    assert (first.arrived_bytes[2], first.again_bytes[2], first.came_ns[2]) == (size, 0, bench.clock.mono_ns())
    bench.set(0, 2, EVICTED)
    left = bench.scan()
    assert (left.departed_bytes[2], left.left_ns[2]) == (size, bench.clock.mono_ns())
    bench.set(0, 2, RESIDENT, SLICE // 4)
    again = bench.scan()
    assert again.again_bytes[2] == size // 4
    assert (first.share[2], again.share[2]) == (255, 63)
    assert list(again.again_bytes).count(0) == N_LAYER * N_EXPERT - 1


def test_evicted_before_the_watch_began_is_again(tmp_path: Path) -> None:
    """Shadow entries say so; mincore cannot."""
    bench = Bench(tmp_path)
    bench.set(1, 0, EVICTED)
    assert bench.scan().recently_evicted_bytes[4] == 2 * SLICE * PAGE
    bench.set(1, 0, RESIDENT)
    figures = bench.scan()
    assert (figures.again_bytes[4], figures.recently_evicted_bytes[4]) == (2 * SLICE * PAGE, 0)
    bench.scanner.stop()


def test_the_map_is_told_every_few_seconds_and_only_when_it_is_another(bench: Bench) -> None:
    bench.set(0, 1, RESIDENT)
    bench.scan()
    first = bench.read()
    assert list(base64.b64decode(first.experts or "")) == [0, 255, 0, 0, 0, 0, 0, 0]
    assert first.experts_again is None
    bench.set(0, 1, EVICTED)
    bench.scan()
    bench.set(0, 1, RESIDENT)
    bench.scan()
    assert bench.read().experts is None, "too early"
    bench.clock.advance(EXPERTS_EVERY_NS)
    second = bench.read()
    assert second.experts == first.experts
    assert list(base64.b64decode(second.experts_again or "")) == [0, 16, 0, 0, 0, 0, 0, 0]
    bench.clock.advance(EXPERTS_EVERY_NS)
    assert bench.read().experts is None, "nothing new"
    bench.scanner.not_needed = frozenset(t.name for t in bench.layout.tensors if t.layer == 1)
    assert bench.read().experts_not_needed == (1,)


def test_small_amounts_read_again_add_up(bench: Bench) -> None:
    bench.set(0, 0, RESIDENT)
    bench.scan()
    bench.read()
    told = 0
    for _ in range(32):
        bench.set(0, 0, EVICTED, 1)
        bench.scan()
        bench.set(0, 0, RESIDENT, 1)
        bench.scan()
        bench.clock.advance(EXPERTS_EVERY_NS)
        again = bench.read().experts_again
        told += base64.b64decode(again)[0] if again else 0
    assert told == 32 * 16 // SLICE


def test_pieces_that_have_not_changed_are_not_looked_into(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.activity.level = None  # the machine does not say whether anything moved
    bench.set(0, 1, RESIDENT)
    bench.scan()
    n_pieces = len(plan_pieces(bench.layout, PAGE))
    calls = []
    for _ in range(LOOK_ANYWAY + 1):
        bench.cache.calls.clear()
        bench.scan()
        calls.append(len(bench.cache.calls))
    assert calls[:-1] == [n_pieces] * LOOK_ANYWAY
    assert calls[-1] == n_pieces + len(PARTS) * N_EXPERT, "the partly cached ones, in case as many came as went"
    bench.scanner.stop()


def test_as_many_pages_in_as_out_are_found_in_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.activity.level = None
    bench.set(0, 0, RESIDENT)
    bench.set(0, 1, EVICTED)
    bench.scan()
    bench.set(0, 0, EVICTED)
    bench.set(0, 1, RESIDENT)
    for _ in range(LOOK_ANYWAY + 1):
        figures = bench.scan()
    assert list(figures.share[:2]) == [0, 255]
    bench.scanner.stop()


def test_a_piece_that_keeps_changing_is_asked_expert_by_expert_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.activity.level = None
    bench.scan()
    for n in (2, 4, 6):
        bench.set(0, 0, RESIDENT, n)
        bench.cache.calls.clear()
        bench.scan()
    n_pieces = N_LAYER * len(PARTS)
    assert len(bench.cache.calls) == n_pieces - len(PARTS) + len(PARTS) * N_EXPERT
    reading = bench.read()
    assert reading.expert_resident_bytes == 2 * 6 * PAGE
    for _ in range(2):
        bench.cache.calls.clear()
        bench.scan()
    assert len(bench.cache.calls) == n_pieces, "it has settled"
    bench.scanner.stop()


def test_while_nothing_moves_on_the_machine_nothing_is_asked(bench: Bench) -> None:
    bench.cache.ns_per_page = MS  # else asking is as cheap as not asking
    bench.scan()
    bench.cache.ns_per_page = 0
    bench.cache.calls.clear()
    bench.clock.advance(10 * S)
    bench.scanner.scan_once()
    assert bench.cache.calls == []
    assert bench.read().age_ns == 0, "the figures still hold"
    bench.activity.level = Level(read_in=2 * MIB, reclaimed=0, file_cache=0)
    bench.scanner.scan_once()
    assert bench.cache.calls


def test_after_a_while_all_is_asked_whatever_the_machine_says(bench: Bench) -> None:
    bench.cache.ns_per_page = MS
    bench.scan()
    bench.clock.advance(LOOK_ANYWAY_NS)
    bench.cache.calls.clear()
    bench.scanner.scan_once()
    assert bench.cache.calls


@pytest.mark.parametrize(
    ("content", "level"),
    [
        (
            b"nr_free_pages 5\nnr_file_pages 10\npgpgin 3\npgsteal_file 2\n",
            Level(read_in=3072, reclaimed=8192, file_cache=40960),
        ),
        (b"nr_file_pages 10\npgpgin 3\n", None),
        (b"", None),
    ],
)
def test_level_of_the_machine(content: bytes, level: Level | None) -> None:
    assert parse_level(content, PAGE) == level


def test_the_level_of_this_machine() -> None:
    now = FileCacheActivity(KernelRoot.system()).read()
    assert now is not None
    assert now.moved_bytes(now) == 0
    assert now.moved_bytes(Level(read_in=now.read_in, reclaimed=now.reclaimed, file_cache=now.file_cache + 7)) == 7


@pytest.mark.parametrize(("size_gib", "n_layer", "n_expert"), [(64, 48, 128), (400, 60, 256)])
def test_calls_for_a_huge_sparse_model(tmp_path: Path, size_gib: int, n_layer: int, n_expert: int) -> None:
    """In calls, not in time: one for each 64 MiB once, none for experts of ranges that hold nothing."""
    parts = ("gate", "up", "down")
    each = size_gib * GIB // (n_layer * n_expert * len(parts)) // PAGE * PAGE
    tensors = expert_tensors(n_layer, n_expert, each, parts)
    total = tensors[-1].offset + tensors[-1].size_bytes
    layout = layout_of([sparse_file(tmp_path / "huge", total)], tensors)

    class Empty(ScriptedPageCache):
        def _range(self, call: str, fd: int, offset: int, length: int) -> bytearray:  # noqa: ARG002 - 400 GiB of pages
            self.calls.append((call, offset, length))
            return bytearray(1)

    cache = Empty(PAGE)
    scanner = ResidencyScanner(cache, layout, ManualClock())
    scanner.scan_once()
    cache.calls.clear()
    scanner.scan_once()
    pieces = plan_pieces(layout, PAGE)
    assert len(cache.calls) == len(pieces) <= 1.35 * total / PIECE_BYTES
    assert sum(piece.length for piece in pieces) == total
    figures = scanner.experts()
    assert figures is not None
    assert len(figures.share) == n_layer * n_expert
    scanner.stop()


def test_an_expert_larger_than_a_piece_and_experts_of_their_own(tmp_path: Path) -> None:
    each = PIECE_BYTES + 5 * PAGE
    tensors = [
        Tensor(
            name=f"blk.0.ffn_up.{expert}.weight",
            file_index=0,
            offset=expert * each,
            size_bytes=each,
            weight_class=WeightClass.EXPERT,
            layer=0,
            n_expert=1,
            first_expert=expert,
        )
        for expert in range(3)
    ]
    path = sparse_file(tmp_path / "m", 3 * each)
    cache = ScriptedPageCache(PAGE)
    pages = cache.add(path)
    pages[each // PAGE : 2 * each // PAGE] = bytes([RESIDENT]) * (each // PAGE)
    scanner = ResidencyScanner(cache, layout_of([path], tensors), ManualClock())
    scanner.scan_once()
    figures = scanner.experts()
    assert figures is not None
    assert list(figures.share) == [0, 255, 0]
    assert pages[0] == NEVER
    scanner.stop()


def test_small_slices_share_the_figure_of_their_tensor(tmp_path: Path) -> None:
    """A bias of 4 bytes an expert is not worth a call."""
    tensors = expert_tensors(1, 4, 1024, ("bias",))
    path = sparse_file(tmp_path / "m", 4096)
    cache = ScriptedPageCache(PAGE)
    cache.add(path)[0] = RESIDENT
    scanner = ResidencyScanner(cache, layout_of([path], tensors), ManualClock())
    cache.calls.clear()
    scanner.scan_once()
    assert [call for call in cache.calls if call[2]] == [("cachestat", 0, 4096)]
    figures = scanner.experts()
    assert figures is not None
    assert list(figures.share) == [255] * 4
    scanner.stop()
