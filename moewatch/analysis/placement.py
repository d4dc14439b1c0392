"""What goes onto the GPU: weights that every token needs and their cache first, then whole layers of experts. Pure.

As llama.cpp does it (src/llama-model.cpp, load_tensors): the token table stays on the host; `-ngl N` moves the last N of
the blocks and the output, which counts as one; `--n-cpu-moe N` keeps the experts of the first N blocks on the host.
"""

from collections.abc import Sequence

from moewatch.analysis.kvcache import UBATCH_TOKENS
from moewatch.domain.estimate import KvCache, ModelParts, Placement, Range
from moewatch.units import MIB

# What a GPU needs besides weights, cache and buffers: the driver's context (CUDA 300 to 500 MiB) and a desktop's share [?]
GPU_RESERVE_BYTES = 512 * MIB
# A server on the CPU without cache and buffers: 31 to 33 MB anonymous (measured), the rest libraries and page tables
SERVER_BYTES = 48 * MIB
_ACTIVATION_BYTES = 32  # a token's row of the widest layers, eight F32 tensors at a time (9.5 to 12.3 MiB measured where 9 to 20 is said)


def compute_buffers(parts: ModelParts, context: int) -> Range:
    """Bytes that a batch takes on the way through: logits, the attention mask, rows between the layers.

    Attention scores are not in it: flash attention, on by default, never writes them out.
    """
    n_embd = _number(parts, "embedding_length")
    n_ff = max(_number(parts, "feed_forward_length"), _number(parts, "expert_feed_forward_length"))
    low = UBATCH_TOKENS * (4 * (parts.n_vocab or 0) + 2 * context)
    high = low + UBATCH_TOKENS * (2 * context + _ACTIVATION_BYTES * n_embd + 8 * n_ff)
    return Range(low, high)


def _number(parts: ModelParts, key: str) -> int:
    value = parts.metadata.get(f"{parts.architecture}.{key}")
    found = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, int)]
    return max(0, *found, 0) if found else 0


def derive_placement(parts: ModelParts, cache: KvCache | None, compute: Range, vram_bytes: int) -> Placement:
    """Fill `vram_bytes` without overflow; all on the host when even one layer has no room."""
    layers = [layer for layer in parts.layers if not layer.draft]
    cache_bytes = [_cache_of(cache, layer.layer) for layer in layers]
    free = int(vram_bytes - GPU_RESERVE_BYTES - compute.high)
    dense = [layer.dense_bytes + size for layer, size in zip(layers, cache_bytes, strict=True)]
    experts = [layer.expert_bytes for layer in layers]
    n_gpu = (
        0
        if free < parts.outside_bytes
        else _fitting(dense if parts.is_moe else _added(dense, experts), free - parts.outside_bytes)
    )
    has_gpu = n_gpu > 0
    n_cpu_moe: int | None = None
    on_gpu: Sequence[int] = range(len(layers) - n_gpu, len(layers))
    with_experts: Sequence[int] = () if parts.is_moe else on_gpu
    if parts.is_moe and has_gpu:
        left = free - parts.outside_bytes - sum(dense[i] for i in on_gpu)
        n_experts = _fitting(experts, left) if n_gpu == len(layers) else 0
        first = len(layers) - n_experts
        n_cpu_moe = layers[first].layer if n_experts else len(parts.layers)
        with_experts = range(first, len(layers))
    gpu_dense = (parts.outside_bytes if has_gpu else 0) + sum(layers[i].dense_bytes for i in on_gpu)
    gpu_expert = sum(experts[i] for i in with_experts)
    gpu_cache = sum(cache_bytes[i] for i in on_gpu)
    host_cache = sum(cache_bytes) - gpu_cache
    all_dense = parts.outside_bytes + sum(layer.dense_bytes for layer in layers)
    return Placement(
        n_gpu_layers=n_gpu + 1 + (len(parts.layers) - len(layers)) if has_gpu else 0,
        n_cpu_moe=n_cpu_moe,
        gpu_bytes=int(gpu_dense + gpu_expert + gpu_cache + (compute.high + GPU_RESERVE_BYTES if has_gpu else 0)),
        host_dense_bytes=all_dense - gpu_dense,
        host_expert_bytes=sum(experts) - gpu_expert,
        gpu_dense_bytes=gpu_dense,
        gpu_expert_bytes=gpu_expert,
        host_anon_bytes=int(SERVER_BYTES + host_cache + (compute.low if has_gpu else compute.high)),
    )


def _cache_of(cache: KvCache | None, layer: int) -> int:
    return cache.layer_bytes[layer] if cache is not None and layer < len(cache.layer_bytes) else 0


def _added(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _fitting(sizes: Sequence[int], room: int) -> int:
    """How many of the last ones fit together."""
    count = 0
    for size in reversed(sizes):
        room -= size
        if room < 0:
            break
        count += 1
    return count
