"""A cursor over a header: reads ahead in chunks, skips without reading, and never passes the end of what there is."""

import struct

from moewatch.errors import ParseError
from moewatch.modelfile.source import ByteSource

HEADER_CAP_BYTES = 1 << 28  # 256 MiB; 150k tokens with 280k merges and 1,000 tensors take 9.5 MB
STRING_LENGTH = struct.Struct("<Q")


class Cursor:
    """Moves forward through a ByteSource; every step is checked against the bytes that are left."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._limit = min(source.size_bytes, HEADER_CAP_BYTES)
        self._chunk = b""
        self._chunk_at = 0  # offset of the chunk in the file
        self._at = 0  # next byte, within the chunk; may lie past it after a skip

    @property
    def offset(self) -> int:
        """Where the next byte lies in the file."""
        return self._chunk_at + self._at

    @property
    def left(self) -> int:
        """Bytes that a header may still use."""
        return self._limit - self.offset

    def refuse_short(self) -> ParseError:
        """The sentence for a header that goes on where the file, or patience, ends."""
        name = self._source.name
        if self._source.size_bytes > HEADER_CAP_BYTES:
            return ParseError(
                f"{name} claims a header of more than {HEADER_CAP_BYTES >> 20} MiB, so it is damaged; fetch it again."
            )
        return ParseError(f"{name} ends within its header: the download is not finished, or the file is damaged.")

    def need(self, n_bytes: int) -> None:
        """Refuse a claim of more bytes than are left."""
        if n_bytes > self.left:
            raise self.refuse_short()

    def _fill(self, n_bytes: int) -> None:
        """Have at least n_bytes from the current offset in the chunk."""
        self.need(n_bytes)
        start = self.offset
        self._chunk = self._source.read(start, min(max(n_bytes, self._source.chunk_bytes), self._limit - start))
        self._chunk_at, self._at = start, 0
        if len(self._chunk) < n_bytes:  # it shrank while we read
            raise self.refuse_short()

    def unpack(self, form: struct.Struct) -> tuple[int | float | bool, ...]:
        """The next fields of that form."""
        if self._at + form.size > len(self._chunk):
            self._fill(form.size)
        found = form.unpack_from(self._chunk, self._at)
        self._at += form.size
        return found

    def take(self, n_bytes: int) -> bytes:
        """The next n bytes."""
        if self._at + n_bytes > len(self._chunk):
            self._fill(n_bytes)
        start = self._at
        self._at += n_bytes
        return self._chunk[start : self._at]

    def rewind(self, offset: int) -> None:
        """Go back to an offset within the first chunk."""
        self._at = offset - self._chunk_at

    def skip(self, n_bytes: int) -> None:
        """Pass over n bytes without reading them."""
        self.need(n_bytes)
        self._at += n_bytes

    def skip_strings(self, count: int) -> None:
        """Pass over `count` strings: each must be visited, since only its length says where the next begins.

        This loop is the whole cost of a header with a large vocabulary (430k strings: see tests/benchmarks/header.py),
        so it works on locals and leaves the checks to the moment a chunk ends.
        """
        unpack_from, width = STRING_LENGTH.unpack_from, STRING_LENGTH.size
        while count:
            if self._at + width > len(self._chunk):
                self._fill(width)
            chunk, at, last = self._chunk, self._at, len(self._chunk) - width
            for visited in range(1, count + 1):  # noqa: B007 - used after the loop
                at += width + unpack_from(chunk, at)[0]
                if at > last:
                    break
            count -= visited
            self._at = at
            if self.left < 0:
                raise self.refuse_short()
