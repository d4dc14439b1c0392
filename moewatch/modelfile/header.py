"""A bounded walk over a GGUF header: metadata, tensors and where they lie, without reading a weight.

Format: docs/gguf.md of ggml. The file is not trusted: every count is held against the bytes that are left, arrays are
skipped by arithmetic, sums are Python integers, and names are escaped before a person sees them. Rules that llama.cpp
enforces itself (ggml/src/gguf.cpp) are enforced here too, so a file that passes can be loaded and the other way round.
"""

import struct

from msgspec import Struct

from moewatch.errors import ParseError
from moewatch.modelfile.cursor import STRING_LENGTH, Cursor
from moewatch.modelfile.quantisation import BLOCKS, REMOVED
from moewatch.modelfile.source import ByteSource, printable

MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_TENSORS = 1 << 16  # the most in the wild is 47k: deepseek2 with one tensor per expert; so many take 1.2 s and 60 MB
MAX_KEYS = 1 << 12  # the most in the wild is about 100
MAX_KEY_BYTES = 1024  # docs/gguf.md allows 65535, the longest in the wild are below 100; what is kept must stay small
MAX_NAME_BYTES = 128  # GGML_MAX_NAME is 64; forks raise it to 128
MAX_STRINGS = 1 << 22  # vocabulary and merges together: 0.6 million at most in the wild; 4 million take half a second
MAX_FILE_BYTES = 1 << 50  # a claim of more than 1 PiB is damage, not a download that has begun
KEPT_TEXT_BYTES = 1024  # names and types are short; chat templates and licences are passed over
KEPT_ITEMS = 1024  # per-layer arrays are kept (heads, experts; LLAMA_MAX_LAYERS is 512), vocabularies are not
KEPT_ITEMS_IN_ALL = 1 << 15  # a dozen such arrays in the wild; 32 bytes each, where 4,096 keys could have 4 million
MIN_KEY_BYTES = 8 + 4 + 1  # length, type, one byte of value
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # length, dimensions, type, offset

VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# value type id: form; docs/gguf.md, enum gguf_metadata_value_type
SCALARS = {
    number: struct.Struct("<" + letter)
    for number, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
PREAMBLE = struct.Struct("<4sI")
COUNTS = struct.Struct("<QQ")
U32 = struct.Struct("<I")
ARRAY_HEAD = struct.Struct("<IQ")
TENSOR_TAILS = tuple(struct.Struct(f"<{n}QIQ") for n in range(MAX_DIMS + 1))  # dimensions, type, offset

Scalar = int | float | bool | str
Value = Scalar | tuple[int | float | bool, ...]


class TensorInfo(Struct, frozen=True, kw_only=True):
    """One tensor as the header has it: `dims` fastest first, `offset` from the file's first byte."""

    name: str
    dims: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int


class GgufHeader(Struct, frozen=True, kw_only=True):
    """What one file says of itself.

    `metadata` has all numbers and flags, text up to KEPT_TEXT_BYTES and arrays of up to KEPT_ITEMS numbers;
    `array_lengths` has the length of every array, kept or not (`tokenizer.ggml.tokens` is the vocabulary's size).
    `end_bytes` is how long the file must be; it is longer than the file when a download is not finished.
    """

    version: int
    alignment: int
    metadata: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    end_bytes: int

    def text(self, key: str) -> str:
        """A text value, printable; empty when there is none."""
        value = self.metadata.get(key)
        return printable(value) if isinstance(value, str) else ""

    def count(self, key: str) -> int | None:
        """A whole number of 0 or more, or the largest of an array of them (one per layer); None when there is none."""
        value = self.metadata.get(key)
        found = [
            v
            for v in (value if isinstance(value, tuple) else (value,))
            if isinstance(v, int) and not isinstance(v, bool)
        ]
        return max(found) if found and min(found) >= 0 else None


def read_header(source: ByteSource) -> GgufHeader:
    """Walk the header of one file; raises ParseError with one sentence that begins with the file's name."""
    cursor = Cursor(source)
    version = _read_version(cursor, source)
    n_tensors, n_keys = (int(n) for n in cursor.unpack(COUNTS))
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise ParseError(
            f"{source.name} claims {n_keys} keys and {n_tensors} tensors, so it is damaged; fetch it again."
        )
    cursor.need(n_keys * MIN_KEY_BYTES + n_tensors * MIN_TENSOR_BYTES)
    metadata, lengths = _read_metadata(cursor, source.name, n_keys)
    alignment = _derive_alignment(metadata, source.name)
    raw = _read_tensors(cursor, source.name, n_tensors)
    data_offset = _align(cursor.offset, alignment)
    tensors = tuple(
        TensorInfo(name=name, dims=dims, type_name=BLOCKS[kind][0], offset=data_offset + offset, size_bytes=size)
        for name, dims, kind, offset, size in raw
    )
    end = _check_places(tensors, data_offset, alignment, source.name) if tensors else cursor.offset
    return GgufHeader(
        version=version,
        alignment=alignment,
        metadata=metadata,
        array_lengths=lengths,
        tensors=tensors,
        data_offset=data_offset if tensors else cursor.offset,
        end_bytes=end,
    )


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _read_version(cursor: Cursor, source: ByteSource) -> int:
    name = source.name
    if source.size_bytes == 0:
        raise ParseError(f"{name} is empty; fetch it again.")
    head = cursor.take(min(source.size_bytes, 64))
    if head[:4] != b"GGUF":
        raise ParseError(f"{name} is {_guess_kind(head)}.")
    if len(head) < PREAMBLE.size:
        raise cursor.refuse_short()
    version = int(PREAMBLE.unpack_from(head)[1])
    if version and not version & 0xFFFF:
        raise ParseError(
            f"{name} is a big-endian GGUF file, which only big-endian machines can map; fetch the usual one."
        )
    if version > max(VERSIONS):
        raise ParseError(f"{name} is GGUF version {version}; this moewatch reads 2 and 3, a newer one is needed.")
    if version not in VERSIONS:
        raise ParseError(f"{name} is GGUF version {version}, which llama.cpp no longer reads; convert the model again.")
    cursor.rewind(PREAMBLE.size)
    return version


def _guess_kind(head: bytes) -> str:
    """What people have instead of a model, after 'NAME is'."""
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page and no model: the download went wrong; fetch it again"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer and no model; run 'git lfs pull'"
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"ggml", b"ggmf", b"ggjt"):
        return "a GGML file of before 2023-08, which llama.cpp no longer reads; convert the model again"
    if not head.strip(b"\0"):
        return "full of zeros: the download is not finished, or the disk lost it; fetch it again"
    return "no GGUF file; name a model file (.gguf)"


def _read_key(cursor: Cursor, name: str, cap: int, what: str) -> bytes:
    """A length and that many bytes: a key or a tensor's name."""
    length = int(cursor.unpack(STRING_LENGTH)[0])
    cursor.need(length)
    if length > cap:
        raise ParseError(f"{name} has a {what} of {length} bytes, so it is damaged; fetch it again.")
    return cursor.take(length)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _read_metadata(cursor: Cursor, name: str, n_keys: int) -> tuple[dict[str, Value], dict[str, int]]:
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    seen: set[bytes] = set()
    n_strings = n_kept = 0
    for _ in range(n_keys):
        raw = _read_key(cursor, name, MAX_KEY_BYTES, "key")
        key = _decode(raw)
        if raw in seen:
            raise ParseError(f"{name} has the key {printable(key)} twice, so it is damaged; fetch it again.")
        seen.add(raw)
        kind = int(cursor.unpack(U32)[0])
        if kind in SCALARS:
            metadata[key] = cursor.unpack(SCALARS[kind])[0]
        elif kind == STRING:
            length = int(cursor.unpack(STRING_LENGTH)[0])
            cursor.need(length)
            if length <= KEPT_TEXT_BYTES:
                metadata[key] = _decode(cursor.take(length))
            else:
                cursor.skip(length)
        elif kind == ARRAY:
            item, count = (int(n) for n in cursor.unpack(ARRAY_HEAD))
            lengths[key] = count
            if item == STRING:
                n_strings += count
                cursor.need(count * STRING_LENGTH.size)
                if n_strings > MAX_STRINGS:
                    raise ParseError(f"{name} has more than {MAX_STRINGS} strings, so it is damaged; fetch it again.")
                cursor.skip_strings(count)
            elif kept := _read_numbers(cursor, name, key, item, count, min(KEPT_ITEMS, KEPT_ITEMS_IN_ALL - n_kept)):
                metadata[key] = kept
                n_kept += count
        else:
            raise ParseError(
                f"{name} has a value of unknown type {kind} at key {printable(key)}; a newer moewatch is needed."
            )
    return metadata, lengths


def _read_numbers(  # noqa: PLR0917 - one caller
    cursor: Cursor, name: str, key: str, item: int, count: int, limit: int
) -> tuple[int | float | bool, ...] | None:
    """The array when it has no more than `limit` items, to be kept; else passed over in one step."""
    if item not in SCALARS:
        what = "an array of arrays" if item == ARRAY else f"an array of unknown type {item}"
        raise ParseError(f"{name} has {what} at key {printable(key)}, which llama.cpp does not read either.")
    form = SCALARS[item]
    cursor.need(count * form.size)
    if count > limit:
        cursor.skip(count * form.size)
        return None
    return struct.unpack(f"<{count}{form.format[-1]}", cursor.take(count * form.size))


def _derive_alignment(metadata: dict[str, Value], name: str) -> int:
    value = metadata.get("general.alignment", 32)  # GGUF_DEFAULT_ALIGNMENT
    # 2^30: far above any page size, far below what would push the data past every disk
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 30 or value & (value - 1):
        raise ParseError(f"{name} has an alignment that is no power of two, so it is damaged; fetch it again.")
    return value


_RawTensor = tuple[str, tuple[int, ...], int, int, int]  # name, dims, type id, offset in the data, size


def _read_tensors(cursor: Cursor, name: str, n_tensors: int) -> list[_RawTensor]:
    found: list[_RawTensor] = []
    seen: set[bytes] = set()
    for _ in range(n_tensors):
        raw = _read_key(cursor, name, MAX_NAME_BYTES, "tensor name")
        if raw in seen:
            raise ParseError(
                f"{name} has the tensor {printable(_decode(raw))} twice, so it is damaged; fetch it again."
            )
        seen.add(raw)
        tensor = _decode(raw)
        n_dims = int(cursor.unpack(U32)[0])
        if n_dims > MAX_DIMS:
            raise ParseError(
                f"{name}: tensor {printable(tensor)} has {n_dims} dimensions, more than {MAX_DIMS}; the file is damaged."
            )
        *dims, kind, offset = (int(n) for n in cursor.unpack(TENSOR_TAILS[n_dims]))
        found.append((tensor, tuple(dims), kind, offset, _derive_size(tensor, dims, kind, name)))
    return found


def _derive_size(tensor: str, dims: list[int], kind: int, name: str) -> int:
    """Bytes of one tensor; ggml/src/ggml.c, ggml_row_size: each row is whole blocks."""
    if kind in REMOVED:
        raise ParseError(
            f"{name}: tensor {printable(tensor)} has type {REMOVED[kind]}, which llama.cpp no longer reads."
        )
    if kind not in BLOCKS:
        raise ParseError(f"{name}: tensor {printable(tensor)} has the unknown type {kind}; a newer moewatch is needed.")
    type_name, block, block_bytes = BLOCKS[kind]
    elements = 1
    for length in dims:
        elements *= length
    if elements == 0:
        raise ParseError(f"{name}: tensor {printable(tensor)} has a dimension of 0; the file is damaged.")
    if (dims[0] if dims else 1) % block:
        raise ParseError(
            f"{name}: tensor {printable(tensor)} has rows of {dims[0] if dims else 1} weights, no multiple of the {block} of {type_name}; the file is damaged."
        )
    return elements // block * block_bytes


def _check_places(tensors: tuple[TensorInfo, ...], data_offset: int, alignment: int, name: str) -> int:
    """Where the last tensor ends; refuses tensors that overlap, lie askew, or lie beyond any disk."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    free = data_offset
    before = ordered[0]
    for tensor in ordered:
        if tensor.offset % alignment:
            raise ParseError(
                f"{name}: tensor {printable(tensor.name)} is not aligned to {alignment} bytes; the file is damaged."
            )
        if tensor.offset < free:
            raise ParseError(
                f"{name}: tensors {printable(before.name)} and {printable(tensor.name)} overlap; the file is damaged."
            )
        free = tensor.offset + tensor.size_bytes
        before = tensor
    if free > MAX_FILE_BYTES:
        raise ParseError(f"{name}: tensor {printable(before.name)} would end beyond 1 PiB; the file is damaged.")
    return free
