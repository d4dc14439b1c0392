"""`moewatch hotset` as scripts use it, on a real GGUF file of a real disk, without a server."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from moewatch.cache.hotset import Seen
from moewatch.cache.hotset_keeper import keep, take_hotset
from moewatch.modelfile.layout import read_layout
from tests.support.model_disk import evict
from tests.support.moe_model import TINY, MoeShape, write_model

NEARLY_ALL = 0.98  # a kernel with DAMON takes idle pages away, also from tests
PART_BYTES = 4 << 20


@pytest.fixture(autouse=True)
def cold(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    evict(model)


def hotset(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moewatch", "hotset", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)


def read_a_part(model: Path) -> None:
    """The middle of the experts, without read-ahead."""
    fd = os.open(model, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, PART_BYTES, model.stat().st_size // 2 & -4096)
    finally:
        os.close(fd)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_save_evict_restore_brings_back_just_that(model: Path, tmp_path: Path) -> None:
    read_a_part(model)
    saved = answer(hotset("save", tmp_path / "h", "--model", model, "--json"))
    assert PART_BYTES <= saved["size_bytes"] < 2 * PART_BYTES
    assert saved["schema"] == "moewatch-hotset/1"
    assert saved["basis"] == "residency"
    assert saved["proven"] is False
    assert saved["file_bytes"] == (tmp_path / "h").stat().st_size < 2000
    evict(model)
    shown = answer(hotset("show", tmp_path / "h", "--model", model, "--json"))
    assert shown["size_bytes"] == saved["size_bytes"]
    assert shown["resident_bytes"] < 0.5 * PART_BYTES, "no more than the header"
    last = answer(hotset("restore", tmp_path / "h", "--model", model, "--json"))
    assert last["stopped"] is None
    assert last["after"]["hot_ratio"] > NEARLY_ALL
    assert last["after"]["dense_ratio"] > NEARLY_ALL
    assert last["after"]["expert_ratio"] < 0.5, "nothing else"
    assert (
        answer(hotset("show", tmp_path / "h", "--model", model, "--json"))["resident_bytes"] > NEARLY_ALL * PART_BYTES
    )


def test_a_moved_model_is_known_and_another_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    read_a_part(model)
    answer(hotset("save", tmp_path / "h", "--model", model, "--json"))
    link = tmp_path / "other-name.gguf"
    link.symlink_to(model)
    answer(hotset("restore", tmp_path / "h", "--model", link, "--dry-run", "--json"))
    (other,) = write_model(tmp_path, MoeShape(layers=1, experts=4, used=2, width=512, heads=8, expert_width=256))
    for action in ("restore", "show"):
        done = hotset(action, tmp_path / "h", "--model", other)
        assert done.returncode == 5
        assert len(done.stderr.splitlines()) == 1
        assert f"is the hot set of {model.stem}, not of {other.stem}" in done.stderr
        assert done.stdout == ""


def test_an_existing_file_is_kept_unless_forced(model: Path, tmp_path: Path) -> None:
    read_a_part(model)
    path = tmp_path / "h"
    path.write_text("mine")
    done = hotset("save", path, "--model", model)
    assert done.returncode == 5
    assert "exists already" in done.stderr
    assert path.read_text() == "mine"
    assert "saved" in hotset("save", path, "--model", model, "--force").stdout
    shown = hotset("show", path).stdout
    assert "what was in memory" in shown
    assert "  pages  " in shown, "one moment knows no hot and cold"
    assert "heat" not in shown


def test_nothing_in_memory_is_no_hot_set(model: Path, tmp_path: Path) -> None:
    # the header's pages are there as soon as it was read
    answer(hotset("save", tmp_path / "h", "--model", model, "--json"))
    assert answer(hotset("show", tmp_path / "h", "--json"))["size_bytes"] < 2 << 20


def test_without_a_file_the_newest_saved_by_itself_is_taken(model: Path) -> None:
    done = hotset("restore", "--model", model)
    assert done.returncode == 5
    assert "saved by itself" in done.stderr
    read_a_part(model)
    path = keep(take_hotset(read_layout(model), created="", seen=Seen(state="steady", tokens=9)), 10**18)
    evict(model)
    done = hotset("show", "--model", model, "--json")
    assert answer(done)["proven"] is True
    assert str(path) in done.stderr
    assert answer(hotset("restore", "--model", model, "--json"))["after"]["hot_ratio"] > NEARLY_ALL


def test_from_an_imatrix(model: Path, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "unused")
    writer.add_type("imatrix")
    counts = np.zeros((TINY.experts, 1), np.float32)
    counts[3] = 5
    for layer in range(TINY.layers):
        writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight.counts", counts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    saved = answer(hotset("save", tmp_path / "h", "--model", model, "--imatrix", tmp_path / "i.gguf", "--json"))
    one_expert = TINY.expert_bytes // TINY.experts
    assert one_expert <= saved["size_bytes"] < 1.2 * one_expert
    assert saved["basis"] == "imatrix"
    assert answer(hotset("restore", tmp_path / "h", "--model", model, "--json"))["after"]["hot_ratio"] > NEARLY_ALL
    done = hotset("save", tmp_path / "h2", "--model", model, "--imatrix", model)
    assert done.returncode == 5
    assert "no imatrix" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("save",), 2, "needs a FILE"),
        (("restore", "x", "--force"), 2, "go with hotset save"),
        (("restore", "x", "--for", "3"), 2, "go with hotset save"),
        (("frobnicate", "x"), 2, "invalid choice"),
        (("show", "absent.hotset"), 5, "no file absent.hotset"),
        (("restore", "absent.hotset"), 5, "no file absent.hotset"),
        (("show", "."), 5, "no regular file"),
        (("show", "/dev/zero"), 5, "no regular file"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = hotset(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_watching_needs_a_server(model: Path, tmp_path: Path) -> None:
    done = hotset("save", tmp_path / "h", "--model", model, "--for", "3")
    assert done.returncode == 3
    assert "nothing to watch" in done.stderr
    assert not (tmp_path / "h").exists()
