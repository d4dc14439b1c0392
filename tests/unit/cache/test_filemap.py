"""What of the files is in memory by offset, and one expert page by page."""

from pathlib import Path

from moewatch.cache.filemap import FileMap
from moewatch.domain.layout import Tensor, WeightClass
from moewatch.domain.sample import GapReason
from moewatch.linux.root import ReadingError
from tests.support.layouts import layout_of, moe_tensors, sparse_file
from tests.support.scripted_cache import RESIDENT, ScriptedPageCache

PAGE = 4096


def test_strips_are_shares_of_equal_stretches(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a.gguf", 10 * PAGE)
    cache = ScriptedPageCache()
    pages = cache.add(path)
    pages[0], pages[1], pages[2] = RESIDENT, RESIDENT, RESIDENT
    files = FileMap(cache)
    (strip,) = files.strips(layout_of([path], []), 5)
    assert (strip.name, strip.size_bytes) == ("a.gguf", 10 * PAGE)
    assert list(strip.shares) == [255, 127, 0, 0, 0]
    files.close()


def test_an_experts_pages_are_those_it_touches(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a.gguf", 200 * PAGE)
    tensors = moe_tensors(2, dense_bytes=PAGE, expert_bytes=8 * 3 * PAGE, start=PAGE // 2)
    cache = ScriptedPageCache()
    pages = cache.add(path)
    layout = layout_of([path], tensors)
    experts = next(t for t in tensors if t.n_expert and t.layer == 1)
    offset, length = experts.expert_range(5)
    pages[offset // PAGE + 1] = RESIDENT
    files = FileMap(cache)
    (found,) = files.slices(layout, 1, 5)
    assert (found.tensor, found.offset, found.length) == (experts.name, offset, length)
    first = offset // PAGE
    assert found.pages == ((first, 1, False), (first + 1, 1, True), (first + 2, 2, False))  # it begins inside a page
    assert files.slices(layout, 1, 8) == ()
    assert files.slices(None, 1, 5) == ()
    files.close()


def test_an_expert_is_in_every_tensor_that_holds_a_slice_of_it(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a.gguf", 64 * PAGE)
    tensors = [
        Tensor(
            name=f"blk.0.ffn_{part}_exps.weight",
            file_index=0,
            offset=at * PAGE,
            size_bytes=32 * PAGE,
            weight_class=WeightClass.EXPERT,
            layer=0,
            n_expert=8,
        )
        for part, at in (("gate", 0), ("down", 32))
    ]
    cache = ScriptedPageCache()
    cache.add(path)[8:11] = bytes([RESIDENT]) * 3
    files = FileMap(cache)
    gate, down = files.slices(layout_of([path], tensors), 0, 2)
    assert (gate.tensor, gate.file, gate.pages) == (tensors[0].name, "a.gguf", ((8, 3, True), (11, 1, False)))
    assert (down.tensor, down.pages) == (tensors[1].name, ((40, 4, False),))
    files.close()


def test_where_the_kernel_would_not_tell_the_truth_nothing_is_said(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "a.gguf", 10 * PAGE)
    cache = ScriptedPageCache()
    cache.add(path)
    error = ReadingError(GapReason.DENIED, "another user's file")
    cache.cachestat_error = cache.mincore_error = error
    layout = layout_of([path], moe_tensors(1, dense_bytes=PAGE, expert_bytes=8 * PAGE, start=0))
    files = FileMap(cache)
    assert files.strips(layout, 5) == ()
    assert files.slices(layout, 0, 0) == ()
    files.close()


def test_another_model_closes_the_files_of_the_first(tmp_path: Path) -> None:
    paths = [sparse_file(tmp_path / f"{name}.gguf", 4 * PAGE) for name in "ab"]
    cache = ScriptedPageCache()
    for path in paths:
        cache.add(path)
    files = FileMap(cache)
    layouts = [layout_of([path], []) for path in paths]
    names = [files.strips(layout, 1)[0].name for layout in (*layouts, layouts[0])]
    assert names == ["a.gguf", "b.gguf", "a.gguf"]
    assert len(files._shards) == 1
    files.close()
    assert not files._shards
