"""The demo's server process: maps the model, works through tokens with real page faults, answers as llama-server does.

`python -m moewatch.demo.workload --model FILE --port N --listen-fd FD` is told what to do in lines on its standard input,
and ends when that closes, so it can never outlive the demo:

    go               map the model and begin (before it, the process can be moved into a memory cgroup)
    topics 0,1       what the requests are about from the next token on
    experts BYTES    keep no more than so many bytes of experts (weights.limit_experts); `experts all` lifts it
    pause, work      break the request in work off and take no other; go on

Only arithmetic is left out: a token needs the same bytes as in a real server, and where that would multiply matrices,
this one rests.
"""

import argparse
import os
import socket
import sys
import threading
from pathlib import Path

from moewatch.clock import SystemClock
from moewatch.demo.endpoints import ANSWER_TOKENS, PROMPT_TOKENS, Slot, Status, serve
from moewatch.demo.routing import Router
from moewatch.demo.weights import Weights
from moewatch.modelfile.layout import read_layout
from moewatch.units import MS

# Rest per layer and token: 8 layers make 72 ms; with what the touching costs, 12 tokens/s while nothing is missing.
LAYER_NS = 9 * MS
SETUP_NS = 150 * MS  # rest per layer while loading, where a server builds its graph
PROMPT_BATCH = 8


class Server:
    """Serves requests that it thinks up itself, one after the other."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._clock = SystemClock()
        self.status = Status()
        self._going, self._working = threading.Event(), threading.Event()
        self._working.set()
        self._topics: tuple[int, ...] = (0,)
        self._expert_budget: int | None = None

    def obey(self, line: str) -> None:
        """One line of the control channel; ValueError for one that means nothing."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "go":
                self._going.set()
            case "topics":
                self._topics = tuple(int(t) for t in rest.split(","))
            case "experts":
                self._expert_budget = None if rest == "all" else int(rest)
            case "pause":
                self._working.clear()
            case "work":
                self._working.set()
            case _:
                raise ValueError(f"{line!r} is no command of the demo's server")

    def run(self) -> None:
        """Load, then work for ever."""
        self._going.wait()
        layout = read_layout(self._model)
        weights = Weights(self._model, layout)
        _say("mapped")
        router = Router(weights.n_layer, weights.n_expert, weights.n_used)
        for layer in range(weights.n_layer + 1):
            weights.touch_dense(layer)
            self._rest(SETUP_NS)
        self.status.ready = True
        while True:
            self._working.wait()
            self._answer(weights, router)

    def _answer(self, weights: Weights, router: Router) -> None:
        """One request: the prompt in batches, then token by token."""
        task = self.status.slot.task + 1
        for done in range(0, PROMPT_TOKENS, PROMPT_BATCH):
            self.status.slot = Slot(task=task, busy=True, prompt_done=done)
            self._forward(weights, router, PROMPT_BATCH)
        decoded = 0
        while decoded < ANSWER_TOKENS and self._working.is_set():
            self.status.slot = Slot(task=task, busy=True, prompt_done=PROMPT_TOKENS, decoded=decoded)
            self._forward(weights, router, 1)
            decoded += 1
        if not self._working.is_set():  # else the next one follows at once, as from a queue
            self.status.slot = Slot(task=task, prompt_done=PROMPT_TOKENS, decoded=decoded)

    def _forward(self, weights: Weights, router: Router, n_tokens: int) -> None:
        """One pass through the layers, with the experts of all tokens of the batch."""
        weights.limit_experts(self._expert_budget)
        topics = self._topics
        for layer in range(weights.n_layer):
            weights.touch_dense(layer)
            for expert in sorted({e for _ in range(n_tokens) for e in router.pick(layer, topics)}):
                weights.touch_expert(layer, expert)
            self._rest(LAYER_NS)
        weights.touch_dense(weights.n_layer)

    def _rest(self, for_ns: int) -> None:
        self._clock.sleep_until(self._clock.mono_ns() + for_ns)


def _end_with_parent(server: Server) -> None:
    """Follow the control channel; its end is ours, at once and whatever the other threads wait for."""
    try:
        for line in sys.stdin:
            server.obey(line)
    finally:
        os._exit(0)


def _say(word: str) -> None:
    """One word for the parent, who waits for it."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until the control channel closes."""
    parser = argparse.ArgumentParser(prog="moewatch.demo.workload")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="of the socket, for those who read our command line")
    parser.add_argument("--listen-fd", type=int, required=True)
    asked = parser.parse_args()
    server = Server(asked.model)
    listening = socket.socket(fileno=asked.listen_fd)
    threading.Thread(target=serve, args=(listening, server.status), daemon=True).start()
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    _say("ready")
    server.run()


if __name__ == "__main__":
    main()
