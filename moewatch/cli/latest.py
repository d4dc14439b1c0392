"""The newest Frame of a live server, for commands that act on what they see: a sink that is asked, not one that prints."""

import argparse
import threading
from typing import Self

from moewatch.cli import diagnostics
from moewatch.cli.feed import LiveFeed
from moewatch.clock import Clock
from moewatch.domain.events import Ended, Event, FrameReady, Notice
from moewatch.domain.frame import Frame
from moewatch.errors import TargetEndedError
from moewatch.units import S


class Latest:
    """Watches one server in a thread of its own while the `with` block lasts; tokens are counted from its beginning."""

    def __init__(self, options: argparse.Namespace, pid: int, clock: Clock) -> None:
        wanted = argparse.Namespace(**{**vars(options), "pid": [pid]})
        self._feed = LiveFeed(wanted, follow=False, clock=clock)
        self._clock = clock
        self._news = threading.Event()
        self._frame: Frame | None = None
        self._first_ns: int | None = None
        self._first_tokens: int | None = None
        self._ended: str | None = None

    def __enter__(self) -> Self:
        self._feed.start(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.stop()

    @property
    def frame(self) -> Frame | None:
        """The newest, None before the first.

        Raises:
            TargetEndedError: the server ended.
        """
        if self._ended is not None:
            raise TargetEndedError(self._ended)
        return self._frame

    @property
    def tokens(self) -> int | None:
        """Generated since the watch began; None when the server does not say."""
        frame = self._frame
        if frame is None or frame.server.tokens_total is None or self._first_tokens is None:
            return None
        return max(0, frame.server.tokens_total - self._first_tokens)

    @property
    def watched_ns(self) -> int:
        """From the first Frame to the newest."""
        return self._frame.mono_ns - self._first_ns if self._frame is not None and self._first_ns is not None else 0

    def wait(self, wait_ns: int) -> Frame | None:
        """The next Frame; None when none came in time.

        Raises:
            TargetEndedError: the server ended.
        """
        came = self._news.wait(max(0, wait_ns) / S)
        self._news.clear()
        frame = self.frame
        return frame if came else None

    def _take(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            if self._first_ns is None:
                self._first_ns = event.frame.mono_ns
            if self._first_tokens is None:
                self._first_tokens = event.frame.server.tokens_total
            self._frame = event.frame
            self._news.set()
        elif isinstance(event, Ended):
            self._ended = event.text
            self._news.set()
        elif isinstance(event, Notice):
            diagnostics.say(event.text)
