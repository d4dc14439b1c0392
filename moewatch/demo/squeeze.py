"""Taking memory away from the demo's server, by whichever way this machine allows.

1. A memory cgroup of its own, made in the cgroup file system (cgroup v1: Documentation/admin-guide/cgroup-v1/memory.rst,
   v2: Documentation/admin-guide/cgroup-v2.rst): root, or a delegated subtree.
2. The same by `systemd-run --user --scope`, for a login without one.
3. No limit at all: the server pages out parts of its own mapping with madvise(MADV_PAGEOUT).

Only the demo's own process is ever limited. Page cache is charged to the cgroup of whoever reads it first, so the server
is moved before it reads the model.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from moewatch.clock import Clock
from moewatch.units import MIB, MS, S

PREFIX = "moewatch-demo-"
CGROUP_MOUNT = Path("/sys/fs/cgroup")
# Beside the weights: the interpreter (measured: 14 MiB anonymous, its page tables 2 MiB) and room for read-ahead in flight.
OWN_BYTES = 32 * MIB
AMPLE_BYTES = 160 * MIB  # above the whole model while it is not squeezed
# A v1 limit is refused (EBUSY) while the group holds more and cannot be reclaimed fast enough; v2 would kill. So go down in steps.
STEP_BYTES = 32 * MIB
STEP_TRIES, STEP_WAIT_NS = 40, 50 * MS
SCOPE_WAIT_NS = 2 * S  # systemd moves the process within milliseconds


class Squeeze(Protocol):
    """One way to take memory away."""

    words: str  # how, in one sentence

    def wrap(self, argv: list[str]) -> list[str]:
        """The command line that starts the server under this squeeze."""
        ...

    def adopt(self, pid: int) -> None:
        """Take charge of the started server, before it reads the model; OSError when that is not possible."""
        ...

    def hold(self, expert_bytes: int | None) -> None:
        """Leave memory for so many bytes of experts beside everything else; None: for all of them."""
        ...

    def close(self) -> None:
        """Remove what was made, after the server has ended."""
        ...


class PageOut:
    """The server evicts its own pages."""

    words = (
        "No memory cgroup may be made here: the demo's server pages out its own weights instead (madvise MADV_PAGEOUT), "
        "so no memory limit is shown"
    )

    def __init__(self, command: Callable[[str], None]) -> None:
        self._command = command

    def wrap(self, argv: list[str]) -> list[str]:
        """Nothing around it."""
        return argv

    def adopt(self, pid: int) -> None:
        """Nothing to do."""

    def hold(self, expert_bytes: int | None) -> None:
        """Tell the server."""
        self._command("experts all" if expert_bytes is None else f"experts {expert_bytes}")

    def close(self) -> None:
        """Nothing was made."""


class _Limit:
    """The limit file of one cgroup."""

    def __init__(self, directory: Path, model_bytes: int, expert_bytes: int, clock: Clock) -> None:
        v2 = directory / "memory.max"
        self._file = v2 if v2.exists() else directory / "memory.limit_in_bytes"
        self._others = model_bytes - expert_bytes + OWN_BYTES
        self._ample = self._now = model_bytes + OWN_BYTES + AMPLE_BYTES
        self._clock = clock
        self._file.write_text(str(self._now))

    def hold(self, expert_bytes: int | None) -> None:
        """Go to the new limit, down in steps; a step that stays refused ends there, with what was reached."""
        target = self._ample if expert_bytes is None else self._others + expert_bytes
        while self._now != target:
            wanted = max(target, self._now - STEP_BYTES)
            for _ in range(STEP_TRIES):
                try:
                    self._file.write_text(str(wanted))
                except FileNotFoundError:
                    return  # the demo has been stopped meanwhile
                except OSError:
                    pass  # EBUSY: not reclaimed yet
                else:
                    self._now = wanted
                    break
                self._clock.sleep_until(self._clock.mono_ns() + STEP_WAIT_NS)
            else:
                return


class Cgroup:
    """A cgroup of our own for the server."""

    def __init__(self, parent: Path, model_bytes: int, expert_bytes: int, clock: Clock) -> None:
        """OSError when it may not be made here."""
        self._directory = parent / f"{PREFIX}{os.getpid()}"
        self._clock = clock
        self._directory.mkdir()
        try:
            self._limit = _Limit(self._directory, model_bytes, expert_bytes, clock)
        except OSError:
            self._directory.rmdir()
            raise
        self.words = f"The demo's server runs in a memory cgroup of its own ({self._directory.name}), whose limit is lowered for the squeeze"

    def wrap(self, argv: list[str]) -> list[str]:
        """Nothing around it."""
        return argv

    def adopt(self, pid: int) -> None:
        """Move it in."""
        (self._directory / "cgroup.procs").write_text(str(pid))

    def hold(self, expert_bytes: int | None) -> None:
        """Set the limit."""
        self._limit.hold(expert_bytes)

    def close(self) -> None:
        """Remove it; the kernel may need a moment after the last process has gone (EBUSY)."""
        for _ in range(STEP_TRIES):
            try:
                self._directory.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                self._clock.sleep_until(self._clock.mono_ns() + STEP_WAIT_NS)
            else:
                return


class Scope:
    """A scope of the user's systemd; it vanishes with its process."""

    def __init__(self, model_bytes: int, expert_bytes: int, clock: Clock) -> None:
        self._unit = f"{PREFIX}{os.getpid()}.scope"
        self._bytes = model_bytes, expert_bytes
        self._clock = clock
        self._limit: _Limit | None = None
        self.words = f"The demo's server runs in a scope of your systemd ({self._unit}), whose memory limit is lowered for the squeeze"

    @staticmethod
    def is_possible() -> bool:
        """Whether a systemd of this user runs, with the memory controller handed down to it (cgroup v2 only)."""
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        base = CGROUP_MOUNT / f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service"
        if not runtime or not (Path(runtime) / "systemd/private").exists() or not shutil.which("systemd-run"):
            return False
        return "memory" in _read(base / "cgroup.controllers").split()

    def wrap(self, argv: list[str]) -> list[str]:
        """systemd-run --scope becomes the command itself: the pid stays the same."""
        return ["systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={self._unit}", "--", *argv]

    def adopt(self, pid: int) -> None:
        """Wait until it is in its scope, then set the first limit."""
        until = self._clock.mono_ns() + SCOPE_WAIT_NS
        while True:
            path = _own_path(_read(Path(f"/proc/{pid}/cgroup")), "")
            if path is not None and path.endswith(self._unit):
                self._limit = _Limit(CGROUP_MOUNT / path.lstrip("/"), *self._bytes, self._clock)
                return
            if self._clock.mono_ns() > until:
                raise OSError(f"systemd did not put the process into {self._unit}")
            self._clock.sleep_until(self._clock.mono_ns() + STEP_WAIT_NS)

    def hold(self, expert_bytes: int | None) -> None:
        """Set the limit in the scope's directory, which belongs to the user."""
        if self._limit is not None:
            self._limit.hold(expert_bytes)

    def close(self) -> None:
        """A scope without processes is removed by systemd; a failed one is forgotten by --collect."""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _own_path(membership: str, controller: str) -> str | None:
    """The path in /proc/PID/cgroup for a v1 controller, or for v2 with "" (cgroups(7))."""
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and (controller or number == "0"):
            return path
    return None


def parents(mount: Path = CGROUP_MOUNT, membership: str | None = None) -> Iterator[Path]:
    """Where a memory cgroup could be made, best first: below our own, beside it, at the top (containers hide the way there)."""
    text = _read(Path("/proc/self/cgroup")) if membership is None else membership
    v1 = mount / "memory"
    if (v1 / "memory.limit_in_bytes").exists() or (v1 / "cgroup.procs").exists():
        own = (v1 / (_own_path(text, "memory") or "/").lstrip("/")).resolve()
        yield from (p for p in dict.fromkeys((own, v1)) if p.is_dir())
    elif (mount / "cgroup.controllers").exists():
        own = (mount / (_own_path(text, "") or "/").lstrip("/")).resolve()
        # Not below our own: a v2 group that holds processes cannot hand a controller down.
        for place in dict.fromkeys((own.parent, mount)):
            if place.is_relative_to(mount) and "memory" in _read(place / "cgroup.subtree_control").split():
                yield place


def sweep(parent: Path) -> None:
    """Remove the empty groups of demos that were killed; one that is in use cannot be removed (EBUSY), and stays."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{PREFIX}*"):
            pid = path.name.removeprefix(PREFIX)
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


def ways(
    command: Callable[[str], None], model_bytes: int, expert_bytes: int, clock: Clock
) -> Iterator[Callable[[], Squeeze]]:
    """The ways to try in turn; each is made by calling it, which may raise OSError. The last one always works."""
    for parent in parents():
        sweep(parent)
        yield partial(Cgroup, parent, model_bytes, expert_bytes, clock)
    if Scope.is_possible():
        yield partial(Scope, model_bytes, expert_bytes, clock)
    yield partial(PageOut, command)


def end(process: subprocess.Popen[str], wait_s: float) -> None:
    """Close the control channel, which ends the server; kill it when it does not follow."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
