"""Requests to a llama-server, one after the other, from a thread: random prompts of a topic, tokens counted."""

import http.client
import json
import threading
import time
from types import TracebackType
from typing import Self

import numpy as np

from tests.support.moe_model import BYTE_TOKENS, TEXT_TOKENS, TOPICS

HOST = "127.0.0.1"
PROMPT_TOKENS = 16
ANSWER_TOKENS = 400  # a new prompt every few seconds; its context stays far below the server's 4096
_SILENCE_S = 120.0  # longest wait for a token
_JOIN_S = 30.0
_BANNED = [[token, False] for token in range(BYTE_TOKENS)]


class Driver:
    """Keeps the server busy while the `with` block lasts."""

    def __init__(
        self, port: int, *, topic: int | None = None, seed: int = 1, prompt_tokens: int = PROMPT_TOKENS
    ) -> None:
        self.tokens = 0
        self.token_mono_ns: list[int] = []
        self.error: BaseException | None = None
        self._port = port
        self._topic = topic
        self._prompt_tokens = prompt_tokens
        self._random = np.random.default_rng(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        if error is None and self.error is not None:
            raise self.error

    def hold(self, seconds: float) -> None:
        """Let it work for so long; a request that fails ends the wait."""
        end = time.monotonic() + seconds
        while self._thread.is_alive() and (left := end - time.monotonic()) > 0:
            self._thread.join(min(left, 0.5))
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._request(self._prompt(), int(self._random.integers(1 << 30)))
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            self.error = error  # raised where the test is waiting

    def _prompt(self) -> list[int]:
        if self._topic is None:
            return [int(token) for token in self._random.integers(0, TEXT_TOKENS, self._prompt_tokens)]
        picks = self._random.integers(0, TEXT_TOKENS // TOPICS, self._prompt_tokens)
        return [int(pick) * TOPICS + self._topic for pick in picks]

    def _request(self, prompt: list[int], seed: int) -> None:
        body = {
            "prompt": prompt,
            "n_predict": ANSWER_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "seed": seed,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "cache_prompt": False,
            "logit_bias": _BANNED,
        }
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_SILENCE_S)
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(f"the server answered {answer.status}: {answer.read(500)!r}")
            while not self._stop.is_set() and (line := answer.readline()):
                if line.startswith(b"error:"):
                    raise RuntimeError(f"the stream ended with {line!r}")
                if b'"stop":true' in line:
                    return
                if line.startswith(b"data:"):
                    self.tokens += 1
                    self.token_mono_ns.append(time.monotonic_ns())
        finally:
            connection.close()  # closing early makes the server drop the request
