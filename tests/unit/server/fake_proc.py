"""A small /proc with the processes that a test puts there."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from moewatch.linux.root import KernelRoot

FIXTURES = Path(__file__).parents[2] / "fixtures" / "server"


@dataclass
class FakeProc:
    """Writes /proc/PID; `root` reads it."""

    tree: Path
    root: KernelRoot
    models: Path
    next_address: int = 0x7F0000000000

    def model(self, name: str, size: int = 1 << 20, magic: bytes = b"GGUF") -> Path:
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(magic)
            file.truncate(size)
        return path

    def line(self, path: Path | str, *, size: int = 1 << 20, inode: int | None = None, deleted: bool = False) -> str:
        number = Path(path).stat().st_ino if inode is None else inode
        start = self.next_address
        self.next_address += 1 << 32
        return f"{start:x}-{start + size:x} r--s 00000000 fe:00 {number} {path}{' (deleted)' if deleted else ''}\n"

    def add(
        self,
        pid: int,
        argv: list[str],
        maps: str | None = "",
        *,
        comm: str = "llama-server",
        parent: int = 1,
        rss_pages: int = 1000,
        locked_kib: int = 0,
        anon_kib: int = 0,
        environ: dict[str, str] | None = None,
        uid: int = 1000,
    ) -> Path:
        home = self.tree / str(pid)
        (home / "fd").mkdir(parents=True)
        tail = ["S", str(parent), *["0"] * 17, str(1000 + pid), "0", str(rss_pages), *["0"] * 18]
        (home / "stat").write_text(f"{pid} ({comm}) {' '.join(tail)}\n")
        (home / "status").write_text(
            f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmLck:\t{locked_kib} kB\nRssAnon:\t{anon_kib} kB\n"
        )
        (home / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in argv))
        (home / "exe").symlink_to(f"/usr/bin/{comm}")
        (home / "cwd").symlink_to(self.models)
        (home / "root").symlink_to("/")
        if maps is None:
            (home / "maps").mkdir()  # reading it fails
        else:
            (home / "maps").write_text(maps)
        text = "".join(f"{name}={value}\0" for name, value in (environ or {}).items())
        (home / "environ").write_text(text)
        return home

    def hide(self, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if the process were another user's: what only the same user may read is denied (also for a root test)."""
        monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root is told something else
        home = self.tree / str(pid)
        denied = {os.fspath(home / name) for name in ("maps", "environ", "io", "exe", "cwd", "fd")}
        real_open, real_link, real_scan = os.open, os.readlink, os.scandir

        def refuse(path: object) -> None:
            if isinstance(path, str) and path in denied:
                raise PermissionError(13, "Permission denied", path)

        def guarded_open(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            refuse(path)
            return real_open(path, flags, mode, dir_fd=dir_fd)

        def guarded_link(path: str) -> str:
            refuse(path)
            return real_link(path)

        def guarded_scan(path: str) -> object:
            refuse(path)
            return real_scan(path)

        monkeypatch.setattr(os, "open", guarded_open)
        monkeypatch.setattr(os, "readlink", guarded_link)
        monkeypatch.setattr(os, "scandir", guarded_scan)
