"""The hot set's file: small, whose it is, whole or not there, and nothing in it is believed unchecked."""

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from moewatch.cache import hotset as hotset_module
from moewatch.cache.heat import HOT, PASSING, WARM, HeatWatch
from moewatch.cache.hotset import (
    HotFile,
    HotModel,
    Hotset,
    Seen,
    decode_hotset,
    decode_runs,
    encode_hotset,
    encode_runs,
    make_hotset,
)
from moewatch.cache.hotset_file import check_model, identify, read_hotset, write_hotset
from moewatch.domain.warm import FileRun
from moewatch.errors import ParseError, UnusableFileError
from moewatch.modelfile.layout import read_layout
from tests.support.gguf_models import ModelSpec, TensorSpec, write_model

PAGE = 4096
SPEC = ModelSpec(
    "qwen3moe",
    (
        TensorSpec("token_embd.weight", (256, 320)),
        TensorSpec("output.weight", (256, 320)),
        TensorSpec("blk.0.ffn_up_exps.weight", (256, 256, 8)),
        TensorSpec("blk.1.ffn_up_exps.weight", (256, 256, 8)),
    ),
    {"block_count": 2, "expert_count": 8, "expert_used_count": 2},
)


def model(*sizes: int) -> HotModel:
    return HotModel(
        name="Synthetic",
        files=tuple(
            HotFile(name=f"{n}.gguf", size_bytes=size, header_sha256=f"{n:064x}") for n, size in enumerate(sizes)
        ),
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def small_set() -> Hotset:
    return make_hotset(
        model(100 * PAGE + 5, 10 * PAGE),
        [(1.0, [[(0, PAGE), (99 * PAGE, 100 * PAGE + 5)], []]), (0.5, [[(0, 3 * PAGE)], [(PAGE, 2 * PAGE)]])],
        basis="watched",
        created="2026-01-02T03:04:05+00:00",
        seen=Seen(watched_ns=5, state="steady", tokens=7, loss_ratio=0.0),
    )


def test_what_is_written_is_read() -> None:
    hotset = small_set()
    assert decode_hotset(encode_hotset(hotset), "x") == hotset
    assert hotset.size_bytes == 4 * PAGE + PAGE + 5
    assert hotset.is_proven


def test_runs_come_hottest_first_and_no_page_twice() -> None:
    assert small_set().file_runs == (
        FileRun(0, 0, PAGE),
        FileRun(0, 99 * PAGE, PAGE + 5),
        FileRun(0, PAGE, 2 * PAGE),
        FileRun(1, PAGE, PAGE),
    )


def test_runs_are_whole_pages_and_end_with_the_file() -> None:
    made = make_hotset(model(2 * PAGE + 5), [(1.0, [[(10, 20), (2 * PAGE + 1, 2 * PAGE + 2)]])], basis="residency")
    assert made.runs == [[(0, PAGE), (2 * PAGE, 2 * PAGE + 5)]]


def test_too_many_runs_are_joined_across_small_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hotset_module, "MAX_RUNS", 10)
    runs = [(page * PAGE, (page + 1) * PAGE) for page in range(0, 60, 3)]
    made = make_hotset(model(100 * PAGE), [(1.0, [runs])], basis="residency")
    assert made.runs == [[(0, 58 * PAGE)]]
    assert decode_hotset(encode_hotset(made), "x") == made


def test_it_is_small() -> None:
    """A run costs two or three bytes, a third more in base64: 128 KiB pieces of 60 GiB are 500,000 runs."""
    runs = [(at, at + (128 << 10)) for at in range(0, 10_000 * (256 << 10), 256 << 10)]
    made = make_hotset(model(10_000 * (256 << 10)), [(1.0, [runs])], basis="residency")
    assert len(encode_hotset(made)) < 3 * len(runs) + 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _raw: b"", "no hot set"),
        (lambda _raw: b"[" * 100_000, "no hot set"),
        (lambda _raw: b"\xff\xfe", "no hot set"),
        (lambda raw: raw.replace(b"moewatch-hotset", b"moewatch-trace"), "no hot set"),
        (lambda raw: raw.replace(b'"version":1', b'"version":2'), "version 2"),
        (lambda raw: raw.replace(b'"page_bytes":4096', b'"page_bytes":5000'), "power of two"),
        (lambda raw: raw.replace(b'"page_bytes":4096', b'"page_bytes":0'), "damaged"),
        (lambda raw: raw.replace(b'"heat":0.5', b'"heat":-1'), "heat"),
        (lambda raw: raw.replace(b'"heat":0.5', b'"heat":2.5'), "order"),
        (lambda raw: raw[:-20], "hot set"),
        (lambda raw: raw.replace(b'"size_bytes":409605', b'"size_bytes":4096'), "beyond the end"),
        (lambda raw: raw.replace(b'"size_bytes":409605', b'"size_bytes":-1'), "damaged"),
    ],
)
def test_hostile_files_are_one_sentence(change: Callable[[bytes], bytes], words: str) -> None:
    changed = change(encode_hotset(small_set()))
    with pytest.raises(ParseError, match=words) as caught:
        decode_hotset(changed, "it.hotset")
    assert str(caught.value).startswith("it.hotset ")
    assert "\n" not in str(caught.value)


def stored(tiers: list[list[bytes]], size: int = 100 * PAGE) -> bytes:
    document = msgspec.json.decode(encode_hotset(make_hotset(model(size), [], basis="residency")))
    document["tiers"] = [
        {"heat": 1.0, "shards": [base64.b64encode(raw).decode() for raw in shards]} for shards in tiers
    ]
    return msgspec.json.encode(document)


@pytest.mark.parametrize(
    ("tiers", "words"),
    [
        ([[bytes([0, 0])]], "empty or touch"),
        ([[bytes([0, 1, 0, 1])]], "empty or touch"),
        ([[bytes([0])]], "middle of a run"),
        ([[bytes([0, 0x80])]], "middle of a run"),
        ([[bytes([0, *[0x80] * 20, 1])]], "longer than any file"),
        ([[bytes([100, 1])]], "beyond the end"),
        ([[bytes([99, 2])]], "beyond the end"),
        ([[bytes([0, 5])], [bytes([4, 1])]], "same page"),
        ([[bytes([0, 1]), bytes([0, 1])]], "other shards"),
        ([[]], "other shards"),
    ],
)
def test_hostile_runs_are_refused(tiers: list[list[bytes]], words: str) -> None:
    with pytest.raises(ParseError, match=words):
        decode_hotset(stored(tiers), "x")


def test_runs_that_are_no_base64_are_refused() -> None:
    with pytest.raises(ValueError, match="base64"):
        decode_runs("@@@", PAGE, 10 * PAGE)


def test_more_runs_than_allowed_are_refused_early() -> None:
    with pytest.raises(ValueError, match="more than"):
        decode_runs(base64.b64encode(bytes([1, 1]) * 100).decode(), PAGE, 1000 * PAGE, limit=50)


def test_large_gaps_survive() -> None:
    runs = [(3 << 40, (3 << 40) + PAGE)]
    assert decode_runs(encode_runs(runs, PAGE), PAGE, 1 << 42) == runs


def test_a_moved_and_renamed_model_is_still_the_same(tmp_path: Path) -> None:
    (path,) = write_model(SPEC, tmp_path / "a.gguf")
    before = identify(read_layout(path))
    moved = path.rename(tmp_path / "b.gguf")
    after = identify(read_layout(moved))
    assert before.digest == after.digest
    hotset = make_hotset(before, [(1.0, [[(0, PAGE)]])], basis="residency")
    check_model(hotset, after, "x")


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    (path,) = write_model(SPEC, tmp_path / "a.gguf")
    (other,) = write_model(ModelSpec(SPEC.architecture, SPEC.tensors, SPEC.keys, name="Other"), tmp_path / "b.gguf")
    hotset = make_hotset(identify(read_layout(path)), [], basis="residency")
    with pytest.raises(UnusableFileError, match=r"x\.hotset is the hot set of Synthetic, not of Other"):
        check_model(hotset, identify(read_layout(other)), "x.hotset")


def test_the_same_name_with_another_header_is_another_model(tmp_path: Path) -> None:
    (path,) = write_model(SPEC, tmp_path / "a.gguf")
    (other,) = write_model(SPEC.with_keys(context_length=77), tmp_path / "b.gguf")
    hotset = make_hotset(identify(read_layout(path)), [], basis="residency")
    with pytest.raises(UnusableFileError, match="another file of Synthetic"):
        check_model(hotset, identify(read_layout(other)), "x")


def test_every_shard_counts(tmp_path: Path) -> None:
    shards = write_model(SPEC, tmp_path / "s.gguf", split_tensors=2)
    found = identify(read_layout(shards[0]))
    assert [file.size_bytes for file in found.files] == [shard.stat().st_size for shard in shards]
    assert len({file.header_sha256 for file in found.files}) == len(shards) == 2


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "x.hotset"
    path.write_text("mine")
    with pytest.raises(UnusableFileError, match="exists already"):
        write_hotset(small_set(), path)
    assert path.read_text() == "mine"
    write_hotset(small_set(), path, force=True)
    assert read_hotset(path) == small_set()
    assert names(tmp_path) == ["x.hotset"]


def test_a_race_for_the_name_has_one_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.hotset"
    path.write_text("mine")
    monkeypatch.setattr(Path, "exists", lambda _self: False)  # it came between the look and the rename
    with pytest.raises(UnusableFileError, match="exists already"):
        write_hotset(small_set(), path)
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["x.hotset"]


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnusableFileError, match="could not be written: No such file"):
        write_hotset(small_set(), tmp_path / "no" / "x.hotset")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: write(2) fails after the file was made."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "from pathlib import Path\n"
        "from moewatch.errors import UnusableFileError\n"
        "from moewatch.cache.hotset_file import write_hotset\n"
        "from moewatch.cache.hotset import HotFile, HotModel, make_hotset\n"
        "m = HotModel(name='m', files=(HotFile(name='a', size_bytes=9, header_sha256='0' * 64),))\n"
        "try:\n"
        "    write_hotset(make_hotset(m, [], basis='residency'), Path(sys.argv[1]))\n"
        "except UnusableFileError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True, timeout=30
    )
    assert "could not be written: File too large; nothing was changed." in done.stdout
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["directory", "fifo", "absent", "large"])
def test_what_is_no_file_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(UnusableFileError):
        read_hotset(path)


def test_heat_of_a_look_is_what_is_there() -> None:
    assert HeatWatch([[(0, 10)]]).tiers() == [(HOT, [[(0, 10)]])]


def test_heat_what_came_in_is_hotter_than_what_may_be_left_over() -> None:
    heat = HeatWatch([[(0, 100)]])
    heat.look([[(20, 120)]])
    assert not heat.is_pressed
    assert heat.tiers() == [(HOT, [[(100, 120)]]), (WARM, [[(20, 100)]]), (PASSING, [[]])]


def test_heat_under_pressure_what_stays_is_hotter_and_what_left_is_out() -> None:
    heat = HeatWatch([[(0, 100)]])
    heat.look([[(20, 120)]])  # 0-20 left for good, 100-120 came
    heat.look([[(50, 110), (130, 140)]])  # 20-50 left, 110-120 came and went, 130-140 came
    assert heat.departed_bytes == 60
    assert heat.is_pressed
    assert heat.tiers() == [
        (HOT, [[(50, 100)]]),
        (WARM, [[(100, 110), (130, 140)]]),
        (PASSING, [[(110, 120)]]),
    ]
