"""A web server on this machine that serves files as a download host would, or misbehaves as asked."""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

HOST = "127.0.0.1"
Handler = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; what it does is in the server's routes."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        owner: RangeServer = self.server.owner
        with owner.lock:
            owner.seen.append((self.path, dict(self.headers.items())))
            count = sum(1 for path, _ in owner.seen if path == self.path)
        route = owner.routes.get(self.path) or owner.routes.get(self.path.partition("?")[0])
        if route is not None:
            self.count = count
            route(self)
            return
        content = owner.files.get(unquote(self.path.partition("?")[0]).lstrip("/"))
        if content is None:
            self.reply(404, b"not found")
            return
        self.send_range(content)

    def send_range(self, content: bytes, *, cut_bytes: int = 0) -> None:
        """The part that was asked for; `cut_bytes` of it missing, and the connection closed."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self.reply(200, content)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first > last:
            self.reply(416, b"")
            return
        part = content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.send(part[: len(part) - cut_bytes])
        if cut_bytes:
            self.close_connection = True

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        """A whole reply."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send(body)

    def send(self, body: bytes) -> None:
        """Count what goes out; the other side may leave at any time."""
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True
        owner: RangeServer = self.server.owner
        with owner.lock:
            owner.sent_bytes += len(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Someone who leaves in the middle is what is tested."""


@dataclass
class RangeServer:
    """Runs while the `with` block lasts."""

    files: dict[str, bytes] = field(default_factory=dict)
    routes: dict[str, Handler] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._server = _Quiet((HOST, 0), Request)
        self._server.owner = self  # type: ignore[attr-defined]  # how handlers find us
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        """The address of a file."""
        return f"{self.origin}/{path}"
