import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil

from moewatch.linux.others import READER_MIN_BYTES, read_others, readers_of
from moewatch.linux.root import KernelRoot
from tests.support.proctree import ProcTree

READER = """
import mmap, sys, time
file = open(sys.argv[1], "rb")
if sys.argv[2] == "map":
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    file.close()
print("ready", flush=True)
input()
"""


def test_the_largest_come_first_without_ours(tree: ProcTree) -> None:
    for pid, pages in ((10, 400), (11, 4000), (12, 40000), (13, 400000)):
        tree.process(pid, comm=f"p{pid}", rss_pages=pages, read_bytes=pid)
    found = read_others(tree.root, own_pids=[13], top=2)
    assert [(each.pid, each.name, each.anon_bytes) for each in found] == [
        (12, "p12", 10000 * 4096),
        (11, "p11", 1000 * 4096),
    ]
    assert found[0].read_bytes_total == 12


def test_what_another_user_reads_is_unknown(tree: ProcTree) -> None:
    tree.process(10, rss_pages=400).deny("/proc/10/io")
    (found,) = read_others(tree.root)
    assert found.read_bytes_total is None


def test_processes_that_vanish_or_make_no_sense_are_left_out(tree: ProcTree) -> None:
    tree.process(10, rss_pages=400).process(11, rss_pages=500).process(12, rss_pages=600).process(13, rss_pages=700)
    tree.vanish("/proc/11/stat").write("/proc/12/statm", "x").vanish("/proc/13/statm")
    tree.write("/proc/2/statm", "0 0 0 0 0 0 0\n")  # a kernel thread
    assert [each.pid for each in read_others(tree.root)] == [10]


def test_anonymous_memory_agrees_with_the_kernels_own_figure() -> None:
    """A child with 40 MiB of its own; the kernel sums statm and status from batched counters, so not to the page."""
    script = "hoard = bytearray(b'x') * (40 << 20); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            found = {each.pid: each for each in read_others(KernelRoot.system(), top=1000)}
            status = Path(f"/proc/{child.pid}/status").read_text()
            anon_kib = int(status.split("RssAnon:")[1].split()[0])
            assert abs(found[child.pid].anon_bytes - anon_kib * 1024) < 2 << 20
            assert found[child.pid].anon_bytes > 40 << 20
            assert os.getpid() not in found
            assert found[child.pid].name == psutil.Process(child.pid).name()[:15]
        finally:
            child.kill()


def test_readers_that_map_or_hold_the_file_are_found(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(READER_MIN_BYTES)
    same_name = tmp_path / "other" / "model.gguf"
    same_name.parent.mkdir()
    same_name.write_bytes(b"x" * mmap.PAGESIZE)
    root = KernelRoot.system()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for path, how in ((model, "map"), (model, "open"), (same_name, "map"), (same_name, "open"))
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        with model.open("rb"):  # this process is not among them
            assert set(readers_of(root, [str(model)])) == {children[0].pid, children[1].pid}
        assert readers_of(root, [tmp_path / "none"]) == ()
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_readers_of_other_users_are_not_seen(tree: ProcTree, tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.write_bytes(b"x")
    tree.process(10, rss_pages=4000).deny("/proc/10/fd").deny("/proc/10/maps")
    assert readers_of(tree.root, [model]) == ()
    tree.process(11, rss_pages=4000).link("/proc/11/fd/7", str(model))
    assert readers_of(tree.root, [model]) == (11,)
