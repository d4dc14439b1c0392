"""`moewatch residency` against vmtouch, fincore and mincore page by page, on files that nobody touches meanwhile."""

import json
import mmap
import os
import random
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moewatch.cli.residency import count
from moewatch.domain.layout import ModelLayout
from moewatch.linux.pagecache import SystemPageCache
from moewatch.modelfile.layout import read_layout
from moewatch.modelfile.source import FileSource
from moewatch.server.modelpaths import has_magic
from tests.support import gguf_models
from tests.support.layouts import layout_of
from tests.support.model_disk import DISK_TOOLS, ModelDisk, evict
from tests.support.requirements import needs
from tests.support.tools import fincore_resident_bytes, vmtouch_resident_bytes

ROOT = Path(__file__).parents[2]
COMPARED = ("vmtouch", "fincore")
PAGE = os.sysconf("SC_PAGESIZE")


def residency(*args: str | Path, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "moewatch", "residency", "--json", *map(str, args)],
        capture_output=True, text=True, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "moewatch-residency/1"
    return found


def page_bits(path: Path) -> bytes:
    """1 for each resident page, by mincore, page by page."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return b"".join(
            bytes([SystemPageCache().mincore(fd, at, min(PAGE, size - at))[0] & 1]) for at in range(0, size, PAGE)
        )
    finally:
        os.close(fd)


def overlap(bits: bytes, offset: int, length: int) -> int:
    """Bytes of the range that lie in resident pages."""
    return sum(
        min(offset + length, (page + 1) * PAGE) - max(offset, page * PAGE)
        for page in range(offset // PAGE, -(-(offset + length) // PAGE))
        if bits[page]
    )


def touch_some(path: Path, seed: int) -> None:
    """Fill the file with bytes, drop it, and bring some stretches of odd lengths back."""
    size = path.stat().st_size
    head = path.read_bytes()
    with path.open("r+b") as writer:
        writer.write(head.rstrip(b"\0") or head[:1])
        writer.seek(size - 1)
        writer.write(b"\1")
        os.fsync(writer.fileno())
    evict(path)
    chance = random.Random(seed)  # noqa: S311 - a pattern, no secret
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)  # no read-ahead
        for _ in range(12):
            start = chance.randrange(size)
            for at in range(start, min(size, start + chance.randrange(1, 30) * PAGE), PAGE):
                mapped[at]


def assert_agreement(paths: list[Path]) -> None:
    found = residency(paths[-1], "--by", "class,layer,expert,page")
    layout = read_layout(paths[0])
    assert found["files"] == [str(path) for path in paths]
    bits = [page_bits(path) for path in paths]
    assert [each["resident_pages"] for each in found["by_file"]] == [sum(each) for each in bits]
    pages = sum(each["resident_pages"] for each in found["by_file"])
    assert 0 < pages < sum(map(len, bits)), "some are in and some are not"
    assert pages * PAGE == vmtouch_resident_bytes(tuple(paths)) == fincore_resident_bytes(tuple(paths))
    assert found["resident_bytes"] == sum(
        overlap(each, 0, path.stat().st_size) for each, path in zip(bits, paths, strict=True)
    )
    for name, sums in found["classes"].items():
        tensors = [tensor for tensor in layout.tensors if tensor.weight_class == name]
        assert sums["size_bytes"] == sum(tensor.size_bytes for tensor in tensors)
        assert sums["resident_bytes"] == sum(overlap(bits[t.file_index], t.offset, t.size_bytes) for t in tensors)
    for row in found["layers"]:
        tensors = [tensor for tensor in layout.tensors if tensor.layer == row["layer"]]
        assert row["resident_bytes"] == sum(overlap(bits[t.file_index], t.offset, t.size_bytes) for t in tensors)
    experts = {(row["layer"], row["expert"]): row for row in found["experts"]}
    assert len(experts) == layout.n_layer * layout.n_expert
    for (layer, expert), row in experts.items():
        slices = [
            (tensor.file_index, *tensor.expert_range(expert))
            for tensor in layout.tensors
            if tensor.n_expert and tensor.layer == layer
        ]
        assert row["size_bytes"] == sum(length for _, _, length in slices)
        assert row["resident_bytes"] == sum(overlap(bits[index], at, length) for index, at, length in slices)
    for index, path in enumerate(paths):
        runs = [run for run in found["pages"] if run["file"] == str(path)]
        assert b"".join(bytes([run["resident"]]) * run["count"] for run in runs) == bits[index]


def plain_layout(path: Path) -> ModelLayout:
    return layout_of([path], [])


def odd_model(directory: Path, split: int = 0) -> list[Path]:
    """Tensors of which none begins or ends with a page; a slice of an expert is 36,864 bytes and starts anywhere."""
    paths = gguf_models.write_model(gguf_models.qwen3moe(), directory / "odd.gguf", split_tensors=split)
    with paths[-1].open("ab") as file:
        file.write(b"\1" * 1234)  # a last page that is not whole
    return paths


@needs(*COMPARED)
@pytest.mark.parametrize("seed", [1, 2])
def test_agreement_on_one_file(tmp_path: Path, seed: int) -> None:
    paths = odd_model(tmp_path)
    touch_some(paths[0], seed)
    assert_agreement(paths)


@needs(*COMPARED)
def test_agreement_on_shards(tmp_path: Path) -> None:
    paths = odd_model(tmp_path, split=9)
    assert len(paths) > 2
    for seed, path in enumerate(paths):
        touch_some(path, seed)
    assert_agreement(paths)


@needs(*COMPARED, *DISK_TOOLS, root=True)
def test_agreement_on_ext4_with_read_ahead() -> None:
    """Folios of 128 KiB, as a page fault's read-ahead makes them."""
    with ModelDisk(size_bytes=64 << 20) as disk:
        paths = odd_model(disk.path)
        touch_some(paths[0], 3)
        assert_agreement(paths)


@needs(*COMPARED, *DISK_TOOLS, "mkfs.btrfs", root=True)
def test_agreement_on_btrfs() -> None:
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(ModelDisk(size_bytes=256 << 20, file_system="btrfs"))
        except OSError as error:
            if "unknown filesystem" not in str(error):
                raise
            pytest.skip("this kernel has no btrfs")
        paths = odd_model(disk.path)
        touch_some(paths[0], 6)
        assert_agreement(paths)


@needs(*COMPARED, *DISK_TOOLS, root=True)
def test_agreement_on_overlayfs() -> None:
    """Cachestat says 0 there; mincore is asked instead."""
    with ModelDisk(size_bytes=64 << 20) as disk:
        folders = {name: disk.path / name for name in ("lower", "upper", "work", "merged")}
        for folder in folders.values():
            folder.mkdir()
        odd_model(folders["lower"])
        options = ",".join(f"{name}dir={folders[name]}" for name in ("lower", "upper", "work"))
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folders["merged"]], check=True, timeout=20)
        try:
            path = folders["merged"] / "odd.gguf"
            touch_some(path, 4)
            assert residency(path)["backend"] == "mincore"
            assert_agreement([path])
        finally:
            subprocess.run(["umount", folders["merged"]], check=True, timeout=20)


@needs(*DISK_TOOLS, root=True)
def test_looking_loads_nothing_but_the_header() -> None:
    """Where the disk reads 8 MiB ahead, as virtual machines' do, that would be the model it was asked about."""
    with ModelDisk(size_bytes=64 << 20, read_ahead_kib=8192) as disk:
        (path,) = gguf_models.write_model(gguf_models.qwen3moe(), disk.path / "model.gguf")
        with path.open("ab") as file:
            file.write(os.urandom(16 << 20))
        evict(path)
        assert has_magic(str(path))
        assert sum(page_bits(path)) == 1
        evict(path)
        assert read_layout(path).tensors
        assert 0 < sum(page_bits(path)) * PAGE <= FileSource.chunk_bytes
        evict(path)
        first = residency(path)
        assert first["resident_bytes"] <= FileSource.chunk_bytes
        assert residency(path)["resident_bytes"] == sum(page_bits(path)) * PAGE <= FileSource.chunk_bytes


@needs(*DISK_TOOLS, root=True)
def test_while_pages_come_and_go_it_is_within_a_tenth_of_mincore() -> None:
    """A thread touches and pages out stretches of a mapping, as a server under pressure does."""
    size, stretch, pageout = 64 << 20, 1 << 20, 21
    with ModelDisk(size_bytes=128 << 20) as disk:
        path = disk.path / "churn.bin"
        path.write_bytes(os.urandom(1 << 20) * (size >> 20))
        evict(path)
        stop = threading.Event()

        def churn(mapped: mmap.mmap) -> None:
            chance = random.Random(5)  # noqa: S311 - a pattern, no secret
            while not stop.wait(0.002):
                mapped.madvise(pageout, chance.randrange(size // stretch) * stretch, stretch)
                start = chance.randrange(size // stretch) * stretch
                for at in range(start, start + stretch, PAGE):
                    mapped[at]

        with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            thread = threading.Thread(target=churn, args=(mapped,), daemon=True)
            thread.start()
            try:
                ratios = []
                for _ in range(20):
                    stop.wait(0.05)
                    counted = count(SystemPageCache(), plain_layout(path)).runs[0]
                    by_mincore = SystemPageCache().mincore(file.fileno(), 0, size)
                    pages = sum(byte & 1 for byte in by_mincore)
                    assert counted is not None
                    if pages > size // PAGE // 8:
                        ratios.append(counted.within(0, size) / (pages * PAGE))
            finally:
                stop.set()
                thread.join()
    assert len(ratios) >= 10
    assert 0.9 <= sorted(ratios)[len(ratios) // 2] <= 1.1


def test_files_of_any_kind_and_directories(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"x" * 10_001)
    (tmp_path / "sub" / "empty").touch()
    (tmp_path / "sub" / "broken.gguf").write_bytes(b"GGUF and no more")
    (tmp_path / "sub" / "link").symlink_to(tmp_path / "a.bin")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    found = residency(tmp_path)
    assert [Path(name).name for name in found["files"]] == ["a.bin", "broken.gguf", "empty"]
    assert (found["size_bytes"], found["resident_bytes"]) == (10_017, 10_017)
    assert "classes" not in found
    assert found["by_file"][0]["resident_pages"] == 3


def test_what_is_missing_is_said_and_the_rest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    found = residency(tmp_path / "a", tmp_path / "absent", code=5)
    assert found["resident_bytes"] == 1


@needs(root=True)
def test_a_person_who_may_not_know_gets_null(tmp_path: Path) -> None:
    """Neither owner nor writer: mincore would say 100 %."""
    path = tmp_path / "others.gguf"
    path.write_bytes(b"x" * PAGE)
    path.chmod(0o644)
    code = (
        "import locale, os, shutil, sys\n"  # what an interpreter loads late may lie where that user may not look
        "from moewatch.cli.main import run\n"
        "import moewatch.cli.residency\n"
        "fd = os.open(sys.argv[1], os.O_PATH)\n"
        "os.setgroups([])\n"
        "os.setresgid(65534, 65534, 65534)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "sys.exit(run(['residency', '--json', f'/proc/self/fd/{fd}']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=30, check=False
    )
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert (found["size_bytes"], found["resident_bytes"], found["backend"]) == (PAGE, None, "none")
    assert "denied" in found["reasons"][0]
    assert len(done.stderr.strip().splitlines()) == 1


def test_words_for_people(tmp_path: Path) -> None:
    paths = odd_model(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "moewatch", "residency", str(paths[0]), "--by", "class,layer,expert,page"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    for words in ("every token", "token table", "experts", "layer 1 expert 7", "in memory", "100"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [(("x", "--pid", "1"), 2, "not both"), (("--by", "tensor"), 2, "no view"), (("/nowhere/at/all",), 5, "/nowhere")],
)
def test_troubles(args: tuple[str, ...], code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moewatch", "residency", *args],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
