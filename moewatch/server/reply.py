"""Replies of a server that is not trusted, through http.client: the whole of one has an end in time and in bytes.

http.client alone has neither: its time-out is per packet, so a head that drips never ends, and it passes over any number of
`100 Continue` at full speed.
"""

import http.client
import io
import socket
from collections.abc import Callable
from typing import Any, cast

from moewatch.clock import Clock

HEAD_LIMIT_BYTES = 64 << 10  # llama-server's are below 1 KiB


class TooLongError(Exception):
    """A reply above the limit."""


class Patience:
    """How long one reply may take and how long it may be; `limit_bytes` may be raised once the head is there."""

    def __init__(self, clock: Clock, limit_ns: int, limit_bytes: int = HEAD_LIMIT_BYTES) -> None:
        self._clock = clock
        self.end_ns = clock.mono_ns() + limit_ns
        self.limit_bytes = limit_bytes
        self._came_bytes = 0

    def spend(self, n_bytes: int) -> None:
        """So many more bytes have come.

        Raises:
            TimeoutError, TooLongError: it is over.
        """
        self._came_bytes += n_bytes
        if self._came_bytes > self.limit_bytes:
            raise TooLongError
        if self._clock.mono_ns() > self.end_ns:
            raise TimeoutError


def be_patient(connection: http.client.HTTPConnection, patience: Patience) -> None:
    """Let the replies of this connection be read with that patience."""

    def answer(sock: socket.socket, *arguments: Any, **options: Any) -> http.client.HTTPResponse:
        # http.client asks its socket for nothing but a file to read from
        return http.client.HTTPResponse(cast("socket.socket", _Readable(sock, patience)), *arguments, **options)

    connection.response_class = cast("Callable[..., http.client.HTTPResponse]", answer)  # type: ignore[assignment]  # typeshed wants a class


class _Readable:
    """What is left of a socket: its file."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock, self._patience = sock, patience

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_PatientFile(self._sock.makefile("rb", buffering=0), self._patience))


class _PatientFile(io.RawIOBase):
    """Bytes as they come, counted."""

    def __init__(self, raw: io.RawIOBase | socket.SocketIO, patience: Patience) -> None:
        self._raw, self._patience = raw, patience

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._patience.spend(count or 0)
        return count

    def close(self) -> None:
        super().close()
        self._raw.close()
