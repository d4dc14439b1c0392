import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from moewatch.domain.sample import GapReason
from moewatch.errors import ParseError, TargetEndedError
from moewatch.linux.pid import (
    TASKS_LIMIT,
    parse_io,
    parse_stat,
    read_argv,
    read_exe,
    read_process,
    read_start_ticks,
    read_uid,
    remedy_for,
)
from moewatch.linux.root import KernelRoot, ReadingError
from tests.support.proctree import ProcTree
from tests.support.requirements import needs


def test_a_captured_process(captured: ProcTree) -> None:
    reading, gaps = read_process(captured.root, 4242)
    assert reading.minflt_total == 1328
    assert reading.majflt_total == 4
    assert reading.rss_bytes == 4307 * 4096
    assert reading.utime_ns == 10_000_000
    assert reading.read_bytes_total == 16736256
    assert reading.rss_anon_bytes is not None
    assert reading.rss_file_bytes is not None
    assert reading.rss_file_bytes > 8 << 20  # it had read its 8 MiB file
    assert (reading.swap_bytes, reading.locked_bytes) == (0, 0)
    assert reading.blkio_delay_ns_total is None
    assert (reading.threads_running, reading.threads_blocked) == (0, 0)
    assert [(gap.field, gap.reason, gap.detail) for gap in gaps] == [
        ("process.blkio_delay_ns_total", GapReason.ABSENT, "kernel.task_delayacct is 0")
    ]


@pytest.mark.parametrize("comm", ["a) R 1 (b", "(((", ") ) )", "two\nlines", "", "sp ace"])
def test_any_name_is_read_up_to_its_last_parenthesis(tree: ProcTree, comm: str) -> None:
    tree.process(9, comm=comm, majflt=23, start=77)
    stat = parse_stat(tree.root.read("/proc/9/stat"))
    assert (stat.comm, stat.majflt, stat.start_ticks, stat.state) == (comm, 23, 77, "S")


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_has_ended(tree: ProcTree, state: str) -> None:
    with pytest.raises(TargetEndedError, match="Process 9 has ended"):
        read_process(tree.process(9, state=state).root, 9)


def test_no_such_process(tree: ProcTree) -> None:
    with pytest.raises(TargetEndedError):
        read_start_ticks(tree.root, 9)


def test_a_pid_that_belongs_to_another_process_now(tree: ProcTree) -> None:
    tree.process(9, start=2000)
    assert read_process(tree.root, 9, 2000)[0].majflt_total == 0
    with pytest.raises(TargetEndedError, match="belongs to another process"):
        read_process(tree.root, 9, 1999)


def test_another_users_io_is_a_gap_with_the_remedy(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 3999998)
    tree.process(9, uid=os.getuid()).deny("/proc/9/io")
    reading, gaps = read_process(tree.root, 9)
    assert reading.read_bytes_total is None
    assert reading.majflt_total == 0
    (gap,) = [gap for gap in gaps if gap.field == "process.read_bytes_total"]
    assert gap.reason is GapReason.DENIED
    assert f"sudo -u {psutil.Process().username()}" in gap.detail


def test_what_is_closed_to_root_is_not_cured_by_sudo(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tree.process(9, uid=1000)
    assert "sudo" not in remedy_for(tree.root, 9)
    assert "outside of this container" in remedy_for(tree.root, 9)


def test_a_user_without_a_name_is_a_quoted_number(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    tree.process(9, uid=3999999)
    assert "sudo -u '#3999999'" in remedy_for(tree.root, 9)
    assert read_uid(tree.root, 9) == 3999999


@pytest.mark.parametrize("path", ["/proc/9/status", "/proc/9/io", "/proc/9/task"])
def test_a_process_that_vanishes_midway_leaves_gaps(tree: ProcTree, path: str) -> None:
    reading, gaps = read_process(tree.process(9, majflt=5).vanish(path).root, 9)
    assert reading.majflt_total == 5
    assert GapReason.VANISHED in {gap.reason for gap in gaps}


def test_a_thread_that_vanishes_is_not_counted(tree: ProcTree) -> None:
    tree.process(9, thread_states="RRDS").vanish("/proc/9/task/10/stat")
    reading, _ = read_process(tree.root, 9)
    assert (reading.threads_running, reading.threads_blocked) == (1, 1)


def test_too_many_threads_are_unknown_and_not_few(tree: ProcTree) -> None:
    tree.process(9, thread_states="R" * (TASKS_LIMIT + 1))
    reading, gaps = read_process(tree.root, 9)
    assert (reading.threads_running, reading.threads_blocked) == (None, None)
    assert any("threads" in gap.detail for gap in gaps)


def test_block_delay_is_ticks_when_it_is_counted(tree: ProcTree) -> None:
    tree.process(9, blkio=250).write("/proc/sys/kernel/task_delayacct", "1\n")
    reading, gaps = read_process(tree.root, 9)
    assert reading.blkio_delay_ns_total == 2_500_000_000
    assert gaps == []


def test_block_delay_without_the_switch_is_known_only_when_not_zero(tree: ProcTree) -> None:
    assert read_process(tree.process(9, blkio=3).root, 9)[0].blkio_delay_ns_total == 30_000_000
    assert read_process(tree.process(8, blkio=0).root, 8)[0].blkio_delay_ns_total is None


def test_pages_of_64_kib_and_other_ticks(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path, page_bytes=65536, tick_hz=250)
    reading, _ = read_process(tree.process(9, rss_pages=3, utime=250).root, 9)
    assert reading.rss_bytes == 3 * 65536
    assert reading.utime_ns == 1_000_000_000


@pytest.mark.parametrize("keep", [0, 5, 20, 40])
def test_a_truncated_stat_is_malformed(tree: ProcTree, keep: int) -> None:
    tree.process(9).truncate("/proc/9/stat", keep)
    with pytest.raises(ReadingError) as caught:
        read_start_ticks(tree.root, 9)
    assert caught.value.reason is GapReason.MALFORMED


def test_io_without_read_bytes() -> None:
    with pytest.raises(ParseError):
        parse_io(b"rchar: 1\n")


def test_argv_keeps_spaces_and_empty_arguments(captured: ProcTree) -> None:
    assert read_argv(captured.root, 4242)[-1] == "/models/a (model) file.gguf"
    captured.write("/proc/5/cmdline", b"a\0\0b c\0").write("/proc/6/cmdline", b"").write("/proc/7/cmdline", b"\xff\0")
    assert read_argv(captured.root, 5) == ("a", "", "b c")
    assert read_argv(captured.root, 6) == ()
    assert os.fsencode(read_argv(captured.root, 7)[0]) == b"\xff"


def test_exe_falls_back_to_comm(tree: ProcTree) -> None:
    tree.process(9, comm="llama-server-lo").link("/proc/9/exe", "/opt/llama-server-long (deleted)")
    assert read_exe(tree.root, 9) == "llama-server-long"
    assert read_exe(tree.deny("/proc/9/exe").root, 9) == "llama-server-lo"


def test_a_stopped_process_is_seen_as_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            assert read_process(KernelRoot.system(), child.pid)[0].is_stopped is False
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            assert read_process(KernelRoot.system(), child.pid)[0].is_stopped is True
        finally:
            child.kill()


def test_agrees_with_psutil_about_this_process() -> None:
    root, own = KernelRoot.system(), psutil.Process()
    reading, _ = read_process(root, os.getpid())
    assert reading.rss_bytes == pytest.approx(own.memory_info().rss, rel=0.1)
    assert reading.read_bytes_total is not None
    assert reading.read_bytes_total <= own.io_counters().read_bytes
    assert read_start_ticks(root, os.getpid()) / root.tick_hz == pytest.approx(
        own.create_time() - psutil.boot_time(), abs=2
    )
    assert read_uid(root, os.getpid()) == os.geteuid()
    assert list(read_argv(root, os.getpid())) == own.cmdline()


@needs("ps")
def test_agrees_with_ps_about_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            fields = subprocess.run(
                ["ps", "-o", "ppid=,maj_flt=", "-p", str(child.pid)], capture_output=True, check=True, text=True
            ).stdout.split()
            root = KernelRoot.system()
            stat = parse_stat(root.read(f"/proc/{child.pid}/stat"))
            assert [stat.parent, stat.majflt] == [int(field) for field in fields]
        finally:
            child.kill()
            child.wait()
    with pytest.raises(TargetEndedError):
        read_process(KernelRoot.system(), child.pid)
