"""Reads a recording line by line, plain or gzip, in bounded memory."""

import io
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from moewatch.domain.sample import Header, Sample
from moewatch.errors import ParseError, UnusableFileError
from moewatch.trace.format import GZIP_WBITS, MAX_LINE_BYTES, parse_header, parse_sample

CHUNK_BYTES = 1 << 16
MAX_EMPTY_LINES = 1000  # none are written; 10 MB of gzip can hold 10^10, an hour's work
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952


def read_trace(path: Path) -> tuple[Header, Iterator[Sample]]:
    """The header, and the Samples as they are read.

    A last line without its line feed that makes no sense was torn by a kill or a full disk and is left out; so is the
    missing end of a gzip stream. Everything else that is wrong raises.

    Raises:
        UnusableFileError: the file cannot be opened.
        ParseError: it is no recording, of a newer version, or a line is malformed; while iterating, too.
    """
    stream = _opened(path)
    lines = _lines(stream, path.name)
    try:
        header = parse_header(next(lines, b""), path.name)
    except BaseException:
        stream.close()
        raise
    return header, _samples(stream, lines, path.name)


def _samples(stream: BinaryIO, lines: Iterator[bytes], name: str) -> Iterator[Sample]:
    with stream:
        n_empty = 0
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                n_empty += 1
                if n_empty > MAX_EMPTY_LINES:
                    raise ParseError(f"{name} has more than {MAX_EMPTY_LINES} empty lines: this is no recording.")
                continue
            try:
                sample = parse_sample(line, name, number)
            except ParseError:
                if line.endswith(b"\n"):
                    raise
                return  # torn
            yield sample


def _opened(path: Path) -> BinaryIO:
    try:
        if not path.is_file():
            kind = "is not a file" if path.exists() else "does not exist"
            raise UnusableFileError(f"{path} {kind}; name a recording made by `moewatch record -o FILE`.")
        plain = path.open("rb")
    except OSError as error:
        raise UnusableFileError(f"{path} cannot be opened: {error.strerror}.") from error
    # by content: recordings are renamed, and some browsers unpack what they save as .gz
    is_packed = plain.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC
    return io.BufferedReader(_Unzipped(plain), CHUNK_BYTES) if is_packed else plain


class _Unzipped(io.RawIOBase):
    """The content of a gzip file up to where it was cut.

    gzip.GzipFile raises EOFError at a cut and loses what its buffers held, which may be the last hundred lines.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._pack = zlib.decompressobj(wbits=GZIP_WBITS)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # typeshed's Buffer has no length
        room = len(buffer)
        while True:
            if self._pack.eof:  # another gzip member may follow, as after `cat a.gz b.gz`
                rest = self._pack.unused_data or self._packed.read(CHUNK_BYTES)
                if not rest:
                    return 0
                self._pack = zlib.decompressobj(wbits=GZIP_WBITS)
            else:
                rest = self._pack.unconsumed_tail or self._packed.read(CHUNK_BYTES)
            content = self._pack.decompress(rest, room)  # also what it still holds when there is no more
            if content or not rest:
                buffer[: len(content)] = content
                return len(content)

    def close(self) -> None:
        super().close()
        self._packed.close()


def _lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    for number in itertools.count(1):
        try:
            line = stream.readline(MAX_LINE_BYTES + 1)
        except (OSError, zlib.error) as error:
            raise ParseError(f"{name} cannot be read on from line {number}: {error}.") from error
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise ParseError(f"{name}, line {number} is longer than {MAX_LINE_BYTES >> 20} MiB: this is no recording.")
        yield line
