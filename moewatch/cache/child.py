"""The parent's side of the reading process (reader.py): start it, send jobs, take results, end it."""

import errno
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.errors import MoewatchError
from moewatch.units import S

START_NS = 10 * S  # it takes 15 ms; a machine short of memory takes longer
END_S = 2.0
READ_BYTES = 1 << 16


class ReaderEndedError(MoewatchError):
    """The reading process ended before its time."""


class Result(Struct, frozen=True):
    """What came of one job."""

    number: int
    read_bytes: int
    errno: int


class ReaderProcess:
    """Runs while the `with` block lasts; reads nothing of its own accord."""

    script = Path(__file__).with_name("reader.py")
    what = "reading"  # what it is called in sentences
    word = "warm"  # among its arguments: tells moewatch's own search for servers whose reads these are

    def __init__(self, paths: Sequence[str], clock: Clock, *, threads: int, cgroup_procs: Sequence[str] = ()) -> None:
        self._paths = paths
        self._clock = clock
        self._threads = threads
        self._cgroup_procs = cgroup_procs
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.cgroup_errno: int | None = None  # of joining; None: not asked to; 0: it joined

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running.pid

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ReaderEndedError("The reading process was not started.")
        return self._process

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - our own file, our own interpreter
            [sys.executable, "-I", "-S", str(self.script), self.word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for us
            bufsize=0,
        )
        try:
            self._greet()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def send(self, number: int, file_index: int, offset: int, length: int, plain: int) -> None:
        """One job (reader.py). The pipe holds 64 KiB, a hundred times what is ever under way, so this does not block."""
        self._write(b"%d %d %d %d %d\n" % (number, file_index, offset, length, plain))

    def receive(self, wait_ns: int) -> list[Result]:
        """What has come since; waits for the first of it, `wait_ns` at most.

        Raises:
            ReaderEndedError: it is gone; the sentence says how.
        """
        results = []
        for line in self._lines(wait_ns):
            number, size, code = map(int, line.split())
            results.append(Result(number, size, code))
        return results

    def _greet(self) -> None:
        lines = [b"cgroup " + os.fsencode(path).hex().encode() for path in self._cgroup_procs]
        lines += [b"threads %d" % self._threads]
        lines += [b"file " + os.fsencode(path).hex().encode() for path in self._paths]
        self._write(b"\n".join([*lines, b"go\n"]))
        end_ns = self._clock.mono_ns() + START_NS
        while (left_ns := end_ns - self._clock.mono_ns()) > 0:
            for line in self._lines(left_ns):
                if line == b"ready":
                    return
                if line.startswith(b"cgroup "):
                    code = line.split()[1]
                    self.cgroup_errno = 0 if code == b"ok" and not self.cgroup_errno else self.cgroup_errno or int(code)
        raise ReaderEndedError(f"The {self.what} process did not start in 10 s: the machine is too short of memory.")

    def _write(self, content: bytes) -> None:
        stdin = self._running.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        try:
            while content:
                content = content[stdin.write(content) or 0 :]
        except BrokenPipeError:
            raise ReaderEndedError(self._how_it_ended()) from None

    def _lines(self, wait_ns: int) -> list[bytes]:
        stdout = self._running.stdout
        assert stdout is not None  # noqa: S101 - it is a pipe
        if not select.select([stdout], [], [], max(0, wait_ns) / S)[0]:
            return []
        part = os.read(stdout.fileno(), READ_BYTES)
        if not part:
            raise ReaderEndedError(self._how_it_ended())
        *lines, self._rest = (self._rest + part).split(b"\n")
        return lines

    def _how_it_ended(self) -> str:
        try:
            code = self._running.wait(1)
        except subprocess.TimeoutExpired:
            return f"The {self.what} process stopped answering."
        if code < 0:
            return f"The {self.what} process was ended by signal {-code}; perhaps its memory group was full."
        return f"The {self.what} process ended with code {code}."

    def _end(self) -> None:
        """At once; a read under way (1 MiB a thread) is waited for by the kernel alone."""
        process = self._process
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if process.poll() is None:
            process.kill()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            return  # held by a disk that does not answer; it ends when that does


def cgroup_words(code: int | None) -> str | None:
    """Why the reader could not join, in words; None when it did or was not asked to."""
    if not code:
        return None
    if code in (errno.EACCES, errno.EPERM):
        return "this user may not move a process into the server's memory group"
    if code in (errno.ENOENT, errno.ENODEV):
        return "the server's memory group is gone"
    return os.strerror(code)
