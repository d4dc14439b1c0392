"""The only thread that waits: it takes Samples when they are due and tells whoever listens, in order.

Source -> engine.step -> Frame -> sink. A recorder takes the raw Sample before anything is derived from it.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from moewatch import engine
from moewatch.clock import Clock
from moewatch.domain.events import Ended, Event, FrameReady, Notice, Started, Waiting
from moewatch.domain.sample import Header, Sample
from moewatch.errors import MoewatchError, TargetEndedError, TargetError
from moewatch.sources import Source
from moewatch.units import S

SEARCH_EVERY_NS = S  # a look for a server costs 3-4 ms (psutil.process_iter 3.4 ms, measured)

Sink = Callable[[Event], None]


class Recorder(Protocol):
    """Takes raw Samples; see trace/writer.py."""

    def begin(self, header: Header) -> None:
        """A target is watched from now on."""
        ...

    def take(self, sample: Sample) -> None:
        """One Sample; a MoewatchError says why it can take no more."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class Sampler:
    """Runs sources one after the other until stopped.

    `open_source` returns the next source, or raises TargetError with the sentence to show while waiting for one.
    With `follow` the end of a target is not the end: the next one is waited for.
    """

    def __init__(
        self,
        open_source: Callable[[], Source],
        clock: Clock,
        sink: Sink,
        *,
        follow: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._open_source = open_source
        self._clock = clock
        self._sink = sink
        self._follow = follow
        self._recorder = recorder
        self._stop = threading.Event()
        self._switch = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: MoewatchError | None = None

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self._run_to_the_end, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at the next wait; returns when the thread is gone or after two seconds (it may hang in a dead file system)."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2)

    def switch(self) -> None:
        """Leave the present source and open another."""
        self._switch.set()

    def run(self) -> None:
        """Until stopped, or until there is nothing left to watch; `failure` then says why."""
        try:
            while not self._stop.is_set():
                source = self._next_source()
                if source is None:
                    return
                try:
                    ended = self._watch(source)
                finally:
                    source.close()
                if ended and not self._follow:
                    return
        except MoewatchError as error:
            self.failure = error
            self._sink(Ended(text=str(error), wall_ns=self._clock.wall_ns(), final=True))
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _run_to_the_end(self) -> None:
        """In a thread nobody sees a traceback, and a screen that stands still would look alive: say that it ended."""
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the end of the watch
            text = f"Watching ended by a fault of moewatch itself ({type(error).__name__}: {error})."
            self._sink(Ended(text=text, wall_ns=self._clock.wall_ns(), final=True))

    def _next_source(self) -> Source | None:
        said = None
        while not self._stop.is_set():
            try:
                return self._open_source()
            except TargetError as error:
                if not self._follow:
                    raise
                if str(error) != said:
                    said = str(error)
                    self._sink(Waiting(text=said, wall_ns=self._clock.wall_ns()))
            self._clock.sleep_until(self._clock.mono_ns() + SEARCH_EVERY_NS, self._stop)
        return None

    def _watch(self, source: Source) -> bool:
        """Take Samples until the source ends (True) or is left (False)."""
        state = self._begin(source)
        is_over = False
        while not self._stop.is_set():
            if self._switch.is_set():
                self._switch.clear()
                return False
            due_ns = source.due_ns()
            if due_ns is None:
                if not is_over:
                    self._sink(Ended(text="The recording ends here.", wall_ns=self._clock.wall_ns(), final=True))
                if not source.stays:
                    return True
                is_over = True
                self._clock.sleep_until(self._clock.mono_ns() + source.patience_ns, self._stop)
                continue
            is_over = False
            if source.took_jump():
                state = self._begin(source)
            now_ns = self._clock.mono_ns()
            if now_ns < due_ns:
                self._clock.sleep_until(min(due_ns, now_ns + source.patience_ns), self._stop)
                continue
            try:
                sample = source.read()
            except TargetEndedError as error:
                self._sink(Ended(text=str(error), wall_ns=self._clock.wall_ns()))
                return True
            self._record(sample)
            state, frame = engine.step(state, sample)
            self._sink(FrameReady(frame=frame))
        return False

    def _begin(self, source: Source) -> engine.State:
        self._sink(Started(header=source.header, wall_ns=self._clock.wall_ns()))
        if self._recorder is not None:
            try:
                self._recorder.begin(source.header)
            except MoewatchError as error:
                self._stop_recording(error)
        return engine.start(source.header)

    def _record(self, sample: Sample) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.take(sample)
        except MoewatchError as error:
            self._stop_recording(error)

    def _stop_recording(self, error: MoewatchError) -> None:
        """Watching goes on when the disk is full; what was written stays."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()
        self._sink(Notice(text=f"{error} Watching goes on.", wall_ns=self._clock.wall_ns()))
