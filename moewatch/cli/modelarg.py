"""What a person named as the model: a file, any shard, a folder, a web address, or a repository of the hub."""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.domain.estimate import ModelParts
from moewatch.errors import MoewatchError, UnusableFileError, UsageError
from moewatch.modelfile.choices import Choice, choose, group_models, name_in_path
from moewatch.modelfile.parts import derive_parts
from moewatch.modelfile.shards import Shard, read_shards
from moewatch.modelfile.source import printable, refuse_open

MAX_COMPARED = 40  # quantisations of one repository; the most in the wild are about 30
_COMPARED_AT_A_TIME = 3  # headers of 5 to 10 MB each
_MAX_FOLDER_FILES = 10_000


class NamedModel(Struct, frozen=True, kw_only=True):
    """One model that was found: for people, for the command, and where its bytes are."""

    label: str
    words: tuple[str, ...]  # what names it to llama-server
    parts: ModelParts
    local_path: str | None = None  # its largest file, where it is here already


class Progress:
    """How many shards are read, on one line of stderr, where that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._drawn = False

    def __call__(self, done: int, count: int) -> None:
        """Draw a bar; nothing for a single shard."""
        if not self._is_shown or count == 1:
            return
        filled = round(20 * done / count)
        sys.stderr.write(f"\rheaders {'#' * filled}{'.' * (20 - filled)} {done} of {count} ")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the bar away."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def read_models(named: str, clock: Clock, *, compare: bool) -> list[NamedModel]:
    """The model that was named, or with `compare` it and its other quantisations, smallest first.

    Raises MoewatchError with one sentence.
    """
    from moewatch.modelfile.hub import SHORT_PREFIX  # noqa: PLC0415 - what only a network needs comes when it is asked

    is_remote = named.startswith(("http://", "https://", SHORT_PREFIX))
    return _read_remote(named, clock, compare=compare) if is_remote else _read_local(named, compare=compare)


def _read_local(named: str, *, compare: bool) -> list[NamedModel]:
    path = Path(named)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError) as error:
        raise refuse_open(path, error) from None
    if not is_folder and not compare:
        return [_local_model(path, read_shards(path))]
    folder = path if is_folder else path.parent
    choices = group_models(_sizes_in(folder))
    if not choices:
        raise UnusableFileError(f"{printable(str(folder))} holds no whole model (.gguf); name a model file.")
    if compare:
        return _each(choices, lambda choice: _local_model(folder / choice.path, read_shards(folder / choice.path)))
    if len(choices) > 1:
        shown = ", ".join(printable(choice.path) for choice in choices[:6])
        raise UsageError(f"{printable(str(folder))} holds {len(choices)} models; name one, or add --compare: {shown}.")
    return [_local_model(folder / choices[0].path, read_shards(folder / choices[0].path))]


def _sizes_in(folder: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".gguf") and entry.is_file():
                    found[entry.name] = entry.stat().st_size
                if len(found) > _MAX_FOLDER_FILES:
                    break
    except OSError as error:
        raise refuse_open(folder, error) from None
    return found


def _local_model(path: Path, shards: Sequence[Shard]) -> NamedModel:
    largest = max(shards, key=lambda shard: shard.size_bytes)
    return NamedModel(
        label=path.name, words=("-m", shards[0].path), parts=derive_parts(shards), local_path=largest.path
    )


def _read_remote(named: str, clock: Clock, *, compare: bool) -> list[NamedModel]:
    from moewatch.modelfile import hub  # noqa: PLC0415 - as above
    from moewatch.modelfile.fetcher import Fetcher, file_name_of  # noqa: PLC0415 - as above
    from moewatch.modelfile.remote import read_remote_shards  # noqa: PLC0415 - as above

    endpoint = os.environ.get("HF_ENDPOINT") or hub.DEFAULT_ENDPOINT
    progress = Progress()
    with Fetcher(clock, token=os.environ.get("HF_TOKEN") or None, token_origin=endpoint) as fetcher:

        def read(url: str, label: str, words: tuple[str, ...]) -> NamedModel:
            return NamedModel(
                label=label, words=words, parts=derive_parts(read_remote_shards(fetcher, url, clock, progress))
            )

        try:
            if named.startswith(hub.SHORT_PREFIX):
                repository = hub.parse_short(named, endpoint)
            else:
                url = hub.download_url(named, endpoint)
                known = hub.repository_of(url, endpoint) if compare else None
                if known is None:
                    if compare:
                        raise UsageError("--compare needs a folder, a repository (hf:owner/repo) or a file of one.")
                    return [read(url, file_name_of(url), ("-m", file_name_of(url)))]
                repository = known
            choices = hub.list_models(fetcher, repository)

            def read_choice(choice: Choice) -> NamedModel:
                quantisation = name_in_path(choice.path)
                words = ("-hf", repository.label + (f":{quantisation}" if quantisation else ""))
                return read(repository.download_url(choice.path), choice.path, words)

            if compare and choices:
                return _each(choices, read_choice)
            return [read_choice(choose(choices, repository.quantisation, repository.label))]
        finally:
            progress.clear()


def _each(choices: Sequence[Choice], read: Callable[[Choice], NamedModel]) -> list[NamedModel]:
    """Several at a time; one that cannot be read is left out, unless none can."""
    failed: list[MoewatchError] = []

    def attempt(choice: Choice) -> NamedModel | None:
        try:
            return read(choice)
        except MoewatchError as error:
            failed.append(error)
            return None

    if len(choices) > MAX_COMPARED:
        raise UsageError(f"{len(choices)} models are too many to compare ({MAX_COMPARED}); name one of them.")
    pool = ThreadPoolExecutor(_COMPARED_AT_A_TIME, thread_name_prefix="compare")
    try:
        found = [model for model in pool.map(attempt, choices) if model is not None]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if not found:
        raise failed[0]
    return sorted(found, key=lambda model: model.parts.summary.total_bytes)
