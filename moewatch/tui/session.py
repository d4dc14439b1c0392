"""What the events have told so far: fed by the feed's thread, read by the dashboard's, never losing a Frame."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from moewatch.domain.events import (
    Candidates,
    Ended,
    Event,
    FrameReady,
    Notice,
    Position,
    Started,
    Waiting,
)
from moewatch.domain.frame import Frame
from moewatch.domain.sample import Header
from moewatch.tui.history import History


class Session:
    """The newest of everything, plus the History of all Frames; bounded, whatever the terminal does."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.frame: Frame | None = None
        self.history = History()
        self.standstill: Ended | Waiting | None = None  # why no Frames come
        self.servers: tuple[tuple[int, str], ...] = ()
        self.notice = ""  # what a person should know, until it is dismissed or replaced
        self.position: Position | None = None
        self.frames = 0
        self._lock = threading.Lock()

    @contextmanager
    def locked(self) -> Iterator["Session"]:
        """Hold the feed's thread back while a screen is put together."""
        with self._lock:
            yield self

    def take(self, event: Event) -> None:
        """Take in one event; called on the feed's thread."""
        with self._lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case FrameReady(frame=frame):
                self.frames += 1
                self.notice = self.history.add(frame) or self.notice
                self.frame = frame
                self.standstill = None
            case Started(header=header):
                if self.header is not None and header.target.id != self.header.target.id:
                    self.notice = f"New server, PID {header.target.pid}; counters start again."
                    self.history.break_line()
                self.header = header
                self.standstill = None
                if self.frame is not None and self.frame.target.id != header.target.id:
                    self.frame = None
            case Ended(final=True, text=text) if self.position is not None:
                self.notice = text  # the recording's last verdict stays
            case Ended() | Waiting():
                self.standstill = event
            case Candidates(servers=servers):
                self.servers = servers
            case Notice(text=text):
                self.notice = text
            case Position():
                self.position = event
