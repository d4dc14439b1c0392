"""Seconds and memory to read a header with 150k tokens, 280k merges and 1,000 tensors: ours beside gguf.GGUFReader.

Run: python -m tests.benchmarks.header. Each reads the same file in a process of its own; the figures of use are the
ratios, and the megabytes on top of what that process holds before it reads.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf

from tests.support.gguf_models import qwen3moe, write_model

ROUNDS = 3
TOKENS, MERGES, LAYERS = 150_000, 280_000, 99  # 10 tensors a layer and 3 more

MEASURE = """
import re, sys, time
from pathlib import Path
{imports}
def peak():  # ru_maxrss would be the parent's, inherited across exec
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
began = time.perf_counter()
n = {call}
print(n, time.perf_counter() - began, before, peak())
"""
SUBJECTS = {
    "moewatch read_layout": (
        "from moewatch.modelfile.layout import read_layout",
        "len(read_layout(Path(sys.argv[1])).tensors)",
    ),
    "gguf.GGUFReader": ("import gguf", "len(gguf.GGUFReader(sys.argv[1]).tensors)"),
}


def write_large_header(path: Path) -> None:
    """A vocabulary like qwen3's."""
    tokens = [f"token{number}" for number in range(TOKENS)]
    merges = [f"a{number} b{number}" for number in range(MERGES)]
    types = [1] * TOKENS
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": types}
    write_model(qwen3moe(LAYERS).with_keys(**keys), path)


def measure(imports: str, call: str, path: Path) -> tuple[int, float, float, float]:
    """Tensors, seconds, MiB before, MiB at the peak."""
    script = MEASURE.format(imports=imports, call=call)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    n_tensors, seconds, before, peak = done.stdout.split()
    return int(n_tensors), float(seconds), float(before), float(peak)


def main() -> None:
    """Best of three for ours, one round for the other (15 s each)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.gguf"
        write_large_header(path)
        best: dict[str, tuple[int, float, float, float]] = {}
        for name, (imports, call) in SUBJECTS.items():
            rounds = 1 if name.startswith("gguf") else ROUNDS
            best[name] = min((measure(imports, call, path) for _ in range(rounds)), key=lambda found: found[1])
    print(f"gguf {getattr(gguf, '__version__', 'installed')}; {TOKENS} tokens, {MERGES} merges")
    print(f"{'':24}{'tensors':>8}{'seconds':>9}{'MiB before':>12}{'peak MiB':>10}{'on top':>8}")
    for name, (n_tensors, seconds, before, peak) in best.items():
        print(f"{name:24}{n_tensors:>8}{seconds:>9.3f}{before:>12.1f}{peak:>10.1f}{peak - before:>8.1f}")
    ours, theirs = best.values()
    print(
        f"ours takes 1/{theirs[1] / ours[1]:.0f} of the time and 1/{(theirs[3] - theirs[2]) / max(1.0, ours[3] - ours[2]):.0f} of the memory on top (ours counted as 1 MiB at least)"
    )


if __name__ == "__main__":
    main()
