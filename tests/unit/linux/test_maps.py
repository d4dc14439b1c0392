import mmap
import os
from pathlib import Path

import pytest

from moewatch.domain.sample import GapReason
from moewatch.errors import ParseError
from moewatch.linux.maps import parse_maps, read_maps
from moewatch.linux.root import KernelRoot, ReadingError
from tests.support.proctree import ProcTree


def test_the_captured_model_is_found_with_its_spaces(captured: ProcTree) -> None:
    (model,) = [each for each in read_maps(captured.root, 4242) if each.path.endswith(".gguf")]
    assert model.path == "/models/a (model) file.gguf"
    assert (model.length, model.offset, model.perms, model.inode) == (8 << 20, 0, "r--s", 2177315)
    assert model.dev == os.makedev(254, 0)
    assert not model.deleted


def test_deleted_files_and_names_with_newlines() -> None:
    deleted, newline, anonymous, heap = parse_maps(
        b"1000-2000 r--s 00001000 08:02 12 /m/a.gguf (deleted)\n"
        b"2000-3000 r--p 00000000 103:05 13 /m/two\\012lines\n"
        b"3000-4000 rw-p 00000000 00:00 0 \n"
        b"4000-5000 rw-p 00000000 00:00 0 [heap]\n"
    )
    assert (deleted.path, deleted.deleted, deleted.offset) == ("/m/a.gguf", True, 4096)
    assert newline.path == "/m/two\nlines"
    assert newline.dev == os.makedev(0x103, 5)
    assert (anonymous.path, heap.path, heap.deleted) == ("", "[heap]", False)


@pytest.mark.parametrize(
    "content",
    [
        b"x\n",
        b"1000-2000 r--s 0 08:02\n",
        b"1000-2000 r--s 00001000 ffffffff:02 12 /m/a\n",
        b"1000-2000 r--s 00001000 08:02 1"[:20],
    ],
)
def test_what_is_no_mapping_is_refused(content: bytes) -> None:
    with pytest.raises(ParseError):
        parse_maps(content)


def test_another_users_maps_are_denied(tree: ProcTree) -> None:
    with pytest.raises(ReadingError) as caught:
        read_maps(tree.process(9).deny("/proc/9/maps").root, 9)
    assert caught.value.reason is GapReason.DENIED


def test_own_maps_hold_a_file_mapped_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    path.write_bytes(b"x" * 10000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        (found,) = [each for each in read_maps(KernelRoot.system(), os.getpid()) if each.path == str(path)]
        assert found.inode == path.stat().st_ino
        assert found.length == 12288
