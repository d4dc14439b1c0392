"""The words of the file format "moewatch-trace"; docs/reference/trace.md describes it key by key."""

from typing import TypeVar

import msgspec

from moewatch.domain.encoding import encode_json
from moewatch.domain.sample import Count, Header, Sample
from moewatch.errors import ParseError

FORMAT = "moewatch-trace"
VERSION = 1
GZIP_WBITS = 31  # zlib: 15 bits of window + 16 for a gzip header
# a Sample of 128 layers x 512 experts (base64 of 64 KiB) and long lists of gaps stays below 200 kB
MAX_LINE_BYTES = 4 << 20
_REASON_ENDS = 60  # characters of either end of what the decoder says, which quotes the file

_header = msgspec.json.Decoder(Header)
_sample = msgspec.json.Decoder(Sample)


class _Opening(msgspec.Struct):
    """The two keys that are looked at before anything else is believed."""

    format: str | None = None
    version: Count | None = None


_opening = msgspec.json.Decoder(_Opening)
Decoded = TypeVar("Decoded")


def parse_header(line: bytes, name: str) -> Header:
    """The Header in a recording's first line; ParseError in one sentence when it is none or of a newer version."""
    if not line.strip():
        raise ParseError(f"{name} is no recording: it is empty.")
    try:
        opening = _opening.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{name} is no recording: line 1 is not the header that `moewatch record` writes.") from error
    if opening.format != FORMAT:
        raise ParseError(f'{name} is no recording: line 1 does not say "format": "{FORMAT}".')
    if opening.version is None or opening.version < 1:
        raise ParseError(f"{name}: line 1 names no version of the format that exists.")
    if opening.version > VERSION:
        raise ParseError(
            f"{name} is a recording of version {opening.version} and this moewatch reads up to version {VERSION}: "
            "update moewatch to replay it."
        )
    return _decoded(_header, line, name, 1)


def parse_sample(line: bytes, name: str, number: int) -> Sample:
    """The Sample in line `number` (from 1); ParseError names file and line."""
    return _decoded(_sample, line, name, number)


def format_line(record: Header | Sample) -> bytes:
    """One line with its line feed, UTF-8."""
    return encode_json(record) + b"\n"


def _decoded(decoder: "msgspec.json.Decoder[Decoded]", line: bytes, name: str, number: int) -> "Decoded":
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "".join(c for c in str(error) if c.isprintable())
        if len(what) > 2 * _REASON_ENDS:  # what is wrong stands first, where it is last
            what = f"{what[:_REASON_ENDS]}…{what[-_REASON_ENDS:]}"
        raise ParseError(f"{name}, line {number} cannot be read: {what}.") from error
    except RecursionError as error:
        raise ParseError(f"{name}, line {number} cannot be read: it is nested too deeply.") from error
