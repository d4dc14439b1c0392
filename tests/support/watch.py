"""The product itself as a person runs it: a subprocess of `python -m moewatch`, its Frames and recordings read back."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from moewatch.domain.frame import Frame, State
from moewatch.domain.sample import Header, Sample
from moewatch.trace.reader import read_trace

MOEWATCH = (sys.executable, "-m", "moewatch")
# a job of a shell without job control ignores Ctrl-C, and so would its children
_INTERRUPTIBLE = ("env", "--default-signal=INT")
_POLL_S = 0.05
_END_S = 10.0


def moewatch(*arguments: str, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run([*MOEWATCH, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def wait_mapped(pid: int, model: Path, timeout_s: float = 30.0) -> None:
    """Return when the process maps the model.

    Raises:
        TimeoutError: it did not in time.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if str(model) in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"):
                return
        time.sleep(_POLL_S)
    raise TimeoutError(f"process {pid} did not map {model} in {timeout_s:g} s")


class Watching:
    """A running `stream --json` or `record`; interrupted when the `with` block ends."""

    def __init__(self, pid: int, *, interval_s: float, log: Path, record_to: Path | None = None) -> None:
        command = "record" if record_to else "stream"
        self._command = [*_INTERRUPTIBLE, *MOEWATCH, command, "--pid", str(pid), "--interval", f"{interval_s:g}"]
        self._command += ["-o", str(record_to)] if record_to else ["--json"]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, name="frames", daemon=True)
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.exit_code = self._process.wait()
        self._reader.join(_END_S)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def said(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def frames(self) -> list[Frame]:
        """The Frames so far, each checked against the contract."""
        assert self._lines, f"moewatch printed nothing (exit {self.exit_code}): {self.said()}"
        return parse_frames(self._lines)


def parse_frames(lines: Iterable[bytes | str]) -> list[Frame]:
    """One Frame a line."""
    return [msgspec.json.decode(line, type=Frame) for line in lines if line.strip()]


def replayed(recording: Path) -> list[Frame]:
    """What `replay --json` makes of a recording."""
    done = moewatch("replay", str(recording), "--json")
    assert done.returncode == 0, done.stderr
    return parse_frames(done.stdout.splitlines())


def recorded(recording: Path) -> tuple[Header, list[Sample]]:
    """The raw readings."""
    header, samples = read_trace(recording)
    return header, list(samples)


def between(frames: Iterable[Frame], start_ns: int, end_ns: int) -> list[Frame]:
    """The Frames of a span of monotonic time."""
    return [frame for frame in frames if start_ns <= frame.mono_ns < end_ns]


def share_of(frames: list[Frame], *states: State) -> float:
    """Share of the Frames that are in one of the states."""
    assert frames, "there is no frame in this span"
    return sum(frame.verdict.state in states for frame in frames) / len(frames)


def timeline(frames: list[Frame], zero_ns: int) -> str:
    """For a failing test: when which state began, in seconds after `zero_ns`."""
    parts: list[str] = []
    before: State | None = None
    for frame in frames:
        if frame.verdict.state is not before:
            before = frame.verdict.state
            parts.append(f"{(frame.mono_ns - zero_ns) / 1e9:.1f} {before}")
    return ", ".join(parts)
