"""One expert page by page, on demand: for the range under a cursor, never in a loop."""

import itertools
from collections.abc import Sequence

from moewatch.domain.experts import ExpertSlice
from moewatch.domain.layout import ModelLayout
from moewatch.linux.pagecache import PageCache
from moewatch.linux.shards import Shard


def inspect_expert(
    page_cache: PageCache, layout: ModelLayout, shards: Sequence[Shard], layer: int, expert: int
) -> tuple[ExpertSlice, ...]:
    """Where it lies and which of its pages are resident, tensor by tensor, by mincore (15 ms per GiB); ReadingError."""
    page = page_cache.page_bytes
    found = []
    for _, tensor in layout.by_expert():
        index = expert - tensor.first_expert
        if tensor.layer != layer or not 0 <= index < tensor.n_expert:
            continue
        offset, length = tensor.expert_range(index)
        first = offset // page
        bits = page_cache.mincore(shards[tensor.file_index].fd, first * page, offset + length - first * page)
        runs = []
        at = first
        for is_resident, pages in itertools.groupby(byte & 1 for byte in bits):
            count = sum(1 for _ in pages)
            runs.append((at, count, bool(is_resident)))
            at += count
        found.append(
            ExpertSlice(
                tensor=tensor.name,
                file=layout.files[tensor.file_index].name,
                offset=offset,
                length=length,
                pages=tuple(runs),
            )
        )
    return tuple(found)
