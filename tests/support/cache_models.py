"""Small models with every kind of context memory that a real llama-server loads: F16 or F32 weights, all of them zeros.

Keys and tensors are what src/models/*.cpp of llama.cpp asks for; the weights are a hole in the file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.gguf_models import add_key, finish
from tests.support.moe_model import SPECIAL_TOKENS, TEXT_TOKENS, _add_tokenizer

VOCAB = TEXT_TOKENS + len(SPECIAL_TOKENS)
EMBD, HEADS, HEAD = 256, 4, 64
FF = 512
Tensors = list[tuple[str, tuple[int, ...]]]  # dims fastest first; norms are F32


def write(
    path: Path, architecture: str, n_layer: int, keys: dict[str, Any], block: Callable[[int], Tensors], *, tied: bool
) -> Path:
    """Write the model; `keys` lack the architecture's prefix."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_file_type(1)
    writer.add_quantization_version(2)
    common = {"block_count": n_layer, "context_length": 32768, "embedding_length": EMBD, "feed_forward_length": FF,
              "attention.head_count": HEADS, "attention.layer_norm_rms_epsilon": 1e-6}  # fmt: skip
    for key, value in {**common, **keys}.items():
        add_key(writer, f"{architecture}.{key}", value)
    _add_tokenizer(writer)
    last_norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    tensors: Tensors = [("token_embd.weight", (EMBD, VOCAB)), (f"{last_norm}.weight", (EMBD,))]
    if not tied:
        tensors.append(("output.weight", (EMBD, VOCAB)))
    for layer in range(n_layer):
        tensors += [(f"blk.{layer}.{name}", dims) for name, dims in block(layer)]
    for name, dims in tensors:
        wide = len(dims) == 1 or "norm" in name or ("ssm" in name and "in.weight" not in name and "out" not in name)
        wide = wide or "ffn_gate_inp" in name or name.endswith(".bias")
        dtype = np.dtype(np.float32 if wide else np.float16)
        size = int(np.prod([int(d) for d in dims])) * dtype.itemsize
        writer.add_tensor_info(name, tuple(reversed(dims)), dtype, size)
    (written,) = finish(writer)
    return written


def _norms(*names: str) -> Tensors:
    return [(f"{name}.weight", (EMBD,)) for name in names]


def _attention(kv_heads: int, heads: int = HEADS, head: int = HEAD) -> Tensors:
    return [
        ("attn_q.weight", (EMBD, heads * head)),
        ("attn_k.weight", (EMBD, kv_heads * head)),
        ("attn_v.weight", (EMBD, kv_heads * head)),
        ("attn_output.weight", (heads * head, EMBD)),
    ]


def _ffn() -> Tensors:
    return [("ffn_gate.weight", (EMBD, FF)), ("ffn_up.weight", (EMBD, FF)), ("ffn_down.weight", (FF, EMBD))]


def _heads(kv_heads: int | Sequence[int], head: int = HEAD) -> dict[str, Any]:
    return {"attention.head_count_kv": kv_heads, "attention.key_length": head, "attention.value_length": head}


def llama(path: Path) -> Path:
    """Grouped queries."""
    return write(path, "llama", 3, {**_heads(2), "rope.dimension_count": HEAD}, lambda _: [
        *_norms("attn_norm", "ffn_norm"), *_attention(2), *_ffn()], tied=False)  # fmt: skip


def gemma3(path: Path) -> Path:
    """Five windowed layers for one that sees everything."""
    keys = {**_heads(2), "attention.sliding_window": 512}
    return write(path, "gemma3", 7, keys, lambda _: [
        *_norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        ("attn_q_norm.weight", (HEAD,)), ("attn_k_norm.weight", (HEAD,)), *_attention(2), *_ffn()], tied=True)  # fmt: skip


def deepseek2(path: Path) -> Path:
    """Latent attention: one compressed key a token, and no values."""
    rank, rope, nope, value = 128, 32, 32, 64
    keys = {
        "attention.head_count_kv": 1, "attention.key_length": rank + rope, "attention.value_length": rank,
        "attention.key_length_mla": nope + rope, "attention.value_length_mla": value, "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": 64, "rope.dimension_count": rope, "leading_dense_block_count": 2, "expert_count": 4,
        "expert_used_count": 2, "expert_feed_forward_length": 64, "expert_shared_count": 1, "vocab_size": VOCAB,
        "expert_weights_scale": 1.0, "expert_gating_func": 2,
    }  # fmt: skip
    return write(path, "deepseek2", 2, keys, lambda _: [
        *_norms("attn_norm", "ffn_norm"), ("attn_q_a.weight", (EMBD, 64)), ("attn_q_a_norm.weight", (64,)),
        ("attn_q_b.weight", (64, HEADS * (nope + rope))), ("attn_kv_a_mqa.weight", (EMBD, rank + rope)),
        ("attn_kv_a_norm.weight", (rank,)), ("attn_k_b.weight", (nope, rank, HEADS)),
        ("attn_v_b.weight", (rank, value, HEADS)), ("attn_output.weight", (HEADS * value, EMBD)), *_ffn()],
        tied=False)  # fmt: skip


def granitehybrid(path: Path) -> Path:
    """States in all layers but one."""
    inner, state, groups, rank = 512, 64, 1, 8
    keys = {
        **_heads([0, 2, 0]), "rope.dimension_count": HEAD, "ssm.conv_kernel": 4, "ssm.inner_size": inner,
        "ssm.state_size": state, "ssm.time_step_rank": rank, "ssm.group_count": groups, "vocab_size": VOCAB,
        "attention.scale": 0.125, "embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0,
    }  # fmt: skip
    convolved = inner + 2 * groups * state

    def block(layer: int) -> Tensors:
        if layer == 1:
            return [*_norms("attn_norm", "ffn_norm"), *_attention(2), *_ffn()]
        return [*_norms("attn_norm", "ffn_norm"), ("ssm_in.weight", (EMBD, inner + convolved + rank)),
                ("ssm_conv1d.weight", (4, convolved)), ("ssm_conv1d.bias", (convolved,)), ("ssm_dt.bias", (rank,)),
                ("ssm_a", (1, rank)), ("ssm_d", (1, rank)), ("ssm_norm.weight", (inner // groups, groups)),
                ("ssm_out.weight", (inner, EMBD)), *_ffn()]  # fmt: skip

    return write(path, "granitehybrid", 3, keys, block, tied=False)


def lfm2(path: Path) -> Path:
    """Short convolutions beside attention."""

    def block(layer: int) -> Tensors:
        mixer: Tensors = [
            ("shortconv.conv.weight", (3, EMBD)), ("shortconv.in_proj.weight", (EMBD, 3 * EMBD)),
            ("shortconv.out_proj.weight", (EMBD, EMBD)),
        ]  # fmt: skip
        if layer == 1:
            mixer = [*_attention(2), ("attn_q_norm.weight", (HEAD,)), ("attn_k_norm.weight", (HEAD,))]
        return [*_norms("attn_norm", "ffn_norm"), *mixer, *_ffn()]

    keys = {**_heads([0, 2, 0]), "shortconv.l_cache": 3, "vocab_size": VOCAB, "rope.dimension_count": HEAD}
    return write(path, "lfm2", 3, keys, block, tied=True)


MODELS: dict[str, Callable[[Path], Path]] = {
    build.__name__: build for build in (llama, gemma3, deepseek2, granitehybrid, lfm2)
}
