"""Layouts of many architectures: places against gguf.GGUFReader, classes and A against figures added up by hand."""

from pathlib import Path

import gguf
import pytest

from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.modelfile.layout import read_layout
from tests.support.gguf_models import ARCHITECTURES, ModelSpec, gpt_oss, qwen3moe, write_model

TABLE = 256 * 320 * 2  # token_embd and output, F16
NORM = 256 * 4
OUTSIDE = TABLE + NORM  # output and its norm
ATTENTION = 4 * 256 * 256 * 2 + 2 * NORM
DENSE_FFN = 3 * 256 * 512 * 2
SHARED = 3 * 256 * 256 * 2
ROUTER_4, ROUTER_8, ROUTER_16 = 256 * 4 * 4, 256 * 8 * 4, 256 * 16 * 4
MLA = NORM + 2 * (256 * 64 * 2) + 256 * 96 * 2 + 2 * (64 * 64 * 4 * 2) + 256 * 256 * 2
MAMBA = 256 * 512 * 2 + 4 * 256 * 4 + 8 * 4 + 256 * 256 * 2
# one expert's matrix of 256 x 256
Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS = (256 * each for each in (110, 144, 176, 210, 136))
Q4_0, Q8_0, MXFP4 = (2048 * each for each in (18, 34, 17))
F16 = 256 * 256 * 2

# architecture: dense, embedding, expert bytes; experts in all, experts used
BY_HAND: dict[str, tuple[int, int, int, int, int]] = {
    "qwen3moe": (OUTSIDE + 2 * (ATTENTION + ROUTER_8), TABLE, 2 * 3 * 8 * Q4_K, 8, 2),
    "gpt_oss": (
        OUTSIDE + 2 * (ATTENTION + ROUTER_4 + 8 * 4 + 4 * 4),
        TABLE,
        2 * 3 * (4 * MXFP4 + 256 * 4 * 4),
        4,
        2,
    ),
    "mixtral": (OUTSIDE + 2 * (ATTENTION + ROUTER_4), TABLE, 2 * 3 * 4 * Q4_0, 4, 2),
    "mixtral_unmerged": (OUTSIDE + 2 * (ATTENTION + ROUTER_4), TABLE, 2 * 3 * 4 * F16, 4, 2),
    "deepseek2": (
        OUTSIDE + 3 * MLA + DENSE_FFN + 2 * (ROUTER_4 + 4 * 4 + SHARED),
        TABLE,
        2 * 3 * 4 * IQ4_XS,
        4,
        2,
    ),
    "glm4moe": (
        OUTSIDE + 3 * ATTENTION + DENSE_FFN + 2 * (ROUTER_4 + SHARED) + 512 * 256 * 2 + TABLE,
        2 * TABLE,
        2 * 3 * 4 * Q6_K,
        4,
        2,
    ),
    "llama4": (OUTSIDE + 4 * ATTENTION + 2 * DENSE_FFN + 2 * (ROUTER_16 + DENSE_FFN), TABLE, 2 * 3 * 16 * Q3_K, 16, 1),
    "olmoe": (OUTSIDE + 2 * (ATTENTION + 2 * NORM + ROUTER_4), TABLE, 2 * 3 * 4 * Q8_0, 4, 2),
    "granite_hybrid": (OUTSIDE + ATTENTION + 2 * MAMBA + 3 * (ROUTER_8 + SHARED), TABLE, 3 * 3 * 8 * Q5_K, 8, 2),
    "fused": (
        OUTSIDE + 2 * (ATTENTION + ROUTER_4),
        TABLE,
        2 * 4 * (256 * 512 // 64 * 36 + 4 + 256 * 256 // 64 * 36),
        4,
        2,
    ),
    "grovemoe": (OUTSIDE + 2 * (ATTENTION + ROUTER_4), TABLE, 2 * 3 * (4 + 2) * Q4_K, 4, 2),
    "arctic": (OUTSIDE + 2 * (ATTENTION + DENSE_FFN + NORM + ROUTER_4), TABLE, 2 * 3 * 4 * Q4_K, 4, 2),
    "gemma3": (256 * 320 // 32 * 34 + NORM + 2 * (ATTENTION + DENSE_FFN), 0, 0, 0, 0),
    "gemma3n": (256 * 320 // 32 * 34 + NORM + 2 * (ATTENTION + DENSE_FFN), 512 * 320 // 32 * 34, 0, 0, 0),
    "qwen3": (OUTSIDE + 2 * (ATTENTION + DENSE_FFN), TABLE, 0, 0, 0),
}


def layout_of(spec: ModelSpec, folder: Path) -> ModelLayout:
    return read_layout(write_model(spec, folder / "model.gguf")[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_places_are_those_of_the_reference_reader(architecture: str, tmp_path: Path) -> None:
    path = write_model(ARCHITECTURES[architecture](), tmp_path / "model.gguf")[0]
    layout = read_layout(path)
    reader = gguf.GGUFReader(path)
    ours = [(t.name, t.offset, t.size_bytes) for t in layout.tensors]
    assert ours == [(t.name, int(t.data_offset), int(t.n_bytes)) for t in reader.tensors]
    assert layout.header_bytes == (reader.data_offset,)
    assert layout.paths == (str(path),)
    assert layout.summary.total_bytes == path.stat().st_size


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_classes_and_bytes_per_token_by_hand(architecture: str, tmp_path: Path) -> None:
    dense, embedding, expert, n_expert, n_used = BY_HAND[architecture]
    layout = layout_of(ARCHITECTURES[architecture](), tmp_path)
    summary = layout.summary
    assert (summary.dense_bytes, summary.embedding_bytes, summary.expert_bytes) == (dense, embedding, expert)
    assert (summary.n_expert, summary.n_expert_used) == (n_expert, n_used)
    assert summary.active_bytes_per_token == dense + (expert * n_used // n_expert if n_expert else 0)
    assert sum(t.size_bytes for t in layout.tensors) == dense + embedding + expert


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_experts_tile_their_tensors(architecture: str, tmp_path: Path) -> None:
    for tensor in layout_of(ARCHITECTURES[architecture](), tmp_path).tensors:
        if tensor.weight_class is not WeightClass.EXPERT:
            assert tensor.n_expert == 0
            continue
        assert tensor.layer is not None
        ranges = [tensor.expert_range(expert) for expert in range(tensor.n_expert)]
        assert ranges[0][0] == tensor.offset
        assert [start + length for start, length in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert sum(ranges[-1]) == tensor.offset + tensor.size_bytes


def classes_of(architecture: str, folder: Path) -> dict[str, WeightClass]:
    return {t.name: t.weight_class for t in layout_of(ARCHITECTURES[architecture](), folder).tensors}


@pytest.mark.parametrize(
    ("architecture", "name", "weight_class"),
    [
        ("qwen3moe", "token_embd.weight", WeightClass.EMBEDDING),
        ("qwen3moe", "output.weight", WeightClass.DENSE),
        ("qwen3moe", "blk.0.ffn_gate_inp.weight", WeightClass.DENSE),
        ("qwen3moe", "blk.1.ffn_down_exps.weight", WeightClass.EXPERT),
        ("gpt_oss", "blk.0.ffn_up_exps.bias", WeightClass.EXPERT),
        ("gpt_oss", "blk.0.ffn_gate_inp.bias", WeightClass.DENSE),
        ("gpt_oss", "blk.0.attn_sinks.weight", WeightClass.DENSE),
        ("mixtral_unmerged", "blk.0.ffn_gate.3.weight", WeightClass.EXPERT),
        ("deepseek2", "blk.0.ffn_gate.weight", WeightClass.DENSE),
        ("deepseek2", "blk.1.ffn_gate_shexp.weight", WeightClass.DENSE),
        ("deepseek2", "blk.1.exp_probs_b.bias", WeightClass.DENSE),
        ("deepseek2", "blk.1.attn_k_b.weight", WeightClass.DENSE),  # three dimensions and no expert
        ("glm4moe", "blk.2.nextn.embed_tokens.weight", WeightClass.EMBEDDING),
        ("glm4moe", "blk.2.nextn.eh_proj.weight", WeightClass.DENSE),
        ("fused", "blk.0.ffn_gate_up_exps.weight", WeightClass.EXPERT),
        ("fused", "blk.0.ffn_gate_up_exps.scale", WeightClass.EXPERT),
        ("grovemoe", "blk.0.ffn_up_chexps.weight", WeightClass.EXPERT),
        ("arctic", "blk.0.ffn_norm_exps.weight", WeightClass.DENSE),
        ("gemma3", "token_embd.weight", WeightClass.DENSE),
        ("gemma3n", "per_layer_token_embd.weight", WeightClass.EMBEDDING),
    ],
)
def test_class_of(architecture: str, name: str, weight_class: WeightClass, tmp_path: Path) -> None:
    assert classes_of(architecture, tmp_path)[name] is weight_class


def test_an_expert_of_its_own_tensor_keeps_its_number(tmp_path: Path) -> None:
    layout = layout_of(ARCHITECTURES["mixtral_unmerged"](), tmp_path)
    found = {(t.layer, t.first_expert, t.n_expert) for t in layout.of_class(WeightClass.EXPERT)}
    assert found == {(layer, expert, 1) for layer in range(2) for expert in range(4)}


def test_only_the_layers_that_draft_are_marked(tmp_path: Path) -> None:
    glm = layout_of(ARCHITECTURES["glm4moe"](), tmp_path)
    assert {t.layer for t in glm.tensors if t.draft} == {2}
    assert all(t.draft for t in glm.tensors if t.layer == 2)


def test_other_models_have_no_draft_layer(tmp_path: Path) -> None:
    assert not any(t.draft for t in layout_of(qwen3moe(), tmp_path).tensors)


def test_the_summary_names_the_model(tmp_path: Path) -> None:
    summary = layout_of(qwen3moe(), tmp_path).summary
    assert (summary.architecture, summary.name, summary.n_layer) == ("qwen3moe", "Synthetic", 2)
    assert (summary.quantisation, summary.mxfp4_experts) == ("Q4_K_M", False)


def test_experts_in_mxfp4_are_told_whatever_the_file_type_says(tmp_path: Path) -> None:
    summary = layout_of(gpt_oss(), tmp_path).summary
    assert (summary.quantisation, summary.mxfp4_experts) == ("MXFP4", True)


def test_expert_counts_for_each_layer_give_the_largest(tmp_path: Path) -> None:
    summary = layout_of(qwen3moe().with_keys(expert_count=[8, 4], expert_used_count=[2, 1]), tmp_path).summary
    assert (summary.n_expert, summary.n_expert_used) == (8, 2)


def test_without_keys_experts_are_counted_and_bytes_per_token_stay_unknown(tmp_path: Path) -> None:
    spec = qwen3moe()
    summary = layout_of(ModelSpec(spec.architecture, spec.tensors), tmp_path).summary
    assert (summary.n_layer, summary.n_expert, summary.n_expert_used) == (2, 8, None)
    assert summary.active_bytes_per_token is None


def test_a_name_cannot_reach_the_terminal_as_an_escape_code(tmp_path: Path) -> None:
    spec = qwen3moe()
    path = write_model(
        ModelSpec(spec.architecture, spec.tensors, name="evil\x1b]0;title\x07\u202e"), tmp_path / "a.gguf"
    )[0]
    name = read_layout(path).summary.name
    assert name.isprintable()
    assert name == r"evil\x1b]0;title\x07\u202e"


def test_a_model_without_a_name_has_its_files(tmp_path: Path) -> None:
    spec = qwen3moe()
    path = write_model(ModelSpec(spec.architecture, spec.tensors, name=""), tmp_path / "some-model.gguf")[0]
    assert read_layout(path).summary.name == "some-model"
