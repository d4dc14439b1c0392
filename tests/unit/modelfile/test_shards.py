"""Splits: any shard gives the whole model; what does not fit together is refused in one sentence."""

import os
from pathlib import Path

import gguf
import pytest

from moewatch.errors import ForbiddenError, ParseError, UnusableFileError
from moewatch.modelfile.layout import read_layout
from moewatch.modelfile.shards import read_shards, sibling_names
from tests.support.gguf_bytes import U16, header, pair, string
from tests.support.gguf_models import TensorSpec, qwen3moe, write_model


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """23 tensors, 9 in a shard."""
    paths = write_model(qwen3moe(), tmp_path / "model.gguf", split_tensors=9)
    assert [path.name for path in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_gives_the_whole_model(shards: list[Path], given: int, tmp_path: Path) -> None:
    layout = read_layout(shards[given])
    assert layout.paths == tuple(str(path) for path in shards)
    oracle = [
        (index, t.name, int(t.data_offset), int(t.n_bytes))
        for index, path in enumerate(shards)
        for t in gguf.GGUFReader(path).tensors
    ]
    assert [(t.file_index, t.name, t.offset, t.size_bytes) for t in layout.tensors] == oracle
    whole = read_layout(write_model(qwen3moe(), tmp_path / "whole.gguf")[0]).summary
    ours = layout.summary
    assert (ours.dense_bytes, ours.expert_bytes, ours.embedding_bytes) == (
        whole.dense_bytes,
        whole.expert_bytes,
        whole.embedding_bytes,
    )
    assert (ours.architecture, ours.n_expert, ours.name) == ("qwen3moe", 8, "Synthetic")
    assert ours.total_bytes == sum(path.stat().st_size for path in shards)


def test_the_first_shard_may_be_metadata_only(tmp_path: Path) -> None:
    paths = write_model(qwen3moe(), tmp_path / "model.gguf", split_tensors=12, small_first_shard=True)
    assert len(paths) == 3
    layout = read_layout(paths[2])
    assert layout.files[0].size_bytes == paths[0].stat().st_size == layout.header_bytes[0]
    assert {t.file_index for t in layout.tensors} == {1, 2}
    assert layout.summary.architecture == "qwen3moe"


def test_a_stale_single_file_beside_the_shards_is_ignored(shards: list[Path]) -> None:
    write_model(qwen3moe(5), shards[0].with_name("model.gguf"))
    assert read_layout(shards[1]).summary.n_layer == 2


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(shards: list[Path], missing: int) -> None:
    shards[missing].unlink()
    with pytest.raises(UnusableFileError) as refused:
        read_layout(shards[(missing + 1) % 3])
    assert str(refused.value) == f"Shard {missing + 1} of 3 is missing ({shards[missing].name}); fetch it."


def test_several_missing_shards_are_counted(shards: list[Path]) -> None:
    shards[0].unlink()
    shards[2].unlink()
    with pytest.raises(UnusableFileError, match=r"^2 of 3 shards are missing, first 1 \(model-00001-of-00003.gguf\);"):
        read_layout(shards[1])


def test_a_short_shard_is_an_unfinished_download(tmp_path: Path) -> None:
    wide = TensorSpec("blk.0.ffn_up_exps.weight", (4096, 131072, 8))  # 8 GiB, a hole on disk
    spec = qwen3moe(1)
    tensors = tuple(wide if t.name == wide.name else t for t in spec.tensors)
    paths = write_model(type(spec)(spec.architecture, tensors, spec.keys), tmp_path / "model.gguf", split_tensors=5)
    short = next(index for index, path in enumerate(paths) if path.stat().st_size > 1 << 32)
    read_layout(paths[0])
    os.truncate(paths[short], paths[short].stat().st_size - int(4.1 * (1 << 30)))
    with pytest.raises(UnusableFileError) as refused:
        read_layout(paths[0])
    assert str(refused.value) == f"Shard {short + 1} of 3 is 4.1 GiB short: the download is not finished."


def test_a_short_single_file_says_so_too(tmp_path: Path) -> None:
    path = write_model(qwen3moe(), tmp_path / "model.gguf")[0]
    os.truncate(path, path.stat().st_size - (1 << 20))
    with pytest.raises(UnusableFileError, match=r"^model.gguf is 1.0 MiB short: the download is not finished.$"):
        read_layout(path)


def test_a_renamed_shard_is_refused(shards: list[Path]) -> None:
    shards[2].unlink()
    shards[1].rename(shards[2])
    shards[1].write_bytes(shards[2].read_bytes())
    with pytest.raises(ParseError, match="says inside that it is shard 2 of 3, unlike its name"):
        read_layout(shards[2])
    with pytest.raises(ParseError, match="says inside that it is shard 2 of 3, unlike its name"):
        read_layout(shards[0])


def test_a_shard_of_another_model_is_refused(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_model(qwen3moe(3), tmp_path / "other" / "model.gguf", split_tensors=11)
    shards[1].write_bytes(other[1].read_bytes())
    with pytest.raises(ParseError, match="files are mixed up"):
        read_layout(shards[0])


def test_a_wrong_number_of_tensors_is_refused(shards: list[Path]) -> None:
    key = b"split.tensors.count"
    for path in shards:
        content = path.read_bytes()
        at = content.index(key) + len(key) + 4
        path.write_bytes(content[:at] + b"\x63" + content[at + 1 :])
    with pytest.raises(ParseError, match=r"says that the model has 99 tensors, but its shards have 23"):
        read_layout(shards[0])


def test_a_tensor_in_two_shards_is_refused(shards: list[Path]) -> None:
    head = shards[1].read_bytes()
    assert head.count(b"blk.1.attn_norm.weight") == 1 or head.count(b"blk.0.ffn_up_exps.weight") == 1
    names = [t.name for t in read_layout(shards[0]).tensors if t.file_index < 2]
    first = next(n for n in names if n.startswith("blk.0."))
    second = next(t.name for t in read_layout(shards[0]).tensors if t.file_index == 1 and len(t.name) == len(first))
    shards[1].write_bytes(head.replace(second.encode(), first.encode()))
    with pytest.raises(ParseError, match="two shards have the tensor"):
        read_layout(shards[0])


def test_shards_whose_names_say_nothing_are_found_among_known_files(shards: list[Path]) -> None:
    """The blobs of the Hugging Face cache, as a server's maps name them."""
    blobs = [path.rename(path.with_name(name)) for path, name in zip(shards, ("b7", "0c", "9a"), strict=True)]
    layout = read_layout(blobs[1], known=sorted(blobs))
    assert layout.paths == tuple(str(blob) for blob in blobs)
    assert layout.summary.n_expert == 8


def test_without_known_files_such_a_shard_is_refused(shards: list[Path]) -> None:
    blob = shards[1].rename(shards[1].with_name("0c"))
    with pytest.raises(
        UnusableFileError, match=r"^0c is shard 2 of 3, but its name does not end in -00002-of-00003.gguf"
    ):
        read_layout(blob)
    with pytest.raises(UnusableFileError, match=r"^Shard 3 of 3 is missing"):
        read_layout(blob, known=[shards[0]])


def test_symlinked_shards_are_found_beside_the_link(shards: list[Path], tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in shards:
        blob = path.rename(path.with_name(f"blob-{path.name[6:11]}"))
        (snapshot / path.name).symlink_to(blob)
    assert len(read_shards(snapshot / shards[2].name)) == 3


def test_a_merged_file_counts_no_shards(tmp_path: Path) -> None:
    path = tmp_path / "merged.gguf"
    pairs = [string("general.architecture", "llama"), pair("split.no", U16, b"\0\0"), pair("split.count", U16, b"\0\0")]
    path.write_bytes(header(pairs))
    assert read_layout(path).files[0].name == "merged.gguf"


def test_a_name_like_a_shards_does_not_make_one(tmp_path: Path) -> None:
    path = write_model(qwen3moe(), tmp_path / "model-00002-of-00003.gguf")[0]
    assert len(read_layout(path).files) == 1


def test_sibling_names() -> None:
    assert sibling_names("a-b-00002-of-00002.gguf", 2) == ["a-b-00001-of-00002.gguf", "a-b-00002-of-00002.gguf"]
    assert sibling_names("plain.gguf", 1) == ["plain.gguf"]


def test_what_the_kernel_denies_is_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(qwen3moe(), tmp_path / "model.gguf")[0]

    def deny(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("moewatch.modelfile.source.os.open", deny)
    with pytest.raises(ForbiddenError, match="You may not read"):
        read_layout(path)
