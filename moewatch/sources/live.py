"""A running server as a Source: every reading of one instant, and a Gap for each that could not be had.

What is read at each tick costs well under a millisecond (docs/explanation/cost.md); what is dearer has a thread of its
own (page cache parts, HTTP) or is done every few ticks (other processes, mappings).
"""

import contextlib
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import psutil

from moewatch.clock import Clock
from moewatch.domain.layout import ModelLayout
from moewatch.domain.sample import (
    Gap,
    GapReason,
    Header,
    Host,
    LoadMode,
    OtherProcess,
    OwnReading,
    Phase,
    ResidencyReading,
    Sample,
    ServerReading,
    TargetIdentity,
)
from moewatch.errors import MoewatchError
from moewatch.linux.activity import FileCacheActivity
from moewatch.linux.blockdev import FileDisks, disks_of
from moewatch.linux.cgroup import locate, read_cgroup, tightest_limit
from moewatch.linux.diskstats import read_diskstats
from moewatch.linux.meminfo import read_memory, read_ram_bytes
from moewatch.linux.others import read_others, readers_of
from moewatch.linux.pagecache import PageCache, SystemPageCache
from moewatch.linux.pid import read_process, read_read_bytes
from moewatch.linux.pressure import read_pressure
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.linux.scanner import ResidencyScanner
from moewatch.linux.vmstat import read_vm
from moewatch.modelfile.identity import derive_digest
from moewatch.modelfile.layout import read_layout
from moewatch.server.argv import redact_argv
from moewatch.server.discovery import ServerProcess, inspect_pid
from moewatch.server.http import ServerPoll, local_host, parse_url
from moewatch.sources.estimates import find_estimate
from moewatch.sources.needed import NeededTensors
from moewatch.units import MS, S

OTHERS_EVERY_NS = 10 * S  # a walk over all processes costs about 3.4 ms (measured): 0.03 % of a core at this pace
READERS_EVERY_NS = 30 * S  # asks every llama-like process for its mappings
NEEDED_EVERY_NS = 5 * S  # /proc/PID/maps costs 0.25 ms (measured)
MODE_EVERY_NS = 10 * S  # looking at a whole server again costs 2 ms (measured)
FOREVER_NS = 3600 * S  # the present cannot be moved, so nobody needs to ask again before a Sample is due
# The first answers of the server (1 to 8 ms) and of the page cache (150 ms at most) are in the first Sample, and a second
# one follows soon after: a rate needs two, and the first screen should not wait a whole interval for it.
FIRST_SAMPLE_NS, SECOND_SAMPLE_NS = 60 * MS, 400 * MS
FIRST_OTHERS_NS = 2 * S  # not in the first second, which belongs to the first screen
T = TypeVar("T")


class LiveSource:
    """Samples of one server process, every `interval_ns`."""

    patience_ns = FOREVER_NS
    stays = False

    def __init__(
        self,
        server: ServerProcess,
        *,
        clock: Clock,
        root: KernelRoot,
        interval_ns: int,
        layout: ModelLayout | None,
        poll: ServerPoll | None,
        scanner: ResidencyScanner | None,
        residency: bool,
        standing_gaps: Iterable[Gap] = (),
    ) -> None:
        self._server = server
        self._clock = clock
        self._root = root
        self._interval_ns = interval_ns
        self._layout = layout
        self._poll = poll
        self._scanner = scanner
        self._standing_gaps = list(standing_gaps)
        self._gaps = self._standing_gaps  # until the first Sample, what is missing is missing for good
        self._cgroup = locate(root, server.pid)
        if self._cgroup is None:
            self._standing_gaps.append(Gap(field="cgroup", reason=GapReason.ABSENT, detail="it is in no memory cgroup"))
        self._disks = self._find_disks()
        self._header = self._describe()
        self._needed = NeededTensors(layout, server, root) if layout is not None and scanner is not None else None
        self._next_ns = clock.mono_ns() + FIRST_SAMPLE_NS
        self._has_sampled = False
        self._others_ns = self._next_ns + FIRST_OTHERS_NS
        self._needed_ns = self._next_ns
        self._readers_ns = self._others_ns
        self._readers: tuple[int, ...] = ()
        self._activity: int | None = None
        self._mode = server.load_mode
        self._mode_ns = self._next_ns + MODE_EVERY_NS
        if poll is not None:
            poll.start()
        if scanner is not None:
            self._look_for_needed(self._next_ns, ServerReading())
            scanner.start(parts=residency)

    @classmethod
    def open(
        cls,
        server: ServerProcess,
        *,
        clock: Clock,
        interval_ns: int,
        model_paths: tuple[Path, ...] = (),
        url: str | None = None,
        http: bool = True,
        residency: bool = True,
        root: KernelRoot | None = None,
        page_cache: PageCache | None = None,
    ) -> "LiveSource":
        """Everything that watching one server needs.

        Raises:
            UnusableFileError: a model that was named cannot be used (one that was found only leaves a Gap).
            UsageError: `url` is none.
        """
        root = root or KernelRoot.system()
        gaps: list[Gap] = []
        layout: ModelLayout | None = None
        if model_paths:
            layout = read_layout(model_paths[0], known=model_paths)
        elif server.model_paths:
            try:
                layout = read_layout(server.model_paths[0], known=server.model_paths, name=server.model_name)
            except MoewatchError as error:
                gaps.append(Gap(field="model", reason=GapReason.MALFORMED, detail=str(error)))
            if server.model_remark:
                gaps.append(Gap(field="model", reason=GapReason.VANISHED, detail=f"{server.model_remark}."))
        else:
            gaps.append(
                Gap(field="model", reason=GapReason.DENIED, detail=server.detail or "its model's file cannot be opened")
            )
        scanner = None
        if layout is None:
            gaps.append(Gap(field="residency", reason=GapReason.ABSENT, detail="its model's file could not be read"))
        else:
            # a page cache of another world says nothing in this machine's counters
            activity = FileCacheActivity(root) if page_cache is None else None
            scanner = ResidencyScanner(page_cache or SystemPageCache(), layout, clock, activity=activity)
        if layout is not None and not residency:
            gaps.append(Gap(field="residency", reason=GapReason.UNSUPPORTED, detail="turned off by --no-residency"))
        poll = _new_poll(server, url, clock, interval_ns) if http else None
        if poll is None:
            gaps.append(Gap(field="server", reason=GapReason.ABSENT, detail="turned off by --no-http"))
        return cls(
            server,
            clock=clock,
            root=root,
            interval_ns=interval_ns,
            layout=layout,
            poll=poll,
            scanner=scanner,
            residency=residency,
            standing_gaps=gaps,
        )

    @property
    def header(self) -> Header:
        """Of whom the Samples speak."""
        return self._header

    @property
    def layout(self) -> ModelLayout | None:
        """Where the model's weights lie; None when its file could not be read."""
        return self._layout

    def due_ns(self) -> int:
        """The next multiple of the interval; the second Sample comes earlier."""
        return self._next_ns

    def took_jump(self) -> bool:
        """Never: the present cannot be moved."""
        return False

    def read(self) -> Sample:
        """One Sample, now."""
        began_ns = self._clock.mono_ns()
        late_ns = max(0, began_ns - self._next_ns)
        pause_ns = self._interval_ns if self._has_sampled else min(self._interval_ns, SECOND_SAMPLE_NS)
        self._next_ns += pause_ns * (1 + late_ns // pause_ns)
        self._has_sampled = True
        self._gaps = list(self._standing_gaps)
        root, server, cgroup = self._root, self._server, self._cgroup
        process, gaps = read_process(root, server.pid, server.start_ticks)
        self._gaps.extend(gaps)
        answer = self._ask_server(process.utime_ns, process.stime_ns, process.read_bytes_total)
        self._look_for_needed(began_ns, answer)
        devices = None
        if self._disks is not None and self._disks.devices:
            names = [device.name for device in self._disks.devices]
            devices = self._try("devices", lambda: read_diskstats(root, names))
        return Sample(
            mono_ns=began_ns,
            wall_ns=self._clock.wall_ns(),
            late_ns=late_ns,
            load_mode=self._load_mode(began_ns),
            process=process,
            devices=devices,
            vm=self._try("vm", lambda: read_vm(root)),
            cgroup=self._try("cgroup", lambda: read_cgroup(root, cgroup)) if cgroup is not None else None,
            pressure=self._try("pressure", lambda: read_pressure(root, cgroup)),
            memory=self._try("memory", lambda: read_memory(root)),
            residency=self._residency(),
            server=answer,
            others=self._other_processes(began_ns),
            readers_read_bytes_total=self._readers_total(began_ns, process.read_bytes_total),
            own=self._own(),
            gaps=tuple(self._gaps),
            collect_ns=self._clock.mono_ns() - began_ns,
        )

    def close(self) -> None:
        """End the threads and close the files."""
        if self._poll is not None:
            self._poll.stop()
        if self._scanner is not None:
            self._scanner.stop()

    def _try(self, field: str, read: Callable[[], T]) -> T | None:
        """A reading, or None and the reason among the gaps."""
        try:
            return read()
        except ReadingError as error:
            self._gaps.append(error.gap(field))
            return None

    def _find_disks(self) -> FileDisks | None:
        paths = self._layout.paths if self._layout is not None else tuple(map(str, self._server.model_paths))
        if not paths:
            return None
        disks = self._try("devices", lambda: disks_of(self._root, paths[0]))
        if disks is not None and not disks.devices:
            self._standing_gaps.append(Gap(field="devices", reason=GapReason.ABSENT, detail=disks.detail))
        return disks

    def _describe(self) -> Header:
        server, root = self._server, self._root
        limit, scope = tightest_limit(root, self._cgroup) if self._cgroup is not None else (None, None)
        host = host_of(root)
        if limit is not None and host.ram_bytes is not None and limit >= host.ram_bytes:
            limit, scope = None, None  # a limit above the machine's memory limits nothing
        return Header(
            created=datetime.fromtimestamp(self._clock.wall_ns() / S, UTC).isoformat(timespec="seconds"),
            host=host,
            target=TargetIdentity(
                pid=server.pid,
                start_ticks=server.start_ticks,
                exe=server.exe,
                argv=redact_argv(server.argv),
                load_mode=server.load_mode,
            ),
            model=self._layout.summary if self._layout is not None else None,
            devices=self._disks.devices if self._disks is not None else (),
            memory_limit_bytes=limit,
            memory_limit_scope=scope,
            file_system=self._disks.file_system if self._disks is not None else None,
            interval_ns=self._interval_ns,
            estimate_tokens_per_s=self._estimate(host.ram_bytes if limit is None else limit),
        )

    def _estimate(self, memory_bytes: int | None) -> tuple[float, float] | None:
        """What was estimated of this model with so much memory."""
        return find_estimate(derive_digest(self._layout), memory_bytes) if self._layout is not None else None

    def _ask_server(self, *activity: int | None) -> ServerReading:
        """The server's last word; a server that may sleep is asked only while its process does something."""
        if self._poll is None:
            return ServerReading()
        now = sum(value or 0 for value in activity)
        self._poll.wants(busy=self._activity is not None and now != self._activity)
        self._activity = now
        answer, gaps = self._poll.latest()
        self._gaps.extend(gaps)
        return answer

    def _load_mode(self, now_ns: int) -> LoadMode | None:
        """The mode in force when it is not the header's: before the model is loaded there is none to be seen."""
        if now_ns >= self._mode_ns:
            self._mode_ns = now_ns + MODE_EVERY_NS
            with contextlib.suppress(MoewatchError):  # what is wrong with the process is told by its own readings
                self._mode = inspect_pid(self._root, self._server.pid).load_mode
        return self._mode if self._mode is not self._header.target.load_mode else None

    def _residency(self) -> ResidencyReading | None:
        if self._scanner is None:
            return None
        reading, gaps = self._scanner.read()
        self._gaps.extend(gaps)
        return reading

    def _look_for_needed(self, now_ns: int, answer: ServerReading) -> None:
        """From time to time: which tensors are on the GPU and leave every ratio."""
        if self._needed is None or self._scanner is None or now_ns < self._needed_ns:
            return
        self._needed_ns = now_ns + NEEDED_EVERY_NS
        tokens = answer.tokens_total if answer.phase is not Phase.LOADING else None
        resident = {name: size for name, (size, _seen_ns) in self._scanner.tensor_resident().items()}
        self._scanner.not_needed = self._needed.look(resident, tokens)
        self._scanner.not_needed_assumed = self._needed.is_assumed

    def _other_processes(self, now_ns: int) -> tuple[OtherProcess, ...] | None:
        if now_ns < self._others_ns:
            return None
        self._others_ns = now_ns + OTHERS_EVERY_NS
        return self._try("others", lambda: read_others(self._root, (self._server.pid,)))

    def _readers_total(self, now_ns: int, own_bytes: int | None) -> int | None:
        """Reads of every process that maps the same files; a reader that ended takes its total along (a reset)."""
        if self._layout is None or own_bytes is None:
            return None
        if now_ns >= self._readers_ns:
            self._readers_ns = now_ns + READERS_EVERY_NS
            paths = self._layout.paths
            found = self._try("readers_read_bytes_total", lambda: readers_of(self._root, paths)) or ()
            self._readers = tuple(pid for pid in found if pid != self._server.pid)
        total = own_bytes
        for pid in self._readers:
            try:
                total += read_read_bytes(self._root, pid)
            except MoewatchError:
                continue
        return total

    def _own(self) -> OwnReading:
        statm = self._try("self", lambda: self._root.read("/proc/self/statm", 256).split())
        rss = int(statm[1]) * self._root.page_bytes if statm else None
        return OwnReading(cpu_ns_total=self._clock.process_cpu_ns(), rss_bytes=rss)


def host_of(root: KernelRoot) -> Host:
    """The machine, as a recording names it."""
    try:
        ram = read_ram_bytes(root)
    except ReadingError:
        ram = None
    return Host(
        kernel=platform.release(),
        page_bytes=root.page_bytes,
        ram_bytes=ram,
        cpus_physical=psutil.cpu_count(logical=False),
        cpus_logical=psutil.cpu_count(),
    )


def _new_poll(server: ServerProcess, url: str | None, clock: Clock, interval_ns: int) -> ServerPoll:
    options = server.options
    host, port, prefix = (
        parse_url(url) if url is not None else (local_host(server.host), server.port, options.api_prefix)
    )
    return ServerPoll(
        host, port, clock, options.api_key, prefix=prefix, interval_ns=interval_ns, may_sleep=server.may_sleep
    )
