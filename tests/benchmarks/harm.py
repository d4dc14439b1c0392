"""Is the watched server slowed? Tokens/s of one real llama-server with and without moewatch beside it, in turns.

Run as root: python -m tests.benchmarks.harm. Two loads: everything in memory, and memory for half of the experts. Each pair
is one span without and one with moewatch (the dashboard, once a second), in an order that alternates; the ratio of each pair and
their median with the spread are printed. Machines are noisy: a ratio within the spread of the spans without is no harm.
"""

import argparse
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.driver import Driver
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import NO_LIMIT, MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import LARGE, write_model

SETTLE_S = 3.0  # after moewatch starts: its first look at the cache is over


@contextlib.contextmanager
def watching(pid: int) -> Iterator[None]:
    """The dashboard beside the server, as a person runs it: in a terminal of 120x40, everything on."""
    inner = f"stty cols 120 rows 40; exec {shlex.quote(sys.executable)} -m moewatch --pid {pid}"
    process = subprocess.Popen(
        ["script", "-qec", inner, "/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    try:
        yield
        if process.poll() is not None:
            raise SystemExit("moewatch ended under way; nothing was measured")
    finally:
        process.terminate()
        process.wait(10)


def tokens_per_s(driver: Driver, seconds: float) -> float:
    """Over a span from now on."""
    before, began = driver.tokens, time.monotonic()
    driver.hold(seconds)
    return (driver.tokens - before) / (time.monotonic() - began)


def pairs(server: LlamaServer, driver: Driver, count: int, seconds: float) -> list[tuple[float, float]]:
    """(without, with) of each pair."""
    found = []
    for number in range(count):
        rates: dict[bool, float] = {}
        for beside in (False, True) if number % 2 == 0 else (True, False):
            with watching(server.pid) if beside else contextlib.nullcontext():
                driver.hold(SETTLE_S)
                rates[beside] = tokens_per_s(driver, seconds)
        found.append((rates[False], rates[True]))
        print(
            f"  pair {number + 1}: without {rates[False]:6.1f}  with {rates[True]:6.1f}  ratio {rates[True] / rates[False]:.3f}"
        )
    return found


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each span")
    options = parser.parse_args()
    with ModelDisk() as disk, tempfile.TemporaryDirectory() as folder:
        files = write_model(disk.path, LARGE)
        for name, share in (("everything in memory", None), ("memory for half of the experts", 0.5)):
            evict(*files)
            limit_bytes = NO_LIMIT if share is None else memory_for(files, LARGE.expert_bytes, share)
            with (
                MemoryLimit("harm", limit_bytes) as limit,
                LlamaServer(files[0], log=Path(folder) / "log", limit=limit) as server,
            ):
                server.wait_ready()
                print(f"{name}, {options.pairs} pairs of {options.seconds:g} s, tokens/s")
                with Driver(server.port) as driver:
                    driver.hold(5)
                    found = pairs(server, driver, options.pairs, options.seconds)
            ratios = [beside / alone for alone, beside in found]
            alone = [each for each, _ in found]
            spread = (max(alone) - min(alone)) / statistics.median(alone)
            print(
                f"  median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); spread without {spread:.3f}"
            )


if __name__ == "__main__":
    main()
