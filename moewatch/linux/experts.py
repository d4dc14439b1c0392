"""What is known of each expert: how much is resident, what came, what left, what came AGAIN. Arrays, no objects.

An expert is a cell: layer * n_expert + expert. Its bytes lie in several tensors (gate, up, down), each a slice that is
looked at on its own; their differences are summed here.
"""

import threading
from array import array

from moewatch.domain.experts import ExpertFigures
from moewatch.domain.layout import ModelLayout

NEVER = -1
AGAIN_UNITS = 16  # what was read again is told in sixteenths of an expert: what is below is kept for the next time
_MOST = 255


class ExpertTally:
    """One thread puts, another may read: every figure is a whole one. 6 arrays: 2 MiB for 92 layers of 512 experts."""

    def __init__(self, layout: ModelLayout) -> None:
        self.n_layer = layout.n_layer
        self.n_expert = layout.n_expert
        self.bytes_per_expert = layout.expert_bytes_by_layer()
        n_cells = self.n_layer * self.n_expert
        self.resident = array("q", bytes(8 * n_cells))
        self.arrived = array(
            "q", bytes(8 * n_cells)
        )  # totals since the scan began; what was there at first is not in it
        self.departed = array("q", bytes(8 * n_cells))
        self.again = array("q", bytes(8 * n_cells))
        self.came_ns = array("q", [NEVER]) * n_cells  # when it was last seen to reach half of its bytes ...
        self.left_ns = array("q", [NEVER]) * n_cells  # ... and to fall below
        self.recent = array("q", bytes(8 * n_cells))  # evicted so lately that coming back counts as a refault
        self.share = bytearray(n_cells)  # resident, 0 to 255
        self._untold: dict[int, int] = {}  # cell: bytes read again since the last take_again
        self._telling = threading.Lock()

    def cell(self, layer: int, expert: int) -> int:
        """Index into the arrays."""
        return layer * self.n_expert + expert

    def put(self, cell: int, before: int, now: int, again: int, now_ns: int, *, is_first: bool) -> None:
        """A slice of this expert had `before` bytes resident and has `now`; `again` of what came had been there.

        At the first look nothing has arrived: it may have been there for long.
        """
        size = self.bytes_per_expert[cell // self.n_expert]
        there = self.resident[cell] = self.resident[cell] + now - before
        was_half = self.share[cell] > _MOST // 2
        # 0 and 255 mean nothing and all
        self.share[cell] = _MOST if there >= size else (max(1, there * _MOST // size) if there > 0 else 0)
        if is_first:
            return
        if was_half != (self.share[cell] > _MOST // 2):
            (self.left_ns if was_half else self.came_ns)[cell] = now_ns
        came = max(now - before, again, 0)  # some may have left meanwhile
        self.arrived[cell] += came
        self.departed[cell] += before + came - now
        if again:
            self.again[cell] += again
            with self._telling:
                self._untold[cell] = self._untold.get(cell, 0) + again

    def take_again(self) -> bytes | None:
        """Sixteenths of each expert read again since the last call; None when nothing was. Remainders are kept."""
        with self._telling:
            untold, self._untold = self._untold, {}
        told = bytearray(len(self.share))
        rest: dict[int, int] = {}
        for cell, amount in untold.items():
            size = self.bytes_per_expert[cell // self.n_expert]
            told[cell] = min(_MOST, amount * AGAIN_UNITS // size) if size else 0
            if left := amount - told[cell] * size // AGAIN_UNITS:
                rest[cell] = left
        with self._telling:
            for cell, amount in rest.items():
                self._untold[cell] = self._untold.get(cell, 0) + amount
        return bytes(told) if any(told) else None

    def figures(self) -> ExpertFigures:
        """A copy of all of it (0.1 ms for 6,144 experts)."""
        return ExpertFigures(
            n_layer=self.n_layer,
            n_expert=self.n_expert,
            bytes_per_expert=self.bytes_per_expert,
            share=bytes(self.share),
            resident_bytes=array("q", self.resident),
            arrived_bytes=array("q", self.arrived),
            departed_bytes=array("q", self.departed),
            again_bytes=array("q", self.again),
            recently_evicted_bytes=array("q", self.recent),
            came_ns=array("q", self.came_ns),
            left_ns=array("q", self.left_ns),
        )
