"""A model taken apart: every sum agrees to the byte with the reference reader."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from moewatch.errors import UnusableFileError
from moewatch.modelfile.choices import choose, group_models, name_in_path
from moewatch.modelfile.parts import derive_parts
from moewatch.modelfile.shards import read_shards
from tests.support.gguf_models import ARCHITECTURES, EMBD, FF_EXP, TensorSpec, deepseek2, glm4moe, qwen3moe, write_model


@pytest.mark.parametrize(
    ("architecture", "kind", "words"),
    [
        ("qwen3moe", "adapter", r"an adapter \(LoRA\)"),
        ("qwen3moe", "imatrix", "an importance matrix"),
        ("clip", "mmproj", "a projector"),
        ("clip", "", "a projector"),
    ],
)
def test_what_lies_beside_models_is_none(architecture: str, kind: str, words: str, tmp_path: Path) -> None:
    spec = replace(qwen3moe(), architecture=architecture)
    (path,) = write_model(spec.with_keys(**{"general.type": kind}) if kind else spec, tmp_path / "m.gguf")
    with pytest.raises(UnusableFileError, match=rf"m\.gguf is {words}.* and no model"):
        derive_parts(read_shards(path))


def test_a_model_that_says_so_is_one(tmp_path: Path) -> None:
    (path,) = write_model(qwen3moe().with_keys(**{"general.type": "model"}), tmp_path / "m.gguf")
    assert derive_parts(read_shards(path)).is_moe


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_sums_agree_with_the_reference_reader(name: str, tmp_path: Path) -> None:
    (path,) = write_model(ARCHITECTURES[name](), tmp_path / "m.gguf")
    parts = derive_parts(read_shards(path))
    tensors = gguf.GGUFReader(path).tensors
    assert parts.n_tensors == len(tensors)
    assert parts.tensor_bytes == sum(int(t.n_bytes) for t in tensors)
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.tensor_type.name] += int(tensor.n_bytes)
    assert parts.type_bytes == types
    summary = parts.summary
    assert parts.tensor_bytes == (summary.dense_bytes or 0) + (summary.expert_bytes or 0) + summary.embedding_bytes
    blocks = sum(layer.dense_bytes + layer.expert_bytes + layer.embedding_bytes for layer in parts.layers)
    assert parts.tensor_bytes == blocks + parts.outside_bytes + parts.table_bytes
    routers = sum(int(t.n_bytes) for t in tensors if "ffn_gate_inp" in t.name or "exp_probs_b" in t.name)
    shared = sum(int(t.n_bytes) for t in tensors if "_shexp" in t.name and "inp" not in t.name)
    assert (parts.router_bytes, parts.shared_bytes) == (routers, shared)


@pytest.mark.parametrize("small_first", [False, True])
def test_a_split_is_the_same_as_one_file(*, small_first: bool, tmp_path: Path) -> None:
    spec = qwen3moe(n_layer=4)
    (one,) = write_model(spec, tmp_path / "one.gguf")
    split = write_model(spec, tmp_path / "s.gguf", split_tensors=20, small_first_shard=small_first)
    assert len(split) >= 3
    whole, shards = derive_parts(read_shards(one)), derive_parts(read_shards(split[-1]))
    assert shards.layers == whole.layers
    assert (shards.tensor_bytes, shards.type_bytes) == (whole.tensor_bytes, whole.type_bytes)
    assert shards.n_vocab == whole.n_vocab or small_first


def test_what_a_fault_begins_to_read(tmp_path: Path) -> None:
    (path,) = write_model(qwen3moe(), tmp_path / "m.gguf")
    parts = derive_parts(read_shards(path))
    assert parts.slice_bytes == EMBD * FF_EXP // 256 * 144  # one expert's part of one Q4_K tensor
    assert parts.used_ratio == 0.25


def test_the_gate_of_a_shared_expert_is_a_router(tmp_path: Path) -> None:
    spec = qwen3moe()
    gate = TensorSpec("blk.0.ffn_gate_inp_shexp.weight", (EMBD,), "F32")
    (path,) = write_model(replace(spec, tensors=(*spec.tensors, gate)), tmp_path / "m.gguf")
    parts = derive_parts(read_shards(path))
    assert parts.router_bytes == 2 * EMBD * 8 * 4 + EMBD * 4
    assert parts.shared_bytes == 0


def test_layers_that_only_draft_are_marked(tmp_path: Path) -> None:
    (path,) = write_model(glm4moe(), tmp_path / "m.gguf")
    assert [layer.draft for layer in derive_parts(read_shards(path)).layers] == [False, False, True]


def test_a_leading_dense_layer_has_no_experts(tmp_path: Path) -> None:
    (path,) = write_model(deepseek2(), tmp_path / "m.gguf")
    layers = derive_parts(read_shards(path)).layers
    assert [layer.expert_bytes > 0 for layer in layers] == [False, True, True]
    assert [layer.shared_bytes > 0 for layer in layers] == [False, True, True]


class TestChoices:
    """Names of files."""

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"),
            ("UD-Q2_K_XL/GLM-4.6-UD-Q2_K_XL-00001-of-00003.gguf", "UD-Q2_K_XL"),
            ("Q8_0/model-00001-of-00002.gguf", "Q8_0"),
            ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "MXFP4"),
            ("model.IQ3_XXS.gguf", "IQ3_XXS"),
            ("llama-bf16.gguf", "BF16"),
            ("model.gguf", ""),
        ],
    )
    def test_quantisation_by_name(self, path: str, expected: str) -> None:
        assert name_in_path(path) == expected

    def test_the_one_that_is_meant(self) -> None:
        choices = group_models({"m-Q8_0.gguf": 8, "m-Q4_K_M.gguf": 4, "m-IQ2_M.gguf": 2})
        assert choose(choices, "", "o/r").quantisation == "Q4_K_M"
        assert choose(choices, "q8_0", "o/r").quantisation == "Q8_0"
        with pytest.raises(Exception, match="has no Q3_K; there is IQ2_M, Q4_K_M, Q8_0"):
            choose(choices, "Q3_K", "o/r")
        with pytest.raises(Exception, match="holds no whole model"):
            choose([], "", "o/r")
