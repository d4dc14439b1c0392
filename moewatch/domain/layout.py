"""Where every weight lies in the model's files: classes, layers, experts and their byte ranges. Pure."""

import enum
from collections.abc import Iterator

from msgspec import Struct

from moewatch.domain.sample import ModelFile, ModelSummary


class WeightClass(enum.StrEnum):
    """Who needs a tensor; together they are all tensors."""

    DENSE = "dense"  # every token, whole: attention, norms, routers, shared experts, output
    EMBEDDING = "embedding"  # the token table: one row a token; dense when it is tied to the output
    EXPERT = "expert"  # routed: only the experts the router picks


class Tensor(Struct, frozen=True, kw_only=True):
    """One tensor: `offset` is in its shard's file, from the file's first byte."""

    name: str
    file_index: int
    offset: int
    size_bytes: int
    weight_class: WeightClass
    layer: int | None  # None for tensors outside the blocks
    n_expert: int = 0  # experts stacked in it (slowest dimension); 0 for all but routed experts
    first_expert: int = 0  # the expert of its first slice; not 0 only where every expert has a tensor of its own
    draft: bool = False  # of a layer that only drafts further tokens: llama.cpp skips it unless it drafts with it

    def expert_range(self, expert: int) -> tuple[int, int]:
        """(offset, length) of slice `expert`, counted from first_expert (gguf: the expert is the slowest dimension)."""
        each = self.size_bytes // self.n_expert
        return self.offset + expert * each, each


class ModelLayout(Struct, frozen=True, kw_only=True):
    """All shards of a model, in order, with every tensor."""

    files: tuple[ModelFile, ...]
    paths: tuple[str, ...]  # as this process can open them
    tensors: tuple[Tensor, ...]
    summary: ModelSummary
    header_bytes: tuple[int, ...] = ()  # where each shard's tensor data begins

    @property
    def n_layer(self) -> int:
        """Number of blocks that have tensors."""
        return 1 + max((t.layer for t in self.tensors if t.layer is not None), default=-1)

    @property
    def n_expert(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return max((t.first_expert + t.n_expert for t in self.tensors if t.n_expert), default=0)

    def by_expert(self) -> Iterator[tuple[int, Tensor]]:
        """(index, tensor) of those whose slices are one expert's each; chunk experts, shared by groups (grovemoe), are not."""
        n_expert = self.n_expert
        for index, tensor in enumerate(self.tensors):
            whole_stack = tensor.n_expert in (1, n_expert) and tensor.first_expert + tensor.n_expert <= n_expert
            if tensor.n_expert and tensor.layer is not None and whole_stack:
                yield index, tensor

    def expert_bytes_by_layer(self) -> tuple[int, ...]:
        """One expert of each layer, over all its tensors (all of a layer are alike); 0 where a layer has none."""
        sizes = [0] * self.n_layer
        for _, tensor in self.by_expert():
            if tensor.layer is not None and tensor.first_expert == 0:
                sizes[tensor.layer] += tensor.size_bytes // tensor.n_expert
        return tuple(sizes)

    def of_class(self, weight_class: WeightClass) -> Iterator[Tensor]:
        """The tensors of one class, in file order."""
        return (t for t in self.tensors if t.weight_class is weight_class)
