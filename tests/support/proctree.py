"""A fake /proc and /sys in a temporary directory, with faults that no real tree shows on demand."""

import errno
import os
import shutil
from pathlib import Path
from typing import Self

from moewatch.linux.root import READ_LIMIT_BYTES, KernelRoot, reading_error

FIXTURES = Path(__file__).parent.parent / "fixtures" / "proc"

# After the name and the state; majflt, utime, stime, starttime, rss and delayacct_blkio_ticks are filled in
_STAT_TAIL = (
    "1 1 1 0 -1 4194304 {minflt} 0 {majflt} 0 {utime} {stime} 0 0 20 0 {threads} 0 {start} 98287616 {rss} "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 {blkio} 0 0 0 0 0 0 0 0 0 0"
)


class FaultyRoot(KernelRoot, frozen=True):
    """A KernelRoot that fails where it was told to."""

    faults: dict[str, list[int]]  # path -> [errno, readings that still succeed]

    def _fail(self, path: str | os.PathLike[str]) -> None:
        fault = self.faults.get(os.fspath(path))
        if fault is None:
            return
        if fault[1] > 0:
            fault[1] -= 1
            return
        raise reading_error(OSError(fault[0], os.strerror(fault[0])), path)

    def read(self, path: str | os.PathLike[str], limit: int = READ_LIMIT_BYTES) -> bytes:
        self._fail(path)
        return super().read(path, limit)

    def names(self, path: str | os.PathLike[str], limit: int = 1 << 16) -> list[str]:
        self._fail(path)
        return super().names(path, limit)

    def link(self, path: str | os.PathLike[str]) -> str:
        self._fail(path)
        return super().link(path)


class ProcTree:
    """Writes the tree; `root` reads it. Paths are the kernel's own: `/proc/1/stat`, `/sys/block/sda/queue/rotational`."""

    def __init__(self, where: Path, *, page_bytes: int = 4096, tick_hz: int = 100) -> None:
        self.root = FaultyRoot(
            proc=where / "proc", sys=where / "sys", page_bytes=page_bytes, tick_hz=tick_hz, faults={}
        )
        self.root.proc.mkdir()
        self.root.sys.mkdir()

    @classmethod
    def captured(cls, where: Path, name: str) -> Self:
        """A copy of a tree under tests/fixtures/proc, free to be damaged."""
        tree = cls(where)
        for part, there in (("proc", tree.root.proc), ("sys", tree.root.sys)):
            if (FIXTURES / name / part).exists():
                shutil.copytree(FIXTURES / name / part, there, symlinks=True, dirs_exist_ok=True)
        return tree

    def write(self, path: str, content: str | bytes) -> Self:
        """One file, its directories made."""
        there = Path(self.root.locate(path))
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def link(self, path: str, target: str) -> Self:
        """A symbolic link; a target in /proc or /sys leads into this tree."""
        there = Path(self.root.locate(path))
        there.parent.mkdir(parents=True, exist_ok=True)
        there.symlink_to(self.root.locate(target))
        return self

    def process(
        self,
        pid: int,
        *,
        comm: str = "llama-server",
        state: str = "S",
        minflt: int = 0,
        majflt: int = 0,
        utime: int = 0,
        stime: int = 0,
        start: int = 1000,
        rss_pages: int = 100,
        blkio: int = 0,
        uid: int = 1000,
        read_bytes: int = 0,
        thread_states: str = "S",
    ) -> Self:
        """A process with stat, status, io, statm and one task for each letter of `thread_states`."""
        tail = _STAT_TAIL.format(
            minflt=minflt, majflt=majflt, utime=utime, stime=stime,
            threads=len(thread_states), start=start, rss=rss_pages, blkio=blkio,
        )  # fmt: skip
        self.write(f"/proc/{pid}/stat", f"{pid} ({comm}) {state} {tail}\n")
        for offset, letter in enumerate(thread_states):
            self.write(f"/proc/{pid}/task/{pid + offset}/stat", f"{pid + offset} ({comm}) {letter} {tail}\n")
        kib = rss_pages * self.root.page_bytes // 1024
        self.write(
            f"/proc/{pid}/status",
            f"Name:\t{comm}\nState:\t{state}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmLck:\t       0 kB\n"
            f"VmRSS:\t{kib} kB\nRssAnon:\t{kib // 4} kB\nRssFile:\t{kib - kib // 4} kB\nVmSwap:\t       0 kB\n",
        )
        self.write(f"/proc/{pid}/io", f"rchar: 1\nwchar: 1\nread_bytes: {read_bytes}\nwrite_bytes: 0\n")
        shared = rss_pages - rss_pages // 4
        return self.write(f"/proc/{pid}/statm", f"{rss_pages * 8} {rss_pages} {shared} 10 0 20 0\n")

    def disk(self, path: str, number: str, **attributes: str) -> Self:
        """A block device at /sys/devices/PATH with its number and attributes (`queue_rotational="0"`)."""
        name = path.rsplit("/", 1)[-1]
        directory = f"/sys/devices/{path}"
        self.write(f"{directory}/dev", number)
        for attribute, value in attributes.items():
            self.write(f"{directory}/{attribute.replace('__', '/')}", value + "\n")
        return self.link(f"/sys/dev/block/{number}", directory).link(f"/sys/class/block/{name}", directory)

    def deny(self, path: str) -> Self:
        """As the kernel answers about another user's process; root in a test would be allowed."""
        self.root.faults[path] = [errno.EACCES, 0]
        return self

    def fail(self, path: str, number: int) -> Self:
        """Any errno."""
        self.root.faults[path] = [number, 0]
        return self

    def vanish(self, path: str, after: int = 0) -> Self:
        """Gone, after so many readings: a process that ends between two files of it."""
        self.root.faults[path] = [errno.ESRCH, after]
        return self

    def truncate(self, path: str, keep: int) -> Self:
        """Only the first bytes."""
        there = Path(self.root.locate(path))
        there.write_bytes(there.read_bytes()[:keep])
        return self
