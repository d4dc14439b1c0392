"""The tools people use today, run beside moewatch in the same run and read into numbers."""

import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_PS_EVERY_S = 0.25
MIB = 1 << 20


@dataclass(frozen=True)
class PsReading:
    """What ps said of a process between two moments of monotonic time."""

    asked_ns: int
    answered_ns: int
    majflt_total: int
    rss_bytes: int


@dataclass
class Ps:
    """`ps -o maj_flt,rss` four times a second while the `with` block lasts."""

    pid: int
    readings: list[PsReading] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="ps", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        command = ["ps", "-o", "maj_flt=,rss=", "-p", str(self.pid)]
        while not self._stop.is_set():
            asked_ns = time.monotonic_ns()
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            if done.returncode:
                return  # the process is gone
            majflt, rss_kib = done.stdout.split()
            self.readings.append(PsReading(asked_ns, time.monotonic_ns(), int(majflt), int(rss_kib) * 1024))
            self._stop.wait(_PS_EVERY_S)


@dataclass(frozen=True)
class IostatSpan:
    """What `iostat -dmx` measured over a span of monotonic time."""

    start_ns: int
    end_ns: int
    read_bytes_per_s: float


def iostat(device: str, seconds: int) -> IostatSpan:
    """Mean read rate of a disk over so many seconds. iostat writes MB and means MiB."""
    start_ns = time.monotonic_ns()
    command = ["iostat", "-y", "-d", "-m", "-x", "-o", "JSON", device, "1", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True)
    end_ns = time.monotonic_ns()
    reports = json.loads(done.stdout)["sysstat"]["hosts"][0]["statistics"]
    rates = [disk["rMB/s"] for report in reports for disk in report["disk"] if disk["disk_device"] == device]
    assert len(rates) == seconds, f"iostat gave {len(rates)} reports in {seconds} s"
    return IostatSpan(start_ns, end_ns, sum(rates) / len(rates) * MIB)


def vmtouch_resident_bytes(files: tuple[Path, ...]) -> int:
    """Resident bytes of the files in whole pages."""
    done = subprocess.run(["vmtouch", *map(str, files)], capture_output=True, text=True, timeout=60, check=True)
    line = next(line for line in done.stdout.splitlines() if "Resident Pages:" in line)
    return int(line.split()[2].split("/")[0]) * os.sysconf("SC_PAGESIZE")


def fincore_resident_bytes(files: tuple[Path, ...]) -> int:
    """Resident bytes of the files by util-linux."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return sum(int(line) for line in done.stdout.split())
