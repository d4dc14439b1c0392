"""The server's own word over HTTP: a thread that asks /slots (or /health and /metrics) and never holds anyone up.

Measured with a build of summer 2026: /slots is answered within 1 to 10 ms even while a batch of 4,096 prompt tokens is
in work; older builds answer only between batches, so an answer that does not come in time is no alarm. One question
costs us 0.23 to 0.34 ms of CPU. /metrics is asked only where /slots is off: each answer resets the averages
(`predicted_tokens_seconds`) that others scrape, as was measured; its totals stay.
"""

import http.client
import socket
import threading
import urllib.parse

import msgspec

from moewatch.clock import Clock
from moewatch.domain.sample import Gap, GapReason, Phase, ServerReading
from moewatch.errors import ParseError, UsageError
from moewatch.server.reply import HEAD_LIMIT_BYTES, Patience, TooLongError, be_patient
from moewatch.server.slots import MetricsLedger, SlotLedger, parse_metrics, parse_slots

TIMEOUT_NS = 200_000_000  # 20 x the slowest answer measured (10 ms); hangs are reported for older builds
REPLY_NS = 5 * TIMEOUT_NS  # a reply that drips is given up as a whole
REPLY_LIMIT_BYTES = 4 << 20  # 1,024 slots of 2.6 kB, the size of one at work
REST_NS = 60_000_000_000  # an endpoint that is switched off is asked again after a minute
DEFAULT_INTERVAL_NS = 1_000_000_000
MIN_INTERVAL_NS = 200_000_000  # one time-out
# while requests are at work: a first token is timed to a quarter of a second, and of requests that follow one another at
# once no more than a quarter of a second's tokens is missed each (measured with requests of 1.1 s: 91 % of the tokens
# seen, 76 % when asked once a second); 0.14 % of a core
WORK_INTERVAL_NS = 250_000_000
STALE_NS = 2_000_000_000  # older than that, the last answer no longer says what the server is doing
FIELD = "server"

LABEL_LIMIT = 63  # of each part of a host name (RFC 1035); the resolver raises UnicodeError beyond it

_OFF = frozenset({404, 405, 501})
_FORBIDDEN = frozenset({401, 403})
_READY = 200
_UNAVAILABLE = 503


class _Refused(Exception):  # noqa: N818 - an answer, not an error
    """The endpoint answered, but not with what was asked for."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status, self.body = status, body


def parse_url(text: str) -> tuple[str, int, str]:
    """(host, port, path prefix) of `http://host:port`; UsageError says what is accepted."""
    wanted = "write for instance http://127.0.0.1:8080"
    try:
        url = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        port = url.port
    except ValueError:
        raise UsageError(f"{text!r} is no address of a server; {wanted}") from None
    if url.scheme == "https":
        raise UsageError(f"{text!r}: servers behind https are not asked; give the plain address, {wanted}")
    if (
        url.scheme != "http"
        or not url.hostname
        or port == 0
        or any(ord(c) < 33 or ord(c) > 126 for c in url.netloc + url.path)  # noqa: PLR2004 - printable ASCII
        or any(not part or len(part) > LABEL_LIMIT for part in url.hostname.removesuffix(".").split("."))
    ):
        raise UsageError(f"{text!r} is no address of a server; {wanted}")
    return url.hostname, 80 if port is None else port, url.path.rstrip("/")


def local_host(host: str | None) -> str:
    """Where to reach a server that listens on `host`: an any-address is reached by loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(host or "", host or "127.0.0.1")  # noqa: S104 - compared, not bound


class ServerPoll:
    """Asks one server at an interval; `latest` returns at once, whatever the server does.

    `host` and `port` are where to connect; `api_key` goes along as a Bearer token; `may_sleep` (the server was started
    with --sleep-idle-seconds) means asking only while `wants(busy=True)` was last said: a question keeps it awake.
    """

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        api_key: str | None = None,
        *,
        prefix: str = "",
        interval_ns: int = DEFAULT_INTERVAL_NS,
        may_sleep: bool = False,
    ) -> None:
        self._host, self._port, self._prefix = host, port, prefix
        self._clock = clock
        self._headers = {"Connection": "close", "User-Agent": "moewatch"}
        if api_key and api_key.isascii() and api_key.isprintable():
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._interval_ns = max(MIN_INTERVAL_NS, interval_ns)
        self._may_sleep = may_sleep
        self._is_busy = not may_sleep
        self._resting: dict[str, tuple[int, Gap]] = {}  # endpoint -> (until when, why)
        self._slots, self._metrics = SlotLedger(), MetricsLedger()
        self._lock = threading.Lock()
        self._reading = ServerReading()
        self._gaps: tuple[Gap, ...] = ()
        self._answered_ns: int | None = None
        self._trouble: str | None = None  # the server did not answer the last question; why
        self._first_ns: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask; the first answer is there a few milliseconds later."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moewatch-server", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask no more; waits for an answer under way for a second at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def wants(self, busy: bool) -> None:  # noqa: FBT001 - the one thing it is told
        """Say whether the process works (CPU or reads); it matters only where the server may sleep."""
        self._is_busy = busy or not self._may_sleep

    def latest(self) -> tuple[ServerReading, list[Gap]]:
        """The last answer, with the gaps that it leaves now; never blocks on the network."""
        now_ns = self._clock.mono_ns()
        with self._lock:
            reading, gaps, answered_ns, trouble = self._reading, list(self._gaps), self._answered_ns, self._trouble
            first_ns = self._first_ns
        unsure = msgspec.structs.replace(reading, phase=Phase.UNKNOWN, n_active=None)
        if not self._is_busy:
            detail = (
                "not asked while it is idle: it was started with --sleep-idle-seconds and a question keeps it awake"
            )
            return unsure, [Gap(field=FIELD, reason=GapReason.ABSENT, detail=detail)]
        if first_ns is None:
            return unsure, [Gap(field=FIELD, reason=GapReason.ABSENT, detail="the server has not been asked yet")]
        stale = now_ns - (first_ns if answered_ns is None else answered_ns) > max(STALE_NS, 3 * self._interval_ns)
        if trouble is None and not stale and answered_ns is not None:
            return reading, gaps
        return unsure, [self._silence(now_ns, answered_ns, trouble)]

    def poll_once(self) -> None:
        """Ask once, in the caller's thread: what the thread does at each interval."""
        if not self._is_busy:
            return
        with self._lock:
            if self._first_ns is None:
                self._first_ns = self._clock.mono_ns()
        try:
            reading, gaps = self._ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: what http.client makes of a reply whose numbers are none, and of a host that cannot be encoded
            with self._lock:
                self._trouble = _name_of(error)
            return
        with self._lock:
            self._reading, self._gaps, self._trouble = reading, tuple(gaps), None
            self._answered_ns = self._clock.mono_ns()

    def _run(self) -> None:
        due_ns = self._clock.mono_ns()
        while not self._stop.is_set():
            self.poll_once()
            is_at_work = self._trouble is None and self._reading.source == "slots" and self._reading.n_active
            pause_ns = min(self._interval_ns, WORK_INTERVAL_NS) if is_at_work else self._interval_ns
            due_ns = max(due_ns + pause_ns, self._clock.mono_ns() + MIN_INTERVAL_NS // 4)
            if self._clock.sleep_until(due_ns, self._stop):
                return

    def _silence(self, now_ns: int, answered_ns: int | None, trouble: str | None) -> Gap:
        where = f"{self._host}:{self._port}"
        if trouble == "refused":
            return Gap(field=FIELD, reason=GapReason.ABSENT, detail=f"nothing listens on {where}")
        if trouble == "unknown":
            return Gap(field=FIELD, reason=GapReason.ABSENT, detail=f"there is no host called {self._host}")
        if trouble == "strange":
            detail = f"what answers at {where} is no llama-server; give its address with --url"
            return Gap(field=FIELD, reason=GapReason.MALFORMED, detail=detail)
        if answered_ns is None:
            return Gap(field=FIELD, reason=GapReason.ABSENT, detail=f"the server at {where} has not answered yet")
        seconds = max(1, (now_ns - answered_ns) // 1_000_000_000)
        detail = f"the server has not answered for {seconds} s; it may be in a long prompt"
        return Gap(field=FIELD, reason=GapReason.VANISHED, detail=detail)

    def _ask(self) -> tuple[ServerReading, list[Gap]]:
        """/slots says all; where it is off, /health says whether it is ready and /metrics counts ended requests."""
        gaps: list[Gap] = []
        try:
            if (body := self._get("/slots", gaps)) is not None:
                try:
                    return self._slots.update(parse_slots(body), self._clock.mono_ns()), gaps
                except ParseError as error:
                    gaps.append(Gap(field=FIELD, reason=GapReason.MALFORMED, detail=str(error)))
            self._get("/health", gaps)
            if (body := self._get("/metrics", gaps)) is not None:
                try:
                    return self._metrics.update(parse_metrics(body)), gaps
                except ParseError as error:
                    gaps.append(Gap(field=FIELD, reason=GapReason.MALFORMED, detail=str(error)))
        except _Refused as answer:
            is_loading = answer.status == _UNAVAILABLE and b"oading" in answer.body
            if is_loading:
                reading = msgspec.structs.replace(self._reading, phase=Phase.LOADING, n_active=0)
                return reading, []
            detail = f"the server answered {answer.status}"
            gaps.append(Gap(field=FIELD, reason=GapReason.VANISHED, detail=detail))
        return msgspec.structs.replace(self._reading, phase=Phase.UNKNOWN, n_active=None), gaps

    def _get(self, endpoint: str, gaps: list[Gap]) -> bytes | None:
        """The body; None (and a Gap) where the endpoint is off, forbidden or endless; raises what is no answer."""
        now_ns = self._clock.mono_ns()
        until_ns, gap = self._resting.get(endpoint, (0, None))
        if gap is not None and now_ns < until_ns:
            gaps.append(gap)
            return None
        try:
            return self._fetch(endpoint)
        except _Refused as answer:
            if answer.status in _OFF:
                gap = Gap(field=FIELD, reason=GapReason.ABSENT, detail=f"the server has no {endpoint} switched on")
            elif answer.status in _FORBIDDEN:
                detail = f"{endpoint} needs the API key, which is not on the server's command line"
                gap = Gap(field=FIELD, reason=GapReason.DENIED, detail=detail)
            else:
                raise
        except TooLongError:
            gap = Gap(field=FIELD, reason=GapReason.MALFORMED, detail=f"{endpoint} answers without end")
        self._resting[endpoint] = (now_ns + REST_NS, gap)
        gaps.append(gap)
        return None

    def _fetch(self, endpoint: str) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_NS / 1e9)
        patience = Patience(self._clock, REPLY_NS)
        be_patient(connection, patience)
        try:
            connection.request("GET", self._prefix + endpoint, headers=self._headers)
            response = connection.getresponse()
            patience.limit_bytes = HEAD_LIMIT_BYTES + REPLY_LIMIT_BYTES
            body = bytearray()
            while part := response.read1(1 << 16):
                body += part
        finally:
            connection.close()
        if response.status != _READY:
            raise _Refused(response.status, bytes(body))
        return bytes(body)


def _name_of(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "unknown"
    if isinstance(error, http.client.RemoteDisconnected):
        return "silent"  # it ended, or is just ending
    if not isinstance(error, OSError):
        return "strange"
    return "refused" if isinstance(error, ConnectionRefusedError) else "silent"
