"""Replies that never end, over a real socket: given up by time and by bytes, wherever in the reply it is that they go on."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from moewatch.clock import ManualClock
from moewatch.domain.sample import GapReason, Phase
from moewatch.server.http import REPLY_NS, ServerPoll
from moewatch.server.launch import HOST, REPLY_BYTES, SILENCE_S, LaunchError, OwnServer, _tokens_in
from moewatch.server.reply import HEAD_LIMIT_BYTES, Patience, TooLongError, be_patient

MS = 1_000_000
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
# what comes first, and what then comes again and again
ENDLESS = {
    "interim replies": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "the status line": (b"HTTP/1.1 200 ", b"a"),
    "a header": (OK + b"X: ", b"a"),
    "the size of a chunk": (CHUNKED + b"1", b";a"),
    "the body": (OK + b"\r\n", b" "),
    "trailers": (CHUNKED + b"2\r\n[]\r\n0\r\n", b"X: y\r\n"),
}


class PassingClock(ManualClock):
    """100 ms pass between two looks at it."""

    def mono_ns(self) -> int:
        self.advance(100 * MS)
        return super().mono_ns()


@contextlib.contextmanager
def serving(first: bytes, then: bytes) -> Iterator[int]:
    """The port of a server that answers so, until the other side has gone."""
    with socket.create_server((HOST, 0)) as listener:

        def answer(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(30)
                connection.recv(1 << 16)
                connection.sendall(first)
                while then:
                    connection.sendall(then)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def get(port: int, patience: Patience) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    be_patient(connection, patience)
    try:
        connection.request("GET", "/", headers={"Connection": "close"})
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_reply_that_ends_is_whole() -> None:
    with serving(OK + b"Content-Length: 5\r\n\r\nwhole", b"") as port:
        assert get(port, Patience(ManualClock(), 1)) == b"whole"


@pytest.mark.parametrize("where", ENDLESS)
def test_no_reply_takes_longer_than_there_is_patience(where: str) -> None:
    with serving(*ENDLESS[where]) as port, pytest.raises(TimeoutError):
        get(port, Patience(PassingClock(), 100 * MS, 1 << 40))


@pytest.mark.parametrize("where", ENDLESS)
def test_no_reply_is_longer_than_allowed(where: str) -> None:
    # http.client has limits of its own, 64 KiB for a line and 100 headers; they may come first
    with serving(*ENDLESS[where]) as port, pytest.raises((TooLongError, http.client.HTTPException)):
        get(port, Patience(ManualClock(), 1))


def test_a_server_that_never_comes_to_its_reply_is_not_asked_for_a_minute() -> None:
    with serving(*ENDLESS["interim replies"]) as port:
        poll = ServerPoll(HOST, port, ManualClock())
        poll.poll_once()
    reading, gaps = poll.latest()
    assert (reading.phase, reading.tokens_total) == (Phase.UNKNOWN, None)
    assert [(gap.reason, gap.detail) for gap in gaps] == [
        (GapReason.MALFORMED, f"{endpoint} answers without end") for endpoint in ("/slots", "/health", "/metrics")
    ]


def test_the_limits_let_a_real_reply_through() -> None:
    assert REPLY_NS >= 1_000 * MS
    assert HEAD_LIMIT_BYTES >= 64 << 10
    assert SILENCE_S >= 100


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (OK + b"\r\n", b"data: {}\n\n", "no token came"),
        (OK + b"\r\n", b'data: {"tokens_predicted": -3}\n\n', "no token came"),
        (OK + b"\r\n", b"x" * (1 << 20), "answers without end"),
    ],
)
def test_a_server_of_our_own_that_makes_no_token(first: bytes, then: bytes, words: str) -> None:
    with serving(first, then) as port:
        # what comes in large pieces is over by its length long before the clock says so
        clock = ManualClock() if len(then) > 1000 else HurriedClock()
        server = OwnServer(["true"], port, clock, environ={})
        try:
            with pytest.raises(LaunchError, match=words):
                server.measure(1)
        finally:
            server.stop()


class HurriedClock(ManualClock):
    """A minute passes between two looks at it."""

    def mono_ns(self) -> int:
        self.advance(60_000 * MS)
        return super().mono_ns()


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ('{"tokens_predicted": 7}', 7),
        ('{"tokens_predicted": 256}', 256),
        ('{"tokens_predicted": 257}', None),  # more than were asked for
        ('{"tokens_predicted": 0}', None),
        ('{"tokens_predicted": -1}', None),
        ('{"tokens_predicted": true}', None),
        ('{"tokens_predicted": 7.5}', None),
        ('{"tokens_predicted": "7"}', None),
        ('{"tokens_predicted": NaN}', None),
        ('{"tokens_predicted": 7, "stop": true}', None),
        ("[" * 5000, None),
        ("[]", None),
    ],
)
def test_what_counts_as_tokens(event: str, count: int | None) -> None:
    assert _tokens_in(f"data: {event}\n".encode(), 256) == count
    assert _tokens_in(event.encode(), 256) is None


def test_room_for_a_long_answer() -> None:
    assert REPLY_BYTES > 256 * 4096
