"""What a llama-server answers to a monitor: /health and /slots, with the keys of tools/server/README.md in ggml-org/llama.cpp.

A loop of our own instead of http.server: each touch of missing pages holds the interpreter's lock until the disk has
answered, so a reply should pass the lock on as seldom as can be (measured while squeezed: p99 12 ms against 25), since
monitors wait 200 ms for it. It also saves 3 MiB.
"""

import contextlib
import json
import socket

from msgspec import Struct

PROMPT_TOKENS = 16
ANSWER_TOKENS = (
    400  # half a minute: what is generated between the last look at a request and its end is not counted by monitors
)
CONTEXT_TOKENS = 8192

REQUEST_BYTES = 8192  # a monitor's request is 100; what is longer is cut, and what matters is its first line
CLIENT_WAIT_S = 0.5  # for a client that connects and says nothing

_REASONS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


class Slot(Struct, frozen=True, kw_only=True):
    """Where the request in work stands; replaced as a whole, so that an answer never mixes two requests."""

    task: int = -1
    busy: bool = False
    prompt_done: int = 0
    decoded: int = 0

    def describe(self) -> dict[str, object]:
        """The keys of llama-server's /slots that monitors read."""
        return {
            "id": 0,
            "id_task": self.task,
            "n_ctx": CONTEXT_TOKENS,
            "speculative": False,
            "is_processing": self.busy,
            "n_prompt_tokens": PROMPT_TOKENS
            + max(0, self.decoded - 1),  # the last token is not in the slot's cache yet
            "n_prompt_tokens_processed": self.prompt_done,
            "n_prompt_tokens_cache": 0,
            "params": {"n_predict": ANSWER_TOKENS},
            "next_token": [
                {
                    "has_next_token": self.busy,
                    "has_new_line": False,
                    "n_remain": ANSWER_TOKENS - self.decoded,
                    "n_decoded": self.decoded if self.busy else 0,
                }
            ],
        }


class Status:
    """What the endpoints say: written by the thread that works, read by those that answer."""

    def __init__(self) -> None:
        self.ready = False
        self.slot = Slot()


def answer(path: str, status: Status) -> tuple[int, object]:
    """Code and body for a path, as llama-server answers without --metrics."""
    if not status.ready:
        return 503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    if path == "/health":
        return 200, {"status": "ok"}
    if path == "/slots":
        return 200, [status.slot.describe()]
    return 404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}


def serve(listening: socket.socket, status: Status) -> None:
    """Answer one client after the other, for ever."""
    while True:
        client, _ = listening.accept()
        with client, contextlib.suppress(OSError):  # a client that goes away or dawdles is its own affair
            client.settimeout(CLIENT_WAIT_S)
            words = client.recv(REQUEST_BYTES).split(None, 2)
            path = words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""
            code, body = answer(path, status)
            raw = json.dumps(body).encode()
            head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: application/json; charset=utf-8\r\n"
            client.sendall(f"{head}Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n".encode() + raw)
