"""The poll against a scripted server: whatever it answers, a reading or a gap, and never a wait."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from moewatch.clock import ManualClock, SystemClock
from moewatch.domain.sample import GapReason, Phase
from moewatch.errors import UsageError
from moewatch.server.http import REPLY_LIMIT_BYTES, REST_NS, ServerPoll, local_host, parse_url
from tests.unit.server.fake_proc import FIXTURES

S = 1_000_000_000
LOADING = (503, (FIXTURES / "health_loading.json").read_bytes())
OFF = (501, (FIXTURES / "slots_off.json").read_bytes())
HEALTHY = (200, (FIXTURES / "health_ok.json").read_bytes())


def slots(name: str) -> tuple[int, bytes]:
    return 200, (FIXTURES / f"slots_{name}.json").read_bytes()


def metrics(name: str) -> tuple[int, bytes]:
    return 200, (FIXTURES / f"metrics_{name}.txt").read_bytes()


@dataclass
class Script:
    """What each endpoint answers now (404 without a word), and what was asked."""

    port: int
    replies: dict[str, tuple[int, bytes] | str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def script() -> Iterator[Script]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            told.keys.append(self.headers["Authorization"])
            reply = told.replies.get(self.path, (404, b""))
            if reply == "hang":
                told.ended.wait(10)
                return
            if reply == "garbage":
                self.wfile.write(b"\x00\xff no http\r\n\r\n")
                return
            if reply == "endless":
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    for _ in range(REPLY_LIMIT_BYTES // 65536 + 16):
                        self.wfile.write(b" " * 65536)
                return
            assert not isinstance(reply, str)
            status, body = reply
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told = Script(port=server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield told
    told.ended.set()
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(mono_ns=1000 * S)


def test_before_the_first_answer_nothing_is_known(script: Script, clock: ManualClock) -> None:
    reading, gaps = ServerPoll("127.0.0.1", script.port, clock).latest()
    assert reading.phase is Phase.UNKNOWN
    assert reading.tokens_total is None
    assert gaps[0].reason is GapReason.ABSENT


def test_loading_then_slots(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    script.replies = {"/slots": LOADING, "/health": LOADING}
    poll.poll_once()
    reading, gaps = poll.latest()
    assert (reading.phase, gaps) == (Phase.LOADING, [])
    script.replies = {"/slots": slots("unused")}
    poll.poll_once()
    assert poll.latest()[0].phase is Phase.IDLE
    script.replies = {"/slots": slots("prompt_beside_generate")}
    clock.advance(S)
    poll.poll_once()
    reading, gaps = poll.latest()
    assert (reading.phase, reading.tokens_total, reading.n_active, reading.source, gaps) == (
        Phase.GENERATE, 1, 2, "slots", [],
    )  # fmt: skip
    assert set(script.asked) == {"/slots"}  # nothing else is asked while it answers


def test_metrics_where_slots_are_off_and_no_question_for_a_minute(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    script.replies = {"/slots": OFF, "/health": HEALTHY, "/metrics": metrics("unused")}
    poll.poll_once()
    script.replies["/metrics"] = metrics("ended")
    clock.advance(S)
    poll.poll_once()
    reading, gaps = poll.latest()
    assert (reading.source, reading.tokens_total) == ("metrics", 5063)
    assert [(gap.reason, gap.detail) for gap in gaps] == [(GapReason.ABSENT, "the server has no /slots switched on")]
    assert script.asked.count("/slots") == 1
    clock.advance(REST_NS)
    script.replies["/slots"] = slots("unused")
    poll.poll_once()
    assert poll.latest()[0].source == "slots"


def test_a_server_with_nothing_switched_on(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    for _ in range(3):
        poll.poll_once()
        clock.advance(S)
    reading, gaps = poll.latest()
    assert (reading.phase, reading.source) == (Phase.UNKNOWN, "none")
    assert [gap.reason for gap in gaps] == [GapReason.ABSENT] * 3
    assert sorted(script.asked) == ["/health", "/metrics", "/slots"]


def test_loading_is_seen_without_slots(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    script.replies = {"/slots": OFF, "/health": LOADING}
    poll.poll_once()
    assert poll.latest()[0].phase is Phase.LOADING


def test_the_api_key_goes_along(script: Script, clock: ManualClock) -> None:
    script.replies = {"/slots": slots("unused")}
    ServerPoll("127.0.0.1", script.port, clock, api_key="abc").poll_once()
    ServerPoll("127.0.0.1", script.port, clock, api_key="a\r\nX: y").poll_once()
    assert script.keys == ["Bearer abc", None]


def test_a_missing_key_is_a_permission(script: Script, clock: ManualClock) -> None:
    refused = (401, (FIXTURES / "unauthorized.json").read_bytes())
    script.replies = {"/slots": refused, "/metrics": refused, "/health": HEALTHY}
    poll = ServerPoll("127.0.0.1", script.port, clock)
    poll.poll_once()
    assert {gap.reason for gap in poll.latest()[1]} == {GapReason.DENIED}


def test_a_hang_keeps_the_totals_and_says_since_when(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    script.replies = {"/slots": slots("unused")}
    poll.poll_once()
    script.replies = {"/slots": slots("one_ended")}
    poll.poll_once()
    before = poll.latest()[0].tokens_total
    assert before == 1075
    script.replies = {"/slots": "hang"}
    clock.advance(40 * S)
    poll.poll_once()
    reading, gaps = poll.latest()
    assert (reading.phase, reading.tokens_total, reading.n_active) == (Phase.UNKNOWN, 1075, None)
    assert gaps[0].reason is GapReason.VANISHED
    assert gaps[0].detail == "the server has not answered for 40 s; it may be in a long prompt"
    script.replies = {"/slots": slots("one_ended")}
    poll.poll_once()
    assert poll.latest() == (poll.latest()[0], [])


def test_an_answer_that_is_too_old_says_nothing_of_now(script: Script, clock: ManualClock) -> None:
    poll = ServerPoll("127.0.0.1", script.port, clock)
    script.replies = {"/slots": slots("unused")}
    poll.poll_once()
    clock.advance(10 * S)  # the thread is stuck
    reading, gaps = poll.latest()
    assert reading.phase is Phase.UNKNOWN
    assert "for 10 s" in gaps[0].detail


@pytest.mark.parametrize("reply", [(200, b"[[["), (200, b"{}"), "endless", (200, b"[" * 200_000)])
def test_hostile_replies_are_gaps(script: Script, clock: ManualClock, reply: tuple[int, bytes] | str) -> None:
    script.replies = {"/slots": reply, "/health": HEALTHY, "/metrics": (200, b"\xff")}
    poll = ServerPoll("127.0.0.1", script.port, clock)
    poll.poll_once()
    reading, gaps = poll.latest()
    assert reading.phase is Phase.UNKNOWN
    assert [gap.reason for gap in gaps] == [GapReason.MALFORMED, GapReason.MALFORMED]


def test_a_reply_without_end_is_given_up(script: Script, clock: ManualClock) -> None:
    script.replies = {"/slots": "endless"}
    poll = ServerPoll("127.0.0.1", script.port, clock)
    poll.poll_once()
    assert poll.latest()[1][0].detail == "/slots answers without end"


def test_what_is_no_http_is_silence(script: Script, clock: ManualClock) -> None:
    script.replies = {"/slots": "garbage"}
    poll = ServerPoll("127.0.0.1", script.port, clock)
    poll.poll_once()
    reading, gaps = poll.latest()
    assert reading.phase is Phase.UNKNOWN
    assert "no llama-server" in gaps[0].detail


def test_an_error_of_the_server_is_no_answer(script: Script, clock: ManualClock) -> None:
    script.replies = {"/slots": (500, b"")}
    poll = ServerPoll("127.0.0.1", script.port, clock)
    poll.poll_once()
    assert poll.latest()[1][0].detail == "the server answered 500"


def test_nothing_listens(clock: ManualClock) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    poll = ServerPoll("127.0.0.1", port, clock)
    poll.poll_once()
    assert poll.latest()[1][0].detail == f"nothing listens on 127.0.0.1:{port}"


def test_a_server_that_may_sleep_is_asked_only_at_work(script: Script, clock: ManualClock) -> None:
    script.replies = {"/slots": slots("unused")}
    poll = ServerPoll("127.0.0.1", script.port, clock, may_sleep=True)
    poll.poll_once()
    assert script.asked == []
    assert "--sleep-idle-seconds" in poll.latest()[1][0].detail
    poll.wants(busy=True)
    poll.poll_once()
    assert poll.latest()[0].phase is Phase.IDLE
    poll.wants(busy=False)
    poll.poll_once()
    assert script.asked == ["/slots"]
    assert poll.latest()[0].phase is Phase.UNKNOWN


def test_a_prefix_is_put_before(script: Script, clock: ManualClock) -> None:
    script.replies = {"/api/slots": slots("unused")}
    ServerPoll("127.0.0.1", script.port, clock, prefix="/api").poll_once()
    assert script.asked == ["/api/slots"]


def test_the_thread_asks_and_stops_while_the_server_hangs(script: Script) -> None:
    script.replies = {"/slots": "hang"}
    poll = ServerPoll("127.0.0.1", script.port, SystemClock())
    poll.start()
    poll.start()  # once is enough
    poll.stop()
    assert not any(thread.name == "moewatch-server" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("http://127.0.0.1:8080", ("127.0.0.1", 8080, "")),
        ("localhost:9001", ("localhost", 9001, "")),
        ("http://[::1]:80/api/", ("::1", 80, "/api")),
        ("http://example", ("example", 80, "")),
    ],
)
def test_urls(text: str, parsed: tuple[str, int, str]) -> None:
    assert parse_url(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "ftp://a", "https://a", "http://", "http://a:99999", "http://a:x", "http://a b/", "http://[::1"]
)
def test_bad_urls(text: str) -> None:
    with pytest.raises(UsageError, match=r"write for instance http://127\.0\.0\.1:8080$"):
        parse_url(text)


def test_any_address_is_reached_by_loopback() -> None:
    assert [local_host(host) for host in ("0.0.0.0", "::", None, "192.168.1.5")] == [  # noqa: S104 - compared, not bound
        "127.0.0.1", "::1", "127.0.0.1", "192.168.1.5",
    ]  # fmt: skip
