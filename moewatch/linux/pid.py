"""One process: /proc/PID/stat, status, io, task, cmdline, exe (proc_pid_stat(5), proc_pid_status(5), proc_pid_io(5))."""

import os
import pwd

from msgspec import Struct

from moewatch.domain.sample import Gap, GapReason, ProcessReading
from moewatch.errors import ParseError, TargetEndedError
from moewatch.linux.root import KernelRoot, ReadingError, parse_count, parse_keyed

TASKS_LIMIT = 256  # a task's stat costs 6 to 14 us: 256 of them 2 to 4 ms; llama-server has 10 to 150 threads
ARGV_LIMIT_BYTES = 4 << 20  # ARG_MAX is 2 MiB unless the stack limit was raised
NS_PER_S = 1_000_000_000

_STOPPED_STATES = ("T", "t")
_ENDED_STATES = b"ZXx"  # zombie, dead
_STATUS_FIELDS = {b"RssAnon": 1024, b"RssFile": 1024, b"VmSwap": 1024, b"VmLck": 1024}  # "kB" there means KiB
_LAST_FIELD = 42  # delayacct_blkio_ticks; proc_pid_stat(5) counts from 1


class Stat(Struct, frozen=True, kw_only=True):
    """What is used of /proc/PID/stat, in the kernel's own units."""

    pid: int
    comm: str
    state: str
    parent: int
    minflt: int
    majflt: int
    utime_ticks: int
    stime_ticks: int
    threads: int
    start_ticks: int  # since boot: with the pid this is the identity of a process
    rss_pages: int
    blkio_delay_ticks: int  # 0 when task delay accounting is off

    @property
    def has_ended(self) -> bool:
        """A zombie has no memory left to watch."""
        return self.state.encode() in _ENDED_STATES


def parse_stat(content: bytes) -> Stat:
    """/proc/PID/stat or task/TID/stat; the name may hold spaces, parentheses and newlines, so the last `)` ends it."""
    head, parenthesis, tail = content.rpartition(b")")
    pid, opening, comm = head.partition(b"(")
    fields = tail.split()
    if (
        not parenthesis
        or not opening
        or len(fields) < _LAST_FIELD - 2
        or len(fields[0]) != 1
        or not fields[0].isalpha()
    ):
        raise ParseError("it is no stat line of a process")

    def field(number: int) -> int:
        return parse_count(fields[number - 3])

    return Stat(
        pid=parse_count(pid.strip()),
        comm=comm.decode(errors="replace"),
        state=fields[0].decode(),
        parent=field(4),
        minflt=field(10),
        majflt=field(12),
        utime_ticks=field(14),
        stime_ticks=field(15),
        threads=field(20),
        start_ticks=field(22),
        rss_pages=field(24),
        blkio_delay_ticks=field(42),
    )


def parse_status(content: bytes) -> dict[bytes, int]:
    """RssAnon, RssFile, VmSwap and VmLck of /proc/PID/status in bytes; kernel threads have none of them."""
    return parse_keyed(content, _STATUS_FIELDS)


def parse_io(content: bytes) -> int:
    """`read_bytes` of /proc/PID/io: bytes fetched from storage for all its threads, read-ahead of mmap faults included."""
    found = parse_keyed(content, {b"read_bytes": 1})
    if b"read_bytes" not in found:
        raise ParseError("it has no read_bytes")
    return found[b"read_bytes"]


def read_stat(root: KernelRoot, pid: int) -> Stat:
    """Of a living process; TargetEndedError when it is gone or a zombie."""
    try:
        stat = root.parse(f"/proc/{pid}/stat", parse_stat)
    except ReadingError as error:
        if error.reason in (GapReason.ABSENT, GapReason.VANISHED):
            raise TargetEndedError(f"Process {pid} has ended") from None
        raise
    if stat.has_ended:
        raise TargetEndedError(f"Process {pid} has ended")
    return stat


def read_start_ticks(root: KernelRoot, pid: int) -> int:
    """Start time in clock ticks since boot."""
    return read_stat(root, pid).start_ticks


def read_process(root: KernelRoot, pid: int, start_ticks: int | None = None) -> tuple[ProcessReading, list[Gap]]:
    """All counters of one process; what cannot be read is None and has a Gap.

    TargetEndedError when it is gone, or when `start_ticks` is given and the pid belongs to another process now.
    """
    gaps: list[Gap] = []
    stat = read_stat(root, pid)
    if start_ticks is not None and stat.start_ticks != start_ticks:
        raise TargetEndedError(f"Process {pid} has ended; its number belongs to another process now")
    status: dict[bytes, int] = {}
    try:
        status = root.parse(f"/proc/{pid}/status", parse_status)
    except ReadingError as error:
        gaps += [error.gap(f"process.{name}") for name in ("rss_anon_bytes", "rss_file_bytes")]
    running, blocked = _count_threads(root, stat, gaps)
    return ProcessReading(
        minflt_total=stat.minflt,
        majflt_total=stat.majflt,
        rss_bytes=stat.rss_pages * root.page_bytes,
        rss_anon_bytes=status.get(b"RssAnon"),
        rss_file_bytes=status.get(b"RssFile"),
        utime_ns=stat.utime_ticks * NS_PER_S // root.tick_hz,
        stime_ns=stat.stime_ticks * NS_PER_S // root.tick_hz,
        read_bytes_total=_read_io(root, pid, gaps),
        blkio_delay_ns_total=_blkio_delay_ns(root, stat, gaps),
        threads_running=running,
        threads_blocked=blocked,
        swap_bytes=status.get(b"VmSwap"),
        locked_bytes=status.get(b"VmLck"),
        is_stopped=stat.state in _STOPPED_STATES,
    ), gaps


def read_read_bytes(root: KernelRoot, pid: int) -> int:
    """`read_bytes` alone: of another reader of the same files; ReadingError when it may not be read or is gone."""
    return root.parse(f"/proc/{pid}/io", parse_io)


def read_argv(root: KernelRoot, pid: int) -> tuple[str, ...]:
    """The command line as it was given, secrets and all; empty for a kernel thread."""
    content = root.read(f"/proc/{pid}/cmdline", ARGV_LIMIT_BYTES)
    return tuple(os.fsdecode(part) for part in content.removesuffix(b"\0").split(b"\0")) if content else ()


def read_exe(root: KernelRoot, pid: int) -> str:
    """Base name of the program; its comm (15 characters at most) where the link may not be read (another user's)."""
    try:
        return os.path.basename(root.link(f"/proc/{pid}/exe").removesuffix(" (deleted)"))  # noqa: PTH119 - text, no path
    except ReadingError:
        return read_stat(root, pid).comm


def read_uid(root: KernelRoot, pid: int) -> int:
    """Effective user id of the process (second figure of `Uid:`)."""

    def parse_uid(content: bytes) -> int:
        for line in content.splitlines():
            fields = line.split()
            if len(fields) > 2 and fields[0] == b"Uid:":  # noqa: PLR2004 - real and effective
                return parse_count(fields[2])
        raise ParseError("it has no Uid line")

    return root.parse(f"/proc/{pid}/status", parse_uid)


def user_name(uid: int) -> str:
    """Name of a user as `sudo -u` takes it: `#1001` when it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"#{uid}"


def remedy_for(root: KernelRoot, pid: int) -> str:
    """What to do about another user's process: the exact words to put before the command."""
    try:
        uid = read_uid(root, pid)
    except ReadingError:
        return "run moewatch as the user who runs the server"
    name = user_name(uid)
    if os.geteuid() in (0, uid):
        return f"it is closed even to {user_name(os.geteuid())} here: run moewatch outside of this container"
    quoted = f"'{name}'" if name.startswith("#") else name
    return f"run moewatch as its user: sudo -u {quoted}"


def _read_io(root: KernelRoot, pid: int, gaps: list[Gap]) -> int | None:
    field = "process.read_bytes_total"
    try:
        return read_read_bytes(root, pid)
    except ReadingError as error:
        if error.reason is GapReason.DENIED:
            detail = f"/proc/{pid}/io may not be read; {remedy_for(root, pid)}"
            gaps.append(Gap(field=field, reason=error.reason, detail=detail))
        else:
            gaps.append(error.gap(field))
    return None


def _blkio_delay_ns(root: KernelRoot, stat: Stat, gaps: list[Gap]) -> int | None:
    """None rather than 0 when accounting is off; kernels before 5.14 have no switch, there 0 may mean either."""
    field = "process.blkio_delay_ns_total"
    try:
        is_on = root.read_text("/proc/sys/kernel/task_delayacct") != "0"
        detail = "kernel.task_delayacct is 0"
    except ReadingError as error:
        is_on = stat.blkio_delay_ticks > 0
        detail = error.detail
    if is_on:
        return stat.blkio_delay_ticks * NS_PER_S // root.tick_hz
    gaps.append(Gap(field=field, reason=GapReason.ABSENT, detail=detail))
    return None


def _count_threads(root: KernelRoot, stat: Stat, gaps: list[Gap]) -> tuple[int | None, int | None]:
    """Threads in state R and in state D; None for both when there are too many to ask."""
    fields = ("process.threads_running", "process.threads_blocked")
    if stat.threads > TASKS_LIMIT:
        detail = f"the process has {stat.threads} threads; more than {TASKS_LIMIT} are not counted"
        gaps += [Gap(field=field, reason=GapReason.UNSUPPORTED, detail=detail) for field in fields]
        return None, None
    states: list[str] = []
    try:
        names = root.names(f"/proc/{stat.pid}/task", TASKS_LIMIT)
    except ReadingError as error:
        gaps += [error.gap(field) for field in fields]
        return None, None
    for name in names:
        try:
            states.append(root.parse(f"/proc/{stat.pid}/task/{name}/stat", parse_stat).state)
        except ReadingError:
            continue  # a thread that ended meanwhile runs no more
    return states.count("R"), states.count("D")
