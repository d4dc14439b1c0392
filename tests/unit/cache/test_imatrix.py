"""llama.cpp's importance matrices, both forms: which experts a text used, and what is none is one sentence."""

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from moewatch.cache.imatrix import MAX_ROW_VALUES, heat_tiers, read_imatrix
from moewatch.cache.runs import total
from moewatch.domain.layout import ModelLayout
from moewatch.errors import MoewatchError, ParseError, UnusableFileError
from moewatch.modelfile.layout import read_layout
from tests.support.gguf_models import ModelSpec, TensorSpec, write_model

EXPERTS = 4
NAMES = (
    "blk.0.ffn_up_exps.weight",
    "blk.0.ffn_down_exps.weight",
    "blk.1.ffn_up_exps.weight",
    "blk.1.ffn_down_exps.weight",
)
SPEC = ModelSpec(
    "qwen3moe",
    (TensorSpec("output.weight", (256, 320)), *(TensorSpec(name, (256, 256, EXPERTS)) for name in NAMES)),
    {"block_count": 2, "expert_count": EXPERTS, "expert_used_count": 2},
)
EXPERT_BYTES = 2 * 256 * 256


@pytest.fixture
def layout(tmp_path: Path) -> ModelLayout:
    return read_layout(write_model(SPEC, tmp_path / "model.gguf")[0])


def write_gguf(path: Path, counts: dict[str, list[float]], *, kind: str = "imatrix") -> Path:
    """As save_imatrix of llama.cpp writes it: in_sum2 and counts beside each other."""
    writer = gguf.GGUFWriter(path, "unused")
    writer.add_type(kind)
    writer.add_uint32("imatrix.chunk_count", 10)
    for name, numbers in counts.items():
        writer.add_tensor(f"{name}.in_sum2", np.ones((len(numbers), 256), np.float32))
        writer.add_tensor(f"{name}.counts", np.array(numbers, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_dat(path: Path, sums: dict[str, list[float]], columns: int = 8) -> Path:
    content = struct.pack("<i", len(sums))
    for name, numbers in sums.items():
        raw = name.encode()
        content += struct.pack("<i", len(raw)) + raw + struct.pack("<ii", 3, columns * len(numbers))
        content += b"".join(struct.pack(f"<{columns}f", *[number / columns] * columns) for number in numbers)
    path.write_bytes(content + struct.pack("<ii", 3, 8) + b"text.txt")
    return path


def test_counts_are_shares_within_a_layer(layout: ModelLayout, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "i.gguf",
        {NAMES[0]: [10, 0, 30, 60], NAMES[1]: [10, 0, 30, 60], NAMES[3]: [1, 1, 0, 2], "output.weight": [5]},
    )
    heat = read_imatrix(path, layout)
    assert heat[0, 3] == pytest.approx(0.6)
    assert heat[0, 1] == 0
    assert heat[1, 3] == pytest.approx(0.5)
    assert len(heat) == 2 * EXPERTS


def test_the_old_form_tells_what_was_never_used(layout: ModelLayout, tmp_path: Path) -> None:
    path = write_dat(
        tmp_path / "i.dat",
        {"blk.0.attn_q.weight": [7], NAMES[0]: [2, 0, 2, 4], NAMES[2]: [1, 1, 1, 1], NAMES[1]: [9, 9, 9, 9]},
    )
    heat = read_imatrix(path, layout)
    assert [heat[0, expert] for expert in range(EXPERTS)] == pytest.approx([0.25, 0, 0.25, 0.5])
    assert heat[1, 0] == pytest.approx(0.25)


def test_the_hottest_come_first_up_to_the_budget(layout: ModelLayout) -> None:
    heat = {(0, 0): 0.1, (0, 1): 0.0, (0, 2): 0.3, (0, 3): 0.6, (1, 0): 0.2, (1, 1): 0.2, (1, 2): 0.2, (1, 3): 0.4}
    tiers = heat_tiers(layout, heat, 3 * 2 * EXPERT_BYTES)
    assert [each for each, _ in tiers] == [0.6, 0.4, 0.3]
    up, down = (next(t for t in layout.tensors if t.name == name) for name in NAMES[:2])
    first = tiers[0][1][0]
    for tensor in (up, down):
        offset, length = tensor.expert_range(3)
        assert any(start <= offset and offset + length <= end for start, end in first)
    assert total(first) <= 2 * EXPERT_BYTES + 4 * 4096


def test_what_was_never_used_stays_out(layout: ModelLayout) -> None:
    tiers = heat_tiers(layout, {(0, 0): 1.0, (0, 1): 0.0}, 1 << 40)
    assert sum(total(runs) for _, files in tiers for runs in files) < 2 * EXPERT_BYTES + 4 * 4096


def test_a_budget_below_one_expert_is_said(layout: ModelLayout) -> None:
    with pytest.raises(MoewatchError, match="smaller than one expert"):
        heat_tiers(layout, {(0, 0): 1.0}, 100)


def test_another_model_s(layout: ModelLayout, tmp_path: Path) -> None:
    wrong_number = write_gguf(tmp_path / "a.gguf", {NAMES[0]: [1, 2, 3]})
    with pytest.raises(UnusableFileError, match="counts 3 experts"):
        read_imatrix(wrong_number, layout)
    wrong_number = write_dat(tmp_path / "a.dat", {NAMES[0]: [1, 2, 3]}, columns=5)
    with pytest.raises(UnusableFileError, match="no multiple"):
        read_imatrix(wrong_number, layout)
    nothing = write_gguf(tmp_path / "b.gguf", {"blk.7.ffn_up_exps.weight": [1, 2, 3, 4]})
    with pytest.raises(UnusableFileError, match="another model"):
        read_imatrix(nothing, layout)


def test_a_model_without_experts(tmp_path: Path) -> None:
    (path,) = write_model(ModelSpec("llama", SPEC.tensors[:1]), tmp_path / "dense.gguf")
    with pytest.raises(UnusableFileError, match="no experts"):
        read_imatrix(tmp_path / "any", read_layout(path))


def test_a_gguf_that_is_no_imatrix(layout: ModelLayout) -> None:
    with pytest.raises(UnusableFileError, match="no imatrix"):
        read_imatrix(Path(layout.paths[0]), layout)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_counts_that_are_none(layout: ModelLayout, tmp_path: Path, number: float) -> None:
    for path in (
        write_gguf(tmp_path / "i.gguf", {NAMES[0]: [1, number, 3, 4]}),
        write_dat(tmp_path / "i.dat", {NAMES[0]: [1, number, 3, 4]}),
    ):
        with pytest.raises(ParseError, match="damaged"):
            read_imatrix(path, layout)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        struct.pack("<i", -1),
        struct.pack("<i", 1 << 30),
        struct.pack("<iii", 1, 1 << 20, 0),
        struct.pack("<ii", 1, 3) + b"abc" + struct.pack("<ii", 1, (1 << 31) - 1),
        struct.pack("<ii", 2, 3) + b"abc" + struct.pack("<ii", 1, 0),
        b"<!doctype html>",
    ],
)
def test_hostile_dat_files(layout: ModelLayout, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(content)
    with pytest.raises(ParseError, match="no imatrix"):
        read_imatrix(path, layout)


def test_a_cut_gguf(layout: ModelLayout, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "i.gguf", {name: [1, 2, 3, 4] for name in NAMES})
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ParseError, match="cut short"):
        read_imatrix(path, layout)


def test_rows_longer_than_any_are_not_read(layout: ModelLayout, tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    raw = NAMES[0].encode()

    def heat(columns: int) -> set[float]:
        head = struct.pack("<ii", 1, len(raw)) + raw + struct.pack("<ii", 3, columns * EXPERTS)
        path.write_bytes(head)
        os.truncate(path, len(head) + 4 * columns * EXPERTS)  # a hole: zeros
        return set(read_imatrix(path, layout).values())

    assert heat(MAX_ROW_VALUES) == {0.0}
    with pytest.raises(ParseError, match="so it is damaged"):
        heat(MAX_ROW_VALUES + 1)
