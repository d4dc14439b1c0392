"""Write a small but valid model that a real llama-server loads, with routing of a known shape.

The weights are random, the routing is not. With orthonormal directions c0 and u[topic]:

    embedding of token t  = 0.5 c0 + 0.6 u[topic(t)] + noise
    router row of expert e = popularity(e) c0 + topic_gain u[topic(e)] + noise

so tokens of one topic prefer that topic's experts (`topic_gain`; 0: all experts alike) and some experts are popular
(`popularity_spread`; 0: uniform, 1.5: a long tail). The output head follows the same topics, so generation stays in the
topic of its prompt. Prompts are sent as token ids: topic k holds the ids with `id % TOPICS == k`, below `TEXT_TOKENS`.

Everything is F16: the wheel's CPU code for quantised weights needs AVX-VNNI and dies of SIGILL on many servers.
"""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

BYTE_TOKENS = 256  # ids 0 to 255 are single bytes; they would make invalid UTF-8, so the driver bans them
TEXT_TOKENS = 2048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOPICS = 4
HEAD_SIZE = 64
_NOISE_ELEMENTS = 1 << 20  # weights repeat after this many: 8 x faster to write, and routing does not see it
_OUTPUT_GAIN = 40.0  # generation stays in its topic; with 10 it drifts to other topics within tens of tokens
_ATTENTION_GAIN = 0.3  # weak attention: the router hears the token's own topic, not an average of the context


@dataclass(frozen=True, kw_only=True)
class MoeShape:
    """What to write; sizes are elements. The default is about 0.63 GB in 3 layers, of which 0.60 GB are routed experts."""

    layers: int = 3
    experts: int = 128  # 0: a dense model
    used: int = 8
    width: int = 1024
    expert_width: int = 256  # of the whole feed-forward block when dense
    heads: int = 16
    kv_heads: int = 4
    topic_gain: float = 0.0
    popularity_spread: float = 0.0
    split_bytes: int = 0  # shards of at most this size; 0: one file
    seed: int = 1

    @property
    def name(self) -> str:
        """A file name stem that differs wherever the content does."""
        kind = f"moe{self.experts}" if self.experts else "dense"
        return (
            f"{kind}-l{self.layers}-w{self.width}-f{self.expert_width}-u{self.used}"
            f"-t{self.topic_gain:g}-p{self.popularity_spread:g}-c{self.split_bytes}-s{self.seed}"
        )

    @property
    def expert_bytes(self) -> int:
        """All routed experts: gate, up and down of every layer, two bytes a weight."""
        return 2 * 3 * self.layers * self.experts * self.width * self.expert_width


SMALL = MoeShape()
"""For the short rounds."""

LARGE = replace(SMALL, layers=8)
"""1.66 GB, for the long rounds: the size of the recordings under tests/fixtures."""

TINY = MoeShape(layers=2, experts=16, used=4, width=512, heads=8, expert_width=256)
"""About 30 MB, for a server on the software Vulkan device, which needs a second for a token."""

DENSE = MoeShape(layers=12, experts=0, expert_width=8192)
"""About 0.67 GB, every byte of it needed for every token."""


def write_model(directory: Path, shape: MoeShape) -> tuple[Path, ...]:
    """Write the model under `directory` (once: a model that is there is left alone) and return its files, in order.

    Raises:
        OSError: no space, or the directory cannot be written.
    """
    pattern = f"{shape.name}-*-of-*.gguf" if shape.split_bytes else f"{shape.name}.gguf"
    if not (found := sorted(directory.glob(pattern))):
        make_room(directory, _size_bytes(shape))
        try:
            _write(directory / f"{shape.name}.gguf", shape)
        except BaseException:
            for torn in directory.glob(pattern):
                torn.unlink()
            raise
        found = sorted(directory.glob(pattern))
    return tuple(found)


def make_room(directory: Path, needed_bytes: int) -> None:
    """Delete the oldest models until so much more fits; tests do not need two at a time."""
    for old in sorted(directory.glob("*.gguf"), key=lambda path: path.stat().st_mtime):
        if shutil.disk_usage(directory).free >= needed_bytes:
            return
        old.unlink()


def _size_bytes(shape: MoeShape) -> int:
    return sum(int(np.prod(tensor.shape)) * tensor.dtype.itemsize for tensor in _tensors(shape)) + (64 << 20)


def _write(path: Path, shape: MoeShape) -> None:
    writer = gguf.GGUFWriter(str(path), "qwen3moe" if shape.experts else "qwen3", split_max_size=shape.split_bytes)
    _add_metadata(writer, path.stem, shape)
    _add_tokenizer(writer)
    tensors = _tensors(shape)
    for tensor in tensors:
        elements = int(np.prod(tensor.shape))
        writer.add_tensor_info(tensor.name, tensor.shape, tensor.dtype, elements * tensor.dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.produce())
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, name: str, shape: MoeShape) -> None:
    writer.add_name(name)
    writer.add_file_type(1)  # mostly F16
    writer.add_quantization_version(2)
    writer.add_block_count(shape.layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.expert_width * (shape.used if shape.experts else 1))
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.expert_width)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    words = ["aa", *("".join(letters) for letters in itertools.product(ascii_lowercase, repeat=3))]
    text = [*_byte_alphabet(), *words][:TEXT_TOKENS]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*text, *SPECIAL_TOKENS])
    writer.add_token_types([1] * len(text) + [3] * len(SPECIAL_TOKENS))
    writer.add_token_merges(["a a"])  # an empty list ends in "cannot find tokenizer merges in model file"
    writer.add_bos_token_id(TEXT_TOKENS)
    writer.add_eos_token_id(TEXT_TOKENS + 2)
    writer.add_add_bos_token(False)


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]  # numpy order, slowest first: an expert is one contiguous range
    dtype: np.dtype[Any]
    produce: Callable[[], npt.NDArray[Any]]


def _tensors(shape: MoeShape) -> list[_Tensor]:
    random = np.random.default_rng(shape.seed)
    width, scale = shape.width, float(np.sqrt(shape.width))
    directions = np.linalg.qr(random.standard_normal((width, TOPICS + 1)))[0].T.astype(np.float32)
    common, topic_directions = directions[0], directions[1:]
    vocabulary = TEXT_TOKENS + len(SPECIAL_TOKENS)
    topics = topic_directions[np.arange(vocabulary) % TOPICS]
    embedding = scale * (0.5 * common + 0.6 * topics) + 0.65 * random.standard_normal((vocabulary, width))
    output = (0.5 * random.standard_normal((vocabulary, width)) + _OUTPUT_GAIN * topics) / scale
    output[TEXT_TOKENS:] = 0  # no special token is ever picked

    def given(name: str, array: npt.NDArray[Any], dtype: type[np.float16 | np.float32]) -> _Tensor:
        return _Tensor(name + ".weight", array.shape, np.dtype(dtype), lambda: np.ascontiguousarray(array, dtype))

    def noise(name: str, dimensions: tuple[int, ...], deviation: float) -> _Tensor:
        def produce() -> npt.NDArray[np.float16]:
            some = (random.standard_normal(_NOISE_ELEMENTS, np.float32) * deviation).astype(np.float16)
            return np.resize(some, dimensions)

        return _Tensor(name + ".weight", dimensions, np.dtype(np.float16), produce)

    def router() -> npt.NDArray[Any]:
        rows = random.standard_normal((shape.experts, width)) / scale
        rows -= np.outer(rows @ common, common)
        popularity = random.standard_normal(shape.experts) * shape.popularity_spread
        preferred = topic_directions[random.permutation(shape.experts) % TOPICS]
        return (
            1.5 * rows + np.outer(popularity / (0.45 * scale), common) + shape.topic_gain / (0.55 * scale) * preferred
        )

    tensors = [
        given("token_embd", embedding, np.float16),
        given("output_norm", np.ones(width), np.float32),
        given("output", output, np.float16),
    ]
    attention, kv = shape.heads * HEAD_SIZE, shape.kv_heads * HEAD_SIZE
    stacked, suffix = ((shape.experts,), "_exps") if shape.experts else ((), "")
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        tensors += [
            given(block + "attn_norm", np.ones(width), np.float32),
            given(block + "ffn_norm", np.ones(width), np.float32),
            noise(block + "attn_q", (attention, width), 1 / scale),
            noise(block + "attn_k", (kv, width), 1 / scale),
            noise(block + "attn_v", (kv, width), 1 / scale),
            noise(block + "attn_output", (width, attention), _ATTENTION_GAIN / scale),
            given(block + "attn_q_norm", np.full(HEAD_SIZE, 2.0), np.float32),
            given(block + "attn_k_norm", np.full(HEAD_SIZE, 2.0), np.float32),
            *([given(block + "ffn_gate_inp", router(), np.float32)] if shape.experts else []),
            noise(f"{block}ffn_gate{suffix}", (*stacked, shape.expert_width, width), 1 / scale),
            noise(f"{block}ffn_up{suffix}", (*stacked, shape.expert_width, width), 1 / scale),
            noise(f"{block}ffn_down{suffix}", (*stacked, width, shape.expert_width), 0.2 / shape.expert_width**0.5),
        ]
    return tensors
