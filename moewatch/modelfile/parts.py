"""A model taken apart for the estimate: bytes by layer and kind, out of its headers."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from moewatch.domain.estimate import LayerBytes, ModelParts
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.errors import UnusableFileError
from moewatch.modelfile.header import GgufHeader
from moewatch.modelfile.identity import derive_digest
from moewatch.modelfile.layout import derive_layout
from moewatch.modelfile.shards import Shard

# Within dense (classes.py): the router with its bias, and the experts that every token takes
_ROUTER = re.compile(r"blk\.\d+\.(?:ffn_gate_inp(?:_shexp)?|exp_probs_b)\b")
_SHARED = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down|gate_up)_shexp\b")
# Beside models, with headers like theirs (general.type, gguf/constants.py); older projectors say so by their architecture
_NO_MODELS = {
    "adapter": "an adapter (LoRA)",
    "imatrix": "an importance matrix",
    "mmproj": "a projector of images or sound",
}
_ARCHITECTURES = {"clip": "mmproj"}
_TOKENS = "tokenizer.ggml.tokens"


def derive_parts(shards: Sequence[Shard]) -> ModelParts:
    """Add up what the headers of all shards (in order, shards.check_shards) say; ParseError as layout.derive_layout."""
    header = shards[0].header
    said = header.text("general.type")
    kind = _NO_MODELS.get(_ARCHITECTURES.get(header.text("general.architecture"), said))
    if kind is not None:
        raise UnusableFileError(f"{shards[0].name} is {kind} and no model; name the model that it belongs to.")
    layout = derive_layout(shards)
    types: Counter[str] = Counter()
    for shard in shards:
        for info in shard.header.tensors:
            types[info.type_name] += info.size_bytes
    outside = [tensor for tensor in layout.tensors if tensor.layer is None]
    return ModelParts(
        summary=layout.summary,
        layers=_layers(layout),
        outside_bytes=sum(t.size_bytes for t in outside if t.weight_class is not WeightClass.EMBEDDING),
        table_bytes=sum(t.size_bytes for t in outside if t.weight_class is WeightClass.EMBEDDING),
        type_bytes=dict(types.most_common()),
        n_tensors=len(layout.tensors),
        tensor_bytes=sum(types.values()),
        header_bytes=sum(layout.header_bytes),
        slice_bytes=_slice_bytes(layout),
        n_vocab=_n_vocab(header),
        metadata=header.metadata,
        digest=derive_digest(layout),
    )


def _layers(layout: ModelLayout) -> tuple[LayerBytes, ...]:
    n_layer = max(layout.n_layer, layout.summary.n_layer or 0)
    found = [LayerBytes(layer=layer) for layer in range(n_layer)]
    for tensor in layout.tensors:
        if tensor.layer is not None:
            found[tensor.layer] = _add(found[tensor.layer], tensor)
    return tuple(found)


def _add(layer: LayerBytes, tensor: Tensor) -> LayerBytes:
    size = tensor.size_bytes
    is_draft = layer.draft or tensor.draft
    if tensor.weight_class is WeightClass.EXPERT:
        return msgspec.structs.replace(layer, expert_bytes=layer.expert_bytes + size, draft=is_draft)
    if tensor.weight_class is WeightClass.EMBEDDING:
        return msgspec.structs.replace(layer, embedding_bytes=layer.embedding_bytes + size, draft=is_draft)
    return msgspec.structs.replace(
        layer,
        dense_bytes=layer.dense_bytes + size,
        router_bytes=layer.router_bytes + (size if _ROUTER.match(tensor.name) else 0),
        shared_bytes=layer.shared_bytes + (size if _SHARED.match(tensor.name) else 0),
        draft=is_draft,
    )


def _slice_bytes(layout: ModelLayout) -> int | None:
    """By bytes, so that biases and scales of experts do not count."""
    experts = [t for t in layout.tensors if t.weight_class is WeightClass.EXPERT and t.n_expert]
    total = sum(t.size_bytes for t in experts)
    return round(sum(t.size_bytes * (t.size_bytes / t.n_expert) for t in experts) / total) if total else None


def _n_vocab(header: GgufHeader) -> int | None:
    """Rows of the token table, which is what logits are as long as; else the vocabulary's length."""
    for info in header.tensors:
        if info.name == "token_embd.weight" and info.dims:
            return info.dims[-1]
    return header.array_lengths.get(_TOKENS)
