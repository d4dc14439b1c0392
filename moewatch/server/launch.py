"""A llama-server of our own for a short while: started, waited for, asked for tokens, and always ended.

It runs in a process group of its own, so that Ctrl-C in the terminal reaches us alone and a wrapper's children end with it.
"""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from moewatch.clock import Clock
from moewatch.errors import MoewatchError
from moewatch.server.reply import Patience, TooLongError, be_patient
from moewatch.units import MS, S, format_duration

HOST = "127.0.0.1"
READY_NS = 900 * S  # 120 GB from a disk of 200 MB/s need 600 s
SILENCE_S = 120.0  # longest wait for a token; the slowest thrashing measured (dense, 0.5 tokens/s) made one in 2 s
HEALTH_NS = 2 * S
REPLY_BYTES = 16 << 20  # 256 tokens with their timings take 0.2 MiB
POLL_NS = 100 * MS
END_NS = 15 * S  # then by force; the batch in work is finished first, which takes long while it reads from a disk
KILLED_S = 10.0
LEFT_S = 1.0  # to go with the group; ending takes milliseconds
REASON_CHARACTERS = 200
LOG_TAIL_BYTES = 16 << 10
LINE_BYTES = 1 << 20
# the same for every run: some subjects, so that routers have work, and long enough to be a real prompt
PROMPT = (
    "Explain in plain words how a tide table is made, why two harbours on the same coast can differ by an hour, and what a "
    "sailor should write down before leaving. Then give a short example with numbers, and a small program that prints it."
)
WARM_UP_TOKENS = 16
REQUEST_TOKENS = 256
PROMPTS_SHARE = 2  # so many times the wanted span at most, where working through the prompt again takes most of it
_WRONG = re.compile(r"error|fail|unable|cannot|invalid|out of memory", re.IGNORECASE)


class LaunchError(MoewatchError):
    """The server did not start, did not answer or ended; one sentence with its own words."""


class Generated(Struct, frozen=True):
    """Tokens after the first one, and the time they took."""

    tokens: int
    duration_ns: int


def free_port() -> int:
    """A port on the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block is over: nothing is started and forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if came:
            raise KeyboardInterrupt


class OwnServer:
    """One server; `stop` may be called at any time and any number of times."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        clock: Clock,
        *,
        environ: Mapping[str, str],
        prefix: str = "",
        api_key: str | None = None,
    ) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._port, self._prefix = port, prefix
        self._clock = clock
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self._port}{self._prefix}"

    def start(self) -> None:
        """Start it.

        Raises:
            LaunchError: the program cannot be run.
        """
        with deferred_interrupts():
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the person's own command
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=self._environ,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"{self._command[0]} cannot be run: {error.strerror}.") from None

    def pids(self) -> list[int]:
        """It and what it started, while they run."""
        if self._process is None:
            return []
        try:
            leader = psutil.Process(self._process.pid)
            return [leader.pid, *(child.pid for child in leader.children(recursive=True))]
        except psutil.Error:
            return []

    def wait_ready(self, patience_ns: int = READY_NS) -> None:
        """Return when /health says ok.

        Raises:
            LaunchError: it ended, or it was not ready in time.
        """
        end_ns = self._clock.mono_ns() + patience_ns
        while self._clock.mono_ns() < end_ns:
            self._check_alive()
            if self._is_healthy():
                return
            self._clock.sleep_until(self._clock.mono_ns() + POLL_NS)
        raise LaunchError(f"it was not ready after {format_duration(patience_ns)}")

    def measure(self, span_ns: int) -> float:
        """Tokens per second over about `span_ns` of generating, after a few tokens that do not count.

        Raises:
            LaunchError: it answered with an error, fell silent or ended.
        """
        self._generate(WARM_UP_TOKENS, span_ns // 3)
        tokens = duration_ns = 0
        end_ns = self._clock.mono_ns() + PROMPTS_SHARE * span_ns
        while duration_ns < span_ns and (not tokens or self._clock.mono_ns() < end_ns):
            done = self._generate(REQUEST_TOKENS, span_ns - duration_ns)
            if done.duration_ns <= 0:
                break
            tokens += done.tokens
            duration_ns += done.duration_ns
        if not tokens:
            raise LaunchError("it made no two tokens")
        return tokens * S / duration_ns

    def stop(self) -> None:
        """End it and what it started: by SIGTERM, after 15 s by SIGKILL; an interrupt meanwhile is kept for afterwards.

        Raises:
            MoewatchError: it cannot be ended; then nothing else may be started.
        """
        interrupted = False
        while self._process is not None:
            try:
                with deferred_interrupts():
                    self._end(self._process)
                    self._process = None
            except KeyboardInterrupt:
                interrupted = True
        self._log.close()
        if interrupted:
            raise KeyboardInterrupt

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(process.pid).children(recursive=True)
        _signal_group(process.pid, signal.SIGTERM)
        end_ns = self._clock.mono_ns() + END_NS
        # looked at, not reaped: until then its number cannot belong to anybody else
        while not _has_ended(process) and self._clock.mono_ns() < end_ns:
            self._clock.sleep_until(self._clock.mono_ns() + POLL_NS // 2)
        _signal_group(process.pid, signal.SIGKILL)
        try:
            process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._process = None
            raise MoewatchError(
                f"The server (process {process.pid}) does not end: its disk or GPU does not answer."
            ) from None
        # one that left the group (setsid) is left over: it is ended as well, or it would hold memory and the port
        _, left = psutil.wait_procs(children, timeout=LEFT_S)
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(left, timeout=KILLED_S)

    def _check_alive(self) -> None:
        process = self._process
        if process is None or not _has_ended(process):
            return
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        code = found.si_status if found is not None else 0
        by_signal = found is not None and found.si_code != os.CLD_EXITED
        how = f"it was ended by signal {code}" if by_signal else f"it ended with code {code}"
        words = self._last_words()
        raise LaunchError(f"{how}: {words}" if words else how)

    def _last_words(self) -> str:
        """The last line of its log that speaks of trouble, else the last one."""
        try:
            size = os.fstat(self._log.fileno()).st_size
            tail = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        except (OSError, ValueError):
            return ""
        lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
        chosen = next((line for line in reversed(lines) if _WRONG.search(line)), lines[-1] if lines else "")
        return "".join(c for c in chosen if c.isprintable())[:REASON_CHARACTERS]

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=HEALTH_NS / S)
        be_patient(connection, Patience(self._clock, HEALTH_NS))
        try:
            connection.request("GET", f"{self._prefix}/health", headers=self._headers)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, ValueError, http.client.HTTPException, TooLongError):
            return False
        finally:
            connection.close()

    def _generate(self, n_predict: int, limit_ns: int) -> Generated:
        """One request with the fixed prompt and seed, hung up on after `limit_ns` from its first token."""
        body = {
            "prompt": PROMPT, "n_predict": n_predict, "seed": 1, "stream": True, "ignore_eos": True, "cache_prompt": False,
        }  # fmt: skip
        connection = http.client.HTTPConnection(HOST, self._port, timeout=SILENCE_S)
        patience = Patience(self._clock, round(SILENCE_S * S), REPLY_BYTES)
        be_patient(connection, patience)
        try:
            connection.request("POST", f"{self._prefix}/completion", msgspec.json.encode(body), self._headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise LaunchError(f"it answered {answer.status}")
            return self._count(answer, n_predict, limit_ns, patience)
        except TimeoutError:
            raise LaunchError(f"no token came in {SILENCE_S:.0f} s") from None
        except TooLongError:
            raise LaunchError("it answers without end") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._clock.sleep_until(self._clock.mono_ns() + POLL_NS)  # so that an end can be seen as one
            self._check_alive()
            raise LaunchError(f"it hung up ({type(error).__name__})") from None
        finally:
            connection.close()  # before the end of the answer: the server drops the request

    def _count(self, answer: http.client.HTTPResponse, n_predict: int, limit_ns: int, patience: Patience) -> Generated:
        first: tuple[int, int] | None = None
        last = (0, 0)
        while line := answer.readline(LINE_BYTES):
            count = _tokens_in(line, n_predict)
            if count is None or count <= last[0]:
                continue
            last = (count, self._clock.mono_ns())
            patience.end_ns = last[1] + round(SILENCE_S * S)
            first = first or last
            if last[1] - first[1] >= limit_ns:
                break
        return Generated(last[0] - first[0], last[1] - first[1]) if first else Generated(0, 0)


def _tokens_in(line: bytes, n_predict: int) -> int | None:
    """How many tokens one event of the stream has reached; None for anything else, and for more than were asked for."""
    if not line.startswith(b"data:"):
        return None
    try:
        event: Any = msgspec.json.decode(line[5:])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    count = event.get("tokens_predicted") if isinstance(event, dict) else None
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 < count <= n_predict
    return count if is_count and isinstance(count, int) and not event.get("stop") else None


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
