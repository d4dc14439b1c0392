"""Writes small or sparse GGUF files of many architectures with gguf.GGUFWriter: real headers, weights of zero bytes.

Tensors are named and shaped as llama.cpp's converters write them (gguf/constants.py), in sizes that can be added up by hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

EMBD = 256  # one block of the K-quants
FF = 512
FF_EXP = 256
VOCAB = 320


@dataclass(frozen=True)
class TensorSpec:
    """`dims` fastest first, as ggml counts them."""

    name: str
    dims: tuple[int, ...]
    type_name: str = "F16"


@dataclass(frozen=True)
class ModelSpec:
    """A model to write; keys without a dot before them belong to the architecture."""

    architecture: str
    tensors: tuple[TensorSpec, ...]
    keys: dict[str, Any] = field(default_factory=dict)
    name: str = "Synthetic"

    def with_keys(self, **keys: Any) -> "ModelSpec":
        return replace(self, keys={**self.keys, **keys})


def write_model(spec: ModelSpec, path: Path, *, split_tensors: int = 0, small_first_shard: bool = False) -> list[Path]:
    """Write the model with GGUFWriter; returns the shards in order."""
    writer = gguf.GGUFWriter(
        path, spec.architecture, split_max_tensors=split_tensors, small_first_shard=small_first_shard
    )
    writer.add_name(spec.name)
    for key, value in spec.keys.items():
        add_key(writer, key if "." in key else f"{spec.architecture}.{key}", value)
    for tensor in spec.tensors:
        kind = gguf.GGMLQuantizationType[tensor.type_name]
        shape = tuple(reversed(tensor.dims))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float16), size_of(tensor), raw_dtype=kind)
    return finish(writer)


def finish(writer: gguf.GGUFWriter) -> list[Path]:
    """Write the header and make the weights a hole; returns the shards in order."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    paths = []
    for out, infos in zip(writer.fout, writer.tensors, strict=True):
        end = out.tell()
        if infos:
            end = writer.ggml_pad(end, writer.data_alignment)
            end += sum(writer.ggml_pad(info.nbytes, writer.data_alignment) for info in infos.values())
        out.truncate(end)
        paths.append(Path(out.name))
    writer.close()
    return paths


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """With the type that its value has."""
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def size_of(tensor: TensorSpec) -> int:
    """Bytes, by the package's table."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type_name]]
    return int(np.prod([int(d) for d in tensor.dims])) // block * block_bytes


def _outside(*, tied: bool = False, type_name: str = "F16") -> list[TensorSpec]:
    found = [
        TensorSpec("token_embd.weight", (EMBD, VOCAB), type_name),
        TensorSpec("output_norm.weight", (EMBD,), "F32"),
    ]
    return found if tied else [*found, TensorSpec("output.weight", (EMBD, VOCAB), type_name)]


def _attention(layer: int) -> list[TensorSpec]:
    names = ("attn_q", "attn_k", "attn_v", "attn_output")
    square = [TensorSpec(f"blk.{layer}.{name}.weight", (EMBD, EMBD)) for name in names]
    return [
        TensorSpec(f"blk.{layer}.attn_norm.weight", (EMBD,), "F32"),
        *square,
        TensorSpec(f"blk.{layer}.ffn_norm.weight", (EMBD,), "F32"),
    ]


def _dense_ffn(layer: int, suffix: str = "", width: int = FF) -> list[TensorSpec]:
    return [
        TensorSpec(f"blk.{layer}.ffn_gate{suffix}.weight", (EMBD, width)),
        TensorSpec(f"blk.{layer}.ffn_up{suffix}.weight", (EMBD, width)),
        TensorSpec(f"blk.{layer}.ffn_down{suffix}.weight", (width, EMBD)),
    ]


def _router(layer: int, n_expert: int) -> TensorSpec:
    return TensorSpec(f"blk.{layer}.ffn_gate_inp.weight", (EMBD, n_expert), "F32")


def _experts(layer: int, n_expert: int, type_name: str = "Q4_K", suffix: str = "_exps") -> list[TensorSpec]:
    return [
        TensorSpec(f"blk.{layer}.ffn_gate{suffix}.weight", (EMBD, FF_EXP, n_expert), type_name),
        TensorSpec(f"blk.{layer}.ffn_up{suffix}.weight", (EMBD, FF_EXP, n_expert), type_name),
        TensorSpec(f"blk.{layer}.ffn_down{suffix}.weight", (FF_EXP, EMBD, n_expert), type_name),
    ]


def _moe(
    architecture: str, block: Callable[[int], Sequence[TensorSpec]], n_layer: int, n_expert: int, n_used: int
) -> ModelSpec:
    tensors = [*_outside(), *(tensor for layer in range(n_layer) for tensor in block(layer))]
    return ModelSpec(
        architecture, tuple(tensors), {"block_count": n_layer, "expert_count": n_expert, "expert_used_count": n_used}
    )


def qwen3moe(n_layer: int = 2, n_expert: int = 8, n_used: int = 2) -> ModelSpec:
    """The plain case: every layer has a router and three stacked tensors."""
    return _moe(
        "qwen3moe", lambda i: [*_attention(i), _router(i, n_expert), *_experts(i, n_expert)], n_layer, n_expert, n_used
    ).with_keys(**{"general.file_type": 15})


def olmoe() -> ModelSpec:
    """Norms of queries and keys beside the experts."""

    def block(i: int) -> list[TensorSpec]:
        norms = [TensorSpec(f"blk.{i}.attn_{part}_norm.weight", (EMBD,), "F32") for part in "qk"]
        return [*_attention(i), *norms, _router(i, 4), *_experts(i, 4, "Q8_0")]

    return _moe("olmoe", block, 2, 4, 2)


def gpt_oss() -> ModelSpec:
    """MXFP4 experts with a bias for each expert, attention sinks; the file type says F16."""

    def block(i: int) -> list[TensorSpec]:
        biases = [TensorSpec(f"blk.{i}.ffn_{part}_exps.bias", (EMBD, 4), "F32") for part in ("gate", "up", "down")]
        extra = [
            TensorSpec(f"blk.{i}.attn_sinks.weight", (8,), "F32"),
            TensorSpec(f"blk.{i}.ffn_gate_inp.bias", (4,), "F32"),
        ]
        return [*_attention(i), *extra, _router(i, 4), *_experts(i, 4, "MXFP4"), *biases]

    return _moe("gpt-oss", block, 2, 4, 2).with_keys(**{"general.file_type": 1})


def mixtral() -> ModelSpec:
    """Architecture `llama` with merged experts."""
    return _moe("llama", lambda i: [*_attention(i), _router(i, 4), *_experts(i, 4, "Q4_0")], 2, 4, 2)


def mixtral_unmerged() -> ModelSpec:
    """As files of before 2024-04 have it: one tensor for each expert."""

    def block(i: int) -> list[TensorSpec]:
        return [*_attention(i), _router(i, 4), *(t for e in range(4) for t in _dense_ffn(i, f".{e}", FF_EXP))]

    return _moe("llama", block, 2, 4, 2)


def deepseek2() -> ModelSpec:
    """Latent attention, one leading dense layer, shared experts, a bias on the router."""

    def block(i: int) -> list[TensorSpec]:
        attention = [
            TensorSpec(f"blk.{i}.attn_norm.weight", (EMBD,), "F32"),
            TensorSpec(f"blk.{i}.attn_q_a.weight", (EMBD, 64)),
            TensorSpec(f"blk.{i}.attn_q_b.weight", (64, EMBD)),
            TensorSpec(f"blk.{i}.attn_kv_a_mqa.weight", (EMBD, 96)),
            TensorSpec(f"blk.{i}.attn_k_b.weight", (64, 64, 4)),
            TensorSpec(f"blk.{i}.attn_v_b.weight", (64, 64, 4)),
            TensorSpec(f"blk.{i}.attn_output.weight", (EMBD, EMBD)),
        ]
        if i == 0:
            return [*attention, *_dense_ffn(i)]
        bias = TensorSpec(f"blk.{i}.exp_probs_b.bias", (4,), "F32")
        return [*attention, _router(i, 4), bias, *_experts(i, 4, "IQ4_XS"), *_dense_ffn(i, "_shexp", FF_EXP)]

    return _moe("deepseek2", block, 3, 4, 2).with_keys(leading_dense_block_count=1, expert_shared_count=1)


def glm4moe() -> ModelSpec:
    """A leading dense layer, and a last layer that only drafts."""

    def block(i: int) -> list[TensorSpec]:
        if i == 0:
            return [*_attention(i), *_dense_ffn(i)]
        found = [*_attention(i), _router(i, 4), *_experts(i, 4, "Q6_K"), *_dense_ffn(i, "_shexp", FF_EXP)]
        if i == 2:
            found += [
                TensorSpec(f"blk.{i}.nextn.eh_proj.weight", (2 * EMBD, EMBD)),
                TensorSpec(f"blk.{i}.nextn.embed_tokens.weight", (EMBD, VOCAB)),
                TensorSpec(f"blk.{i}.nextn.shared_head_head.weight", (EMBD, VOCAB)),
            ]
        return found

    return _moe("glm4moe", block, 3, 4, 2).with_keys(nextn_predict_layers=1, leading_dense_block_count=1)


def llama4() -> ModelSpec:
    """Experts in every second layer, a shared expert beside them."""

    def block(i: int) -> list[TensorSpec]:
        if i % 2 == 0:
            return [*_attention(i), *_dense_ffn(i)]
        return [*_attention(i), _router(i, 16), *_experts(i, 16, "Q3_K"), *_dense_ffn(i, "_shexp")]

    return _moe("llama4", block, 4, 16, 1).with_keys(interleave_moe_layer_step=2)


def granite_hybrid() -> ModelSpec:
    """State-space layers beside attention, all with experts; heads differ by layer."""

    def block(i: int) -> list[TensorSpec]:
        mixer = _attention(i)
        if i != 1:
            mixer = [
                TensorSpec(f"blk.{i}.ssm_in.weight", (EMBD, 2 * EMBD)),
                TensorSpec(f"blk.{i}.ssm_conv1d.weight", (4, EMBD), "F32"),
                TensorSpec(f"blk.{i}.ssm_a", (1, 8), "F32"),
                TensorSpec(f"blk.{i}.ssm_out.weight", (EMBD, EMBD)),
            ]
        return [*mixer, _router(i, 8), *_experts(i, 8, "Q5_K"), *_dense_ffn(i, "_shexp", FF_EXP)]

    return _moe("granitehybrid", block, 3, 8, 2).with_keys(**{"granitehybrid.attention.head_count_kv": [0, 4, 0]})


def fused() -> ModelSpec:
    """Gate and up in one stacked tensor, with scales for each expert; NVFP4."""

    def block(i: int) -> list[TensorSpec]:
        return [
            *_attention(i),
            _router(i, 4),
            TensorSpec(f"blk.{i}.ffn_gate_up_exps.weight", (EMBD, 2 * FF_EXP, 4), "NVFP4"),
            TensorSpec(f"blk.{i}.ffn_gate_up_exps.scale", (4,), "F32"),
            TensorSpec(f"blk.{i}.ffn_down_exps.weight", (FF_EXP, EMBD, 4), "NVFP4"),
        ]

    return _moe("qwen35moe", block, 2, 4, 2)


def grovemoe() -> ModelSpec:
    """Chunk experts: one for every two experts."""
    return _moe(
        "grovemoe",
        lambda i: [*_attention(i), _router(i, 4), *_experts(i, 4), *_experts(i, 2, suffix="_chexps")],
        2,
        4,
        2,
    )


def arctic() -> ModelSpec:
    """A dense layer and experts side by side, and a norm that only sounds like an expert."""

    def block(i: int) -> list[TensorSpec]:
        norm = TensorSpec(f"blk.{i}.ffn_norm_exps.weight", (EMBD,), "F32")
        return [*_attention(i), *_dense_ffn(i), norm, _router(i, 4), *_experts(i, 4)]

    return _moe("arctic", block, 2, 4, 2)


def gemma3() -> ModelSpec:
    """Dense, with the token table as output."""
    tensors = [*_outside(tied=True, type_name="Q8_0"), *(t for i in range(2) for t in (*_attention(i), *_dense_ffn(i)))]
    return ModelSpec("gemma3", tuple(tensors), {"block_count": 2})


def gemma3n() -> ModelSpec:
    """A second token table with a row for every layer; the first is tied."""
    spec = gemma3()
    table = TensorSpec("per_layer_token_embd.weight", (2 * EMBD, VOCAB), "Q8_0")
    return replace(spec, architecture="gemma3n", tensors=(table, *spec.tensors))


def qwen3() -> ModelSpec:
    """Dense, with an output of its own."""
    return ModelSpec(
        "qwen3",
        (*_outside(), *(t for i in range(2) for t in (*_attention(i), *_dense_ffn(i)))),
        {"block_count": 2},
    )


ARCHITECTURES: dict[str, Callable[[], ModelSpec]] = {
    build.__name__: build
    for build in (
        qwen3moe, gpt_oss, mixtral, mixtral_unmerged, deepseek2, glm4moe, llama4, olmoe, granite_hybrid, fused, grovemoe,
        arctic, gemma3, gemma3n, qwen3,
    )
}  # fmt: skip
