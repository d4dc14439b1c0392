"""The demo's model: a small, valid Mixture-of-Experts GGUF, written once and kept in the user's cache directory.

Its numbers are random, its shape is a real one (architecture qwen3moe, F16, sixteen experts of which two are used), so that
everything that reads a GGUF reads this one too. Format: docs/gguf.md of ggml-org/ggml. The writer is our own because the
`gguf` package would keep numpy in the dashboard's process for the whole demo; the tests hold it against `gguf`.
"""

import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from moewatch.errors import MoewatchError
from moewatch.home import home_directory
from moewatch.linux.blockdev import disks_of
from moewatch.linux.pagecache import SystemPageCache
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.modelfile.layout import read_layout
from moewatch.units import MIB, format_size

MODEL_NAME = "moewatch demo"
FILE_NAME = "demo-model.gguf"
_PARTIAL = ".partial-"

IN_MEMORY = frozenset(
    {"tmpfs", "ramfs", "devtmpfs"}
)  # their pages cannot be evicted to a disk: nothing would be read again
SPARE_BYTES = 256 * MIB  # never fill somebody's disk to the brim
ALIGNMENT = 32  # general.alignment's default

_F32, _F16 = 0, 1  # ggml_type
_U32, _FLOAT, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5  # gguf_metadata_value_type

# Small finite halves: sign, exponent 2^-5 to 2^-2, any mantissa. Incompressible, so that a compressing file system reads them all.
_HIGH_BYTES = bytes((b & 0x80) | (0x28 + ((b >> 2) & 3) * 4) | (b & 3) for b in range(256))


class Geometry(Struct, frozen=True, kw_only=True):
    """The model's dimensions: 825 MiB, of which a token needs 145.

    So much that missing half of the experts slows a fast disk down visibly, and so little that a slow or busy one
    (150 MB/s) still makes two tokens/s then: fewer than 20 in a verdict's ten seconds could not be told from noise.
    """

    n_layer: int = 8
    n_expert: int = 16
    n_used: int = 2
    dim: int = 2048
    ff: int = 512
    n_head: int = 8
    n_head_kv: int = 2
    head_dim: int = 64
    n_word: int = 2048  # tokens besides the three special ones


class _Part(Struct, frozen=True):
    """A tensor to be written: ggml order of dimensions (fastest first)."""

    name: str
    shape: tuple[int, ...]
    kind: int

    @property
    def size_bytes(self) -> int:
        size = 4 if self.kind == _F32 else 2
        for n in self.shape:
            size *= n
        return size


def _parts(g: Geometry) -> Iterator[_Part]:
    """All tensors in file order, named as llama.cpp names them (gguf-py/gguf/constants.py, QWEN3MOE)."""
    vocab = g.n_word + 3
    yield _Part("token_embd.weight", (g.dim, vocab), _F16)
    yield _Part("output_norm.weight", (g.dim,), _F32)
    yield _Part("output.weight", (g.dim, vocab), _F16)
    for layer in range(g.n_layer):
        block = f"blk.{layer}."
        yield _Part(block + "attn_norm.weight", (g.dim,), _F32)
        yield _Part(block + "attn_q.weight", (g.dim, g.n_head * g.head_dim), _F16)
        yield _Part(block + "attn_k.weight", (g.dim, g.n_head_kv * g.head_dim), _F16)
        yield _Part(block + "attn_v.weight", (g.dim, g.n_head_kv * g.head_dim), _F16)
        yield _Part(block + "attn_output.weight", (g.n_head * g.head_dim, g.dim), _F16)
        yield _Part(block + "attn_q_norm.weight", (g.head_dim,), _F32)
        yield _Part(block + "attn_k_norm.weight", (g.head_dim,), _F32)
        yield _Part(block + "ffn_norm.weight", (g.dim,), _F32)
        yield _Part(block + "ffn_gate_inp.weight", (g.dim, g.n_expert), _F32)
        yield _Part(block + "ffn_gate_exps.weight", (g.dim, g.ff, g.n_expert), _F16)
        yield _Part(block + "ffn_up_exps.weight", (g.dim, g.ff, g.n_expert), _F16)
        yield _Part(block + "ffn_down_exps.weight", (g.ff, g.dim, g.n_expert), _F16)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _array(key: str, kind: int, items: list[bytes]) -> bytes:
    return _entry(key, _ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def _entries(g: Geometry) -> list[bytes]:
    """The metadata: what llama.cpp needs to load a qwen3moe, and a byte-pair tokenizer of the smallest kind."""

    def number(key: str, value: int) -> bytes:
        return _entry(key, _U32, struct.pack("<I", value))

    def real(key: str, value: float) -> bytes:
        return _entry(key, _FLOAT, struct.pack("<f", value))

    def text(key: str, value: str) -> bytes:
        return _entry(key, _STRING, _text(value))

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    words = [chr(b) for b in printable] + [chr(256 + n) for n in range(len(others))]  # GPT-2's byte alphabet
    letters = [chr(c) for c in range(97, 123)]
    words += ["aa", *(a + b + c for a in letters for b in letters for c in letters)][: g.n_word - len(words)]
    tokens = [*words, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    normal, control = struct.pack("<i", 1), struct.pack("<i", 3)
    arch = "qwen3moe."
    return [
        text("general.architecture", "qwen3moe"),
        text("general.name", MODEL_NAME),
        number("general.file_type", 1),  # mostly F16
        number(arch + "block_count", g.n_layer),
        number(arch + "context_length", 8192),
        number(arch + "embedding_length", g.dim),
        number(arch + "feed_forward_length", g.ff * g.n_used),
        number(arch + "expert_feed_forward_length", g.ff),
        number(arch + "expert_count", g.n_expert),
        number(arch + "expert_used_count", g.n_used),
        number(arch + "attention.head_count", g.n_head),
        number(arch + "attention.head_count_kv", g.n_head_kv),
        number(arch + "attention.key_length", g.head_dim),
        number(arch + "attention.value_length", g.head_dim),
        real(arch + "attention.layer_norm_rms_epsilon", 1e-6),
        real(arch + "rope.freq_base", 1e6),
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "qwen2"),
        _array("tokenizer.ggml.tokens", _STRING, [_text(t) for t in tokens]),
        _array("tokenizer.ggml.token_type", _I32, [normal] * len(words) + [control] * 3),
        _array("tokenizer.ggml.merges", _STRING, [_text("a a")]),  # llama.cpp refuses an empty list
        number("tokenizer.ggml.bos_token_id", len(words)),
        number("tokenizer.ggml.eos_token_id", len(words) + 2),
        _entry("tokenizer.ggml.add_bos_token", _BOOL, b"\0"),
    ]


def _pad(size: int) -> int:
    return -size % ALIGNMENT


def _header(g: Geometry) -> bytes:
    entries, parts = _entries(g), list(_parts(g))
    out = [b"GGUF", struct.pack("<IQQ", 3, len(parts), len(entries)), *entries]
    offset = 0
    for part in parts:
        out += [_text(part.name), struct.pack(f"<I{len(part.shape)}Q", len(part.shape), *part.shape)]
        out.append(struct.pack("<IQ", part.kind, offset))
        offset += part.size_bytes + _pad(part.size_bytes)
    raw = b"".join(out)
    return raw + bytes(_pad(len(raw)))


def model_bytes(geometry: Geometry) -> int:
    """How large the file will be."""
    return len(_header(geometry)) + sum(p.size_bytes + _pad(p.size_bytes) for p in _parts(geometry))


def write(path: Path, geometry: Geometry, stopping: threading.Event | None = None) -> None:
    """Write the model under a temporary name beside `path`, push it to the disk, rename it; OSError when that fails.

    MoewatchError when `stopping` is set meanwhile; nothing is left behind then.

    It is synced because dirty pages cannot be dropped from the page cache, and a cold start begins by dropping them.
    """
    block = bytearray(os.urandom(4 * MIB))
    block[1::2] = block[1::2].translate(_HIGH_BYTES)
    ones = struct.pack("<f", 1.0)
    partial = path.with_name(f"{path.name}{_PARTIAL}{os.getpid()}")
    try:
        with partial.open("wb", buffering=0) as file:
            pieces = memoryview(block)
            _write_all(file.fileno(), memoryview(_header(geometry)))
            for part in _parts(geometry):
                left = part.size_bytes
                if part.kind == _F32:
                    _write_all(file.fileno(), memoryview(ones * (left // 4)))
                    left = 0
                while left:
                    if stopping is not None and stopping.is_set():
                        raise MoewatchError("The demo was ended while its model was being written")
                    some = min(left, len(block))
                    _write_all(file.fileno(), pieces[:some])
                    left -= some
                _write_all(file.fileno(), memoryview(bytes(_pad(part.size_bytes))))
            os.fdatasync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view) :]


def cache_dirs() -> tuple[Path, ...]:
    """Where the model may live, best first: the user's cache directory, then /var/tmp (on a disk where home is in memory)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    own = (
        Path(base) if base.startswith("/") else home_directory() / ".cache"
    )  # a relative path is to be ignored (XDG base directory spec)
    return own / "moewatch", Path(f"/var/tmp/moewatch-{os.getuid()}")  # noqa: S108 - a directory of our own, mode 0700, owner checked


def is_intact(path: Path, geometry: Geometry) -> bool:
    """Whether the demo's model stands there whole: readable, of this geometry, of the right length."""
    try:
        if path.stat().st_size != model_bytes(geometry):
            return False
        with path.open("rb") as file:
            header = _header(geometry)
            return file.read(len(header)) == header and bool(read_layout(path).tensors)
    except (OSError, MoewatchError):
        return False


def _refusal(directory: Path, geometry: Geometry) -> str | None:
    """Why the model cannot live there, or None; makes the directory."""
    refusal = None
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file_system = disks_of(KernelRoot.system(), directory).file_system
        free, needed = shutil.disk_usage(directory).free, model_bytes(geometry)
        if directory.stat().st_uid != os.getuid():
            refusal = f"{directory} belongs to another user"
        elif file_system in IN_MEMORY:
            refusal = f"{directory} lies in memory ({file_system}), where nothing is ever read from a disk"
        elif is_intact(directory / FILE_NAME, geometry):
            refusal = None
        elif not os.access(directory, os.W_OK):
            refusal = f"{directory} is not writable"
        elif free < needed + SPARE_BYTES:
            refusal = f"{directory} has {format_size(free)} free and {format_size(needed)} and some room are needed"
    except ReadingError as error:
        refusal = str(error)
    except OSError as error:
        refusal = f"{error.filename or directory}: {(error.strerror or 'input/output error').lower()}"
    return refusal


def ensure(
    tell: Callable[[str], None],
    cache_dir: Path | None = None,
    geometry: Geometry | None = None,
    stopping: threading.Event | None = None,
) -> Path:
    """The model's path; written first when it is not there. MoewatchError in one sentence when no place will do.

    `tell` hears where it is going to be and how large before anything is written.
    """
    geometry = geometry or Geometry()
    refusals = []
    for directory in (cache_dir,) if cache_dir else cache_dirs():
        refusal = _refusal(directory, geometry)
        if refusal is not None:
            refusals.append(refusal)
            continue
        path = directory / FILE_NAME
        if is_intact(path, geometry):
            return path
        size = format_size(model_bytes(geometry))
        tell(f"Writing the demo's model once: {path}, {size} (moewatch demo --clean removes it)")
        try:
            _sweep(directory)
            write(path, geometry, stopping)
        except OSError as error:
            raise MoewatchError(
                f"The demo's model could not be written to {path}: {(error.strerror or str(error)).lower()}"
            ) from error
        return path
    raise MoewatchError(
        f"The demo needs {format_size(model_bytes(geometry))} on a disk: {'; '.join(refusals)}; set XDG_CACHE_HOME to a directory that will do"
    )


def _sweep(directory: Path) -> None:
    """Remove what demos left that were killed while they wrote."""
    for path in directory.glob(f"{FILE_NAME}{_PARTIAL}*"):
        pid = path.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)


def remove(cache_dir: Path | None = None) -> tuple[Path, ...]:
    """Delete the model and whatever an interrupted run left; the paths that were removed."""
    removed = []
    for directory in (cache_dir,) if cache_dir else cache_dirs():
        try:
            found = [p for p in directory.iterdir() if p.name.startswith(FILE_NAME)]
            for path in found:
                path.unlink()
                removed.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MoewatchError(
                f"{error.filename} could not be removed: {(error.strerror or 'input/output error').lower()}"
            ) from error
    return tuple(removed)


def drop_cache(path: Path) -> float:
    """Ask the kernel to forget the file's pages, so that the start is cold (posix_fadvise(2)); only ever our own file.

    Returns the share of it that is in memory all the same: pages that another process has mapped stay.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            pages = SystemPageCache().mincore(file.fileno(), 0, size)  # ours, so it tells the truth
        except ReadingError:
            return 0.0
    return pages.count(1) / len(pages) if pages else 0.0
