"""All files of a model from any one of them, in order, each held against the others.

Splits: tools/gguf-split and src/llama-model-loader.cpp of llama.cpp. Inside, `split.no` counts from 0; file names count
from 1 (`NAME-00002-of-00003.gguf`). `split.tensors.count` is the sum over all shards; only the first shard has the model's
metadata, and it may have nothing else.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from moewatch.errors import ParseError, UnusableFileError
from moewatch.modelfile.header import GgufHeader, read_header
from moewatch.modelfile.source import FileSource, printable
from moewatch.units import format_size

MAX_SHARDS = 99_999  # names have five digits
SHARD_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class Shard(Struct, frozen=True, kw_only=True):
    """One file of a model and its header; `path` is as this process can open it."""

    name: str
    path: str
    size_bytes: int
    mtime_ns: int
    header: GgufHeader

    @property
    def number(self) -> int:
        """From 0; 0 for a model in one file."""
        return self.header.count("split.no") or 0

    @property
    def count(self) -> int:
        """How many files the model has; a merged file says 0."""
        return max(1, self.header.count("split.count") or 1)


def read_shard(path: Path) -> Shard:
    """One file by itself; raises UnusableFileError, ForbiddenError."""
    with FileSource(path) as source:
        shard = Shard(
            name=source.name,
            path=str(path),
            size_bytes=source.size_bytes,
            mtime_ns=source.mtime_ns,
            header=read_header(source),
        )
    if shard.count > MAX_SHARDS or shard.number >= shard.count:
        raise ParseError(
            f"{shard.name} claims to be shard {shard.number + 1} of {shard.count}, so it is damaged; fetch it again."
        )
    return shard


def read_shards(path: Path, known: Sequence[Path] = ()) -> tuple[Shard, ...]:
    """All shards of the model that `path` is one of, complete and in order.

    `known` are files that may belong to it although their names do not say so: a server's maps name the blobs of the
    Hugging Face cache, whose names are hashes. Raises UnusableFileError (missing, unfinished, mixed up), ForbiddenError.
    """
    given = read_shard(path)
    if given.count == 1:
        shards: tuple[Shard, ...] = (given,)
    elif SHARD_NAME.fullmatch(path.name):
        shards = _by_name(path, given)
    else:
        shards = _by_content(path, given, known)
    check_shards(shards)
    return shards


def sibling_names(name: str, count: int) -> list[str]:
    """The names of all shards, from the name of one."""
    stem = SHARD_NAME.fullmatch(name)
    return [f"{stem[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)] if stem else [name]


def _by_name(path: Path, given: Shard) -> tuple[Shard, ...]:
    _check_name(given, path.name)
    siblings = [path.with_name(name) for name in sibling_names(path.name, given.count)]
    missing = [number for number, sibling in enumerate(siblings) if number != given.number and not sibling.exists()]
    _refuse_missing(missing, given.count, printable(siblings[missing[0]].name) if missing else "")
    shards = tuple(given if number == given.number else read_shard(sibling) for number, sibling in enumerate(siblings))
    for shard, sibling in zip(shards, siblings, strict=True):
        _check_name(shard, sibling.name)
    return shards


def _check_name(shard: Shard, name: str) -> None:
    said = SHARD_NAME.fullmatch(name)
    if said is None or (int(said[2]), int(said[3])) != (shard.number + 1, shard.count):
        raise ParseError(
            f"{shard.name} says inside that it is shard {shard.number + 1} of {shard.count}, unlike its name: files are mixed up; fetch the model again."
        )


def _by_content(path: Path, given: Shard, known: Sequence[Path]) -> tuple[Shard, ...]:
    found = {given.number: given}
    for other in known:
        if other == path:
            continue
        shard = read_shard(other)
        if shard.count == given.count:
            found.setdefault(shard.number, shard)
    if len(found) == 1:
        raise UnusableFileError(
            f"{given.name} is shard {given.number + 1} of {given.count}, but its name does not end in -{given.number + 1:05}-of-{given.count:05}.gguf, so the others cannot be found."
        )
    missing = [number for number in range(given.count) if number not in found]
    _refuse_missing(missing, given.count, "it is not among the files that are open")
    return tuple(found[number] for number in sorted(found))


def _refuse_missing(missing: Sequence[int], count: int, where: str) -> None:
    if len(missing) == 1:
        raise UnusableFileError(f"Shard {missing[0] + 1} of {count} is missing ({where}); fetch it.")
    if missing:
        raise UnusableFileError(
            f"{len(missing)} of {count} shards are missing, first {missing[0] + 1} ({where}); fetch them."
        )


def check_shards(shards: Sequence[Shard]) -> None:
    """Refuse shards that are not one whole model; also for headers that were read elsewhere."""
    n_tensors = sum(len(shard.header.tensors) for shard in shards)
    for number, shard in enumerate(shards):
        label = f"Shard {number + 1} of {len(shards)}" if len(shards) > 1 else shard.name
        if short := max(0, shard.header.end_bytes - shard.size_bytes):
            raise UnusableFileError(f"{label} is {format_size(short)} short: the download is not finished.")
        if len(shards) == 1:
            continue
        if shard.count != len(shards) or shard.number != number:
            raise ParseError(
                f"{label} says inside that it is {shard.number + 1} of {shard.count}: files are mixed up; fetch the model again."
            )
        claimed = shard.header.count("split.tensors.count")
        if claimed is not None and claimed != n_tensors:
            raise ParseError(
                f"{label} says that the model has {claimed} tensors, but its shards have {n_tensors}: files are mixed up; fetch the model again."
            )
