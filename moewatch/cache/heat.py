"""Which pages are hot, from looks at what is in memory, some seconds apart. Pure.

Nothing tells directly which resident page is in use. What came in while watched was asked for (or lay beside it). What stayed
may be left from anything, the load for instance, until so much was pushed out that the kernel had to choose among all of it:
then what stayed is used most. What left and did not come back is not hot.
"""

from collections.abc import Sequence

from moewatch.cache.runs import Run, intersect, normalise, subtract, total

Files = list[list[Run]]  # runs per shard

HOT, WARM, PASSING = 1.0, 0.5, 0.25
# Of what is resident, departed while watched. The kernel takes from its inactive list first, about half of the file pages
# (mm/vmscan.c, inactive_is_low): after that much, what was only left over is gone.
PRESSED_RATIO = 0.5


class HeatWatch:
    """Looks, one after the other; `tiers` is what they amount to so far."""

    def __init__(self, resident: Sequence[Sequence[Run]]) -> None:
        self._now: Files = [list(runs) for runs in resident]
        self._stayed: Files = [list(runs) for runs in resident]
        self._came: Files = [[] for _ in resident]
        self._departed_bytes = 0
        self.looks = 1

    def look(self, resident: Sequence[Sequence[Run]]) -> None:
        """What is in memory now, in the same shards."""
        now: Files = [list(runs) for runs in resident]
        for index, (before, after) in enumerate(zip(self._now, now, strict=True)):
            arrived = subtract(after, before)
            self._departed_bytes += total(before) - total(after) + total(arrived)
            self._came[index] = normalise([*self._came[index], *arrived])
            self._stayed[index] = intersect(self._stayed[index], after)
        self._now = now
        self.looks += 1

    @property
    def resident_bytes(self) -> int:
        """At the last look."""
        return sum(map(total, self._now))

    @property
    def departed_bytes(self) -> int:
        """Over all looks."""
        return self._departed_bytes

    @property
    def is_pressed(self) -> bool:
        """Whether so much departed that what stayed was chosen by the kernel."""
        return self._departed_bytes > PRESSED_RATIO * self.resident_bytes

    def tiers(self) -> list[tuple[float, Files]]:
        """(heat, runs per shard), hottest first: stayed and came in, then what came and went while watched."""
        came = [intersect(arrived, now) for arrived, now in zip(self._came, self._now, strict=True)]
        passing = [subtract(arrived, now) for arrived, now in zip(self._came, self._now, strict=True)]
        if not any(came) and not any(passing):
            return [(HOT, self._stayed)]
        first, second = (self._stayed, came) if self.is_pressed else (came, self._stayed)
        return [(HOT, first), (WARM, second), (PASSING, passing)]
