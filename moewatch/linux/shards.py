"""The model's files held open, and whether they are still what the layout describes."""

import os
import re

from msgspec import Struct

from moewatch.domain.layout import ModelLayout
from moewatch.domain.sample import Gap, GapReason
from moewatch.linux.pagecache import open_for_asking
from moewatch.linux.root import ReadingError

FIELD = "residency"
_HELD = re.compile(r"/proc/\d+/(?:map_files|fd)/")  # not /proc/PID/root, where files of a container have names


class Shard(Struct, frozen=True, kw_only=True):
    """One open file, as it was when it was opened."""

    path: str
    name: str  # base name, for sentences
    fd: int
    size_bytes: int
    mtime_ns: int
    identity: tuple[int, int]  # (st_dev, st_ino)


def open_shards(layout: ModelLayout) -> list[Shard]:
    """All files of the model, read-only; ReadingError when one cannot be opened (those already open are closed)."""
    shards: list[Shard] = []
    try:
        for path, file in zip(layout.paths, layout.files, strict=True):
            fd = open_for_asking(path)
            about = os.fstat(fd)
            shards.append(
                Shard(
                    path=path,
                    name=file.name,
                    fd=fd,
                    size_bytes=file.size_bytes,
                    mtime_ns=about.st_mtime_ns,
                    identity=(about.st_dev, about.st_ino),
                )
            )
    except ReadingError:
        close_shards(shards)
        raise
    return shards


def close_shards(shards: list[Shard]) -> None:
    """Close and forget them."""
    while shards:
        os.close(shards.pop().fd)


def check_shard(shard: Shard) -> Gap | None:
    """A Gap when the file was cut, deleted, replaced or rewritten since (two stat calls, 2 us).

    What is open stays what the server maps, so figures go on; the Gap says what they are of.
    """
    now = os.fstat(shard.fd)
    if now.st_size < shard.size_bytes:
        missing = shard.size_bytes - now.st_size
        return _gap(GapReason.VANISHED, f"{shard.name} was cut by {missing} bytes; restart the server")
    if now.st_nlink == 0 and not _HELD.match(shard.path):  # those were deleted before we came, which was said then
        return _gap(GapReason.VANISHED, f"{shard.name} was deleted while it was watched; figures are of the old file")
    try:
        there = os.stat(shard.path)  # noqa: PTH116 - a string is at hand, and this runs per sample
    except OSError:
        return _gap(GapReason.VANISHED, f"{shard.name} is no longer where it was; figures are of the old file")
    if (there.st_dev, there.st_ino) != shard.identity:
        return _gap(GapReason.VANISHED, f"{shard.name} was replaced by another file; figures are of the old one")
    if now.st_mtime_ns != shard.mtime_ns:
        return _gap(GapReason.MALFORMED, f"{shard.name} was written to while it was watched; restart the server")
    return None


def _gap(reason: GapReason, detail: str) -> Gap:
    return Gap(field=FIELD, reason=reason, detail=detail)
