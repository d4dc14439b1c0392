"""From resident bytes of each tensor to those of each class and layer. Pure."""

from typing import Self

from msgspec import Struct

from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.linux.scans import NEVER, TensorTally


def layers_not_needed(layout: ModelLayout, not_needed: frozenset[str]) -> tuple[int, ...]:
    """Layers whose routed experts are all among the tensors that need no memory."""
    if not not_needed:
        return ()
    layers = {t.layer: True for t in layout.tensors if t.weight_class is WeightClass.EXPERT and t.layer is not None}
    for tensor in layout.of_class(WeightClass.EXPERT):
        if tensor.layer is not None and tensor.name not in not_needed:
            layers[tensor.layer] = False
    return tuple(sorted(layer for layer, is_away in layers.items() if is_away))


class Parts(Struct, frozen=True, kw_only=True):
    """Sums of the tally by class and by layer; a class is None while one of its tensors was not reached."""

    resident: dict[WeightClass, int | None]
    not_needed: dict[WeightClass, int]
    by_layer: tuple[float | None, ...] | None

    @classmethod
    def of(cls, layout: ModelLayout, tally: TensorTally, not_needed: frozenset[str]) -> Self:
        """0.3 us a tensor."""
        resident: dict[WeightClass, int | None] = dict.fromkeys(WeightClass, 0)
        gone: dict[WeightClass, int] = dict.fromkeys(WeightClass, 0)
        layers = [[0, 0] for _ in range(layout.n_layer)]  # resident, size
        is_complete = True
        for index, tensor in enumerate(layout.tensors):
            if tensor.name in not_needed:
                gone[tensor.weight_class] += tensor.size_bytes
                continue
            if tally.seen_ns[index] == NEVER and tensor.size_bytes:
                resident[tensor.weight_class] = None
                is_complete = False
                continue
            so_far = resident[tensor.weight_class]
            if so_far is not None:
                resident[tensor.weight_class] = so_far + tally.resident[index]
            if tensor.layer is not None:
                layers[tensor.layer][0] += tally.resident[index]
                layers[tensor.layer][1] += tensor.size_bytes
        ratios = tuple(round(there / size, 4) if size else None for there, size in layers)
        return cls(resident=resident, not_needed=gone, by_layer=ratios if is_complete and layers else None)
