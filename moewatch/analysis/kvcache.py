"""How much memory the context takes, layer by layer, as llama.cpp would allocate it. Pure.

Source: llama.cpp, src/llama-kv-cache.cpp (keys and values), llama-kv-cache-iswa.cpp (windows), llama-memory-recurrent.cpp
and llama-hparams.cpp (states), and src/models/*.cpp for what an architecture takes for granted. Held against what the real
llama-server prints at load (tests/live/test_estimate.py).
"""

from collections import Counter
from collections.abc import Sequence

from moewatch.domain.estimate import CacheKind, KvCache, Metadata

# what --cache-type-k takes -> (elements in a block, bytes of a block)
KV_TYPES: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22),
    "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}  # fmt: skip
DEFAULT_KV_TYPE = "f16"
CONTEXT_STEP = 256  # llama-context.cpp pads the context to it, llama-kv-cache-iswa.cpp the window
UBATCH_TOKENS = 512  # the default; a window's cache holds one batch besides the window
STATE_BYTES = 4  # states are kept in F32
MAX_CONTEXT = 1 << 27  # larger figures are damage: the longest trained context is 10 million

# Every n-th layer attends to the whole context, the others to a window: set in the code of these architectures
# (set_swa_pattern) unless the header has sliding_window_pattern.
_PERIODS = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "cohere2moe": 4, "llama4": 4, "exaone4": 4,
    "exaone-moe": 4, "olmo2": 4, "afmoe": 4, "smallthinker": 4, "plamo3": 8, "laguna": 4,
}  # fmt: skip
_FULL_FIRST = frozenset({"smallthinker", "laguna"})  # the first of each group is the full one, not the last
_CHUNK_TOKENS = {"llama4": 8192}  # not in its header
_GEMMA3N_KV_LAYERS = 20  # older files do not say how many layers share

_ALL_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_INTERVAL = frozenset(
    {"qwen3next", "qwen35", "qwen35moe"}
)  # every 4th layer attends, or as full_attention_interval says
_NO_HEADS_RECURRENT = frozenset(
    {"jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2", "lfm2", "lfm2moe", "kimi-linear"}
)
_BOTH = frozenset({"falcon-h1"})  # a state and a cache in each layer
_DEFAULT_INTERVAL = 4
_DEFAULT_TOKEN_SHIFT = 2


class _Keys:
    """The header's numbers of one architecture, per layer where they are."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self._metadata = metadata
        self.architecture = architecture

    def value(self, part: str) -> object:
        return self._metadata.get(f"{self.architecture}.{part}")

    def number(self, part: str, layer: int = 0, default: int | None = None) -> int | None:
        """A whole number of 0 or more: the layer's own where there is one for each."""
        found = self.value(part)
        if isinstance(found, tuple):
            found = found[layer] if layer < len(found) else None
        is_count = isinstance(found, int) and not isinstance(found, bool) and found >= 0
        return found if is_count and isinstance(found, int) else default

    def flags(self, part: str) -> Sequence[object] | None:
        """An array, or None."""
        found = self.value(part)
        return found if isinstance(found, tuple) else None


def pad_context(context: int) -> int:
    """As llama.cpp rounds it up."""
    return -(-context // CONTEXT_STEP) * CONTEXT_STEP


def trained_context(metadata: Metadata, architecture: str) -> int | None:
    """The longest context that the model was made for."""
    found = _Keys(metadata, architecture).number("context_length")
    return found if found and found <= MAX_CONTEXT else None


def derive_kv_cache(
    metadata: Metadata, architecture: str, n_layer: int, context: int, kv_type: str = DEFAULT_KV_TYPE
) -> KvCache | None:
    """The cache for one sequence of `context` tokens; None when the header does not say what it takes.

    `kv_type` is a key of KV_TYPES, for keys and values alike. A window is not stretched over the whole context (no
    --swa-full), and layers that only draft have no cache (llama.cpp loads them for drafting alone).
    """
    keys = _Keys(metadata, architecture)
    cells = pad_context(context)
    n_draft = keys.number("nextn_predict_layers") or 0
    n_real = n_layer - n_draft if n_draft < n_layer else n_layer
    sizes: list[int] = []
    kinds: Counter[str] = Counter()
    for layer in range(n_layer):
        kind = _kind(keys, layer, n_real)
        size = _layer_bytes(keys, layer, kind, cells, kv_type)
        if size is None:
            return None
        sizes.append(size)
        kinds[kind.value] += 1
    return KvCache(context=cells, kv_type=kv_type, layer_bytes=tuple(sizes), kinds=dict(kinds))


def _kind(keys: _Keys, layer: int, n_real: int) -> CacheKind:
    if layer >= n_real or layer >= _kv_layers(keys, n_real):
        return CacheKind.NONE
    if _is_recurrent(keys, layer, n_real):
        return CacheKind.RECURRENT
    if keys.number("attention.head_count_kv", layer) == 0:
        return CacheKind.NONE  # nemotron_h: a layer of experts or a plain feed-forward, without attention
    if keys.number("attention.key_length_mla") and keys.number("attention.kv_lora_rank"):
        return CacheKind.LATENT
    return CacheKind.WINDOW if _window(keys) and _is_windowed(keys, layer) else CacheKind.FULL


def _kv_layers(keys: _Keys, n_real: int) -> int:
    """How many of the first layers have a cache of their own; the others share (gemma3n, gemma4)."""
    shared = keys.number("attention.shared_kv_layers")
    if shared is not None:
        return max(0, n_real - shared)
    return _GEMMA3N_KV_LAYERS if keys.architecture == "gemma3n" else n_real


def _is_recurrent(keys: _Keys, layer: int, n_real: int) -> bool:
    architecture = keys.architecture
    if architecture in _ALL_RECURRENT:
        return True
    if flags := keys.flags("attention.recurrent_layers"):
        return layer < len(flags) and bool(flags[layer])
    if architecture in _INTERVAL:
        interval = keys.number("full_attention_interval") or _DEFAULT_INTERVAL
        return layer < n_real and (layer + 1) % interval != 0
    if architecture in _NO_HEADS_RECURRENT and keys.number("attention.head_count_kv", layer) == 0:
        return not (architecture.startswith("nemotron_h") and keys.number("feed_forward_length", layer))
    return False


def _window(keys: _Keys) -> int:
    """Tokens that a windowed layer sees; 0 for architectures that llama.cpp runs without a window."""
    named = keys.number("attention.sliding_window")
    if keys.architecture in _CHUNK_TOKENS:
        return 0 if named == 0 else _CHUNK_TOKENS[keys.architecture]
    return named or 0


def _is_windowed(keys: _Keys, layer: int) -> bool:
    if flags := keys.flags("attention.sliding_window_pattern"):
        return layer < len(flags) and bool(flags[layer])
    period = keys.number("attention.sliding_window_pattern") or _PERIODS.get(keys.architecture)
    if not period:
        return False
    return layer % period != 0 if keys.architecture in _FULL_FIRST else layer % period < period - 1


def _layer_bytes(keys: _Keys, layer: int, kind: CacheKind, cells: int, kv_type: str) -> int | None:
    if kind is CacheKind.NONE:
        return 0
    state = _state_bytes(keys) if kind is CacheKind.RECURRENT or keys.architecture in _BOTH else 0
    if kind is CacheKind.RECURRENT or state is None:
        return state
    if kind is CacheKind.LATENT:  # keys alone are kept: values are a part of them
        width = (keys.number("attention.kv_lora_rank") or 0) + (keys.number("rope.dimension_count") or 0)
        return _row_bytes(width, kv_type) * cells
    n_head = keys.number("attention.head_count", layer)
    n_head_kv = keys.number("attention.head_count_kv", layer, n_head)
    if not n_head_kv:
        return None
    width_k, width_v = _head_widths(keys, n_head, is_windowed=kind is CacheKind.WINDOW)
    if not width_k or not width_v:
        return None
    if kind is CacheKind.WINDOW:
        cells = min(cells, pad_context(_window(keys) + UBATCH_TOKENS))
    return (_row_bytes(width_k * n_head_kv, kv_type) + _row_bytes(width_v * n_head_kv, kv_type)) * cells + state


def _head_widths(keys: _Keys, n_head: int | None, *, is_windowed: bool) -> tuple[int | None, int | None]:
    """Of one head's key and value; windowed layers of gemma4 and mimo2 have their own."""
    n_embd = keys.number("embedding_length")
    plain = n_embd // n_head if n_embd and n_head else None
    width_k = keys.number("attention.key_length", default=plain)
    width_v = keys.number("attention.value_length", default=plain)
    if is_windowed:
        width_k = keys.number("attention.key_length_swa", default=width_k)
        width_v = keys.number("attention.value_length_swa", default=width_v)
    return width_k, width_v


def _row_bytes(width: int, kv_type: str) -> int:
    block, block_bytes = KV_TYPES[kv_type]
    return -(-width // block) * block_bytes


def _state_bytes(keys: _Keys) -> int | None:
    """One sequence's state of one layer: what the convolution remembers, and the state itself (llama-hparams.cpp)."""
    n_embd = keys.number("embedding_length") or 0
    if head := keys.number("wkv.head_size"):
        shift = keys.number("token_shift_count") or _DEFAULT_TOKEN_SHIFT
        return (shift * n_embd + n_embd * head) * STATE_BYTES
    if short := keys.number("shortconv.l_cache"):
        return n_embd * (short - 1) * STATE_BYTES
    convolution = max(0, (keys.number("ssm.conv_kernel") or 0) - 1)
    if head := keys.number("kda.head_dim"):
        n_head = keys.number("attention.head_count") or 0
        return (3 * convolution * n_head * head + head * head * n_head) * STATE_BYTES
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    if inner is None or state is None:
        return None
    groups = keys.number("ssm.group_count") or 0
    return (convolution * (inner + 2 * groups * state) + state * inner) * STATE_BYTES
