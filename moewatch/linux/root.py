"""Where /proc and /sys are, and bounded reads below them."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from msgspec import Struct

from moewatch.domain.sample import Gap, GapReason
from moewatch.errors import ExitCode, MoewatchError, ParseError

READ_LIMIT_BYTES = 1 << 20  # /proc/vmstat is 4 KiB, diskstats of 1,000 disks 120 KiB
LIST_LIMIT = 1 << 16  # names in one directory; pid_max is 4,194,304 at most but 32,768 by default
COUNT_LIMIT = 1 << 63  # what a counter may reach before it is nonsense (and before a recording could not hold it)

_REASONS = {
    errno.EACCES: GapReason.DENIED,
    errno.EPERM: GapReason.DENIED,
    errno.ENOENT: GapReason.ABSENT,
    errno.ENOTDIR: GapReason.ABSENT,
    errno.ENODEV: GapReason.ABSENT,
    errno.ENXIO: GapReason.ABSENT,
    errno.ESRCH: GapReason.VANISHED,
}

T = TypeVar("T")


class ReadingError(MoewatchError):
    """A reading that could not be had: `reason` for the program, `detail` (one sentence) for the person."""

    exit_code = ExitCode.FORBIDDEN  # where nothing can be said without it; 1 would be an answer (`check`: it thrashes)

    def __init__(self, reason: GapReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def gap(self, field: str) -> Gap:
        """The same as a Gap of that field."""
        return Gap(field=field, reason=self.reason, detail=self.detail)


def reading_error(error: OSError, path: str | os.PathLike[str]) -> ReadingError:
    """The ReadingError that stands for an OSError at `path`; what is no permission and no absence is `unsupported`."""
    reason = _REASONS.get(error.errno or 0, GapReason.UNSUPPORTED)
    words = "permission denied" if reason is GapReason.DENIED else error.strerror or type(error).__name__
    return ReadingError(reason, f"{os.fspath(path)} could not be read: {words}")


def parse_count(token: bytes, factor: int = 1) -> int:
    """A decimal counter, times `factor`; ParseError for anything else (signs, underscores, 2^63 and more)."""
    if not token.isdigit() or len(token) > 19:  # noqa: PLR2004 - digits of 2^63
        raise ParseError(f"{token[:40]!r} is no counter")
    count = int(token) * factor
    if count >= COUNT_LIMIT:
        raise ParseError(f"{token[:40]!r} is too large for a counter")
    return count


def parse_keyed(content: bytes, wanted: dict[bytes, int]) -> dict[bytes, int]:
    """The wanted `key value` or `key: value unit` lines, each value times its factor; other lines are skipped."""
    found: dict[bytes, int] = {}
    for line in content.split(b"\n"):
        fields = line.replace(b":", b" ", 1).split()
        if len(fields) > 1 and (factor := wanted.get(fields[0])) is not None:
            found[fields[0]] = parse_count(fields[1], factor)
    return found


class KernelRoot(Struct, frozen=True):
    """The kernel's trees and the two sizes that its files leave out.

    Paths are written as the manual pages write them (`/proc/meminfo`, `/sys/block`): what begins with `/proc` or
    `/sys` is looked up below `proc` and `sys`, any other absolute path as it is.
    """

    proc: Path
    sys: Path
    page_bytes: int  # sysconf(_SC_PAGESIZE)
    tick_hz: int  # sysconf(_SC_CLK_TCK): clock ticks per second in /proc/PID/stat

    @classmethod
    def system(cls) -> Self:
        """This machine."""
        return cls(
            proc=Path("/proc"),
            sys=Path("/sys"),
            page_bytes=os.sysconf("SC_PAGESIZE"),
            tick_hz=os.sysconf("SC_CLK_TCK"),
        )

    @property
    def is_system(self) -> bool:
        """Whether these are the machine's own trees (then libudev speaks of the same devices)."""
        return self.sys == Path("/sys")

    def locate(self, path: str | os.PathLike[str]) -> str:
        """The path in this tree."""
        text = os.fspath(path)
        for name, tree in (("/proc", self.proc), ("/sys", self.sys)):
            if text == name or text.startswith(name + "/"):
                return os.fspath(tree) + text[len(name) :]
        return text

    def read(self, path: str | os.PathLike[str], limit: int = READ_LIMIT_BYTES) -> bytes:
        """The whole file; ReadingError when it cannot be read or is longer than `limit` bytes."""
        try:
            # no buffering: kernel files are made anew at each read, and none is a FIFO that could block
            fd = os.open(self.locate(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise _as_reading_error(error, path) from None
        try:
            parts, size = [], 0
            while part := os.read(fd, min(limit + 1 - size, 1 << 16)):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise ReadingError(GapReason.MALFORMED, f"{os.fspath(path)} is longer than {limit} bytes")
            return b"".join(parts)
        except OSError as error:
            raise reading_error(error, path) from None
        finally:
            os.close(fd)

    def read_text(self, path: str | os.PathLike[str], limit: int = 4096) -> str:
        """A one-line attribute of /sys, stripped; undecodable bytes become U+FFFD."""
        return self.read(path, limit).decode(errors="replace").strip("\0 \n\t")

    def parse(self, path: str | os.PathLike[str], parser: Callable[[bytes], T], limit: int = READ_LIMIT_BYTES) -> T:
        """Read and parse; a ParseError becomes a ReadingError that names the file."""
        content = self.read(path, limit)
        try:
            return parser(content)
        except ParseError as error:
            raise ReadingError(GapReason.MALFORMED, f"{os.fspath(path)} makes no sense: {error}") from None

    def names(self, path: str | os.PathLike[str], limit: int = LIST_LIMIT) -> list[str]:
        """The sorted names in a directory, `limit` at most."""
        try:
            with os.scandir(self.locate(path)) as entries:
                return sorted(entry.name for entry in itertools.islice(entries, limit))
        except OSError as error:
            raise reading_error(error, path) from None

    def pids(self, limit: int = LIST_LIMIT) -> list[int]:
        """All processes that can be seen, in ascending order."""
        return sorted(int(name) for name in self.names("/proc", limit) if name.isdecimal() and name.isascii())

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether something is there."""
        return os.path.exists(self.locate(path))  # noqa: PTH110 - a string is at hand, and this runs per sample

    def link(self, path: str | os.PathLike[str]) -> str:
        """Where a symbolic link points, unresolved."""
        try:
            return os.readlink(self.locate(path))  # noqa: PTH115 - the text must stay as the kernel wrote it
        except OSError as error:
            raise reading_error(error, path) from None


def _as_reading_error(error: OSError | ValueError, path: str | os.PathLike[str]) -> ReadingError:
    if isinstance(error, OSError):
        return reading_error(error, path)
    return ReadingError(GapReason.ABSENT, f"{os.fspath(path)!r} is no path")  # an embedded NUL
