import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from moewatch.domain.sample import GapReason
from moewatch.linux import pagecache
from moewatch.linux.blockdev import disks_of
from moewatch.linux.capability import parse_capability
from moewatch.linux.pagecache import Backend, SystemPageCache, mincore_tells_truth, open_for_asking, probe
from moewatch.linux.root import KernelRoot, ReadingError
from tests.support.requirements import needs
from tests.support.scripted_cache import EVICTED, RESIDENT, ScriptedPageCache

DENIED = ReadingError(GapReason.DENIED, "cachestat is denied")
MISSING = ReadingError(GapReason.UNSUPPORTED, "this kernel has no cachestat")
FILE_PAGES = 64


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = open_for_asking(str(path))
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk; /tmp may be a tmpfs, whose pages cannot be dropped."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        if not disks_of(KernelRoot.system(), Path(name)).devices:
            pytest.skip("var/tmp is on no disk")
        yield Path(name)


def evicted_file(directory: Path, pages: int) -> Path:
    """Written and dropped from the cache."""
    path = directory / "evicted"
    with path.open("wb") as file:
        file.write(os.urandom(pages * mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[tuple[ScriptedPageCache, bytearray, int]]:
    path = tmp_path / "model"
    os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 0)
    with path.open("wb") as file:
        file.truncate(FILE_PAGES * 4096)
    cache = ScriptedPageCache()
    with opened(path) as fd:
        yield cache, cache.add(path), fd


Scripted = tuple[ScriptedPageCache, bytearray, int]


def test_23_pages_touched_are_23_major_faults_and_23_resident_pages(disk: Path) -> None:
    """In a child, so that nothing else faults between the two readings."""
    path = evicted_file(disk, 512)
    script = """
import json, mmap, os, sys
from moewatch.linux.pid import read_process
from moewatch.linux.root import KernelRoot
root = KernelRoot.system()
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
mapped.madvise(mmap.MADV_RANDOM)
before = read_process(root, os.getpid())[0]
before = read_process(root, os.getpid())[0]
for page in range(23):
    mapped[page * 17 * mmap.PAGESIZE]
after = read_process(root, os.getpid())[0]
print(json.dumps([after.majflt_total - before.majflt_total, after.read_bytes_total - before.read_bytes_total]))
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, check=True, text=True)
    faults, read_bytes = json.loads(done.stdout)
    assert faults == 23
    assert read_bytes == 23 * mmap.PAGESIZE
    cache = SystemPageCache()
    with opened(path) as fd:
        resident = cache.mincore(fd, 0, 512 * mmap.PAGESIZE)
        assert [page for page in range(512) if resident[page] & 1] == [page * 17 for page in range(23)]
        assert probe(cache, fd) is Backend.CACHESTAT
        assert cache.cachestat(fd, 0, 0).nr_cache == 23 * mmap.PAGESIZE
        assert cache.cachestat(fd, 0, 17 * mmap.PAGESIZE + 1).nr_cache == 2 * mmap.PAGESIZE


@needs("fincore", "vmtouch")
def test_agrees_with_fincore_and_vmtouch(disk: Path) -> None:
    path = evicted_file(disk, 1024)
    with path.open("rb") as file:
        os.pread(file.fileno(), 300 * mmap.PAGESIZE, 100 * mmap.PAGESIZE)
    cache = SystemPageCache()
    with opened(path) as fd:
        ours = sum(byte & 1 for byte in cache.mincore(fd, 0, path.stat().st_size))
        assert cache.cachestat(fd, 0, 0).nr_cache == ours * mmap.PAGESIZE
    assert ours >= 300
    fincore = subprocess.run(["fincore", "-n", "-b", "-o", "RES", path], capture_output=True, check=True, text=True)
    assert int(fincore.stdout) == ours * mmap.PAGESIZE
    vmtouch = subprocess.run(["vmtouch", path], capture_output=True, check=True, text=True).stdout
    assert f"Resident Pages: {ours}/1024" in vmtouch


def test_pages_that_were_squeezed_out_are_evicted_and_dropped_ones_are_not(disk: Path) -> None:
    path = evicted_file(disk, 256)
    cache = SystemPageCache()
    with opened(path) as fd:
        assert cache.cachestat(fd, 0, 0) == pagecache.CacheStat(nr_cache=0)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_POPULATE_READ if hasattr(mmap, "MADV_POPULATE_READ") else 22)
            assert cache.cachestat(fd, 0, 0).nr_cache == 256 * mmap.PAGESIZE
            mapped.madvise(21)  # MADV_PAGEOUT
        squeezed = cache.cachestat(fd, 0, 0)
        assert squeezed.nr_evicted > 0
        assert squeezed.nr_cache + squeezed.nr_evicted == 256 * mmap.PAGESIZE


def test_offsets_beyond_4_gib(tmp_path: Path) -> None:
    """Counts of pages and of bytes must not be cut to 32 bits anywhere on the way."""
    path = tmp_path / "sparse"
    page = mmap.PAGESIZE
    at = (5 << 40) - (3 << 20)
    try:
        with path.open("wb") as file:
            file.truncate(5 << 40)
            os.pwrite(file.fileno(), b"x" * (2 * page), at)
    except OSError:
        pytest.skip("this file system has no files of 5 TiB")
    cache = SystemPageCache()
    with opened(path) as fd:
        assert cache.cachestat(fd, at, 16 * page).nr_cache == 2 * page
        assert cache.cachestat(fd, at - (4 << 30), 16 * page).nr_cache == 0
        assert cache.cachestat(fd, 1 << 40, 4 << 40).nr_cache == 2 * page
        assert bytes(byte & 1 for byte in cache.mincore(fd, at, 4 * page)) == b"\1\1\0\0"
        assert not any(byte & 1 for byte in cache.mincore(fd, at & 0xFFFFFFFF, 4 * page))


def test_address_space_is_bounded_whatever_the_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    cache = SystemPageCache()
    lengths: list[int] = []
    real = cache._mincore_chunk

    def noted(fd: int, offset: int, length: int) -> bytes:
        lengths.append(length)
        return real(fd, offset, length)

    monkeypatch.setattr(cache, "_mincore_chunk", noted)
    with opened(path) as fd:
        assert len(cache.mincore(fd, 0, 100 << 20)) == (100 << 20) // mmap.PAGESIZE
    assert max(lengths) == 16 << 20
    assert sum(lengths) == 100 << 20


def test_an_offset_within_a_page_is_a_programmers_error(disk: Path) -> None:
    with opened(evicted_file(disk, 1)) as fd, pytest.raises(ValueError, match="multiple"):
        SystemPageCache().mincore(fd, 1, 4096)


def test_a_closed_file_is_unsupported() -> None:
    with pytest.raises(ReadingError) as caught:
        SystemPageCache().cachestat(-1, 0, 0)
    assert caught.value.reason is GapReason.UNSUPPORTED


@needs(root=True)
def test_someone_else_gets_no_false_100_percent(disk: Path) -> None:
    """A cold file, asked about by a user who may only read it: mincore would say all is resident."""
    path = evicted_file(disk, 64)
    path.chmod(0o644)
    script = """
import ctypes, json, mmap, os, sys
from moewatch.linux import pagecache
from moewatch.linux.root import ReadingError
cache = pagecache.SystemPageCache()
fd = os.open(sys.argv[1], os.O_RDONLY)
os.setgid(65533); os.setuid(65533)  # after the imports: the interpreter may lie where only root can read
pagecache.mincore_tells_truth, honest = (lambda fd: True), pagecache.mincore_tells_truth
lie = sum(byte & 1 for byte in cache.mincore(fd, 0, 64 * mmap.PAGESIZE))
pagecache.mincore_tells_truth = honest
try:
    answer = "counted" if cache.cachestat(fd, 0, 0).nr_cache == 0 else "lied"
except ReadingError as error:
    answer = error.reason
try:
    backend = pagecache.probe(cache, fd)
except ReadingError as error:
    backend = error.reason
print(json.dumps([lie, honest(fd), answer, backend]))
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, check=True, text=True)
    lie, honest, answer, backend = json.loads(done.stdout)
    assert lie == 64  # the kernel's lie, which is why
    assert honest is False
    # kernels before 6.13 count for everyone, later ones deny; neither lies
    assert (answer, backend) in [("denied", "denied"), ("counted", "cachestat")]


def test_whoever_may_write_the_file_is_told_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"x")
    with opened(path) as fd:
        assert mincore_tells_truth(fd)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(pagecache, "has_capability", lambda _bit: False)
        monkeypatch.setattr(os, "access", lambda *_args, **_keywords: True)
        assert mincore_tells_truth(fd)
        monkeypatch.setattr(os, "access", lambda *_args, **_keywords: False)
        assert not mincore_tells_truth(fd)


def test_a_capability_over_an_unknown_owner_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root of a container: CAP_FOWNER counts only for owners that its user namespace knows."""
    path = tmp_path / "theirs"
    path.write_bytes(b"x")
    with opened(path) as fd:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(os, "access", lambda *_args, **_keywords: False)
        monkeypatch.setattr(pagecache, "has_capability", lambda _bit: True)
        assert mincore_tells_truth(fd)
        monkeypatch.setattr(pagecache, "_knows_all_users", lambda: False)
        monkeypatch.setattr(pagecache, "_OVERFLOW_UID", path.stat().st_uid)
        assert not mincore_tells_truth(fd)


def test_capabilities_are_read_by_bit() -> None:
    assert parse_capability(b"Name:\tx\nCapEff:\t0000000000000008\n", 3)
    assert not parse_capability(b"CapEff:\t00000000000000f7\n", 3)
    assert not parse_capability(b"", 3)


def test_probe_takes_cachestat_when_it_works(scripted: Scripted) -> None:
    cache, pages, fd = scripted
    pages[0] = RESIDENT
    assert probe(cache, fd) is Backend.CACHESTAT
    pages[0] = EVICTED
    assert probe(cache, fd) is Backend.CACHESTAT


def test_probe_of_a_cold_file(scripted: Scripted) -> None:
    cache, _, fd = scripted
    assert probe(cache, fd) is Backend.CACHESTAT
    cache.mincore_error = DENIED
    assert probe(cache, fd) is Backend.CACHESTAT


def test_probe_does_not_trust_a_silent_cachestat(scripted: Scripted) -> None:
    cache, pages, fd = scripted
    cache.cachestat_is_silent = True
    pages[FILE_PAGES - 1] = RESIDENT
    assert probe(cache, fd) is Backend.MINCORE


def test_probe_without_cachestat(scripted: Scripted) -> None:
    cache, _, fd = scripted
    cache.cachestat_error = MISSING
    assert probe(cache, fd) is Backend.MINCORE


@pytest.mark.parametrize("first", [DENIED, MISSING])
def test_probe_knows_nothing_when_both_are_refused(scripted: Scripted, first: ReadingError) -> None:
    cache, _, fd = scripted
    cache.cachestat_error = first
    cache.mincore_error = DENIED
    with pytest.raises(ReadingError) as caught:
        probe(cache, fd)
    assert caught.value.reason is GapReason.DENIED


def test_errors_of_the_kernel_have_their_reasons(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SystemPageCache()

    def fails_with(number: int) -> None:
        def call(*_arguments: object) -> int:
            ctypes.set_errno(number)
            return -1

        monkeypatch.setattr(cache, "_syscall", call)

    with opened(evicted_file(disk, 1)) as fd:
        for number, reason in ((1, GapReason.DENIED), (38, GapReason.UNSUPPORTED), (95, GapReason.UNSUPPORTED)):
            fails_with(number)
            with pytest.raises(ReadingError) as caught:
                cache.cachestat(fd, 0, 0)
            assert caught.value.reason is reason


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in (
        (tmp_path / "fifo", GapReason.UNSUPPORTED),
        (tmp_path, GapReason.UNSUPPORTED),
        (tmp_path / "none", GapReason.VANISHED),
    ):
        before = psutil.Process().num_fds()
        with pytest.raises(ReadingError) as caught:
            open_for_asking(str(path))
        assert caught.value.reason is reason
        assert psutil.Process().num_fds() == before
