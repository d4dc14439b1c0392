"""What watching costs: moewatch beside htop, btop, glances and llamastat, in one run, on one real llama-server.

Run: python -m tests.benchmarks.overhead. Every program gets a terminal of 120x40 of its own and draws once a second. They
start one after the other (time to first paint), then all are measured over the same span, half of it with an idle server
and half with a generating one: % of a core (all its processes), the most RSS, bytes to the terminal. Machines differ; the
ratios are what counts. llamastat and glances come from the package index into a venv that is removed at the end.
Exits 1 when a bar is missed.
"""

import argparse
import contextlib
import fcntl
import importlib
import os
import pty
import re
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.driver import Driver
from tests.support.llama import HOST, LlamaServer
from tests.support.moe_model import SMALL, write_model

COLUMNS, ROWS = 120, 40
SETTLE_S = 12.0  # after the last start; moewatch's first scan of the page cache is over by then
PAINT_WAIT_S = 15.0
TICK_HZ = os.sysconf("SC_CLK_TCK")
PEERS = ("llamastat", "glances", "pyte")
CPU_BAR, CPU_BAR_WITHOUT_RESIDENCY = 2.0, 1.2  # times llamastat's
RSS_BAR_BYTES = 60 << 20
TERMINAL_BAR_BYTES_PER_S = 8000
PAINT_BAR_S = 1.0
# what a terminal answers: its kind, the cursor's place, that it knows synchronised output (modes 2026, 2048)
ANSWERS = (
    (re.compile(rb"\x1b\[0?c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[>0?c"), b"\x1b[>1;10;0c"),
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
    (re.compile(rb"\x1b\[\?2048\$p"), b"\x1b[?2048;0$y"),
)
BTOP_CONFIGURATION = "update_ms = 1000\ncheck_temp = False\n"


@dataclass
class Program:
    """One program under its own terminal."""

    name: str
    command: list[str]
    values: re.Pattern[str]  # what the screen holds once the first values are there
    environment: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    terminal: int = -1
    started_s: float = 0.0
    paint_s: float | None = None
    values_s: float | None = None
    bytes_out: int = 0
    rss_bytes: int = 0
    screen: Any = None  # pyte, only until the values are there: it costs more than what is measured
    stream: Any = None

    def start(self) -> None:
        """Run it as the leader of a terminal of its own."""
        pyte = importlib.import_module("pyte")  # from the venv of the peers
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CI")}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"} | self.environment
        self.started_s = time.monotonic()
        self.pid, self.terminal = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execvpe(self.command[0], self.command, environment)  # noqa: S606 - no shell between us and what is measured

    def take(self, written: bytes) -> None:
        """Count what it wrote, answer what it asked, note when the first values stand on the screen."""
        self.bytes_out += len(written)
        for question, answer in ANSWERS:
            for _ in question.finditer(written):
                os.write(self.terminal, answer)
        if self.screen is None:
            return
        self.stream.feed(written)
        text = "\n".join(self.screen.display)
        elapsed_s = time.monotonic() - self.started_s
        if self.paint_s is None and re.search(r"\w", text):
            self.paint_s = elapsed_s
        if self.values.search(text):
            self.values_s = elapsed_s
            self.screen = self.stream = None

    def cpu_s(self) -> float:
        """CPU time of it and of its children, those that have ended included."""
        return sum(sum(map(int, stat[11:15])) for stat in self._tree()) / TICK_HZ

    def look_at_rss(self) -> None:
        """Keep the most that it and its children held at once."""
        now = sum(int(stat[21]) for stat in self._tree()) * os.sysconf("SC_PAGESIZE")
        self.rss_bytes = max(self.rss_bytes, now)

    def _tree(self) -> Iterator[list[str]]:
        stats: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    stats[int(entry.name)] = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        for pid, stat in stats.items():
            ancestor = pid
            while ancestor in stats and ancestor != self.pid:
                ancestor = int(stats[ancestor][1])
            if ancestor == self.pid:
                yield stat

    def end(self) -> None:
        """End it by its pid."""
        if not self.pid:
            return
        os.kill(self.pid, signal.SIGTERM)
        for _ in range(50):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                os.read(self.terminal, 1 << 16)  # it may be waiting to write
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)


class Terminals:
    """Reads from all terminals; nothing else runs in this process while they are measured."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, program: Program) -> None:
        """Read from this one as well."""
        os.set_blocking(program.terminal, False)
        self._selector.register(program.terminal, selectors.EVENT_READ, program)

    def pump(self, seconds: float, until: Program | None = None) -> None:
        """Read for so long, or until the program's first values are there.

        Raises:
            RuntimeError: a program ended.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (until is None or until.values_s is None):
            for key, _ in self._selector.select(min(left, 0.5)):
                try:
                    written = os.read(key.fd, 1 << 16)
                except OSError:
                    written = b""
                if not written:
                    raise RuntimeError(f"{key.data.name} ended: {' '.join(key.data.command)}")
                key.data.take(written)


@dataclass
class Measured:
    """One program over one span."""

    cpu_ratio: float
    bytes_per_s: float


def measure(programs: list[Program], terminals: Terminals, seconds: float) -> dict[str, Measured]:
    """All of them over the same span."""
    before = {program.name: (program.cpu_s(), program.bytes_out) for program in programs}
    start_s = time.monotonic()
    while (left := start_s + seconds - time.monotonic()) > 0:
        terminals.pump(min(left, 5.0))
        for program in programs:
            program.look_at_rss()
    took_s = time.monotonic() - start_s
    return {
        program.name: Measured(
            cpu_ratio=(program.cpu_s() - before[program.name][0]) / took_s,
            bytes_per_s=(program.bytes_out - before[program.name][1]) / took_s,
        )
        for program in programs
    }


def programs_for(server: LlamaServer, peers: Path, room: Path) -> list[Program]:
    """Every program that is installed, each redrawing once a second."""
    (room / "btop").mkdir()
    (room / "btop" / "btop.conf").write_text(BTOP_CONFIGURATION, encoding="ascii")
    watch = [sys.executable, "-m", "moewatch", "--pid", str(server.pid)]
    first_verdict = re.compile(r"since \d\d:\d\d:\d\d")  # the banner; figures stand below it in the same frame
    url = f"http://{HOST}:{server.port}"
    programs = [
        Program("moewatch", watch, first_verdict),
        Program("moewatch --no-residency", [*watch, "--no-residency"], first_verdict),
        Program("llamastat", [str(peers / "llamastat"), "-u", url, "-i", "1"], re.compile(r"\d+\.\d t/s")),
        Program("htop", ["htop", "-d", "10"], re.compile(r"\d+\.\d%?\s+\d")),
        Program("btop", ["btop", "--utf-force"], re.compile(r"\d+%"), {"XDG_CONFIG_HOME": str(room)}),
        Program("glances", [str(peers / "glances"), "-t", "1", "--disable-check-update"], re.compile(r"\d+\.\d%")),
    ]
    return [program for program in programs if shutil.which(program.command[0])]


def install_peers(room: Path) -> Path:
    """A venv with the peers; this process uses its terminal emulator too."""
    venv.create(room / "venv", with_pip=True)
    programs = room / "venv" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS]
    subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    query = [str(programs / "python"), "-c", "import pyte, wcwidth; print(pyte.__path__[0])"]
    sys.path.append(str(Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()).parent))
    return programs


def report(programs: list[Program], idle: dict[str, Measured], busy: dict[str, Measured]) -> list[str]:
    """Print the table; return the bars that were missed."""
    mean_cpu = {name: (idle[name].cpu_ratio + busy[name].cpu_ratio) / 2 for name in idle}
    yardstick = mean_cpu.get("llamastat", 0.0)
    heads = ("% of a core", "idle", "busy", "x llamastat", "RSS MiB", "kB/s", "first paint s", "values s")
    print(f"{'':24}" + "".join(f"{head:>14}" for head in heads))
    for program in programs:
        name = program.name
        output = (idle[name].bytes_per_s + busy[name].bytes_per_s) / 2
        row = (
            f"{100 * mean_cpu[name]:.2f}",
            f"{100 * idle[name].cpu_ratio:.2f}",
            f"{100 * busy[name].cpu_ratio:.2f}",
            f"{mean_cpu[name] / yardstick:.2f}" if yardstick else "-",
            f"{program.rss_bytes / (1 << 20):.1f}",
            f"{output / 1000:.1f}",
            *("never" if moment is None else f"{moment:.2f}" for moment in (program.paint_s, program.values_s)),
        )
        print(f"{name:24}" + "".join(f"{cell:>14}" for cell in row))
    if (ours := programs[0]).name != "moewatch":
        return []
    output = (idle[ours.name].bytes_per_s + busy[ours.name].bytes_per_s) / 2
    without = mean_cpu.get("moewatch --no-residency", 0.0)
    bars = [
        (f"RSS under {RSS_BAR_BYTES >> 20} MiB", ours.rss_bytes < RSS_BAR_BYTES),
        (f"under {TERMINAL_BAR_BYTES_PER_S / 1000:g} kB/s to the terminal", output < TERMINAL_BAR_BYTES_PER_S),
        (f"first values within {PAINT_BAR_S:g} s", (ours.values_s or PAINT_WAIT_S) < PAINT_BAR_S),
    ]
    if yardstick:
        bars += [
            (f"CPU at most {CPU_BAR:g} x llamastat's", mean_cpu[ours.name] <= CPU_BAR * yardstick),
            (
                f"CPU at most {CPU_BAR_WITHOUT_RESIDENCY:g} x llamastat's without the residency scan",
                without <= CPU_BAR_WITHOUT_RESIDENCY * yardstick,
            ),
        ]
    for text, held in bars:
        print(f"{'held' if held else 'MISSED':8}{text}")
    return [text for text, held in bars if not held]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure, half idle and half generating")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the programs only these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moewatch-overhead-", dir="/var/tmp") as name:
        room = Path(name)
        peers = install_peers(room)
        model = write_model(room, SMALL)[0]
        with LlamaServer(model, log=room / "server.log") as server:
            server.wait_ready()
            programs = [
                program
                for program in programs_for(server, peers, room)
                if not options.only or program.name.split()[0] in options.only
            ]
            terminals = Terminals()
            try:
                for program in programs:
                    program.start()
                    terminals.add(program)
                    terminals.pump(PAINT_WAIT_S, until=program)
                terminals.pump(SETTLE_S)
                idle = measure(programs, terminals, options.seconds / 2)
                with Driver(server.port):
                    busy = measure(programs, terminals, options.seconds / 2)
            finally:
                for program in programs:
                    program.end()
        return 1 if report(programs, idle, busy) else 0


if __name__ == "__main__":
    sys.exit(main())
