"""From what a process has mapped to model files that can be opened here: deleted, replaced, in a container, in shards."""

import itertools
import os
import re
import stat as modes
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from moewatch.linux.maps import Mapping
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.server.argv import Options

# files without the ending are looked into (ollama and the Hugging Face cache name them by their digest); smaller ones
# are fonts, locales and libraries, and the smallest model worth watching is far larger
SNIFF_BYTES = 16 << 20
SNAPSHOT_LIMIT = 2000  # names looked through in one repository of the Hugging Face cache
SNIFF_LIMIT = 32  # files opened that way per process
FD_LIMIT = 4096  # descriptors looked through for a deleted file
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_MAGIC = b"GGUF"
DELETED_WORDS = "The model file was deleted while the server runs; it is read through the server's own mapping"
REPLACED_WORDS = (
    "The file on disk is another one now: the model was replaced while the server runs, which still uses the old one"
)
UNREADABLE_WORDS = "and the old one cannot be opened from here (as root it can)"


class MappedFile(Struct, frozen=True, kw_only=True):
    """One file of a process's maps: its name there, a path to open it here (None: there is none), what is odd."""

    name: str
    path: str | None
    mapped_bytes: int
    remark: str = ""


class Model(Struct, frozen=True, kw_only=True):
    """All shards of one model that a process maps or names, in order."""

    files: tuple[MappedFile, ...]
    remark: str = ""

    @property
    def name(self) -> str:
        """Base name of its first shard."""
        return self.files[0].name.rpartition("/")[2]

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that can be opened."""
        return tuple(Path(file.path) for file in self.files if file.path is not None)

    @property
    def mapped_bytes(self) -> int:
        """Over all shards."""
        return sum(file.mapped_bytes for file in self.files)

    def size_bytes(self) -> int | None:
        """On disk, over the shards that can be opened; None when none can."""
        sizes = [info.st_size for path in self.paths if (info := _stat(str(path)))]
        return sum(sizes) if sizes else None

    def role(self, options: Options) -> str:
        """What it is for, when it is not the model."""
        if options.model_draft and self.is_named(options.model_draft):
            return "draft model"
        if (options.mmproj and self.is_named(options.mmproj)) or "mmproj" in self.name.lower():
            return "projector"
        return "another model"

    def is_named(self, wanted: str) -> bool:
        """Whether argv's path means this file: by its whole path, what a link leads to, or its base name."""
        real = os.path.realpath(wanted)
        base = wanted.rpartition("/")[2]
        return any(file.name in (wanted, real) or file.name.rpartition("/")[2] == base for file in self.files)


def find_models(root: KernelRoot, pid: int, maps: Sequence[Mapping], options: Options) -> list[Model]:
    """The models among the mappings of a process, in the order of maps."""
    by_path: dict[str, list[Mapping]] = {}
    for mapping in maps:
        if mapping.path.startswith("/") and mapping.inode:
            by_path.setdefault(mapping.path, []).append(mapping)
    groups: dict[str, list[MappedFile]] = {}
    sniffed = 0
    for path, mappings in by_path.items():
        size = sum(mapping.length for mapping in mappings)
        is_model = path.endswith(".gguf") or path == options.model
        if not is_model and size >= SNIFF_BYTES and ".so" not in path and sniffed < SNIFF_LIMIT:
            sniffed += 1
            is_model = has_magic(open_path(root, pid, mappings[0])[0])
        if is_model:
            opened, remark = open_path(root, pid, mappings[0])
            if opened == path:
                path = opened = _snapshot_name(path)  # noqa: PLW2901 - the same file by its readable name
            shard = _SHARD.fullmatch(path)
            groups.setdefault(f"{shard[1]}-{shard[2]}" if shard else path, []).append(
                MappedFile(name=path, path=opened, mapped_bytes=size, remark=remark)
            )
    return [_as_model(files) for files in groups.values()]


def choose_model(models: Sequence[Model], options: Options) -> Model | None:
    """The one that argv calls the model, else the largest that is neither draft nor projector."""
    if options.model and (named := [model for model in models if model.is_named(options.model)]):
        return named[0]
    others = [model for model in models if model.role(options) == "another model"]
    return max(others or models, key=lambda model: model.mapped_bytes, default=None)


def model_from_argv(root: KernelRoot, pid: int, options: Options) -> Model | None:
    """The file that -m names, where nothing is mapped (load modes none, mlock, dio) or maps are hidden."""
    if options.model is None:
        return None
    named = options.model
    if not named.startswith("/"):
        try:
            named = f"{root.link(f'/proc/{pid}/cwd')}/{named}"
        except ReadingError:
            return None
    for path in (root.locate(f"/proc/{pid}/root") + named, named):
        info = _stat(path)
        if info and modes.S_ISREG(info.st_mode) and os.access(path, os.R_OK):
            # the plain path where it is the same file: it stays valid when the process ends
            plain = _stat(named)
            same = plain is not None and (plain.st_dev, plain.st_ino) == (info.st_dev, info.st_ino)
            return Model(files=(MappedFile(name=named, path=named if same else path, mapped_bytes=0),))
    return None


def open_path(root: KernelRoot, pid: int, mapping: Mapping) -> tuple[str | None, str]:
    """(A path by which this very file can be opened here, what is odd about it in words).

    maps shows st_dev of the superblock, which on btrfs and overlayfs is not what stat(2) says: inodes are compared, and
    where the kernel lets us follow /proc/PID/map_files (root) the file itself.
    """
    by_map = root.locate(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}")
    mapped = _stat(by_map)
    inside = root.locate(f"/proc/{pid}/root") + mapping.path
    if not mapping.deleted:
        for path in (mapping.path, inside):
            info = _stat(path)
            if info is None:
                continue
            if info.st_ino == mapping.inode or (
                mapped and (mapped.st_dev, mapped.st_ino) == (info.st_dev, info.st_ino)
            ):
                return path, ""
    is_replaced = _stat(inside) is not None or (not mapping.deleted and _stat(mapping.path) is not None)
    words = REPLACED_WORDS if is_replaced else DELETED_WORDS
    if mapped is not None and os.access(by_map, os.R_OK):
        return by_map, words
    for path in _open_descriptors(root, pid):
        info = _stat(path)
        if info and info.st_ino == mapping.inode and os.access(path, os.R_OK):
            return path, words
    return None, f"{words.split(';')[0]}, {UNREADABLE_WORDS}"


def _snapshot_name(path: str) -> str:
    """In the Hugging Face cache `blobs/DIGEST` has a readable name, with the shard's number, below `snapshots/`."""
    blob = Path(path)
    snapshots = blob.parent.parent / "snapshots"
    if blob.parent.name != "blobs" or not snapshots.is_dir():
        return path
    for link in itertools.islice(snapshots.rglob("*.gguf"), SNAPSHOT_LIMIT):
        try:
            if link.readlink().name == blob.name:
                return str(link)
        except OSError:
            continue
    return path


def inode_of(path: str) -> int | None:
    """Of the file that the path leads to."""
    info = _stat(path)
    return info.st_ino if info else None


def _as_model(files: Iterable[MappedFile]) -> Model:
    in_order = tuple(sorted(files, key=lambda file: file.name))
    remarks = dict.fromkeys(file.remark for file in in_order if file.remark)
    return Model(files=in_order, remark=". ".join(remarks))


def _open_descriptors(root: KernelRoot, pid: int) -> list[str]:
    try:
        names = root.names(f"/proc/{pid}/fd", FD_LIMIT)
    except ReadingError:
        return []
    return [root.locate(f"/proc/{pid}/fd/{name}") for name in names]


def has_magic(path: str | None) -> bool:
    """Whether the file begins as a GGUF does; False where it cannot be opened or read. Loads one page of it."""
    if path is None:
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: looking loads nothing
        return os.read(fd, 4) == _MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - of paths below /proc the text matters
    except (OSError, ValueError):
        return None
