"""`moewatch doctor`: what can be read here and what cannot, why, and the exact remedy.

It takes Samples as the dashboard does, of the server or (where there is none) of itself, and reports every gap: what it
says is what the dashboard will meet.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from moewatch.cli import output
from moewatch.cli.feed import require_linux
from moewatch.cli.options import add_output, add_target, new_parser
from moewatch.clock import SystemClock
from moewatch.domain.labels import GAP_WORDS, GAPS_NOT_NEEDED
from moewatch.domain.sample import Gap, GapReason, Header, Sample
from moewatch.errors import ExitCode
from moewatch.linux.root import KernelRoot
from moewatch.server.discovery import ServerProcess, find_servers
from moewatch.sources.live import LiveSource
from moewatch.units import MS, format_size

SAMPLES = 4  # the first residency scan and the server's first answer need a moment
SAMPLE_NS = 500 * MS

# field of a Gap (or the beginning of it) -> what is lost without it, and what to do
_EFFECTS = {
    "process.read_bytes_total": (
        "first reads and re-reads cannot be counted exactly",
        "watch as the server's user: sudo -u USER moewatch",
    ),
    "process.blkio_delay_ns_total": (
        "the wait for the disk per thread is unknown",
        "sudo sysctl kernel.task_delayacct=1",
    ),
    "process": ("faults or memory of the server are unknown", "watch as the server's user: sudo -u USER moewatch"),
    "residency": ("what of the model is in memory is unknown", "watch as the server's user, on Linux 6.5 or newer"),
    "pressure": ("memory stall is unknown; the verdict does not need it", "boot with psi=1"),
    "cgroup": ("the machine's memory is taken as the limit", "nothing needs to be done where no limit is set"),
    "devices": (
        "the disk's reads are unknown; the process's own reads are counted",
        "nothing can be done for this file system",
    ),
    "server": (
        "tokens/s and the server's phase are unknown",
        "start llama-server with --slots or --metrics, or name it with --url",
    ),
    "model:vanished": (
        "the figures are of the file that the server holds, not of the one on disk",
        "restart the server where that is not meant",
    ),
    "model:malformed": (
        "what the model is made of is unknown",
        "fetch the file again, or name another with --model FILE",
    ),
    "model": ("what the model is made of is unknown", "name its file with --model FILE"),
    "vm": ("the kernel's refault counters are unknown", "nothing can be done on this kernel"),
    "memory": ("the machine's memory is unknown", "mount /proc"),
    "others": ("which program took memory is unknown", "nothing needs to be done"),
}
# id of a check -> what it is, and what it is for
_NAMES = {
    "process": ("server's counters", "how much it reads, and how often it waits for the disk"),
    "page cache": ("page cache", "which parts of files are in memory"),
    "residency": ("what is in memory", "how much of the model, and what was pushed out and read again"),
    "server": ("server's answers", "tokens/s, and what it is doing"),
    "model": ("model's file", "which weights every token needs, and which are experts"),
    "devices": ("disk counters", "how much the disk reads, and for whom"),
    "cgroup": ("memory limit", "how much memory the server may use"),
    "pressure": ("memory stall", "how long programs wait for memory; the verdict does not need it"),
    "vm": ("re-read counters", "the kernel's own count of what was pushed out and came back"),
    "memory": ("machine's memory", "how much is available, and who took it"),
}
_HARMLESS = (*GAPS_NOT_NEEDED, "libudev", "terminal")  # without these the verdict is as sure
_GROUPS = ("process", "residency", "server", "model", "devices", "cgroup", "pressure", "vm", "memory")


class Check(Struct, frozen=True, kw_only=True):
    """One finding: `status` is ok, limited or missing."""

    id: str
    status: str
    finding: str
    effect: str = ""
    remedy: str = ""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser("doctor", "What can be read here and what cannot, why, and the exact remedy.")
    add_target(parser)
    add_output(parser)
    return parser


def main(options: argparse.Namespace) -> int:
    """Print the findings; 0 whatever they are, since they are what was asked for."""
    require_linux()
    root = KernelRoot.system()
    servers = find_servers(root, options.pid)
    server = servers[0] if servers else _ourselves(root)
    header, sample = _look(server, options)
    checks = [
        *_about_target(header, sample, found=bool(servers)),
        *_about_readings(sample),
        _about_udev(),
        _about_terminal(),
    ]
    if options.json:
        output.json_line({"schema": "moewatch-doctor/1", "pid": server.pid, "checks": checks})
        return int(ExitCode.OK)
    for line in check_lines(checks, servers):
        output.line(line)
    return int(ExitCode.OK)


def check_lines(checks: Sequence[Check], servers: Sequence[ServerProcess]) -> Iterator[str]:
    """The findings for a person: of which server, each with what it is for, and what it comes to."""
    if len(servers) > 1:
        others = ", ".join(f"--pid {each.pid}" for each in servers[1:])
        yield f"{len(servers)} servers run; this is about PID {servers[0].pid}. The others: {others}"
        yield ""
    for check in checks:
        name, purpose = _NAMES.get(check.id, (check.id, ""))
        purpose = f": {purpose}" if purpose and check.status == "ok" else ""
        yield f"{_mark(check.status)} {name:<18} {_in_words(check)}{purpose}"
        if check.effect:
            yield f"{'':22} so {check.effect}; remedy: {check.remedy}"
    yield ""
    yield _summary(checks)


def _in_words(check: Check) -> str:
    """The finding, with the name of the missing reading in a person's words."""
    field, colon, why = check.finding.partition(": ")
    if not colon or check.status == "ok" or field.partition(".")[0] != check.id:
        return check.finding
    return why if field == check.id else f"{GAP_WORDS.get(field, field)}: {why}"


def _summary(checks: Sequence[Check]) -> str:
    wrong = [check for check in checks if check.status != "ok"]
    if any(check.id == "target" for check in wrong):
        return "No server to watch yet; moewatch waits for one."
    if any(check.id == "terminal" and check.finding.startswith("TERM") for check in wrong):
        return "The dashboard needs another terminal; moewatch stream and --once work."
    if any(not _is_harmless(check) for check in wrong):
        return "What is missing above lowers the confidence; the dashboard works."
    if wrong:
        return "All that matters can be read; the verdict does not need what is missing above."
    return "All that matters can be read."


def _is_harmless(check: Check) -> bool:
    return check.id in _HARMLESS or check.finding.partition(":")[0] in _HARMLESS


def _look(server: ServerProcess, options: argparse.Namespace) -> tuple[Header, Sample]:
    clock = SystemClock()
    source = LiveSource.open(
        server,
        clock=clock,
        interval_ns=SAMPLE_NS,
        model_paths=tuple(map(Path, options.model or ())),
        url=options.url,
        http=not options.no_http,
        residency=not options.no_residency,
    )
    try:
        for _ in range(SAMPLES):
            clock.sleep_until(source.due_ns())
            sample = source.read()
    finally:
        source.close()
    return source.header, sample


def _ourselves(root: KernelRoot) -> ServerProcess:
    """This process in the place of a server: its kernel files are of the same kind."""
    from moewatch.linux.pid import read_start_ticks  # noqa: PLC0415 - only where there is no server

    return ServerProcess(
        pid=os.getpid(), start_ticks=read_start_ticks(root, os.getpid()), exe="moewatch", detail="there is no server"
    )


def _about_target(header: Header, sample: Sample, *, found: bool) -> Iterable[Check]:
    kernel = f"Linux {header.host.kernel}, {format_size(header.host.ram_bytes)} of memory, pages of {header.host.page_bytes} bytes"
    yield Check(id="machine", status="ok", finding=kernel)
    if not found:
        yield Check(
            id="target",
            status="missing",
            finding="no llama-server runs; the readings below are of moewatch itself",
            effect="what depends on the server cannot be told",
            remedy="start one, or try: moewatch demo",
        )
        return
    model = "a model whose file cannot be read"
    if header.model is not None:
        files = len(header.model.files)
        model = f"{header.model.name} in {files} file{'s' * (files != 1)}"
    yield Check(
        id="target",
        status="ok",
        finding=f"PID {header.target.pid} {header.target.exe}, {model}, load mode {header.target.load_mode.value}",
    )
    if sample.residency is not None:
        yield Check(id="page cache", status="ok", finding=f"readable with {sample.residency.backend}")


def _about_readings(sample: Sample) -> Iterable[Check]:
    """Each group of readings: whole, or with its gaps."""
    for group in _GROUPS:
        gaps = [gap for gap in sample.gaps if gap.field.partition(".")[0] == group]
        if not gaps:
            yield Check(id=group, status="ok", finding="readable")
        for gap in gaps:
            effect, remedy = _effect_of(gap)
            missing = gap.field == group and gap.reason not in (GapReason.ABSENT, GapReason.VANISHED)
            yield Check(
                id=group,
                status="missing" if missing else "limited",
                finding=f"{gap.field}: {gap.detail or gap.reason.value}",
                effect=effect,
                remedy=remedy,
            )


def _effect_of(gap: Gap) -> tuple[str, str]:
    return (
        _EFFECTS.get(f"{gap.field}:{gap.reason.value}")
        or _EFFECTS.get(gap.field)
        or _EFFECTS.get(gap.field.partition(".")[0])
        or ("a figure is missing", "none is known")
    )


def _about_udev() -> Check:
    try:
        import pyudev  # noqa: PLC0415 - it loads libudev, which may not be there

        pyudev.Context()  # type: ignore[no-untyped-call]  # pyudev ships no type information
    except (ImportError, OSError) as error:
        return Check(
            id="libudev",
            status="limited",
            finding=f"cannot be loaded ({error})",
            effect="disks have no model names",
            remedy="install libudev (Debian, Ubuntu: apt install libudev1)",
        )
    return Check(id="libudev", status="ok", finding="disks are named by it")


def _about_terminal() -> Check:
    term, encoding = os.environ.get("TERM", ""), (sys.stdout.encoding or "").lower()
    if term in ("", "dumb"):
        return Check(
            id="terminal",
            status="limited",
            finding=f"TERM is {term or 'not set'}",
            effect="the dashboard cannot be drawn; lines are printed instead",
            remedy="use a terminal, e.g. TERM=xterm-256color",
        )
    if "utf" not in encoding:
        return Check(
            id="terminal",
            status="limited",
            finding=f"{term}, but the locale's encoding is {encoding or 'unknown'}",
            effect="bars are drawn in ASCII",
            remedy="LANG=C.UTF-8",
        )
    return Check(id="terminal", status="ok", finding=term)


def _mark(status: str) -> str:
    return {"ok": "ok ", "limited": "-- ", "missing": "!! "}[status]
