"""Carry out a plan: read its ranges into small buffers, watch that they stay, stop at once when told or when it harms."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

from moewatch.cache.child import ReaderEndedError, ReaderProcess, Result
from moewatch.cache.guard import CHECK_NS, Guard, Ruling
from moewatch.cache.reader import BLOCK_BYTES
from moewatch.clock import Clock
from moewatch.domain.layout import WeightClass
from moewatch.domain.warm import FileRun, Plan, PlannedRange, Step, StopReason, WarmProgress
from moewatch.units import MS, S

# Measured on 1.6 GB of a virtual disk, MB/s of four rounds each, in buffers of 256 KiB: 2 threads 1,264-1,409, 4 threads
# 1,332-1,650, 8 threads 1,459-1,756 (vmtouch -t in the same run 1,170-1,383). Buffers of 128 KiB are as fast; those of
# 1 MiB cost more CPU (0.52 s against 0.38) and make the kernel read beyond the end of a range.
THREADS = 8
JOB_BYTES = 4 << 20
# Near the end of a range nothing is read ahead (reader.py): four windows, since a marked page may lie two beyond what was
# asked for. Where windows are large (virtual machines: 8 MiB) everything is read without.
TAIL_WINDOWS = 4
LARGEST_WINDOW_BYTES = JOB_BYTES // 16
PAGES_BYTES = 1 << 16  # jobs end with a page, whatever its size
JOBS_UNDER_WAY = 2 * THREADS
TICK_NS = 100 * MS  # how soon a cancel is seen
TELL_NS = 250 * MS
SPEED_NS = 3 * S
BUSY_SHARE = 4  # while the server generates: reads for a quarter of the time
# Where other parts are to make room, what is wanted and in memory is read again first, from memory to memory: a page that was
# used twice is given up last (folio_mark_accessed in mm/swap.c). Without it 2 of 71 % of the dense weights were pushed out.
TOUCHES = 2
LOOK_RESTS = 10  # looks take a tenth of a core at most
SILENCE_NS = 30 * S  # a disk that answers nothing for so long
CANCELLED_WORDS = "cancelled; what has been read stays in memory"


class ServerWatch(Protocol):
    """What has to be known of the server meanwhile."""

    def is_busy(self) -> bool | None:
        """Whether a request is in work; None when unknown."""
        ...

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        ...


class Warming:
    """One run of one plan. `run` yields progress; afterwards `reason` and `stopped` say how it ended."""

    def __init__(
        self,
        plan: Plan,
        paths: Sequence[str],
        names: Sequence[str],
        guard: Guard,
        clock: Clock,
        *,
        server: ServerWatch | None = None,
        rate_bytes_per_s: int | None = None,
        read_ahead_bytes: int | None = None,
        cgroup_procs: Sequence[str] = (),
        on_start: Callable[[ReaderProcess], None] = lambda _child: None,
    ) -> None:
        self.reason: StopReason | None = None
        self.stopped: str | None = None
        self.read_bytes = 0
        self.elapsed_ns = 0
        self.ruling = Ruling()
        self.joined_errno: int | None = None
        self._plan = plan
        self._paths = paths
        self._names = names
        self._guard = guard
        self._clock = clock
        self._server = server
        self._rate = rate_bytes_per_s
        self._cgroup_procs = cgroup_procs
        self._on_start = on_start
        self._cancelled = threading.Event()
        touches = [job for job, _ in cut(_as_ranges(plan.held), None)] * TOUCHES
        self._first_read = len(touches)
        self._jobs = [*((job, 0) for job in touches), *cut(plan.ranges, read_ahead_bytes)]
        self._sent = 0
        self._under_way: dict[int, PlannedRange] = {}
        self._by_step: dict[Step, int] = {}
        self._marks: deque[tuple[int, int]] = deque()
        self._may_send_ns = 0
        self._batch_ns: int | None = None  # when the present batch of a slowed-down run was sent
        self._heard_ns = 0

    def cancel(self) -> None:
        """From any thread: no further read is begun."""
        self._cancelled.set()

    def run(self) -> Generator[WarmProgress, None, None]:
        """Read; yields every quarter of a second and at the end. Closing the iterator ends the reading too."""
        began_ns = self._heard_ns = self._clock.mono_ns()
        try:
            with ReaderProcess(self._paths, self._clock, threads=THREADS, cgroup_procs=self._cgroup_procs) as child:
                self.joined_errno = child.cgroup_errno
                self._on_start(child)
                yield from self._read(child, began_ns)
        except ReaderEndedError as error:
            self._stop(StopReason.READER, str(error))
        except (GeneratorExit, KeyboardInterrupt):
            self._stop(StopReason.CANCELLED, CANCELLED_WORDS)
            raise
        finally:
            self.elapsed_ns = self._clock.mono_ns() - began_ns
        yield self._progress(self.elapsed_ns)

    def _read(self, child: ReaderProcess, began_ns: int) -> Iterator[WarmProgress]:
        tell_ns = check_ns = began_ns
        while self.reason is None and (self._sent < len(self._jobs) or self._under_way):
            now_ns = self._clock.mono_ns()
            if self._cancelled.is_set():
                self._stop(StopReason.CANCELLED, CANCELLED_WORDS)
                return
            self._send(child, now_ns)
            for result in child.receive(self._patience_ns()):
                self._take(result)
            now_ns = self._clock.mono_ns()
            if self._under_way and now_ns - self._heard_ns > SILENCE_NS:
                self._stop(StopReason.FILE, "the disk has not answered for 30 s")
            if now_ns >= check_ns:
                spent_ns = self._check()
                check_ns = now_ns + max(CHECK_NS, LOOK_RESTS * spent_ns)
            if now_ns >= tell_ns:
                tell_ns = now_ns + TELL_NS
                yield self._progress(now_ns - began_ns)
        if self.reason is None:
            self.ruling = self._guard.look()

    def _send(self, child: ReaderProcess, now_ns: int) -> None:
        is_slowed = bool(self._server is not None and self._server.is_busy())
        if is_slowed and self._under_way:
            return  # a batch at a time, and then a rest of three times as long
        if self._batch_ns is not None:
            self._may_send_ns = max(self._may_send_ns, now_ns + (BUSY_SHARE - 1) * (now_ns - self._batch_ns))
            self._batch_ns = None
        limit = THREADS if is_slowed else JOBS_UNDER_WAY
        while self._sent < len(self._jobs) and len(self._under_way) < limit and now_ns >= self._may_send_ns:
            job, plain = self._jobs[self._sent]
            if not self._under_way:
                self._heard_ns = now_ns  # a rest is no silence
            child.send(self._sent, job.file_index, job.offset, job.length, plain)
            self._under_way[self._sent] = job
            self._sent += 1
            if self._rate:
                self._may_send_ns = max(self._may_send_ns, now_ns) + job.length * S // self._rate
                if self._may_send_ns - now_ns > TICK_NS:
                    break
            if is_slowed:
                self._batch_ns = now_ns

    def _patience_ns(self) -> int:
        """How long to wait for a result: until the next job may be sent, a tick at most."""
        pause_ns = self._may_send_ns - self._clock.mono_ns()
        return min(TICK_NS, pause_ns) if pause_ns > 0 and self._sent < len(self._jobs) else TICK_NS

    def _take(self, result: Result) -> None:
        job = self._under_way.pop(result.number)
        self._heard_ns = self._clock.mono_ns()
        if result.number < self._first_read:
            return
        self.read_bytes += result.read_bytes
        self._by_step[job.step] = self._by_step.get(job.step, 0) + result.read_bytes
        if result.read_bytes:
            self._guard.note(job.file_index, job.offset, job.offset + result.read_bytes)
        name = self._names[job.file_index]
        if result.errno:
            self._stop(StopReason.FILE, f"{name} could not be read near byte {job.offset}: {os.strerror(result.errno)}")
        elif result.read_bytes < job.length:
            self._stop(
                StopReason.FILE, f"{name} ends before byte {job.offset + job.length}: it was cut; fetch it again"
            )

    def _check(self) -> int:
        """Returns the CPU time it cost: counting 60 GiB takes 0.1 s with folios of 128 KiB."""
        began_ns = self._clock.thread_cpu_ns()
        if self._server is not None and self._server.has_ended():
            self._stop(StopReason.SERVER_ENDED, "the server ended; what has been read stays in memory")
            return 0
        self.ruling = self._guard.look()
        if self.ruling.reason is not None and self.ruling.words is not None:
            self._stop(self.ruling.reason, self.ruling.words)
        return self._clock.thread_cpu_ns() - began_ns

    def _stop(self, reason: StopReason, words: str) -> None:
        if self.reason is None:
            self.reason, self.stopped = reason, words

    def _progress(self, elapsed_ns: int) -> WarmProgress:
        self._marks.append((elapsed_ns, self.read_bytes))
        while len(self._marks) > 2 and elapsed_ns - self._marks[0][0] > SPEED_NS:  # noqa: PLR2004 - a speed needs two marks
            self._marks.popleft()
        first_ns, first_bytes = self._marks[0]
        speed = (self.read_bytes - first_bytes) * S / (elapsed_ns - first_ns) if elapsed_ns > first_ns else None
        left = self._plan.planned_bytes - self.read_bytes
        next_job = min(self._under_way, default=self._sent)
        return WarmProgress(
            planned_bytes=self._plan.planned_bytes,
            read_bytes=self.read_bytes,
            elapsed_ns=elapsed_ns,
            bytes_per_s=speed,
            eta_ns=round(left / speed * S) if speed else None,
            step=self._jobs[next_job][0].step if next_job < len(self._jobs) else None,
            steps=tuple(
                (each.step, self._by_step.get(each.step, 0), each.planned_bytes)
                for each in self._plan.steps
                if each.planned_bytes
            ),
            resident_bytes=self.ruling.resident_bytes,
            gone_bytes=self.ruling.gone_bytes,
            pushed_out_bytes=self.ruling.pushed_out_bytes,
            left_for_programs_bytes=self.ruling.left_for_programs_bytes,
            is_server_busy=self._server.is_busy() if self._server is not None else None,
        )


def _as_ranges(runs: Sequence[FileRun]) -> list[PlannedRange]:
    return [
        PlannedRange(
            file_index=run.file_index,
            offset=run.offset,
            length=run.length,
            weight_class=WeightClass.DENSE,
            step=Step.DENSE,
        )
        for run in runs
    ]


def cut(ranges: Sequence[PlannedRange], read_ahead_bytes: int | None) -> Iterator[tuple[PlannedRange, int]]:
    """Jobs of about 4 MiB, none much shorter unless its range is; with each the bytes to be read with read-ahead."""
    has_ahead = read_ahead_bytes is not None and 0 < read_ahead_bytes <= LARGEST_WINDOW_BYTES
    tail = TAIL_WINDOWS * max(read_ahead_bytes or 0, BLOCK_BYTES)  # a buffer above the window is read in one go
    for each in ranges:
        pieces = max(1, round(each.length / JOB_BYTES))
        size = -(-each.length // pieces // PAGES_BYTES) * PAGES_BYTES
        for done in range(0, each.length, size):
            length = min(size, each.length - done)
            plain = min(length, max(0, each.length - tail - done)) if has_ahead else 0
            job = PlannedRange(
                file_index=each.file_index,
                offset=each.offset + done,
                length=length,
                weight_class=each.weight_class,
                step=each.step,
            )
            yield job, plain
