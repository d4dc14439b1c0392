"""The demo's course of events, and the Demo that plays it: everything the dashboard shows meanwhile is measured.

with Demo(clock, on_notice=print) as demo:
    pid = demo.start()      # a server to watch, like any other
"""

import atexit
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from moewatch.clock import Clock
from moewatch.demo import model, squeeze
from moewatch.domain.layout import ModelLayout
from moewatch.errors import MoewatchError
from moewatch.modelfile.layout import read_layout
from moewatch.units import S

READY_WAIT_S = 15.0  # an interpreter starts in 0.1 s; a disk that thrashes already may need long
END_WAIT_S = 3.0
WARM_RATIO = 0.02  # what stays in memory by itself: pages read ahead while the file is looked at, 0.1 %
SQUEEZED_RATIO = 0.50  # of the expert bytes, while all topics need nearly all of them


class Step(Struct, frozen=True):
    """One part of the script: what is said, what the server is told, and the memory left for its experts."""

    seconds: float
    text: str
    command: str | None = None
    expert_ratio: float | None = None


# Topics come one by one where something is read in, so that a fast disk does not have it all in memory within two
# seconds, before anybody could see it. Each state needs more than the 12 s within which a verdict is due.
ALL_TOPICS = "topics 0,1,2,3"
SCRIPT = (
    Step(5, "Cold start: nothing of the model is in memory yet", "topics 0"),
    Step(4, "The next topic needs other experts", "topics 1"),
    Step(4, "And the next", "topics 2"),
    Step(4, "And the last", "topics 3"),
    Step(20, "All topics in turn: everything fits", ALL_TOPICS),
    Step(28, "Memory is taken away from the server", ALL_TOPICS, SQUEEZED_RATIO),
    Step(6, "Memory is given back", "topics 0"),
    Step(5, "The other topics come back", "topics 1"),
    Step(5, "The other topics come back", "topics 2"),
    Step(16, "Everything fits again", ALL_TOPICS),
    Step(14, "No requests for a while", "pause"),
    Step(0, "Requests again; nothing more is going to happen, q quits", "work"),
)


class Demo:
    """Owns the server process, its squeeze and the thread that plays the script.

    `on_notice` hears sentences for a person, from `start` and from the script's thread. `script` and `geometry` are
    shortened in tests.
    """

    def __init__(
        self,
        clock: Clock,
        cache_dir: Path | None = None,
        *,
        on_notice: Callable[[str], None] | None = None,
        script: tuple[Step, ...] = SCRIPT,
        geometry: model.Geometry | None = None,
        may_limit: bool = True,
    ) -> None:
        self._clock = clock
        self._cache_dir = cache_dir
        self._tell = on_notice or (lambda _: None)
        self._script = script
        self._geometry = geometry
        self._may_limit = may_limit
        self._process: subprocess.Popen[str] | None = None
        self._squeeze: squeeze.Squeeze | None = None
        self._stopping = threading.Event()
        self._starting = (
            threading.RLock()
        )  # held by start(), which runs in another thread than stop() under a dashboard
        self._player: threading.Thread | None = None
        self._layout: ModelLayout | None = None
        self._warm_words = ""  # said in the place of the first step's text, which would not be true
        self.path: Path | None = None
        self.port: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def squeeze_words(self) -> str:
        """How memory is taken away here, in one sentence."""
        return self._squeeze.words if self._squeeze else ""

    def start(self) -> int:
        """Write the model if need be, start the server and the script; the server's pid. MoewatchError when it cannot."""
        with self._starting:
            atexit.register(self.stop)
            self.path = model.ensure(self._tell, self._cache_dir, self._geometry, stopping=self._stopping)
            if self._stopping.is_set():
                raise MoewatchError("The demo was ended before it began")
            self._layout = read_layout(self.path)
            kept = model.drop_cache(self.path)
            if kept >= WARM_RATIO:
                self._warm_words = (
                    f"Not a cold start: another program, perhaps another demo, uses the same model and keeps {kept:.0%} of it in "
                    "memory, where it cannot be taken from this one; end the other first to see the whole course"
                )
            try:
                process = self._launch(self.path, self._layout)
            except BaseException:
                self.stop()
                raise
            self._tell(self.squeeze_words)
            self._player = threading.Thread(target=self._play, name="demo script", daemon=True)
            self._player.start()
            return process.pid

    def _launch(self, path: Path, layout: ModelLayout) -> subprocess.Popen[str]:
        """Start the server under the first way to squeeze that works."""
        total, experts = layout.summary.total_bytes, layout.summary.expert_bytes or 0
        failed: OSError | None = None
        ways = list(squeeze.ways(self.command, total, experts, self._clock))
        for make in ways if self._may_limit else ways[-1:]:
            try:
                self._squeeze = make()
                self._process = self._spawn(self._squeeze, path)
                self._squeeze.adopt(self._process.pid)
                self._await_ready(self._process)
            except OSError as error:
                failed = error
                self._end()
                continue
            return self._process
        raise MoewatchError(f"The demo's server did not start: {failed}")

    def _spawn(self, way: squeeze.Squeeze, path: Path) -> subprocess.Popen[str]:
        """The server, with a socket that listens already and a pipe whose end ends it."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            argv = [sys.executable, "-P", "-m", "moewatch.demo.workload", "--model", str(path), "--host", "127.0.0.1"]
            argv += ["--port", str(self.port), "--listen-fd", str(listening.fileno())]
            package_parent = str(Path(__file__).parents[2])
            search = os.pathsep.join(p for p in (package_parent, os.environ.get("PYTHONPATH", "")) if p)
            return subprocess.Popen(  # noqa: S603 - our own interpreter and module
                way.wrap(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # empty but for its last words
                pass_fds=(listening.fileno(),),
                env={**os.environ, "PYTHONPATH": search},
                start_new_session=True,  # Ctrl-C in the terminal is for the dashboard, which then ends us
                text=True,
            )

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        """Let the server map the model, so that whoever looks for it by its mappings finds it."""
        self._await_word(process, "ready")
        self.command("go")
        self._await_word(process, "mapped")

    def _await_word(self, process: subprocess.Popen[str], word: str) -> None:
        """Wait for one word of the server; OSError when it ends or stays silent."""
        assert process.stdout is not None  # noqa: S101 - opened as a pipe above
        readable, _, _ = select.select([process.stdout], [], [], READY_WAIT_S)
        if not readable:
            raise OSError(f"it was not {word} within {READY_WAIT_S:.0f} s")
        if process.stdout.readline().strip() != word:
            squeeze.end(process, END_WAIT_S)
            last_words = process.stderr.read().strip().splitlines() if process.stderr else []
            raise OSError(last_words[-1] if last_words else "it ended at once")

    def command(self, line: str) -> None:
        """One line for the server; nothing happens when it has ended."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it ended, or we are closing it
                process.stdin.write(line + "\n")
                process.stdin.flush()

    def _play(self) -> None:
        """Run the script once; the last step lasts until stop()."""
        for step in self._script:
            if self._stopping.is_set():
                return
            self._tell(self._warm_words or step.text)
            self._warm_words = ""
            if step.command is not None:
                self.command(step.command)
            if self._squeeze is not None and self._layout is not None:
                experts = self._layout.summary.expert_bytes or 0
                self._squeeze.hold(None if step.expert_ratio is None else int(step.expert_ratio * experts))
            if self._clock.sleep_until(self._clock.mono_ns() + int(step.seconds * S), self._stopping):
                return

    def stop(self) -> None:
        """End the server, remove its cgroup, end the script; safe to call at any time and more than once."""
        self._stopping.set()
        if self._starting.acquire(timeout=END_WAIT_S):
            self._starting.release()
        self._end()
        if self._player is not None and self._player is not threading.current_thread():
            self._player.join(END_WAIT_S)
        atexit.unregister(self.stop)

    def _end(self) -> None:
        """End the server and undo its squeeze."""
        process, way = self._process, self._squeeze
        self._process = self._squeeze = None
        if process is not None:
            squeeze.end(process, END_WAIT_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if way is not None:
            way.close()
