"""Which class a tensor belongs to, by its name and shape. Pure.

Names: llama.cpp src/llama-arch.cpp (LLM_TENSOR_NAMES) and gguf/constants.py (TENSOR_NAMES). What is not recognised is
dense: to take a weight for needed by every token when it is not is the mistake that warns too early, not too late.

- Routed experts: `blk.N.ffn_{gate,up,down,gate_up}_exps.*` with all experts in one tensor, the expert being the slowest
  dimension; `_chexps` (grovemoe: one chunk expert for each group of experts); and `blk.N.ffn_{gate,up,down}.E.*`, one
  tensor per expert, as files of before 2024-04 have them. Biases and scales count when their slowest dimension is the
  expert too.
- Dense in spite of their names: `_shexp` (shared experts), `ffn_gate_inp*` and `exp_probs_b` (the router),
  `ffn_norm_exps` (arctic: the norm before the experts).
- Token tables: `token_embd` unless it is the output as well; `per_layer_token_embd` (gemma3n); `nextn.embed_tokens`.
- Draft layers: the last `nextn_predict_layers` blocks (glm4moe, glm-dsa, ...) predict further tokens. llama.cpp skips
  them at load (src/models/glm4-moe.cpp and glm-dsa.cpp, TENSOR_SKIP) unless it drafts with them. They are classed like any other layer,
  so that the classes are all tensors, and marked `draft`: not needed unless the server drafts.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from moewatch.domain.layout import WeightClass

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,9})\.(.+)", re.DOTALL)
_STACKED = re.compile(r"ffn_(?:gate|up|down|gate_up)_(?:exps|chexps)\.[a-z_]+")
_SINGLE = re.compile(r"ffn_(?:gate|up|down)\.(\d{1,9})\.[a-z_]+")
_EMBEDDING_NAME = "token_embd.weight"
_ROW_NAMES = ("per_layer_token_embd.weight",)
_DRAFT_NAME = "nextn.embed_tokens.weight"
_OUTPUT_NAME = "output.weight"
_STACK_DIMS = 3  # inputs, outputs, experts


class Place(NamedTuple):
    """Where a tensor belongs."""

    weight_class: WeightClass
    layer: int | None = None
    n_expert: int = 0
    first_expert: int = 0


def is_tied(names: Sequence[str]) -> bool:
    """Whether the token table is the output too: llama.cpp duplicates it when there is no output.weight."""
    return _OUTPUT_NAME not in names


def classify_tensor(name: str, dims: Sequence[int], *, n_expert: int | None, tied: bool) -> Place:
    """Class, layer and experts of one tensor; `dims` fastest first as in the header."""
    block = _BLOCK.fullmatch(name)
    if block is None:
        by_row = name in _ROW_NAMES or (name == _EMBEDDING_NAME and not tied)
        return Place(WeightClass.EMBEDDING if by_row else WeightClass.DENSE)
    layer, part = int(block[1]), block[2]
    if part == _DRAFT_NAME:
        return Place(WeightClass.EMBEDDING, layer)
    if _STACKED.fullmatch(part) and dims and (len(dims) >= _STACK_DIMS or dims[-1] == n_expert):
        return Place(WeightClass.EXPERT, layer, n_expert=dims[-1])
    if single := _SINGLE.fullmatch(part):
        return Place(WeightClass.EXPERT, layer, n_expert=1, first_expert=int(single[1]))
    return Place(WeightClass.DENSE, layer)
