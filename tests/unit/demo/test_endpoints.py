import socket
import threading
import urllib.request

import msgspec

from moewatch.demo.endpoints import PROMPT_TOKENS, Slot, Status, answer, serve
from moewatch.domain.sample import Phase
from moewatch.server.slots import SlotLedger, parse_slots


def test_nothing_but_loading_is_said_before_the_weights_are_there() -> None:
    assert answer("/slots", Status())[0] == answer("/health", Status())[0] == 503


def test_a_monitor_counts_every_token_from_the_slots() -> None:
    ledger, status = SlotLedger(), Status()
    status.ready = True
    steps = [
        Slot(),
        Slot(task=0, busy=True, prompt_done=8),
        Slot(task=0, busy=True, prompt_done=PROMPT_TOKENS, decoded=5),
        Slot(task=0, busy=True, prompt_done=PROMPT_TOKENS, decoded=17),
        Slot(task=0, prompt_done=PROMPT_TOKENS, decoded=20),  # broken off: the three since the last look count
    ]
    phases = []
    for second, slot in enumerate(steps):
        status.slot = slot
        raw = msgspec.json.encode(answer("/slots", status)[1])
        reading = ledger.update(parse_slots(raw), second * 10**9)
        phases.append(reading.phase)
    assert reading.tokens_total == 20
    assert phases == [Phase.IDLE, Phase.PROMPT, Phase.GENERATE, Phase.GENERATE, Phase.IDLE]


def test_a_client_that_says_nothing_does_not_keep_the_next_one_out() -> None:
    status = Status()
    status.ready = True
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    threading.Thread(target=serve, args=(listening, status), daemon=True).start()
    with (
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health?x=1", timeout=10) as reply,
    ):
        assert reply.read() == b'{"status": "ok"}'
