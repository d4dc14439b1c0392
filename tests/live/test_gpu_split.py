"""Experts on the CPU, the rest on a (software) GPU: what is on the GPU is not needed in memory, though it stays mapped."""

import time
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from tests.support.driver import Driver
from tests.support.llama import LlamaServer
from tests.support.memory_limit import MemoryLimit
from tests.support.moe_model import TINY, MoeShape, write_model
from tests.support.watch import Watching, moewatch, parse_frames

SPLIT = ("-ngl", "99", "-ot", r".ffn_.*_exps.=CPU")
SOFTWARE_DEVICE = {"GGML_VK_VISIBLE_DEVICES": "0"}
DRIVER = Path("/usr/lib/x86_64-linux-gnu/libvulkan_lvp.so")
WIDE = replace(TINY, width=1024, heads=16)  # attention tensors of 2 MB, far above what read-ahead drags in
PROOF_S = 75.0
PROOF_TOKENS = 300  # 200 and 20 looks settle it


@pytest.fixture(autouse=True)
def _software_vulkan() -> None:
    if not DRIVER.exists():
        pytest.skip("no Vulkan device in software: apt install mesa-vulkan-drivers")


def on_the_gpu_bytes(model: Path) -> int:
    """All but the experts and the token table, by the reference reader."""
    tensors = gguf.GGUFReader(model).tensors
    return sum(int(t.n_bytes) for t in tensors if "_exps" not in t.name and not t.name.startswith("token_embd"))


def start(models: Path, shape: MoeShape, log: Path, limit: MemoryLimit | None = None) -> LlamaServer:
    (model,) = write_model(models, shape)
    return LlamaServer(model, log=log, limit=limit, arguments=SPLIT, environment=SOFTWARE_DEVICE)


@pytest.mark.live
def test_what_the_command_line_puts_on_the_gpu_is_assumed_not_needed(models: Path, tmp_path: Path) -> None:
    with start(models, TINY, tmp_path / "server.log") as server:
        server.wait_ready()
        done = moewatch("--once", "--for", "0", "--json", "--pid", str(server.pid))
        assert done.returncode == 0, done.stderr
        (frame,) = parse_frames([done.stdout])
        assert str(server.model) in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
        expected = on_the_gpu_bytes(server.model)
    assert frame.residency.not_needed_bytes == expected
    assert frame.residency.not_needed_assumed
    assert frame.residency.dense_ratio in (None, 1.0), "of what is needed in memory nothing is missing"


@pytest.mark.full
def test_what_stays_away_while_tokens_come_is_known_not_needed(models: Path, tmp_path: Path) -> None:
    with (
        MemoryLimit("gpu") as limit,
        start(models, WIDE, tmp_path / "server.log", limit) as server,
    ):
        server.wait_ready()
        with Watching(server.pid, interval_s=0.5, log=tmp_path / "moewatch.log") as watching:
            limit.evict_all()
            with Driver(server.port) as driver:
                end = time.monotonic() + PROOF_S
                while driver.tokens < PROOF_TOKENS and time.monotonic() < end:
                    driver.hold(1)
        expected = on_the_gpu_bytes(server.model)
    frames = watching.frames()
    last = frames[-1].residency
    assert driver.tokens >= PROOF_TOKENS
    assert last.not_needed_bytes == pytest.approx(expected, rel=0.05)
