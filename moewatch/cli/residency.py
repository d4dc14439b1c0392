"""`moewatch residency`: what of these files is in memory, once; for models by class, layer, expert and page."""

import argparse
import bisect
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from moewatch.cache.residency import ShardCache
from moewatch.cli import diagnostics, output
from moewatch.cli.feed import require_linux
from moewatch.cli.options import add_output, add_pid, new_parser, typed
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.errors import ExitCode, ForbiddenError, MoewatchError, TargetError, UnusableFileError, UsageError
from moewatch.linux.pagecache import PageCache, SystemPageCache, probe
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.linux.shards import Shard, close_shards, open_shards
from moewatch.modelfile.layout import read_layout
from moewatch.server.discovery import find_servers
from moewatch.server.modelpaths import has_magic
from moewatch.units import UNKNOWN, format_percent, format_size

SCHEMA = "moewatch-residency/1"
VIEWS = ("class", "layer", "expert", "page")
MAX_FILES = 10_000  # of directories: more is a mistake, such as /
NAME_COLUMNS = 44
CLASS_WORDS = {
    WeightClass.DENSE: "every token",
    WeightClass.EMBEDDING: "token table",
    WeightClass.EXPERT: "experts",
}
Run = tuple[int, int]


class Runs:
    """The bytes of one file that are in memory: ranges in order; asks how much of any range they cover."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._starts = [start for start, _ in runs]
        self._before = [0]  # bytes in memory before each run
        for start, end in runs:
            self._before.append(self._before[-1] + end - start)

    def within(self, offset: int, length: int) -> int:
        """Bytes of [offset, offset + length), to the byte: pages at its edges count as far as they lie in it."""
        return self._up_to(offset + length) - self._up_to(offset)

    def _up_to(self, offset: int) -> int:
        index = bisect.bisect_right(self._starts, offset) - 1
        if index < 0:
            return 0
        start, end = self.runs[index]
        return self._before[index] + min(offset, end) - start


class Counted(Struct, frozen=True, kw_only=True):
    """One model (or one file that is none), looked at; `runs` by file, None where it cannot be known."""

    layout: ModelLayout
    runs: tuple[Runs | None, ...]
    reasons: tuple[str, ...]
    backends: tuple[str, ...]

    def sums(self, tensors: Iterable[tuple[int, int, int]]) -> dict[str, int | None]:
        """Of (file, offset, length): how large, and how much of it is in memory."""
        size, resident = 0, 0
        is_known = True
        for file_index, offset, length in tensors:
            size += length
            runs = self.runs[file_index]
            if runs is None:
                is_known = False
            else:
                resident += runs.within(offset, length)
        return {"size_bytes": size, "resident_bytes": resident if is_known else None}


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "residency",
        "What of these files is in memory now; without any, of the server's model. Reads no page in. Exits 4 where the "
        "kernel would not tell the truth.",
    )
    parser.add_argument("model", nargs="*", metavar="MODEL", help="files (of a split any shard) and directories")
    add_pid(parser, "the server, as pgrep prints it")
    parser.add_argument(
        "--by",
        type=typed(_views),
        default=("class",),
        metavar="VIEW,...",
        help="class, layer, expert, page, or several of them with commas between (default class)",
    )
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Look once at every file; the exit code is that of the first trouble."""
    require_linux()
    if options.model and options.pid is not None:
        raise UsageError("Name files or --pid, not both: a server's model is found by itself.")
    troubles: list[MoewatchError] = []
    page_cache = SystemPageCache()
    counted = []
    for layout in _layouts(options, troubles):
        try:
            counted.append(count(page_cache, layout))
        except MoewatchError as error:
            troubles.append(error)
    if not counted:
        if troubles:
            raise troubles[0]
        raise UnusableFileError(
            f"There is no file in {', '.join(options.model)}; name a model file or the folder it lies in."
        )
    if options.json:
        output.json_line(to_json(counted, options.by, page_cache.page_bytes))
    else:
        for line in to_text(counted, options.by, page_cache.page_bytes):
            output.line(line)
    hidden = dict.fromkeys(reason for each in counted for reason in each.reasons if reason)
    troubles += [ForbiddenError(f"What is in memory cannot be known: {reason}.") for reason in hidden]
    for trouble in troubles:
        diagnostics.say(str(trouble))
    return int(troubles[0].exit_code if troubles else ExitCode.OK)


def count(page_cache: PageCache, layout: ModelLayout) -> Counted:
    """Look at all files of one model, page by page where a range is neither wholly in nor wholly out.

    Raises:
        ForbiddenError: a file may not be opened.
        UnusableFileError: a file is gone.
    """
    try:
        shards = open_shards(layout)
    except ReadingError as error:
        kind = ForbiddenError if error.reason == "denied" else UnusableFileError
        raise kind(f"{error.detail}.") from None
    try:
        looked = [_look(page_cache, shard) for shard in shards]
    finally:
        close_shards(shards)
    return Counted(
        layout=layout,
        runs=tuple(runs for runs, _, _ in looked),
        reasons=tuple(reason for _, reason, _ in looked),
        backends=tuple(backend for _, _, backend in looked),
    )


def _look(page_cache: PageCache, shard: Shard) -> tuple[Runs | None, str, str]:
    """(runs, why not, by what)."""
    if not shard.size_bytes:
        return Runs(()), "", "none"
    try:
        backend = probe(page_cache, shard.fd)
        return Runs(ShardCache(page_cache, [shard]).resident()[0]), "", backend.value
    except ReadingError as error:
        return None, f"{shard.name}: {error.detail}", "none"


def _layouts(options: argparse.Namespace, troubles: list[MoewatchError]) -> Iterator[ModelLayout]:
    """Every model and every other file, each once; what cannot be had is noted and left out."""
    if not options.model:
        servers = find_servers(KernelRoot.system(), options.pid)
        if not servers:
            raise TargetError("No llama-server is running; name a file: moewatch residency MODEL")
        server = servers[0]
        if not server.model_paths:
            raise ForbiddenError(server.detail or f"The model of process {server.pid} cannot be opened.")
        if server.model_remark:
            diagnostics.say(f"{server.model_remark}.")
        yield read_layout(server.model_paths[0], known=server.model_paths, name=server.model_name)
        return
    seen: set[tuple[int, int]] = set()
    for path in _files([Path(name) for name in options.model], troubles):
        if _identity(path) in seen:
            continue
        layout = _layout_of(path)
        seen |= {_identity(Path(each)) for each in layout.paths}
        yield layout


def _files(paths: Sequence[Path], troubles: list[MoewatchError]) -> Iterator[Path]:
    """The files named, and all regular files below the directories named (links to files are followed)."""
    left = MAX_FILES
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            troubles.append(UnusableFileError(f"{path} cannot be looked at: {error.strerror}."))
            continue
        if stat.S_ISREG(mode):
            yield path
        elif not stat.S_ISDIR(mode):
            troubles.append(UnusableFileError(f"{path} is neither a file nor a directory; name a model file (.gguf)."))
        else:
            for folder, folders, names in os.walk(path):
                folders.sort()
                for each in (Path(folder) / name for name in sorted(names)):
                    if not os.path.isfile(each):  # noqa: PTH113 - Path.is_file raises where a link may not be followed
                        continue
                    if not left:
                        raise UsageError(f"{path} holds more than {MAX_FILES} files; name a smaller directory.")
                    left -= 1
                    yield each


def _identity(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino


def _layout_of(path: Path) -> ModelLayout:
    """The whole model that a shard belongs to; any other file, or a damaged model, as bytes without classes."""
    if has_magic(str(path)):  # what cannot be opened says why below
        try:
            return read_layout(path)
        except MoewatchError as error:
            diagnostics.say(f"{error} Its bytes are counted all the same.")
    files = (ModelFile(name=path.name, size_bytes=path.stat().st_size),)
    return ModelLayout(
        files=files,
        paths=(str(path),),
        tensors=(),
        summary=ModelSummary(files=files, total_bytes=files[0].size_bytes),
    )


def to_json(counted: Sequence[Counted], views: Sequence[str], page_bytes: int) -> dict[str, object]:
    """The documented object (docs/reference/cli.md)."""
    files = [_file(each, index, page_bytes) for each in counted for index in range(len(each.runs))]
    backends = {backend for each in counted for backend in each.backends} - {"none"}
    found: dict[str, object] = {
        "schema": SCHEMA,
        "files": [file["file"] for file in files],
        **_added([{"size_bytes": file["size_bytes"], "resident_bytes": file["resident_bytes"]} for file in files]),
        "backend": "both" if len(backends) > 1 else next(iter(backends), "none"),
        "by_file": files,
    }
    models = [each for each in counted if each.layout.tensors]
    if models:
        found["classes"] = {
            name.value: _added([each.sums(_ranges(each.layout.of_class(name))) for each in models])
            for name in WeightClass
        }
        found["layers"] = [row for each in models for row in _layers(each)]
    if "expert" in views:
        found["experts"] = [row for each in models for row in _experts(each)]
    if "page" in views:
        found["pages"] = [
            row for each in counted for index in range(len(each.runs)) for row in _pages(each, index, page_bytes)
        ]
    reasons = [reason for each in counted for reason in each.reasons if reason]
    if reasons:
        found["reasons"] = reasons
    return found


def to_text(counted: Sequence[Counted], views: Sequence[str], page_bytes: int) -> Iterator[str]:
    """A table for people: one line a file, then what was asked for."""
    yield f"{'':{NAME_COLUMNS}} {'in memory':>12} {'of':>12}     %"
    for each in counted:
        for index in range(len(each.runs)):
            file = _file(each, index, page_bytes)
            yield _row(_short(_name_of(each, index)), file)
        if "class" in views:
            for name in WeightClass:
                sums = each.sums(_ranges(each.layout.of_class(name)))
                if sums["size_bytes"]:
                    yield _row(f"  {CLASS_WORDS[name]}", sums)
        if "layer" in views:
            yield from (_row(f"  layer {row['layer']}", row) for row in _layers(each))
        if "expert" in views:
            yield from (_row(f"  layer {row['layer']} expert {row['expert']}", row) for row in _experts(each))
        if "page" in views:
            yield from _page_lines(each, page_bytes)


def _page_lines(each: Counted, page_bytes: int) -> Iterator[str]:
    for index in range(len(each.runs)):
        for row in _pages(each, index, page_bytes):
            there = UNKNOWN if row["resident"] is None else ("in memory" if row["resident"] else "on disk")
            yield f"{_short(str(row['file'])):{NAME_COLUMNS}} page {row['first']:>12} + {row['count']:>12}  {there}"


def _row(name: str, sums: dict[str, int | None] | dict[str, object]) -> str:
    size, there = sums["size_bytes"], sums["resident_bytes"]
    size = size if isinstance(size, int) else 0
    known = there if isinstance(there, int) else None
    percent = UNKNOWN if known is None else format_percent(known / size if size else 0.0)
    return f"{name:{NAME_COLUMNS}} {format_size(known):>12} {format_size(size):>12} {percent:>5}"


def _short(path: str) -> str:
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in path)
    return printable if len(printable) <= NAME_COLUMNS else "…" + printable[1 - NAME_COLUMNS :]


def _name_of(each: Counted, index: int) -> str:
    """Its path; the name for one that is gone and only open through its server."""
    path, name = each.layout.paths[index], each.layout.files[index].name
    return path if path.endswith(name) else f"{name} (held by the server)"


def _file(each: Counted, index: int, page_bytes: int) -> dict[str, object]:
    size, runs = each.layout.files[index].size_bytes, each.runs[index]
    return {
        "file": each.layout.paths[index],
        "size_bytes": size,
        "resident_bytes": None if runs is None else runs.within(0, size),
        # whole pages, as vmtouch and fincore count
        "resident_pages": None
        if runs is None
        else sum(-(-end // page_bytes) - start // page_bytes for start, end in runs.runs),
    }


def _added(parts: Sequence[dict[str, object]] | Sequence[dict[str, int | None]]) -> dict[str, int | None]:
    """Sums; unknown as soon as one part is."""
    sizes = [part["size_bytes"] for part in parts]
    there = [part["resident_bytes"] for part in parts]
    return {
        "size_bytes": sum(size for size in sizes if isinstance(size, int)),
        "resident_bytes": None if None in there else sum(one for one in there if isinstance(one, int)),
    }


def _ranges(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int, int]]:
    return ((tensor.file_index, tensor.offset, tensor.size_bytes) for tensor in tensors)


def _layers(each: Counted) -> Iterator[dict[str, object]]:
    by_layer: list[list[Tensor]] = [[] for _ in range(each.layout.n_layer)]
    for tensor in each.layout.tensors:
        if tensor.layer is not None:
            by_layer[tensor.layer].append(tensor)
    for layer, tensors in enumerate(by_layer):
        yield {"model": each.layout.paths[0], "layer": layer, **each.sums(_ranges(tensors))}


def _experts(each: Counted) -> Iterator[dict[str, object]]:
    """Every expert of every layer that has some, over all its tensors."""
    slices: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for _, tensor in each.layout.by_expert():
        for expert in range(tensor.n_expert):
            key = (tensor.layer or 0, tensor.first_expert + expert)
            slices.setdefault(key, []).append((tensor.file_index, *tensor.expert_range(expert)))
    for (layer, expert), ranges in sorted(slices.items()):
        yield {"model": each.layout.paths[0], "layer": layer, "expert": expert, **each.sums(ranges)}


def _pages(each: Counted, index: int, page_bytes: int) -> Iterator[dict[str, object]]:
    """Runs of pages that are alike, over the whole file."""
    file, runs = each.layout.paths[index], each.runs[index]
    n_pages = -(-each.layout.files[index].size_bytes // page_bytes)
    if runs is None:
        yield {"file": file, "first": 0, "count": n_pages, "resident": None}
        return
    at = 0
    for start, end in runs.runs:
        first, last = start // page_bytes, -(-end // page_bytes)
        if first > at:
            yield {"file": file, "first": at, "count": first - at, "resident": False}
        yield {"file": file, "first": first, "count": last - first, "resident": True}
        at = last
    if at < n_pages:
        yield {"file": file, "first": at, "count": n_pages - at, "resident": False}


def _views(text: str) -> tuple[str, ...]:
    views = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [view for view in views if view not in VIEWS]
    if unknown or not views:
        raise ValueError(f"{text!r} is no view; write class, layer, expert, page, or several with commas between")
    return views
