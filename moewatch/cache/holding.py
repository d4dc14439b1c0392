"""The parent's side of the process that holds pages (holder.py), and what the kernel lets a user hold."""

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from moewatch.cache.child import ReaderEndedError, ReaderProcess
from moewatch.cache.holder import STEP_BYTES
from moewatch.cache.runs import Run, total
from moewatch.clock import Clock
from moewatch.errors import ForbiddenError, MoewatchError, UnusableFileError
from moewatch.linux.capability import IPC_LOCK, has_capability
from moewatch.linux.cgroup import CgroupPaths, read_cgroup
from moewatch.linux.meminfo import read_memory
from moewatch.linux.pressure import read_pressure
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.units import KIB, MIB, S, format_size

ANSWER_NS = 60 * S  # for 16 MiB: even a disk that is busy with a thrashing server gives 1 MB/s


class HeldStep(Struct, frozen=True, kw_only=True):
    """After each step: how much is held now."""

    held_bytes: int
    wanted_bytes: int


class HolderProcess(ReaderProcess):
    """Holds what it is told to until the `with` block ends, or this process does, however it ends."""

    script = Path(__file__).with_name("holder.py")
    what = "holding"
    word = "pin"

    def __init__(
        self, paths: Sequence[str], names: Sequence[str], clock: Clock, *, cgroup_procs: Sequence[str] = ()
    ) -> None:
        super().__init__(paths, clock, threads=1, cgroup_procs=cgroup_procs)
        self.held_bytes = 0
        self._names = names

    def hold(self, files: Sequence[Sequence[Run]], budget_bytes: int) -> Iterator[HeldStep]:
        """Lock these runs (whole pages), 16 MiB at a time; yields after each step.

        Raises:
            ForbiddenError: the kernel lets this user hold no more; the sentence says how to change that.
            UnusableFileError: a file was cut or cannot be read.
            ReaderEndedError: the holding process is gone.
        """
        wanted = min(budget_bytes, sum(map(total, files)))
        for index, start, length in steps(files):
            if self.held_bytes + length > budget_bytes:
                return
            self._write(b"hold %d %d %d\n" % (index, start, length))
            held, code, is_short = self._answer()
            if is_short:
                raise UnusableFileError(f"{self._names[index]} was cut while it was held; everything was let go.")
            if code:
                raise self._refused(code, index, wanted)
            self.held_bytes += held
            yield HeldStep(held_bytes=self.held_bytes, wanted_bytes=wanted)

    def check(self) -> None:
        """The pages are held only as long as it lives; the kernel's out-of-memory killer likes to take who holds much.

        Raises:
            ReaderEndedError: it is gone, and with it every lock.
        """
        if self._running.poll() is not None:
            raise ReaderEndedError(self._how_it_ended())

    def _answer(self) -> tuple[int, int, bool]:
        end_ns = self._clock.mono_ns() + ANSWER_NS
        while (left_ns := end_ns - self._clock.mono_ns()) > 0:
            for line in self._lines(left_ns):
                held, code, short = map(int, line.split())
                return held, code, bool(short)
        raise ReaderEndedError("The disk has not answered for 60 s; everything was let go.")

    def _refused(self, code: int, index: int, wanted: int) -> MoewatchError:
        if code in (errno.EPERM, errno.ENOMEM, errno.EAGAIN):
            if (limit := locked_limit()) is not None and limit < self.held_bytes + STEP_BYTES:
                return ForbiddenError(limit_words(wanted, limit))
            return ForbiddenError(
                f"The kernel holds no more than {format_size(self.held_bytes)} ({os.strerror(code)}): memory is full, or "
                "vm.max_map_count is reached; give --budget SIZE with less."
            )
        return UnusableFileError(f"{self._names[index]} cannot be read: {os.strerror(code)}; everything was let go.")


def steps(files: Sequence[Sequence[Run]]) -> Iterator[tuple[int, int, int]]:
    """(shard, offset, length) of at most 16 MiB, in order."""
    for index, runs in enumerate(files):
        for start, end in runs:
            for at in range(start, end, STEP_BYTES):
                yield index, at, min(STEP_BYTES, end - at)


def locked_limit() -> int | None:
    """How many bytes this user may lock (RLIMIT_MEMLOCK, the hard limit: the soft one is raised); None: any."""
    if has_capability(IPC_LOCK):
        return None
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def limit_words(wanted_bytes: int, limit_bytes: int) -> str:
    """The limit, and the ways around it."""
    whole_bytes = -(-wanted_bytes // MIB) * MIB  # a little more than the limit must not read as the limit
    kib = whole_bytes // KIB
    less = f" Or hold less: --budget {limit_bytes // MIB}M" if limit_bytes >= MIB else ""
    return (
        f"This user may lock {format_size(limit_bytes)} of memory and {format_size(whole_bytes)} are to be held. For this "
        f"shell: sudo prlimit --pid $$ --memlock={whole_bytes}:{whole_bytes}   then `ulimit -l` says {kib}; for a service: "
        f"LimitMEMLOCK={kib}K; or run it with CAP_IPC_LOCK (as root).{less}"
    )


def read_left(root: KernelRoot, cgroup: CgroupPaths | None) -> int | None:
    """What programs can still take: free memory and cache that is not held, of the machine and of the cgroup's limit.

    Held pages are on no list of cache that could be given up, so they are in neither (proc_meminfo(5), memory.stat). None: neither can be read.
    """
    found: list[int] = []
    with suppress(ReadingError):  # the other of the two still says something
        available = read_memory(root).available_bytes
        if available is not None:
            found.append(available)
    if cgroup is not None:
        with suppress(ReadingError):  # the group goes with the server, whose end is told by others
            group = read_cgroup(root, cgroup)
            if group.limit_bytes is not None and group.usage_bytes is not None:
                files = (group.inactive_file_bytes or 0) + (group.active_file_bytes or 0)
                found.append(group.limit_bytes - group.usage_bytes + files)
    return min(found, default=None)


class StallMeter:
    """Memory PSI `full` as a share of the time over the last seconds; None where the kernel does not keep it."""

    SPAN_NS = 5 * S

    def __init__(self, root: KernelRoot, cgroup: CgroupPaths | None, clock: Clock) -> None:
        self._root = root
        self._cgroup = cgroup
        self._clock = clock
        self._marks: list[tuple[int, int]] = []

    def read(self) -> float | None:
        """Now; None until a second has passed."""
        try:
            full = read_pressure(self._root, self._cgroup).memory_full_ns_total
        except ReadingError:
            return None
        if full is None:
            return None
        now = self._clock.mono_ns()
        self._marks = [mark for mark in self._marks if now - mark[0] <= self.SPAN_NS]
        self._marks.append((now, full))
        first_ns, first_full = self._marks[0]
        return (full - first_full) / (now - first_ns) if now - first_ns >= S else None
