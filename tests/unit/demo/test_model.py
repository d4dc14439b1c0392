import errno
import os
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest

from moewatch.demo import model
from moewatch.domain.layout import WeightClass
from moewatch.errors import MoewatchError
from moewatch.modelfile.layout import read_layout


def test_the_reference_reader_finds_every_tensor_with_finite_numbers(model_path: Path, small: model.Geometry) -> None:
    reader = gguf.GGUFReader(model_path)
    field = reader.get_field("general.architecture")
    assert field is not None
    assert field.contents() == "qwen3moe"
    assert len(reader.tensors) == 3 + 12 * small.n_layer
    by_name = {t.name: t for t in reader.tensors}
    gate = by_name["blk.3.ffn_gate_exps.weight"]
    assert list(gate.shape) == [small.dim, small.ff, small.n_expert]
    assert gate.tensor_type == gguf.GGMLQuantizationType.F16
    for tensor in reader.tensors:
        assert np.isfinite(tensor.data).all(), tensor.name
    # Spread over both signs and several magnitudes, not one value over and over.
    assert len(np.unique(gate.data)) > 1000
    assert 0.4 < float((gate.data < 0).mean()) < 0.6


def test_our_own_reader_sees_layers_experts_and_classes(model_path: Path, small: model.Geometry) -> None:
    layout = read_layout(model_path)
    summary = layout.summary
    assert (summary.n_layer, summary.n_expert, summary.n_expert_used) == (small.n_layer, small.n_expert, small.n_used)
    assert summary.name == model.MODEL_NAME
    assert summary.expert_bytes == small.n_layer * small.n_expert * 3 * small.dim * small.ff * 2
    assert len(list(layout.of_class(WeightClass.EXPERT))) == 3 * small.n_layer
    assert summary.total_bytes == model_path.stat().st_size == model.model_bytes(small)


def test_the_real_model_is_large_enough_to_squeeze_and_small_enough_to_write() -> None:
    assert 768 << 20 <= model.model_bytes(model.Geometry()) <= 1 << 30


def test_the_file_is_not_sparse(model_path: Path) -> None:
    status = model_path.stat()
    assert status.st_blocks * 512 >= status.st_size


def test_a_whole_model_is_used_again_and_says_nothing(model_path: Path, small: model.Geometry) -> None:
    said: list[str] = []
    before = model_path.stat().st_mtime_ns
    assert model.ensure(said.append, model_path.parent, small) == model_path
    assert model_path.stat().st_mtime_ns == before
    assert said == []


@pytest.mark.parametrize("harm", ["short", "other header", "other geometry"])
def test_a_harmed_model_is_written_anew_and_said(model_path: Path, small: model.Geometry, harm: str) -> None:
    if harm == "short":
        os.truncate(model_path, model_path.stat().st_size - 1)
    elif harm == "other header":
        with model_path.open("r+b") as file:
            file.seek(40)
            file.write(b"?")
    else:
        model_path.unlink()
        model.write(model_path, model.Geometry(n_layer=1, dim=256, ff=64, n_word=300))
    said: list[str] = []
    model.ensure(said.append, model_path.parent, small)
    assert model.is_intact(model_path, small)
    assert len(said) == 1
    assert str(model_path) in said[0]
    assert "MiB" in said[0]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    disk_dir: Path, small: model.Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("moewatch.demo.model.os.write", full)
    with pytest.raises(MoewatchError, match=r"could not be written.*no space left on device") as caught:
        model.ensure(lambda _: None, disk_dir, small)
    assert "\n" not in str(caught.value)
    assert list(disk_dir.iterdir()) == []


def test_ending_the_demo_while_it_writes_leaves_nothing(disk_dir: Path, small: model.Geometry) -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(MoewatchError, match="ended while its model was being written"):
        model.ensure(lambda _: None, disk_dir, small, stopping)
    assert list(disk_dir.iterdir()) == []


def test_what_a_killed_demo_wrote_is_swept(disk_dir: Path, small: model.Geometry) -> None:
    dead, alive = (disk_dir / f"{model.FILE_NAME}.partial-{pid}" for pid in (4194999, os.getppid()))
    for path in (dead, alive):
        path.write_bytes(b"x")
    model.ensure(lambda _: None, disk_dir, small)
    assert not dead.exists()
    assert alive.exists()


def test_too_little_room_is_known_before_writing(
    disk_dir: Path, small: model.Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 100 << 20})
    monkeypatch.setattr("moewatch.demo.model.shutil.disk_usage", lambda _: usage)
    with pytest.raises(MoewatchError, match=r"100\.0 MiB free .*XDG_CACHE_HOME"):
        model.ensure(lambda _: None, disk_dir, small)


def test_memory_is_no_disk(tmp_path: Path, small: model.Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = type("Disks", (), {"file_system": "tmpfs"})
    monkeypatch.setattr("moewatch.demo.model.disks_of", lambda *_: disks)
    with pytest.raises(MoewatchError, match=r"lies in memory \(tmpfs\)"):
        model.ensure(lambda _: None, tmp_path, small)


def test_a_place_that_will_not_do_is_passed_over(
    disk_dir: Path, small: model.Geometry, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = disk_dir / "a file"
    blocked.write_text("")
    monkeypatch.setattr(model, "cache_dirs", lambda: (blocked / "moewatch", disk_dir / "second"))
    assert model.ensure(lambda _: None, None, small) == disk_dir / "second" / model.FILE_NAME


def test_the_cache_directory_follows_the_xdg_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model.cache_dirs()[0] == tmp_path / "moewatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert model.cache_dirs()[0] == Path.home() / ".cache" / "moewatch"


def test_remove_takes_the_model_and_interrupted_writes_and_nothing_else(tmp_path: Path) -> None:
    mine = [tmp_path / model.FILE_NAME, tmp_path / f"{model.FILE_NAME}.partial-12"]
    other = tmp_path / "notes.gguf"
    for path in (*mine, other):
        path.write_bytes(b"x")
    assert sorted(model.remove(tmp_path)) == sorted(mine)
    assert list(tmp_path.iterdir()) == [other]
    assert model.remove(tmp_path / "absent") == ()
