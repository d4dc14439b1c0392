"""The installed llama-server and the machine's GPUs: what they print is parsed, what they lack is no error."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moewatch.errors import UsageError
from moewatch.linux.root import KernelRoot
from moewatch.server.gpus import find_gpus, free_bytes, parse_devices, read_nvidia, read_sys, total_bytes
from moewatch.server.installed import InstalledServer, find_server, parse_flags
from moewatch.units import GIB, MIB

LISTED = """Available devices:
  Vulkan0: NVIDIA GeForce RTX 3060 (12288 MiB, 11800 MiB free)
  Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 2048 MiB free)
  CUDA0: NVIDIA (odd) name (24576 MiB, 0 MiB free)
  BLAS: OpenBLAS (0 MiB, 0 MiB free)
"""


def script(folder: Path, body: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def tree(folder: Path, files: dict[str, str]) -> KernelRoot:
    for name, content in files.items():
        path = folder / "sys/class/drm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return KernelRoot(proc=folder / "proc", sys=folder / "sys", page_bytes=4096, tick_hz=100)


def test_flags_of_a_help_text() -> None:
    text = "-t,    --threads N    number (see --threads-batch)\n-ngl,  --gpu-layers N  a well-known non-flag\n"
    assert parse_flags(text) == {"-t", "--threads", "--threads-batch", "-ngl", "--gpu-layers"}


def test_a_server_is_asked(tmp_path: Path) -> None:
    path = script(tmp_path, 'case "$1" in --help) echo "-t, --threads N";; --list-devices) echo devices;; esac')
    found = find_server(path)
    assert found.knows("--threads")
    assert not found.knows("--n-cpu-moe")
    assert found.device_list.strip() == "devices"


@pytest.mark.parametrize("body", ["exit 3", "kill -9 $$"])
def test_a_server_that_does_not_answer_knows_everything(body: str, tmp_path: Path) -> None:
    assert find_server(script(tmp_path, body)).knows("--anything")


def test_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == InstalledServer()
    with pytest.raises(UsageError, match="is no program"):
        find_server("no-such-program")


def test_devices_that_a_server_lists() -> None:
    found = parse_devices(LISTED)
    assert [gpu.name for gpu in found] == ["NVIDIA GeForce RTX 3060 (Vulkan0)", "NVIDIA (odd) name (CUDA0)"]
    assert (total_bytes(found), free_bytes(found)) == (36864 * MIB, 11800 * MIB)
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_cards_of_the_kernel(tmp_path: Path) -> None:
    files = {"card0/device/mem_info_vram_total": f"{16 * GIB}\n", "card0/device/mem_info_vram_used": f"{GIB}\n",
             "card1/device/mem_info_vram_total": f"{512 * MIB}\n", "card2/lmem_total_bytes": f"{8 * GIB}\n",
             "card0-DP-1/status": "connected\n", "card3/device/mem_info_vram_total": "much\n"}  # fmt: skip
    found = read_sys(tree(tmp_path, files))
    assert [(gpu.name, gpu.total_bytes, gpu.free_bytes) for gpu in found] == [
        ("card0", 16 * GIB, 15 * GIB),
        ("card2", 8 * GIB, None),
    ]
    assert free_bytes(found) == 23 * GIB
    assert read_sys(tree(tmp_path / "empty", {})) == ()


class Nvml(SimpleNamespace):
    """The library with one card, or broken."""

    def __init__(self, *, broken: str = "") -> None:
        def call(name: str, value: Any) -> Any:
            def answer(*_: object) -> Any:
                if name == broken:
                    raise RuntimeError("NVML: gone")
                return value

            return answer

        memory = SimpleNamespace(total=12 * GIB, free=10 * GIB)
        super().__init__(
            nvmlInit=call("init", None),
            nvmlShutdown=call("shutdown", None),
            nvmlDeviceGetCount=call("count", 1),
            nvmlDeviceGetHandleByIndex=call("handle", object()),
            nvmlDeviceGetMemoryInfo=call("memory", memory),
            nvmlDeviceGetName=call("name", b"RTX"),
        )


def test_cards_of_nvidias_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    (card,) = find_gpus(tree(tmp_path, {}))
    assert (card.name, card.total_bytes, card.free_bytes) == ("RTX", 12 * GIB, 10 * GIB)
    for broken in ("init", "count", "memory"):
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(broken=broken))
        assert read_nvidia() == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvidia() == ()
