"""Files that are no model, or want to hurt: each ends soon, with one sentence that says what it is and what to do."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moewatch.errors import ParseError, UnusableFileError
from moewatch.modelfile.header import KEPT_ITEMS, KEPT_ITEMS_IN_ALL, MAX_STRINGS, read_header
from moewatch.modelfile.layout import read_layout
from moewatch.modelfile.source import FileSource, printable
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F16_TYPE,
    F32,
    Q4_K_TYPE,
    STRING,
    U8,
    U16,
    U32,
    U64,
    BytesSource,
    array,
    header,
    pair,
    string,
    tensor,
    text,
    u32,
    with_data,
)
from tests.support.gguf_models import qwen3moe, write_model

HUGE = 1 << 62
ARCH = string("general.architecture", "llama")
ONE = tensor("output.weight", (32, 4))


def key_of_length(length: int) -> bytes:
    return text(b"x", length) + struct.pack("<I", U8) + b"\0"


CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "html": (b"<!DOCTYPE html><html><body>Not found</body></html>", "is a web page and no model"),
    "html with blanks before": (b"\n\n  <html lang=en>", "is a web page and no model"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
    "old ggml": (b"tjgg\x03\0\0\0" + bytes(64), "no longer reads"),
    "zeros": (bytes(4096), "full of zeros"),
    "noise": (bytes(range(1, 255)) * 4, "is no GGUF file"),
    "magic only": (b"GGUF", "ends within its header"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
    "version 0": (header(version=0), "GGUF version 0, which llama.cpp no longer reads"),
    "version 1": (header(version=1), "GGUF version 1, which llama.cpp no longer reads"),
    "version 4": (header(version=4), "a newer one is needed"),
    "huge tensor count": (header(n_tensors=HUGE), "is damaged"),
    "huge key count": (header(n_keys=HUGE), "is damaged"),
    "negative tensor count": (header(n_tensors=(1 << 64) - 1), "is damaged"),
    "more tensors than bytes": (header(n_tensors=1000), "ends within its header"),
    "more keys than bytes": (header(n_keys=1000), "ends within its header"),
    "huge key": (header([key_of_length(HUGE)]), "ends within its header"),
    "key of 65,536 bytes": (header([pair(b"k" * 65536, U8, b"\0")]), "has a key of 65536 bytes"),
    "huge string": (header([pair("a", STRING, text(b"x", HUGE))]), "ends within its header"),
    "string of 2^64 - 1": (header([pair("a", STRING, text(b"x", (1 << 64) - 1))]), "ends within its header"),
    "unknown value type": (header([pair("a\x1b[2J", 77, bytes(8))]), r"unknown type 77 at key a\x1b[2J"),
    "nested array": (header([array("a", ARRAY, 1, struct.pack("<IQ", U8, 1) + b"\0")]), "an array of arrays"),
    "deeply nested array": (header([array("a", ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 9999)]), "an array of arrays"),
    "array of unknown type": (header([array("a", 55, 1, bytes(8))]), "an array of unknown type 55"),
    "huge number array": (header([array("a", U64, HUGE)]), "ends within its header"),
    "huge string array": (header([array("a", STRING, HUGE)]), "ends within its header"),
    "huge string in an array": (header([array("a", STRING, 1, text(b"", HUGE))]), "ends within its header"),
    "very many empty strings": (header([array("a", STRING, MAX_STRINGS + 1, bytes(8 * MAX_STRINGS + 8))]), "strings"),
    "duplicate key": (header([u32("a", 1), u32("a", 2)]), "has the key a twice"),
    "duplicate tensor": (with_data(header([ARCH], [ONE, ONE]), 4096), "has the tensor output.weight twice"),
    "tensor name of 2 KiB": (header([], [tensor("t" * 2048, (1,))]), "has a tensor name of 2048 bytes"),
    "5 dimensions": (header([], [tensor("t", (1, 1, 1, 1, 1))]), "has 5 dimensions"),
    "2^32 - 1 dimensions": (header([], [tensor("t", (1,), n_dims=(1 << 32) - 1)]), "dimensions, more than 4"),
    "dimension of 0": (header([], [tensor("t", (32, 0))]), "has a dimension of 0"),
    "product beyond 2^64": (header([], [tensor("t", (1 << 63, 1 << 63, 1 << 63, 1 << 63))]), "would end beyond 1 PiB"),
    "product that wraps to 0": (header([], [tensor("t", (1 << 32, 1 << 32))]), "would end beyond 1 PiB"),
    "unknown tensor type": (
        header([], [tensor("t\n", (32,), 99)]),
        r"tensor t\n has the unknown type 99; a newer moewatch",
    ),
    "removed tensor type": (header([], [tensor("t", (32,), 31)]), "type Q4_0_4_4, which llama.cpp no longer reads"),
    "row that is no whole block": (header([], [tensor("t", (100, 8), Q4_K_TYPE)]), "no multiple of the 256 of Q4_K"),
    "offset beyond all disks": (header([], [tensor("t", (32,), offset=1 << 63)]), "would end beyond 1 PiB"),
    "offset askew": (with_data(header([], [tensor("t", (32,), offset=7)]), 4096), "is not aligned to 32 bytes"),
    "overlapping tensors": (
        with_data(header([], [tensor("a", (32, 4)), tensor("b", (32, 4), offset=32)]), 4096),
        "tensors a and b overlap",
    ),
    "same place twice": (with_data(header([], [tensor("a", (32,)), tensor("b", (32,))]), 4096), "overlap"),
    "alignment of 0": (header([u32("general.alignment", 0)], [ONE]), "alignment that is no power of two"),
    "alignment of 24": (header([u32("general.alignment", 24)], [ONE]), "alignment that is no power of two"),
    "alignment of 2^31": (header([u32("general.alignment", 1 << 31)], [ONE]), "alignment that is no power of two"),
    "alignment of text": (header([string("general.alignment", "32")], [ONE]), "alignment that is no power of two"),
    "alignment of true": (header([pair("general.alignment", BOOL, b"\1")], [ONE]), "alignment that is no power of two"),
    "alignment of 32.0": (header([pair("general.alignment", F32, struct.pack("<f", 32))], [ONE]), "no power of two"),
    "no weights at all": (header([ARCH], [ONE]), "short: the download is not finished"),
    "layer 999999999": (
        with_data(header([ARCH], [tensor("blk.999999999.attn_q.weight", (32,))]), 64),
        "is of no layer or expert",
    ),
    "expert 999999999": (
        with_data(header([ARCH], [tensor("blk.0.ffn_up.999999999.weight", (32,))]), 64),
        "is of no layer or expert",
    ),
    "65,536 experts stacked": (
        with_data(header([ARCH], [tensor("blk.0.ffn_up_exps.weight", (1, 1, 65536))]), 1 << 17),
        "is of no layer or expert",
    ),
    "4 billion layers": (header([ARCH, u32("llama.block_count", (1 << 32) - 1)]), "claims 4294967295 for block_count"),
    "4 billion experts": (
        header([ARCH, u32("llama.expert_count", (1 << 32) - 1)]),
        "claims 4294967295 for expert_count",
    ),
    "more experts used than there are": (
        header([ARCH, u32("llama.expert_count", 8), u32("llama.expert_used_count", 9)]),
        "claims to use 9 of 8 experts",
    ),
    "more experts in a tensor than there are": (
        with_data(
            header(
                [ARCH, u32("llama.expert_count", 3), u32("llama.expert_used_count", 2)],
                [tensor("blk.0.ffn_up_exps.weight", (32, 32, 8))],
            ),
            32 * 32 * 8 * 2,
        ),
        "claims 3 experts, but a tensor has 8",
    ),
    "shard of 4 billion": (header([u32("split.count", (1 << 32) - 1), u32("split.no", 5)]), "claims to be shard 6 of"),
    "shard 4 billion of 2": (
        header([u32("split.count", 2), u32("split.no", (1 << 32) - 1)]),
        "claims to be shard 4294967296",
    ),
    "split with no name for it": (header([pair("split.count", U16, b"\2\0")]), "others cannot be found"),
}
MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (lambda path: path.unlink(missing_ok=True), "There is no file"),
    "directory": (lambda path: path.mkdir(), "is a directory"),
    "pipe": (os.mkfifo, "is a pipe"),
    "link to /dev/zero": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read"),
}


def refuse(path: Path) -> str:
    """The one sentence; anything else that is raised fails the test."""
    with pytest.raises(UnusableFileError) as refused:
        read_layout(path)
    sentence = str(refused.value)
    assert sentence.isprintable()
    assert sentence.endswith(".")
    assert len(sentence) < 300
    assert refused.value.exit_code == 5
    assert refused.value.__cause__ is None
    return sentence


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", CONTENTS)
def test_content_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    content, fragment = CONTENTS[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert fragment in refuse(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("case", MAKERS)
def test_what_is_no_regular_file_is_refused(case: str, tmp_path: Path) -> None:
    make, fragment = MAKERS[case]
    make(tmp_path / "model.gguf")
    assert fragment in refuse(tmp_path / "model.gguf")


@pytest.mark.timeout(20)
def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths have 108 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("model.gguf")
        assert "is a socket" in refuse(Path("model.gguf"))


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\ud800", "file.gguf/model.gguf"])
def test_impossible_paths_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file.gguf").touch()
    refuse(tmp_path / name)


def test_a_file_name_cannot_reach_the_terminal_as_an_escape_code(tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b]0;title\x07\n.gguf"
    path.write_bytes(b"nothing")
    assert r"evil\x1b]0;title\x07\n.gguf" in refuse(path)


def test_a_header_larger_than_the_cap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(header([pair("a", STRING, text(b"", 1 << 29))]))
    os.truncate(path, 1 << 40)
    assert "claims a header of more than 256 MiB" in refuse(path)


def test_a_small_header_cut_anywhere_is_refused(tmp_path: Path) -> None:
    pairs = [
        ARCH,
        u32("llama.block_count", 1),
        array("t", STRING, 2, text("a") + text("bc")),
        array("n", U16, 3, bytes(6)),
    ]
    whole = with_data(
        header(pairs, [tensor("token_embd.weight", (32, 4)), tensor("blk.0.x.weight", (32,), offset=256)]), 320
    )
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert len(read_layout(path).tensors) == 2
    for length in range(len(whole)):
        os.truncate(path, length)
        sentence = refuse(path)
        assert "ends within its header" in sentence or "short" in sentence or length < 4
        path.write_bytes(whole)


def test_a_real_header_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_model(qwen3moe(1), tmp_path / "model.gguf")[0]
    (end,) = read_layout(path).header_bytes
    whole = path.read_bytes()
    for length in range(end - 32):  # the padding before the weights is up to 31 bytes
        with pytest.raises(ParseError):
            read_header(BytesSource(whole[:length]))


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    source = BytesSource(header([ARCH, u32("llama.block_count", 1)]))
    source.size_bytes += 1000
    source.read = lambda offset, length: b"GGUF\3\0\0\0"[offset : offset + length]  # type: ignore[method-assign]  # a stub
    with pytest.raises(UnusableFileError, match="ends within its header"):
        read_header(source)


def test_a_read_error_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(qwen3moe(1), tmp_path / "model.gguf")[0]

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("moewatch.modelfile.source.os.pread", fail)
    assert "cannot be read: Input/output error" in refuse(path)


@pytest.mark.timeout(20)
def test_a_pipe_that_takes_the_place_of_a_file_cannot_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    (tmp_path / "before").touch()
    seen = (tmp_path / "before").stat()
    monkeypatch.setattr("moewatch.modelfile.source.os.stat", lambda _: seen)
    with pytest.raises(UnusableFileError, match="is a pipe"):
        FileSource(tmp_path / "model.gguf")


def test_what_is_kept_of_a_hostile_header_is_small() -> None:
    many = [pair(f"k{number}", ARRAY, struct.pack("<IQ", U8, 9000) + bytes(9000)) for number in range(50)]
    assert read_header(BytesSource(header(many))).metadata == {}


def test_reading_needs_neither_numpy_nor_gguf() -> None:
    script = "import sys, moewatch.modelfile.layout; print({'numpy', 'gguf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_refusing_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not walked
    for _ in range(5):
        refuse(tmp_path / "model.gguf")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counted, not walked


def test_large_arrays_are_passed_over_unread() -> None:
    n_items = 1_000_000
    content = header([array("scores", F32, n_items, bytes(4 * n_items)), u32("general.after", 7)])
    source = BytesSource(content, chunk_bytes=4096)
    found = read_header(source)
    assert found.array_lengths == {"scores": n_items}
    assert found.metadata == {"general.after": 7}
    assert source.n_reads == 2


def test_short_arrays_and_text_are_kept_long_ones_are_not() -> None:
    pairs = [array("heads", U32, 3, struct.pack("<3I", 8, 0, 8)), string("template", "x" * 5000), string("short", "y")]
    found = read_header(BytesSource(header(pairs)))
    assert found.metadata == {"heads": (8, 0, 8), "short": "y"}
    assert found.count("heads") == 8
    assert (found.text("short"), found.text("heads"), found.count("short")) == ("y", "", None)


def test_many_short_arrays_are_not_all_kept() -> None:
    n_arrays = 2 * KEPT_ITEMS_IN_ALL // KEPT_ITEMS
    pairs = [array(f"k{number}", U32, KEPT_ITEMS, bytes(4 * KEPT_ITEMS)) for number in range(n_arrays)]
    found = read_header(BytesSource(header([*pairs, u32("general.after", 7)])))
    assert len(found.array_lengths) == n_arrays
    assert sum(len(kept) for kept in found.metadata.values() if isinstance(kept, tuple)) == KEPT_ITEMS_IN_ALL
    assert found.metadata["general.after"] == 7


def test_a_tensor_without_dimensions_is_one_weight() -> None:
    found = read_header(BytesSource(with_data(header([], [tensor("scale", (), F16_TYPE)]), 32)))
    assert found.tensors[0].size_bytes == 2


def test_version_2_is_read() -> None:
    assert read_header(BytesSource(header([ARCH], version=2))).version == 2


def test_alignment_moves_the_data() -> None:
    head = header([u32("general.alignment", 4096)], [ONE])
    found = read_header(BytesSource(with_data(head, 256, 4096)))
    assert (found.data_offset, found.tensors[0].offset, found.end_bytes) == (4096, 4096, 4096 + 256)


def test_printable_keeps_letters_and_cuts_lines() -> None:
    assert printable("größe 模型") == "größe 模型"
    assert len(printable("x" * sys.maxunicode)) <= 96


def test_a_source_closes_when_its_file_turns_irregular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    monkeypatch.setattr("moewatch.modelfile.source.os.fstat", lambda _: os.stat("/dev/null"))  # noqa: PTH116 - a stub
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not walked
    with pytest.raises(UnusableFileError, match="is a device"):
        FileSource(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - counted, not walked
