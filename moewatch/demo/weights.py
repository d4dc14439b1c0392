"""The demo server's view of its weights: a shared mapping of the model, touched so that every page really is needed."""

import mmap
from collections import OrderedDict
from pathlib import Path

from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.units import KIB

PAGE_BYTES = mmap.PAGESIZE
# What one major fault brings: the default read_ahead_kb of a PC. The kernel's own read-ahead is turned off, because virtual
# machines often have 8192 KiB, and then two faults bring a whole expert and its neighbours (measured: the model was warm
# 2 s after the start, and 16 MB came with each fault of the squeeze). A touch holds the interpreter's lock until its pages
# are there: so small a piece also lets the thread that answers /slots have its turn.
READ_AHEAD_BYTES = 128 * KIB
MADV_PAGEOUT = 21  # linux/mman.h; Python has no name for it before 3.12

Range = tuple[int, int]  # offset, length


class Weights:
    """Maps the model's one file and knows where the weights of each layer and expert lie."""

    def __init__(self, path: Path, layout: ModelLayout) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self.n_layer, self.n_expert = layout.n_layer, layout.summary.n_expert or 0
        self.n_used = layout.summary.n_expert_used or 0
        self._dense: list[list[Range]] = [[] for _ in range(self.n_layer + 1)]  # the last one: outside the blocks
        self._experts: list[list[list[Range]]] = [[[] for _ in range(self.n_expert)] for _ in range(self.n_layer)]
        for tensor in layout.tensors:
            if tensor.weight_class is WeightClass.DENSE:
                self._dense[self.n_layer if tensor.layer is None else tensor.layer].append(
                    (tensor.offset, tensor.size_bytes)
                )
            elif tensor.weight_class is WeightClass.EXPERT and tensor.layer is not None:
                for expert in range(self.n_expert):
                    self._experts[tensor.layer][expert].append(tensor.expert_range(expert))
        self._budget: int | None = None
        self._recent: OrderedDict[tuple[int, int], int] = (
            OrderedDict()
        )  # (layer, expert) -> bytes, least recently used first
        self._held = 0

    def touch_dense(self, layer: int) -> None:
        """Read from every page of what all tokens need in that layer; `n_layer` is the part outside the blocks."""
        for offset, length in self._dense[layer]:
            self._touch(offset, length)

    def touch_expert(self, layer: int, expert: int) -> None:
        """Read from every page of one expert's matrices, and page others out when a budget is set."""
        for offset, length in self._experts[layer][expert]:
            self._touch(offset, length)
        key = (layer, expert)
        if key not in self._recent:
            self._recent[key] = sum(length for _, length in self._experts[layer][expert])
            self._held += self._recent[key]
        self._recent.move_to_end(key)
        self._shrink()

    def limit_experts(self, budget_bytes: int | None) -> None:
        """Keep no more than so many bytes of experts from now on (at least one); None lifts it.

        What leaves is what was used least recently, as under a real limit, by madvise(MADV_PAGEOUT) on our own
        mapping: it evicts at once and leaves shadow entries, so that what comes back counts as refaults (mm/workingset.c).
        """
        self._budget = budget_bytes

    def _shrink(self) -> None:
        while self._budget is not None and self._held > self._budget and len(self._recent) > 1:
            (layer, expert), size = self._recent.popitem(last=False)
            self._held -= size
            for offset, length in self._experts[layer][expert]:
                start = offset // PAGE_BYTES * PAGE_BYTES
                self._map.madvise(MADV_PAGEOUT, start, offset + length - start)

    def _touch(self, offset: int, length: int) -> None:
        first, end = offset // PAGE_BYTES * PAGE_BYTES, offset + length
        for start in range(first, end, READ_AHEAD_BYTES):
            stop = min(start + READ_AHEAD_BYTES, end)
            if stop - start > PAGE_BYTES:
                self._map.madvise(mmap.MADV_WILLNEED, start + PAGE_BYTES, stop - start - PAGE_BYTES)
            self._map[
                start:stop:PAGE_BYTES
            ]  # one byte of each page, in C; the first one is a major fault when it is missing
