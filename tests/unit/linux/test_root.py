import errno
import os
from pathlib import Path

import pytest

from moewatch.domain.sample import Gap, GapReason
from moewatch.errors import ExitCode, ParseError
from moewatch.linux.root import KernelRoot, ReadingError, parse_count, parse_keyed, reading_error
from tests.support.proctree import ProcTree


def test_system_knows_this_machine() -> None:
    root = KernelRoot.system()
    assert root.page_bytes == os.sysconf("SC_PAGESIZE")
    assert root.tick_hz == os.sysconf("SC_CLK_TCK")
    assert root.is_system
    assert os.getpid() in root.pids()


def test_proc_and_sys_are_looked_up_in_the_tree_and_other_paths_are_not(tree: ProcTree) -> None:
    assert tree.root.locate("/proc/1/stat") == f"{tree.root.proc}/1/stat"
    assert tree.root.locate("/sys") == str(tree.root.sys)
    assert tree.root.locate("/process") == "/process"
    assert not tree.root.is_system


def test_a_file_longer_than_the_limit_is_refused_and_not_cut(tree: ProcTree) -> None:
    tree.write("/proc/long", b"x" * 100)
    assert len(tree.root.read("/proc/long", 100)) == 100
    with pytest.raises(ReadingError, match="longer than 99 bytes") as caught:
        tree.root.read("/proc/long", 99)
    assert caught.value.reason is GapReason.MALFORMED


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, GapReason.DENIED),
        (errno.EPERM, GapReason.DENIED),
        (errno.ENOENT, GapReason.ABSENT),
        (errno.ESRCH, GapReason.VANISHED),
        (errno.EOPNOTSUPP, GapReason.UNSUPPORTED),
        (errno.EIO, GapReason.UNSUPPORTED),
    ],
)
def test_each_errno_has_its_reason(number: int, reason: GapReason) -> None:
    error = reading_error(OSError(number, os.strerror(number)), "/proc/1/io")
    assert error.reason is reason
    assert error.gap("process") == Gap(field="process", reason=reason, detail=str(error))
    assert "/proc/1/io" in error.detail


def test_a_missing_file_a_directory_and_a_name_with_nul_are_reading_errors(tree: ProcTree) -> None:
    for path, reason in (
        ("/proc/none", GapReason.ABSENT),
        ("/proc", GapReason.UNSUPPORTED),
        ("/proc/a\0b", GapReason.ABSENT),
    ):
        with pytest.raises(ReadingError) as caught:
            tree.root.read(path)
        assert caught.value.reason is reason


def test_a_fifo_does_not_block(tree: ProcTree) -> None:
    os.mkfifo(tree.root.locate("/proc/fifo"))
    assert tree.root.read("/proc/fifo") == b""


def test_nonsense_names_the_file(tree: ProcTree) -> None:
    tree.write("/proc/x", "nonsense")
    with pytest.raises(ReadingError, match="/proc/x makes no sense") as caught:
        tree.root.parse("/proc/x", parse_count)
    assert caught.value.reason is GapReason.MALFORMED


@pytest.mark.parametrize("token", [b"", b"-1", b"+1", b"1_0", b" 1", b"0x1", b"9223372036854775808", b"1" * 5000])
def test_only_plain_counters_are_counters(token: bytes) -> None:
    with pytest.raises(ParseError):
        parse_count(token)


def test_a_factor_must_not_overflow_a_recording() -> None:
    assert parse_count(b"9223372036854771712") == 9223372036854771712  # v1's "no limit"
    with pytest.raises(ParseError):
        parse_count(b"9223372036854771712", 1024)


def test_keyed_lines_take_the_wanted_and_skip_the_rest() -> None:
    content = b"Name:\tx\rA: 9\nA:  12 kB\nB 7\nC: x\n\nD\n"
    assert parse_keyed(content, {b"A": 1024, b"B": 1, b"D": 1}) == {b"A": 12288, b"B": 7}
    with pytest.raises(ParseError):
        parse_keyed(content, {b"C": 1})


def test_pids_are_numbers_only(tree: ProcTree, tmp_path: Path) -> None:
    for name in ("12", "3", "self", "1x", "\u0661"):
        (tmp_path / "proc" / name).mkdir()
    assert tree.root.pids() == [3, 12]


def test_what_cannot_be_read_is_no_finding() -> None:
    error = reading_error(OSError(errno.EMFILE, "Too many open files"), "/proc/7/stat")
    assert error.exit_code is ExitCode.FORBIDDEN
