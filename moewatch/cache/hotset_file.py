"""Hot sets on disk: whose they are, read from a file that is not trusted, written whole or not at all."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from moewatch.cache.hotset import HotFile, HotModel, Hotset, decode_hotset, encode_hotset
from moewatch.domain.layout import ModelLayout
from moewatch.errors import ForbiddenError, MoewatchError, ParseError, UnusableFileError
from moewatch.modelfile.source import FileSource, printable

MAX_FILE_BYTES = 16 << 20  # 60 GiB in pieces of 128 KiB (what read-ahead leaves) are 500,000 runs: 1.5 MB
HASHED_HEADER_BYTES = 64 << 20  # headers are 10 MB at most in the wild
HASH_CHUNK_BYTES = 1 << 20
SAVE_WORDS = "moewatch hotset save FILE"


def identify(layout: ModelLayout) -> HotModel:
    """Sizes of all shards and a hash of each header (10 ms per 10 MB).

    Raises:
        MoewatchError: a shard cannot be read.
    """
    headers = layout.header_bytes or (0,) * len(layout.files)
    return HotModel(
        name=layout.summary.name or layout.files[0].name,
        files=tuple(
            HotFile(name=file.name, size_bytes=file.size_bytes, header_sha256=_hash_header(path, length))
            for file, path, length in zip(layout.files, layout.paths, headers, strict=True)
        ),
    )


def _hash_header(path: str, length: int) -> str:
    digest = hashlib.sha256()
    left = min(length, HASHED_HEADER_BYTES)
    with FileSource(Path(path)) as source:
        at = 0
        while left > 0 and (chunk := source.read(at, min(left, HASH_CHUNK_BYTES))):
            digest.update(chunk)
            at += len(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def read_hotset(path: Path) -> Hotset:
    """A hot set from a regular file.

    Raises:
        UnusableFileError: there is none, or (ParseError) it is damaged, or no hot set at all.
        ForbiddenError: this user may not read it.
    """
    name = printable(path.name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise UnusableFileError(f"{name} is no regular file; name a hot set ({SAVE_WORDS}).")
            if found.st_size > MAX_FILE_BYTES:
                raise ParseError(f"{name} is too large for a hot set; make one with: {SAVE_WORDS}")
            with os.fdopen(os.dup(fd), "rb") as file:
                content = file.read(MAX_FILE_BYTES)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise UnusableFileError(f"There is no file {printable(str(path))}; make one with: {SAVE_WORDS}") from None
    except PermissionError:
        raise ForbiddenError(f"You may not read {name}; give yourself read permission.") from None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise UnusableFileError(f"{name} cannot be read: {words}.") from None
    return decode_hotset(content, name)


def check_model(hotset: Hotset, model: HotModel, name: str) -> None:
    """Refuse the hot set of another model; the files' names and places do not matter.

    Raises:
        UnusableFileError: the sentence names both.
    """
    if hotset.model.digest == model.digest:
        return
    theirs, ours = printable(hotset.model.name), printable(model.name)
    if theirs == ours:
        raise UnusableFileError(
            f"{name} is the hot set of another file of {theirs} (other sizes or another header); save one for this file."
        )
    raise UnusableFileError(f"{name} is the hot set of {theirs}, not of {ours}; save one for this model.")


def write_hotset(hotset: Hotset, path: Path, *, force: bool = False) -> int:
    """Write under another name, then rename: a file is whole or not there. Returns its size in bytes.

    Raises:
        UnusableFileError: it exists already (and not `force`), or cannot be written.
    """
    content = encode_hotset(hotset)
    if len(content) > MAX_FILE_BYTES:
        raise MoewatchError(f"{path.name} would be too large for a hot set; watch for a shorter time.")
    refusal = UnusableFileError(f"{path} exists already; choose another name, or --force replaces it.")
    temporary: Path | None = None
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.chmod(0o644)
        if force:
            temporary.replace(path)
        else:
            _move_to_new(temporary, path)
    except FileExistsError:
        raise refusal from None
    except OSError as error:
        raise UnusableFileError(f"{path} could not be written: {error.strerror}; nothing was changed.") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return len(content)


def _move_to_new(temporary: Path, path: Path) -> None:
    """A rename that fails when the name is taken; file systems without links (FAT) get a look and then a rename."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError from None
        temporary.replace(path)
