"""Puts a live server or a recording behind the dashboard, the stream and the recorder."""

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moewatch.clock import Clock, SystemClock
from moewatch.domain.events import Candidates, Event, FrameReady, Notice, Position
from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.layout import ModelLayout
from moewatch.errors import TargetError, UnsupportedError
from moewatch.sampler import Recorder, Sampler
from moewatch.sources import Source
from moewatch.sources.replay import ReplaySource

if TYPE_CHECKING:
    from moewatch.cache.filemap import FileMap
    from moewatch.server.discovery import ServerProcess

NO_SERVER = "No llama-server yet; waiting. Start one: llama-server -m MODEL.gguf   or try: moewatch demo"


def require_linux() -> None:
    """Say in one sentence what works on other systems.

    Raises:
        UnsupportedError: on anything but Linux.
    """
    if sys.platform.startswith("linux"):
        return
    instead = (
        "fs_usage -w -f filesys shows a process's reads there"
        if sys.platform == "darwin"
        else "the Resource Monitor shows hard faults there"
    )
    raise UnsupportedError(
        f"Watching a process needs Linux (/proc, cachestat); {instead}. Here `moewatch replay FILE` works."
    )


class Relay:
    """Hands events on in order; keeps them while there is nobody to take them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Event] = []
        self._sink: Callable[[Event], None] | None = None

    def __call__(self, event: Event) -> None:
        """Hand on, or keep."""
        with self._lock:
            if self._sink is None:
                self._kept.append(event)
            else:
                self._sink(event)

    def attach(self, sink: Callable[[Event], None]) -> None:
        """Hand on to `sink`, beginning with what was kept."""
        with self._lock:
            kept, self._kept = self._kept, []
            for event in kept:
                sink(event)
            self._sink = sink


def both(first: Callable[[Event], None], second: Callable[[Event], None]) -> Callable[[Event], None]:
    """A sink that tells two."""

    def tell(event: Event) -> None:
        first(event)
        second(event)

    return tell


def successors(ended: "ServerProcess", servers: "Sequence[ServerProcess]", *, was_named: bool) -> "list[ServerProcess]":
    """Who may be the server that ended, restarted under another pid: those with its model, else what came later.

    Not another that ran beside it all the time; and where the person named a pid, only what listens where that one did.
    """
    alike = [server for server in servers if server.model_name == ended.model_name]
    later = [server for server in servers if server.start_ticks > ended.start_ticks]
    return alike or [server for server in later if server.port == ended.port or not was_named]


class LiveFeed:
    """A live server for whoever listens; follows it when it is restarted."""

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        follow: bool,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        keep_hot_sets: bool = False,
    ) -> None:
        require_linux()
        self.clock = clock or SystemClock()
        self._options = options
        self._pids: list[int] | None = options.pid
        self._follow = follow
        self._recorder = recorder
        self._keep_hot_sets = keep_hot_sets
        self._preferred = 0
        self._watched: ServerProcess | None = None  # the last one
        self._switching = False
        self._sink: Callable[[Event], None] = lambda _event: None
        self._relay: Relay | None = None
        self.sampler: Sampler | None = None
        self.layout: ModelLayout | None = None  # of the model watched now
        self._files: FileMap | None = None

    def run(self, sink: Callable[[Event], None]) -> None:
        """In this thread, until it ends.

        Raises:
            MoewatchError: when there is nothing to watch, or (without `follow`) the target ended.
        """
        sampler = self._new_sampler(sink)
        sampler.run()
        if sampler.failure is not None:
            raise sampler.failure

    def begin(self) -> None:
        """Sample in a thread of its own from now on; what it has to say is kept until somebody listens.

        The first Samples are there when the screen has been loaded, which takes longer than they do.
        """
        self._relay = relay = Relay()
        sink: Callable[[Event], None] = relay
        if self._keep_hot_sets:
            from moewatch.cache.hotset_keeper import HotsetKeeper  # noqa: PLC0415 - nothing eager

            keeper = HotsetKeeper(
                self.clock, lambda: self.layout, lambda text: relay(Notice(text=text, wall_ns=self.clock.wall_ns()))
            )
            sink = both(keeper, relay)
        self._new_sampler(sink).start()

    def start(self, sink: Callable[[Event], None]) -> None:
        """Tell `sink` everything, from the beginning."""
        if self._relay is None:
            self.begin()
        if self._relay is not None:
            self._relay.attach(sink)

    def check(self) -> None:
        """Before a screen is drawn: pids that were given must be of use.

        Raises:
            TargetError: none of them is a server.
        """
        if self._pids:
            self._find()

    def stop(self) -> None:
        """End the thread."""
        if self.sampler is not None:
            self.sampler.stop()
        if self._files is not None:
            self._files.close()

    def next_target(self) -> None:
        """Watch the next of the servers found."""
        self._preferred += 1
        self._switching = True
        if self.sampler is not None:
            self.sampler.switch()

    def set_paused(self, paused: bool) -> None:  # noqa: FBT001 - the state itself is the argument
        """Nothing: live sampling and recording go on while the view is paused."""

    def set_speed(self, speed: float) -> None:
        """Nothing: the present has one speed."""

    def seek(self, delta_ns: int) -> None:
        """Nothing: the present cannot be moved."""

    def expert_slices(self, layer: int, expert: int) -> tuple[ExpertSlice, ...]:
        """Looked up now."""
        return self._file_map().slices(self.layout, layer, expert)

    def file_strips(self, stretches: int) -> tuple[FileStrip, ...]:
        """Looked up now."""
        return self._file_map().strips(self.layout, stretches)

    def _file_map(self) -> "FileMap":
        from moewatch.cache.filemap import FileMap  # noqa: PLC0415 - nothing eager

        if self._files is None:
            self._files = FileMap()
        return self._files

    def _new_sampler(self, sink: Callable[[Event], None]) -> Sampler:
        self._sink = sink
        self.sampler = Sampler(self._open, self.clock, sink, follow=self._follow, recorder=self._recorder)
        return self.sampler

    def _find(self) -> "list[ServerProcess]":
        from moewatch.linux.root import KernelRoot  # noqa: PLC0415 - nothing eager
        from moewatch.server.discovery import find_servers  # noqa: PLC0415 - nothing eager

        servers = find_servers(KernelRoot.system(), self._pids if not self._watched else None)
        if self._watched is not None and not self._switching:  # Tab chooses among all
            servers = successors(self._watched, servers, was_named=bool(self._pids))
        self._switching = False
        if not servers:
            raise TargetError(NO_SERVER)
        return servers

    def _open(self) -> Source:
        from moewatch.sources.live import LiveSource  # noqa: PLC0415 - nothing eager

        servers = self._find()
        server = servers[self._preferred % len(servers)]
        source = LiveSource.open(
            server,
            clock=self.clock,
            interval_ns=self._options.interval,
            model_paths=tuple(map(Path, self._options.model or ())),
            url=self._options.url,
            http=not self._options.no_http,
            residency=not self._options.no_residency,
        )
        self._watched = server
        self.layout = source.layout
        others = [s for s in servers if s is not server]
        self._sink(Candidates(servers=tuple((s.pid, s.model_name) for s in [server, *others])))
        return source


class ReplayFeed:
    """A recording for whoever listens, with pause, pace and seeking."""

    def __init__(self, path: Path, *, speed: float = 1.0, clock: Clock | None = None) -> None:
        self._source = ReplaySource(path, clock or SystemClock(), speed=speed, stays=True)
        self._path = path
        self._sink: Callable[[Event], None] = lambda _event: None
        self._sampler = Sampler(self._open, clock or SystemClock(), self._forward)
        self._opened = threading.Event()

    def start(self, sink: Callable[[Event], None]) -> None:
        """In a thread of its own."""
        self._sink = sink
        self._sampler.start()

    def stop(self) -> None:
        """End the thread."""
        self._sampler.stop()

    def next_target(self) -> None:
        """Nothing: a recording has one target."""

    def set_paused(self, paused: bool) -> None:  # noqa: FBT001 - the state itself is the argument
        """Stand still, or go on."""
        self._source.set_paused(paused)
        self._tell()

    def set_speed(self, speed: float) -> None:
        """Recording seconds per second."""
        self._source.set_speed(speed)
        self._tell()

    def seek(self, delta_ns: int) -> None:
        """Move by so much."""
        self._source.seek(delta_ns)

    def expert_slices(self, layer: int, expert: int) -> tuple[ExpertSlice, ...]:
        """Nothing: the files are not here."""
        del layer, expert
        return ()

    def file_strips(self, stretches: int) -> tuple[FileStrip, ...]:
        """Nothing: the files are not here."""
        del stretches
        return ()

    def _open(self) -> Source:
        return self._source

    def _forward(self, event: Event) -> None:
        self._sink(event)
        if isinstance(event, FrameReady):
            self._tell()

    def _tell(self) -> None:
        source = self._source
        self._sink(
            Position(
                name=self._path.name,
                elapsed_ns=source.elapsed_ns,
                total_ns=source.total_ns,
                speed=source.speed,
                paused=source.paused,
            )
        )
