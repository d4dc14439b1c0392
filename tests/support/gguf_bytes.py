"""GGUF headers put together byte by byte, for what GGUFWriter would refuse to write."""

import struct
from collections.abc import Sequence

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
F16_TYPE, Q4_K_TYPE = 1, 12


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A length and the bytes; `length` lies about it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def string(key: str, value: str | bytes) -> bytes:
    return pair(key, STRING, text(value))


def array(key: str, item: int, count: int, body: bytes = b"") -> bytes:
    return pair(key, ARRAY, struct.pack("<IQ", item, count) + body)


def tensor(
    name: str | bytes, dims: Sequence[int], kind: int = F16_TYPE, offset: int = 0, n_dims: int | None = None
) -> bytes:
    head = text(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
    return head + b"".join(struct.pack("<Q", length) for length in dims) + struct.pack("<IQ", kind, offset)


def header(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_keys is None else n_keys)
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)


def with_data(head: bytes, n_bytes: int, alignment: int = 32) -> bytes:
    """The header, its padding, and that many bytes of weights."""
    return head + bytes(-len(head) % alignment) + bytes(n_bytes)


class BytesSource:
    """A ByteSource over bytes at hand."""

    def __init__(self, content: bytes, chunk_bytes: int = 1 << 18, name: str = "model.gguf") -> None:
        self.name = name
        self.size_bytes = len(content)
        self.chunk_bytes = chunk_bytes
        self.n_reads = 0
        self._content = content

    def read(self, offset: int, length: int) -> bytes:
        self.n_reads += 1
        return self._content[offset : offset + length]
