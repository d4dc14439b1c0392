"""Seconds, bytes fetched and memory to read a header of 150k tokens: ours beside moe-fit and gguf.GGUFReader, here and across HTTP.

Run: python -m tests.benchmarks.estimate. moe-fit comes into a temporary venv. Each reads the same file in a process of its
own, best of some rounds; across HTTP from a range server on this machine. GGUFReader reads no addresses: it needs the file.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.header import MEASURE, write_large_header
from tests.support.range_server import RangeServer

ROUNDS = 3
BAR_MOE_FIT, BAR_GGUF = 4, 100
OURS_LOCAL = ("from moewatch.modelfile.shards import read_shards\nfrom moewatch.modelfile.parts import derive_parts",
              "derive_parts(read_shards(Path(sys.argv[1]))).n_tensors")  # fmt: skip
OURS_REMOTE = (
    """
import httpx
from moewatch.clock import SystemClock
from moewatch.modelfile.fetcher import Fetcher
from moewatch.modelfile.parts import derive_parts
from moewatch.modelfile.remote import read_remote_shards
""",
    "derive_parts(read_remote_shards(Fetcher(SystemClock()), sys.argv[1], SystemClock())).n_tensors",
)
MOE_FIT = ("from moefit import gguf", "len(gguf.read(sys.argv[1]).tensors)")
GGUF = ("import gguf", "len(gguf.GGUFReader(sys.argv[1]).tensors)")


class Measured(NamedTuple):
    """What one reader took."""

    n_tensors: int
    seconds: float
    on_top_mib: float
    fetched_mb: float | None


def measure(python: str, code: tuple[str, str], target: str, server: RangeServer | None, rounds: int) -> Measured:
    """The quickest of some rounds."""
    found: list[Measured] = []
    for _ in range(rounds):
        before = server.sent_bytes if server else 0
        done = subprocess.run(
            [python, "-c", MEASURE.format(imports=code[0], call=code[1]), target],
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        n_tensors, seconds, floor, peak = done.stdout.split()
        fetched = (server.sent_bytes - before) / 1e6 if server else None
        found.append(Measured(int(n_tensors), float(seconds), float(peak) - float(floor), fetched))
    return min(found, key=lambda each: each.seconds)


def install_moe_fit(folder: Path) -> str:
    """Its Python, in a venv that goes with the folder."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = str(folder / "bin/python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "moe-fit"], check=True, timeout=300, stderr=subprocess.DEVNULL
    )
    version = subprocess.run(
        [python, "-m", "pip", "show", "moe-fit"], check=True, capture_output=True, text=True, timeout=60
    )
    print(f"moe-fit {re.findall('^Version: (.*)$', version.stdout, re.MULTILINE)[0]}")
    return python


def main() -> None:
    """Print the table and whether the bars hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.gguf"
        write_large_header(path)
        theirs = install_moe_fit(Path(folder) / "venv")
        with RangeServer(files={path.name: path.read_bytes()}) as server:
            url = server.url(path.name)
            rows = {
                "moewatch, file": measure(sys.executable, OURS_LOCAL, str(path), None, ROUNDS),
                "moe-fit, file": measure(theirs, MOE_FIT, str(path), None, ROUNDS),
                "GGUFReader, file": measure(sys.executable, GGUF, str(path), None, 1),
                "moewatch, HTTP": measure(sys.executable, OURS_REMOTE, url, server, ROUNDS),
                "moe-fit, HTTP": measure(theirs, MOE_FIT, url, server, ROUNDS),
            }
        size_mb = path.stat().st_size / 1e6
    print(f"{'':20}{'tensors':>8}{'seconds':>9}{'MiB on top':>12}{'MB fetched':>12}")
    for name, row in rows.items():
        fetched = "" if row.fetched_mb is None else f"{row.fetched_mb:.1f}"
        print(f"{name:20}{row.n_tensors:>8}{row.seconds:>9.3f}{row.on_top_mib:>12.1f}{fetched:>12}")
    local, fit, reader, remote, remote_fit = rows.values()
    print(
        f"file: 1/{fit.seconds / local.seconds:.1f} of moe-fit's time (bar 1/{BAR_MOE_FIT}), "
        f"1/{reader.seconds / local.seconds:.0f} of GGUFReader's (bar 1/{BAR_GGUF})"
    )
    print(
        f"HTTP: 1/{remote_fit.seconds / remote.seconds:.1f} of moe-fit's time, {remote.fetched_mb:.1f} MB fetched against "
        f"{remote_fit.fetched_mb:.1f} (GGUFReader needs the whole file, {size_mb:.0f} MB here)"
    )


if __name__ == "__main__":
    main()
