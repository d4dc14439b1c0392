"""Holding a part of a dense model that does not fit; an MoE with even use is left alone."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.driver import Driver
from tests.support.llama import SERVER_BYTES, LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import DENSE, SMALL, write_model
from tests.support.watch import MOEWATCH

MODEL_SHARE = 0.9  # memory for so much of the dense model
BUDGET_SHARE = 0.95  # of the limit: more is never held
WORK_S = 3.0
LINES = 4  # the decision, then a line when all is held and one every five seconds
TAKE = "import sys, time; taken = b'x' * int(sys.argv[1]); time.sleep(60)"  # all that is kept for programs
ROUND_S, ROUNDS = 30.0, 3
GAIN = 2.0
_INTERRUPTIBLE = ("env", "--default-signal=INT")


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def pinning(server: LlamaServer, *arguments: str) -> "subprocess.Popen[str]":
    command = [*_INTERRUPTIBLE, *MOEWATCH, "pin", "--pid", str(server.pid), "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rate(driver: Driver, seconds: float) -> float:
    before = driver.tokens
    driver.hold(seconds)
    return (driver.tokens - before) / seconds


def held_pages(limit: MemoryLimit) -> int:
    """Bytes of the group that the kernel may not push out."""
    text = (limit.path / "memory.stat").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.split()[0] == "unevictable")


@pytest.mark.live
def test_a_dense_model_above_memory_is_held_and_let_go_when_memory_is_taken(
    model_disk: ModelDisk,  # noqa: ARG001 - mounted
    models: Path,
    tmp_path: Path,
) -> None:
    (model,) = write_model(models, DENSE)
    evict(model)
    limit_bytes = SERVER_BYTES + int(MODEL_SHARE * model.stat().st_size)
    with (
        MemoryLimit("pin", limit_bytes) as limit,
        LlamaServer(model, log=tmp_path / "server.log", limit=limit) as server,
    ):
        server.wait_ready()
        with Driver(server.port) as driver:
            driver.hold(WORK_S)
            process = pinning(server, "--for", "60")
            assert process.stdout is not None
            decision, *figures = [json.loads(process.stdout.readline()) for _ in range(LINES)]
            held = held_pages(limit)
            other = subprocess.Popen(limit.launch([sys.executable, "-c", TAKE, str(decision["kept_bytes"])]))
            try:
                out, err = process.communicate(timeout=60)
            finally:
                other.kill()
                other.wait(10)
        assert process.returncode == 1, f"{out} {err}"
        assert decision["helps"] is True, decision
        assert "in a circle" in decision["reason"]
        assert "server's memory group" in decision["charged_to"]
        assert 0.5 * limit_bytes < figures[0]["held_bytes"] <= decision["most_bytes"] < BUDGET_SHARE * limit_bytes
        assert held == pytest.approx(figures[0]["held_bytes"], rel=0.01), "the kernel agrees"
        assert "memory is running short" in objects(out)[-1]["released"]
        best = max(each["tokens_per_s"] or 0 for each in figures)
        print(f"tokens/s: {decision['before_tokens_per_s']} before, {best} while held")
        assert best > (decision["before_tokens_per_s"] or 0), figures
        assert held_pages(limit) == 0, "everything is let go"


@pytest.mark.live
def test_an_moe_with_even_use_is_refused(
    model_disk: ModelDisk,  # noqa: ARG001 - mounted
    models: Path,
    tmp_path: Path,
) -> None:
    (model,) = write_model(models, SMALL)
    evict(model)
    with (
        MemoryLimit("even", memory_for((model,), SMALL.expert_bytes, 0.5)) as limit,
        LlamaServer(model, log=tmp_path / "server.log", limit=limit) as server,
    ):
        server.wait_ready()
        with Driver(server.port) as driver:
            driver.hold(WORK_S)
            done = pinning(server)
            out, err = done.communicate(timeout=120)
        assert done.returncode == 1, f"{out} {err}"
        (decision,) = objects(out)
        assert decision["helps"] is False
        assert "mixture of experts" in decision["reason"]


@pytest.mark.live
@pytest.mark.full
def test_a_dense_model_gains_twice_its_speed(
    model_disk: ModelDisk,  # noqa: ARG001 - mounted
    models: Path,
    tmp_path: Path,
) -> None:
    (model,) = write_model(models, DENSE)
    evict(model)
    free: list[float] = []
    held: list[float] = []
    with (
        MemoryLimit("gain", SERVER_BYTES + int(MODEL_SHARE * model.stat().st_size)) as limit,
        LlamaServer(model, log=tmp_path / "server.log", limit=limit) as server,
    ):
        server.wait_ready()
        with Driver(server.port) as driver:
            driver.hold(WORK_S)
            for _ in range(ROUNDS):
                free.append(rate(driver, ROUND_S))
                process = pinning(server)
                try:
                    assert process.stdout is not None
                    process.stdout.readline()  # the decision
                    assert json.loads(process.stdout.readline())["held_bytes"]
                    held.append(rate(driver, ROUND_S))
                finally:
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=60)
                assert process.returncode == 130, f"{out} {err}"
                assert objects(out)[-1]["released"] == "interrupted"
                time.sleep(1)
                assert held_pages(limit) == 0
    print(f"tokens/s, alternating: free {[round(x, 2) for x in free]}, held {[round(x, 2) for x in held]}")
    assert median(held) >= GAIN * median(free), f"free {free}, held {held}"
