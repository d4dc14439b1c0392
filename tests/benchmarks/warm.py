"""What warming is worth: nothing, vmtouch -t, ours, a saved hot set, and a hot set that is held, on one real server.

Run: python -m tests.benchmarks.warm [--model topics|even] [--shares 0.5,0.7] [--rounds 3]. Needs root (a memory cgroup, a
loop device) and vmtouch. One server per memory limit; in each round every way is taken once, in rotating order, from an empty
page cache; then a request of one topic is sent, and what it waits for and reads is measured. Machines differ; the ratios
of one run are what counts. Exits 1 when a bar is missed (with --model even there is no hot set, so its bars are only shown).
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from moewatch.linux.diskstats import read_diskstats
from moewatch.linux.root import KernelRoot
from tests.support.driver import Driver
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import LARGE, write_model
from tests.support.watch import MOEWATCH, moewatch

TOPIC = 1
WATCH_S = 25  # from the beginning of the work on
NEXT_S = 10.0
FIRST_TOKEN_BAR, READ_AFTER_BAR = 1 / 3, 1 / 5  # hot set against cold
ONCE_BAR = 1.01  # bytes of the disk against bytes planned: file system metadata
DENSE_BAR = 0.995  # a kernel with DAMON takes idle pages away
WAYS = ("cold", "vmtouch -t", "auto", "hot set", "hot set + pin")
_INTERRUPTIBLE = ("env", "--default-signal=INT")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way, once."""

    read_mb: float
    planned_mb: float
    seconds: float
    dense_ratio: float
    hot_ratio: float
    first_token_s: float
    tokens_per_s: float
    after_mb: float

    @property
    def mb_per_s(self) -> float:
        """Speed of the reading."""
        return self.read_mb / self.seconds if self.seconds else 0.0


class Bench:
    """One server under one limit."""

    def __init__(self, disk: ModelDisk, limit: MemoryLimit, server: LlamaServer, hotset: Path) -> None:
        self.disk, self.limit, self.server, self.hotset = disk, limit, server, hotset
        self._pid = ("--pid", str(server.pid))

    def learn(self) -> dict[str, Any]:
        """Save what is hot, watched while the work on the topic begins."""
        with Driver(self.server.port, topic=TOPIC, seed=99) as driver:
            driver.hold(0.1)
            return self.ask("hotset", "save", str(self.hotset), "--force", "--for", str(WATCH_S))

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The last object that a command prints."""
        done = moewatch(*arguments, *self._pid, "--json", timeout_s=180)
        if done.returncode:
            raise RuntimeError(f"{arguments}: exit {done.returncode}: {done.stdout[-500:]} {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def read_bytes(self) -> int:
        """Of the disk, so far."""
        return read_diskstats(KernelRoot.system(), [self.disk.device])[self.disk.device].read_bytes_total or 0

    def take(self, way: str, seed: int) -> Row:
        """From an empty cache: warm in that way, then work."""
        time.sleep(1)  # a request that was dropped ends with its token
        self.limit.evict_all()
        before = self.read_bytes()
        seconds, planned = self._warm(way)
        read = self.read_bytes() - before
        dense_ratio, hot_ratio = self._there()
        with self._held() if way == "hot set + pin" else contextlib.nullcontext():
            first, rate, after = self._work(seed)
        return Row(
            read_mb=read / 1e6,
            planned_mb=planned / 1e6,
            seconds=seconds,
            dense_ratio=dense_ratio,
            hot_ratio=hot_ratio,
            first_token_s=first,
            tokens_per_s=rate,
            after_mb=after / 1e6,
        )

    def _there(self) -> tuple[float, float]:
        """Shares in memory: of what every token needs, of the hot set."""
        dense = self.ask("warm", "--what", "dense", "--dry-run")["classes"]["dense"]
        hot = self.ask("hotset", "show", str(self.hotset))
        return dense["resident_bytes"] / dense["size_bytes"], hot["resident_bytes"] / hot["size_bytes"]

    def _warm(self, way: str) -> tuple[float, int]:
        """(seconds, bytes planned)."""
        if way == "cold":
            return 0.0, 0
        if way == "vmtouch -t":
            began = time.monotonic()
            command = self.limit.launch(["vmtouch", "-q", "-t", str(self.server.model)])
            subprocess.run(command, check=True, timeout=120)
            return time.monotonic() - began, self.server.model.stat().st_size
        last = self.ask("warm") if way == "auto" else self.ask("hotset", "restore", str(self.hotset))
        return last["seconds"], last["planned_bytes"]

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        command = [*_INTERRUPTIBLE, *MOEWATCH, "pin", *self._pid, "--json", "--force", "--hotset", str(self.hotset)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            decision, held = (json.loads(process.stdout.readline()) for _ in range(2))
            print(f"  pin: {decision['reason']} held {held['held_bytes'] / 1e6:.0f} MB", file=sys.stderr)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

    def _work(self, seed: int) -> tuple[float, float, int]:
        """(seconds to the first token, tokens a second in the next ten, bytes read from the request to their end)."""
        began, before = time.monotonic_ns(), self.read_bytes()
        with Driver(self.server.port, topic=TOPIC, seed=seed) as driver:
            while not driver.token_mono_ns:
                driver.hold(0.01)
            tokens = driver.tokens
            driver.hold(NEXT_S)
            return (
                (driver.token_mono_ns[0] - began) / 1e9,
                (driver.tokens - tokens) / NEXT_S,
                self.read_bytes() - before,
            )


def middle(rows: list[Row]) -> Row:
    """The median of each column."""
    return Row(**{name: median(getattr(row, name) for row in rows) for name in Row.__dataclass_fields__})


def table(share: float, found: dict[str, list[Row]]) -> None:
    """Print the medians."""
    print(f"\nmemory for {share:.0%} of the experts; medians of {len(found['cold'])} rounds")
    heads = ("read MB", "s", "MB/s", "dense %", "hot %", "first token s", "tokens/s", "MB afterwards")
    print(f"{'way':<15}" + "".join(f"{head:>16}" for head in heads))
    for way, rows in found.items():
        row = middle(rows)
        cells = (
            f"{row.read_mb:.0f}",
            f"{row.seconds:.2f}",
            f"{row.mb_per_s:.0f}",
            f"{100 * row.dense_ratio:.0f}",
            f"{100 * row.hot_ratio:.0f}",
            f"{row.first_token_s:.2f}",
            f"{row.tokens_per_s:.1f}",
            f"{row.after_mb:.0f}",
        )
        print(f"{way:<15}" + "".join(f"{cell:>16}" for cell in cells))


def missed(found: dict[str, list[Row]], *, has_topics: bool) -> list[str]:
    """The bars that were not met."""
    cold, vmtouch, auto, hot, _ = (middle(found[way]) for way in WAYS)
    bars: list[tuple[str, Callable[[], bool]]] = [
        ("auto reads no byte twice", lambda: all(row.read_mb <= ONCE_BAR * row.planned_mb for row in found["auto"])),
        ("auto reaches 100 % dense", lambda: all(row.dense_ratio >= DENSE_BAR for row in found["auto"])),
        ("auto is as fast as vmtouch -t", lambda: auto.mb_per_s >= vmtouch.mb_per_s),
    ]
    if has_topics:
        bars += [
            ("hot set: first token in a third", lambda: hot.first_token_s <= FIRST_TOKEN_BAR * cold.first_token_s),
            ("hot set: a fifth is read afterwards", lambda: hot.after_mb <= READ_AFTER_BAR * cold.after_mb),
        ]
    return [name for name, holds in bars if not holds()]


def main() -> int:
    """Run it; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="What warming is worth.")
    parser.add_argument("--model", choices=("topics", "even"), default="topics")
    parser.add_argument("--shares", default="0.5,0.7")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shape = replace(LARGE, topic_gain=8.0) if options.model == "topics" else LARGE
    failures: list[str] = []
    with ModelDisk() as disk, tempfile.TemporaryDirectory() as folder:
        (model,) = write_model(disk.path, shape)
        for share in map(float, options.shares.split(",")):
            evict(model)
            limit_bytes = memory_for((model,), shape.expert_bytes, share)
            with (
                MemoryLimit("warm-bench", limit_bytes) as limit,
                LlamaServer(model, log=Path(folder) / "server.log", limit=limit) as server,
            ):
                server.wait_ready()
                bench = Bench(disk, limit, server, Path(folder) / "topic.hotset")
                learned = bench.learn()
                print(
                    f"hot set: {learned['size_bytes'] / 1e6:.0f} of {model.stat().st_size / 1e6:.0f} MB in "
                    f"{learned['file_bytes']} bytes; {learned['seen']}",
                    file=sys.stderr,
                )
                found: dict[str, list[Row]] = {way: [] for way in WAYS}
                for number in range(options.rounds):
                    for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                        row = bench.take(way, seed=number)
                        found[way].append(row)
                        print(f"{share:.0%} round {number + 1} {way}: {row}", file=sys.stderr, flush=True)
            table(share, found)
            failures += [f"{share:.0%}: {name}" for name in missed(found, has_topics=options.model == "topics")]
    for failure in failures:
        print(f"MISSED  {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
