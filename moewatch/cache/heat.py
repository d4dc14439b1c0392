"""Which pages are hot, from looks at what is in memory, some seconds apart. Pure.

Nothing tells directly which resident page is in use. While pages are pushed out, the kernel's own choice does: what stays
through it is used most, what came in is used now, what left and did not come back is not. While nothing is pushed out,
what stays may be left from anything, so what came in counts more.
"""

from collections.abc import Sequence

from moewatch.cache.runs import Run, intersect, normalise, subtract, total

Files = list[list[Run]]  # runs per shard

HOT, WARM, PASSING = 1.0, 0.5, 0.25
PRESSED_RATIO = 0.05  # of what is resident has departed while watched: the kernel had to choose


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
