"""A real memory limit, and if wanted a slow disk: cgroups of our own, v1 or v2, that a process is born into. Needs root.

A process must be inside before it touches a page, since a page is charged to the cgroup that first reads it; so a shell
joins the cgroups and then becomes the process.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

ROOT = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 50
_ATTEMPTS = 50  # a limit below what is in use is EBUSY until reclaim has caught up
_PAUSE_S = 0.2


class MemoryLimit:
    """A memory cgroup, removed when the `with` block ends; by then the processes in it must have ended."""

    def __init__(
        self,
        name: str,
        limit_bytes: int = NO_LIMIT,
        *,
        slow_disk: str | None = None,
        read_bytes_per_s: int = 0,
    ) -> None:
        """Limit memory to `limit_bytes`, and reads from the block device named `slow_disk` to `read_bytes_per_s`."""
        self.is_v1 = (ROOT / "memory").is_dir()
        self.name = f"moewatch-test-{os.getpid()}-{name}"
        self.path = (ROOT / "memory" if self.is_v1 else ROOT) / self.name
        self._throttle_path = ROOT / "blkio" / self.name if self.is_v1 else self.path
        self._first_limit_bytes = limit_bytes
        self._slow_disk = slow_disk
        self._read_bytes_per_s = read_bytes_per_s

    def __enter__(self) -> Self:
        try:
            self._create()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _create(self) -> None:
        if not self.is_v1:
            controllers = "+memory +io" if self._slow_disk else "+memory"
            (ROOT / "cgroup.subtree_control").write_text(controllers, encoding="ascii")
        self.path.mkdir()
        self.set(self._first_limit_bytes)
        # without swap the squeeze falls on the page cache, which is what is measured
        with contextlib.suppress(FileNotFoundError):  # no swap accounting in this kernel: then nothing to turn off
            (self.path / ("memory.swappiness" if self.is_v1 else "memory.swap.max")).write_text("0", encoding="ascii")
        if self._slow_disk:
            self._throttle(self._slow_disk)

    def _throttle(self, device: str) -> None:
        number = Path(f"/sys/class/block/{device}/dev").read_text(encoding="ascii").strip()
        if self.is_v1:
            self._throttle_path.mkdir()
            rule = self._throttle_path / "blkio.throttle.read_bps_device"
            rule.write_text(f"{number} {self._read_bytes_per_s}", encoding="ascii")
        else:
            (self.path / "io.max").write_text(f"{number} rbps={self._read_bytes_per_s}", encoding="ascii")

    def set(self, limit_bytes: int) -> None:
        """Change the limit; below what is in use the kernel reclaims first, which may take some tries."""
        file = self.path / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")
        _try_until_free(lambda: file.write_text(str(limit_bytes), encoding="ascii"))

    def usage_bytes(self) -> int:
        """What is charged to it now: anonymous memory and page cache."""
        file = self.path / ("memory.usage_in_bytes" if self.is_v1 else "memory.current")
        return int(file.read_text(encoding="ascii"))

    def evict_all(self) -> None:
        """Push all page cache out, keeping the kernel's memory of it: what comes back is a refault."""
        with contextlib.suppress(OSError):  # "could not reclaim all of it"
            if self.is_v1:
                (self.path / "memory.force_empty").write_text("1", encoding="ascii")
            else:
                (self.path / "memory.reclaim").write_text(str(self.usage_bytes()), encoding="ascii")

    def launch(self, command: list[str]) -> list[str]:
        """The command that joins and then becomes `command`, under the same pid."""
        paths = {self.path, self._throttle_path} if self._slow_disk else {self.path}
        joins = "".join(f"echo $$ > {path}/cgroup.procs && " for path in paths)
        return ["/bin/sh", "-c", joins + 'exec "$@"', "join", *command]

    def remove(self) -> None:
        """Remove what was made; the page cache goes to the parent cgroup."""
        self.evict_all()
        for path in {self.path, self._throttle_path}:
            if path.is_dir():
                _try_until_free(path.rmdir)


def _try_until_free(action: Callable[[], object]) -> None:
    for left in reversed(range(_ATTEMPTS)):
        try:
            action()
        except FileNotFoundError:
            raise
        except OSError:
            if not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
