"""What looking at the page cache costs: moewatch's scanner beside vmtouch and fincore, in one run, on one machine.

Run: python -m tests.benchmarks.residency. A file of 12 GiB is really cached as page faults with 128 KiB of read-ahead do it,
4 GiB beside it were cached and evicted again, and sparse models of 64 and 400 GiB are watched at 1 Hz for a while. CPU
times, so other programs disturb little; ratios are what counts. Needs root (a loop device), 17 GiB of disk and 13 GiB of
free memory; --cached-gib and --evicted-gib make it smaller. Exits 1 when a bar is missed.
"""

import argparse
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from moewatch.clock import SystemClock
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.linux.activity import FileCacheActivity
from moewatch.linux.pagecache import SystemPageCache
from moewatch.linux.root import KernelRoot
from moewatch.linux.scanner import ResidencyScanner
from tests.support.layouts import layout_of, sparse_file
from tests.support.model_disk import ModelDisk, evict

GIB = 1 << 30
PAGE = os.sysconf("SC_PAGESIZE")
CHUNK = 8 << 20
REFRESHES = 15
QUIET_TRIES = 300
TIMES_BAR = 20.0  # a refresh after no change, against vmtouch and fincore
STEADY_BARS = {64: 1.1, 400: 1.2}  # % of a core at 1 Hz
MEMORY_BAR_BYTES = 20 << 20  # for 400 GiB
N_PARTS = 3


def moe_layout(path: Path, n_layer: int, n_expert: int) -> ModelLayout:
    """A model that fills the file: in each layer some dense weights, then gate, up and down of all experts."""
    size = path.stat().st_size // n_layer // PAGE * PAGE
    dense = size // 30 // PAGE * PAGE
    stack = (size - dense) // N_PARTS // n_expert // 32 * 32 * n_expert  # slices begin anywhere in a page
    tensors = []
    for layer in range(n_layer):
        start = layer * size
        tensors.append(_tensor(f"blk.{layer}.attn", start, dense, layer, 0))
        tensors += [
            _tensor(f"blk.{layer}.ffn_{part}_exps", start + dense + n * stack, stack, layer, n_expert)
            for n, part in enumerate(("gate", "up", "down"))
        ]
    return layout_of([path], tensors)


def _tensor(name: str, offset: int, size: int, layer: int, n_expert: int) -> Tensor:
    weight_class = WeightClass.EXPERT if n_expert else WeightClass.DENSE
    return Tensor(
        name=f"{name}.weight", file_index=0, offset=offset, size_bytes=size, weight_class=weight_class, layer=layer,
        n_expert=n_expert,
    )  # fmt: skip


def write(path: Path, size: int) -> None:
    """Random bytes, on disk, not in memory."""
    block = os.urandom(CHUNK)
    with path.open("wb") as file:
        for _ in range(size // CHUNK):
            file.write(block)
            if file.tell() % GIB == 0:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    evict(path)


def fault_in(path: Path, start: int, end: int, *, page_out: bool = False) -> None:
    """Touch every page in order, as a server's page faults do; `page_out`: let the kernel reclaim them again."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        # every page: with strides the kernel takes the reads for random ones and makes folios of 4 KiB
        for at in range(start, end, PAGE):
            mapped[at]
        if page_out:
            mapped.madvise(21, start, end - start)  # MADV_PAGEOUT leaves shadows, as real pressure does


def tool_ms(command: list[str]) -> float:
    """CPU time of a program, its own and the kernel's for it: the best of three."""
    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return best


def cost_ms(work: Callable[[], object], times: int) -> float:
    """CPU time of this thread, the median."""
    taken = []
    for _ in range(times):
        before = time.thread_time_ns()
        work()
        taken.append((time.thread_time_ns() - before) / 1e6)
    return statistics.median(taken)


def quiet_refresh_ms(scanner: ResidencyScanner, activity: FileCacheActivity) -> float | None:
    """CPU of a refresh after no change, the median of some; None when other programs never leave files alone."""
    taken = []
    for _ in range(QUIET_TRIES):
        before = activity.read()
        scanner.scan_once()  # what moved until now is seen
        cost = cost_ms(scanner.scan_once, 1)
        after = activity.read()
        if before is not None and after is not None and not after.moved_bytes(before):
            taken.append(cost)
        if len(taken) == REFRESHES:
            break
        time.sleep(0.1)
    return statistics.median(taken) if len(taken) == REFRESHES else None


def cached(path: Path, words: str, *, has_bar: bool) -> list[tuple[str, bool]]:
    """One file with cached and evicted parts."""
    layout = moe_layout(path, 16, 128)
    asking = ResidencyScanner(SystemPageCache(), layout, SystemClock())
    first_ms = cost_ms(asking.scan_once, 1)
    asked_ms = cost_ms(asking.scan_once, 5)
    activity = FileCacheActivity(KernelRoot.system())
    scanner = ResidencyScanner(SystemPageCache(), layout, SystemClock(), activity=activity)
    refresh_ms = quiet_refresh_ms(scanner, activity)
    reading, _ = scanner.read()
    vmtouch_ms, fincore_ms = tool_ms(["vmtouch", str(path)]), tool_ms(["fincore", str(path)])
    asking.stop()
    scanner.stop()
    resident = (reading.resident_bytes or 0) if reading else 0
    evicted = (reading.evicted_bytes or 0) if reading else 0
    print(f"{words}: {resident / GIB:.1f} GiB cached, {evicted / GIB:.1f} evicted; CPU ms per refresh")
    print(f"  vmtouch {vmtouch_ms:.0f}, fincore {fincore_ms:.0f}")
    cheaper = min(vmtouch_ms, fincore_ms) / refresh_ms if refresh_ms is not None else 0.0
    told = (
        f"{refresh_ms:.3f} ({cheaper:,.0f} x cheaper)" if refresh_ms is not None else "not measured: other files moved"
    )
    print(f"  moewatch after no change {told}")
    print(
        f"  moewatch, asking for every range since other files moved {asked_ms:.1f} "
        f"({min(vmtouch_ms, fincore_ms) / asked_ms:.1f} x), the first time with every expert {first_ms:.1f}"
    )
    held = cheaper >= TIMES_BAR
    return (
        [(f"a refresh after no change at least {TIMES_BAR:g} x cheaper than vmtouch and fincore", held)]
        if has_bar
        else []
    )


def steady(directory: Path, size_gib: int, seconds: float, *, restless: bool) -> float:
    """% of a core for the scan and a reading each second, after the first screen; `restless`: other files keep moving."""
    path = sparse_file(directory / "sparse.gguf", size_gib * GIB)
    layout = moe_layout(path, 48 if size_gib < 100 else 60, 128 if size_gib < 100 else 256)
    activity = None if restless else FileCacheActivity(KernelRoot.system())
    scanner = ResidencyScanner(SystemPageCache(), layout, SystemClock(), activity=activity).start()
    idle = threading.Event()
    for _ in range(10):
        idle.wait(1)
        scanner.read()
    began, began_cpu = time.monotonic(), time.process_time()
    for second in range(int(seconds)):
        idle.wait(max(0.0, began + second + 1 - time.monotonic()))
        scanner.read()
    used = 100 * (time.process_time() - began_cpu) / (time.monotonic() - began)
    reading, _ = scanner.read()
    age = (reading.age_ns or 0) / 1e9 if reading else float("nan")
    scanner.stop()
    path.unlink()
    kind = "while other files move" if restless else "on a quiet machine"
    print(f"{size_gib} GiB sparse, {kind}: {used:.2f} % of a core at 1 Hz; parts {age:.1f} s old")
    return used


def memory(directory: Path, size_gib: int) -> int:
    """Bytes that the scanner holds for a model of that size."""
    path = sparse_file(directory / "sparse.gguf", size_gib * GIB)
    layout = moe_layout(path, 60, 256)
    tracemalloc.start()
    scanner = ResidencyScanner(SystemPageCache(), layout, SystemClock())
    scanner.scan_once()
    scanner.read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    scanner.stop()
    path.unlink()
    print(f"{size_gib} GiB: {most / (1 << 20):.1f} MiB of memory at most")
    return most


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cached-gib", type=int, default=12)
    parser.add_argument("--evicted-gib", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="to watch each sparse model")
    options = parser.parse_args()
    bars: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory(prefix="moewatch-residency-", dir="/var/tmp") as name:
        for size_gib, bar in STEADY_BARS.items():
            steady(Path(name), size_gib, options.seconds, restless=False)
            used = steady(Path(name), size_gib, options.seconds, restless=True)
            bars.append(
                (f"{size_gib} GiB sparse at 1 Hz at most {bar:g} % of a core, whatever other files do", used <= bar)
            )
        held = memory(Path(name), 400) <= MEMORY_BAR_BYTES
        bars.append((f"at most {MEMORY_BAR_BYTES >> 20} MiB of memory for 400 GiB", held))
    total = (options.cached_gib + options.evicted_gib) * GIB
    with ModelDisk(size_bytes=total + 2 * GIB) as disk:
        path = disk.path / "model.gguf"
        write(path, total)
        fault_in(path, options.cached_gib * GIB, total, page_out=True)
        fault_in(path, 0, options.cached_gib * GIB)
        bars += cached(path, "folios of 128 KiB", has_bar=True)
        evict(path)
        Path(f"/sys/block/{disk.device}/queue/read_ahead_kb").write_text("0", encoding="ascii")
        small = min(2, options.cached_gib) * GIB
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            for at in range(0, small, PAGE):
                mapped[at]
        cached(path, "folios of 4 KiB (no bar)", has_bar=False)
    for text, held in bars:
        print(f"{'held' if held else 'MISSED':8}{text}")
    return 0 if all(held for _, held in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
