"""Which pages of the model's files are in memory, page by page, and the shares of each class."""

import re
from collections.abc import Sequence

from moewatch.cache.runs import Run, add, intersect, total
from moewatch.domain.layout import WeightClass
from moewatch.domain.sample import GapReason
from moewatch.domain.warm import Levels
from moewatch.errors import ForbiddenError
from moewatch.linux.pagecache import Backend, PageCache, probe
from moewatch.linux.root import ReadingError
from moewatch.linux.shards import Shard

# cachestat settles pieces that are wholly in or out (8 us); mincore (15 ms per GiB) looks at the pages of the others
PIECE_BYTES = 64 << 20

_RESIDENT = re.compile(rb"\x01+")
_TO_BIT = bytes(value & 1 for value in range(256))  # mincore defines the lowest bit only


class ShardCache:
    """Asks about the open shards of one model."""

    def __init__(self, page_cache: PageCache, shards: Sequence[Shard]) -> None:
        """Find out whose word counts.

        Raises:
            ForbiddenError: the kernel would not tell the truth to this user, so nothing here would be safe.
        """
        self.page_bytes = page_cache.page_bytes
        self.shards = shards
        self._page_cache = page_cache
        try:
            self._backends = [probe(page_cache, shard.fd) for shard in shards]
        except ReadingError as error:
            remedy = "run it as the file's owner" if error.reason is GapReason.DENIED else "nothing can be planned here"
            raise ForbiddenError(f"What of the model is in memory cannot be known: {error.detail}; {remedy}.") from None

    def resident(self) -> list[list[Run]]:
        """Per shard the runs in memory, page by page; the file's last page ends with the file."""
        return [self._runs(index) for index in range(len(self.shards))]

    def count(self, file_index: int, runs: Sequence[Run]) -> int:
        """Bytes of these runs (whole pages) in memory now."""
        shard = self.shards[file_index]
        if self._backends[file_index] is Backend.MINCORE:
            return sum(total(self._look(shard.fd, start, end)) for start, end in runs)
        counts = (self._page_cache.cachestat(shard.fd, start, end - start).nr_cache for start, end in runs)
        return sum(min(count, end - start) for count, (start, end) in zip(counts, runs, strict=True))

    def total(self) -> int:
        """Bytes of the whole model in memory now."""
        return sum(self.count(index, [(0, shard.size_bytes)]) for index, shard in enumerate(self.shards))

    def _runs(self, index: int) -> list[Run]:
        shard = self.shards[index]
        found: list[Run] = []
        for start in range(0, shard.size_bytes, PIECE_BYTES):
            end = min(start + PIECE_BYTES, shard.size_bytes)
            if self._backends[index] is Backend.CACHESTAT:
                cached = self._page_cache.cachestat(shard.fd, start, end - start).nr_cache
                if not cached:
                    continue
                if cached >= end - start:
                    add(found, (start, end))
                    continue
            for run in self._look(shard.fd, start, end):
                add(found, run)
        return found

    def _look(self, fd: int, start: int, end: int) -> list[Run]:
        page = self.page_bytes
        bits = self._page_cache.mincore(fd, start, end - start).translate(_TO_BIT)
        return [(start + each.start() * page, min(start + each.end() * page, end)) for each in _RESIDENT.finditer(bits)]


def levels(
    resident: Sequence[Sequence[Run]],
    classes: dict[WeightClass, list[list[Run]]],
    hot: Sequence[Sequence[Run]] | None = None,
) -> Levels:
    """How much of each class, and of the hot set, is there."""
    dense, dense_size = _share(resident, classes[WeightClass.DENSE])
    expert, expert_size = _share(resident, classes[WeightClass.EXPERT])
    hot_there, hot_size = _share(resident, hot) if hot is not None else (None, 0)
    return Levels(
        resident_bytes=sum(map(total, resident)),
        dense_bytes=dense,
        dense_ratio=dense / dense_size if dense_size else None,
        expert_bytes=expert,
        expert_ratio=expert / expert_size if expert_size else None,
        hot_bytes=hot_there,
        hot_ratio=hot_there / hot_size if hot_there is not None and hot_size else None,
    )


def _share(resident: Sequence[Sequence[Run]], wanted: Sequence[Sequence[Run]]) -> tuple[int, int]:
    there = sum(total(intersect(list(runs), list(pages))) for runs, pages in zip(resident, wanted, strict=True))
    return there, sum(map(total, wanted))
