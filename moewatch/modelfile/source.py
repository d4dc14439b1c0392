"""Where header bytes come from: a regular file here, a web server elsewhere; the walk does not care which."""

import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from moewatch.errors import ForbiddenError, MoewatchError, UnusableFileError

NAME_CHARACTERS = 96  # longer names are cut in sentences; a terminal line has 80 to 120


class ByteSource(Protocol):
    """Random access to one file of known size."""

    name: str  # printable base name, for sentences
    size_bytes: int
    chunk_bytes: int  # how much to ask for at a time: small where reading is cheap, larger across a network

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only where the file ends. Raises MoewatchError."""
        ...


def printable(text: str) -> str:
    """The text with everything a terminal could act on written out as an escape, cut to a line's length."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return shown if len(shown) <= NAME_CHARACTERS else shown[: NAME_CHARACTERS - 1] + "…"


def refuse_open(path: Path, error: OSError | ValueError) -> MoewatchError:
    """The sentence for a file that cannot be opened or read."""
    name = printable(str(path))
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return UnusableFileError(f"There is no file {name}.")
    if isinstance(error, PermissionError):
        return ForbiddenError(f"You may not read {name}; run moewatch as its owner, or give yourself read permission.")
    reason = error.strerror if isinstance(error, OSError) else None
    return UnusableFileError(f"{name} cannot be read: {printable(reason or str(error))}.")


class FileSource:
    """A regular file, opened so that nothing else (a pipe, a device, a directory) can hang or mislead the walk."""

    chunk_bytes = 1 << 18  # 256 KiB: past it preads no longer get faster, and memory stays flat

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = printable(path.name)
        try:
            # looked at before it is opened: opening a device can already act on it
            self._refuse_irregular(os.stat(path))  # noqa: PTH116 - Path.stat would not take what os.open takes
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise refuse_open(path, error) from None
        try:
            found = os.fstat(self._fd)
            self._refuse_irregular(found)
            # exactly what is asked for: read-ahead would load up to 8 MiB of weights, and looking must load nothing
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        except BaseException:
            os.close(self._fd)
            raise
        self.size_bytes = found.st_size
        self.mtime_ns = found.st_mtime_ns

    def _refuse_irregular(self, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode):
            return
        kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
        kind = next((kind for test, kind in kinds if test(found.st_mode)), "a device")
        raise UnusableFileError(f"{printable(str(self.path))} is {kind}; name a model file (.gguf).")

    def read(self, offset: int, length: int) -> bytes:
        """pread(2); repeats short reads until the file ends."""
        try:
            got = os.pread(self._fd, length, offset)
            while 0 < len(got) < length:
                more = os.pread(self._fd, length - len(got), offset + len(got))
                if not more:
                    break
                got += more
        except (OSError, OverflowError) as error:
            raise refuse_open(self.path, error if isinstance(error, OSError) else ValueError(str(error))) from None
        return got

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
