"""A small /proc with the processes that a test puts there, and the model that the fixtures speak of."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.linux.root import KernelRoot

FIXTURES = Path(__file__).parents[2] / "fixtures" / "server"


@dataclass
class FakeProc:
    """Writes /proc/PID; `root` reads it."""

    tree: Path
    root: KernelRoot
    models: Path
    next_start: int = field(default=1000)

    def model(self, name: str, size: int = 1 << 20, magic: bytes = b"GGUF") -> Path:
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(magic)
            file.truncate(size)
        return path

    def line(self, path: Path | str, *, size: int = 1 << 20, inode: int | None = None, deleted: bool = False) -> str:
        number = Path(path).stat().st_ino if inode is None else inode
        self.next_start += 1 << 28
        start = 0x7F0000000000 + self.next_start * 4096
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
        tail = ["S", str(parent), *["0"] * 17, str(self.next_start + pid), "0", str(rss_pages), *["0"] * 18]
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


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    tree = tmp_path / "proc"
    tree.mkdir()
    models = tmp_path / "models"
    models.mkdir()
    return FakeProc(tree, KernelRoot(proc=tree, sys=tmp_path / "sys", page_bytes=4096, tick_hz=100), models)


def _tensor(name: str, offset: int, end: int) -> Tensor:
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    is_expert = "_exps" in name
    kind = WeightClass.EXPERT if is_expert else WeightClass.EMBEDDING if "token_embd" in name else WeightClass.DENSE
    return Tensor(
        name=name,
        file_index=0,
        offset=offset,
        size_bytes=end - offset,
        weight_class=kind,
        layer=layer,
        n_expert=16 if is_expert else 0,
    )


@pytest.fixture
def tiny_moe() -> ModelLayout:
    """The model of the maps fixtures: offsets as its header has them."""
    tensors = [
        _tensor("token_embd.weight", 0x4D80, 0x10D980),
        _tensor("output_norm.weight", 0x10D980, 0x10E180),
        _tensor("output.weight", 0x10E180, 0x216D80),
    ]
    block = 0x889200  # every block is laid out alike
    parts = {
        "attn_norm": (0x0, 0x800),
        "ffn_norm": (0x800, 0x1000),
        "attn_q": (0x1000, 0x101000),
        "attn_k": (0x101000, 0x141000),
        "attn_v": (0x141000, 0x181000),
        "attn_output": (0x181000, 0x281000),
        "ffn_gate_inp": (0x281200, 0x289200),
        "ffn_gate_exps": (0x289200, 0x489200),
        "ffn_up_exps": (0x489200, 0x689200),
        "ffn_down_exps": (0x689200, 0x889200),
    }
    for layer in range(4):
        begin = 0x216D80 + layer * block
        tensors += [_tensor(f"blk.{layer}.{name}.weight", begin + a, begin + b) for name, (a, b) in parts.items()]
    file = ModelFile(name="tiny-moe.gguf", size_bytes=0x243B580)
    summary = ModelSummary(files=(file,), total_bytes=file.size_bytes, n_layer=4, n_expert=16, n_expert_used=2)
    return ModelLayout(files=(file,), paths=("/srv/models/tiny-moe.gguf",), tensors=tuple(tensors), summary=summary)
