"""Events that come before anybody listens are not lost and come first; whom the feed follows when a server ends."""

import pytest
from msgspec.structs import replace

from moewatch.cli.feed import Relay, successors
from moewatch.domain.events import Event, Notice
from moewatch.server.discovery import ServerProcess


def test_what_was_said_before_comes_first() -> None:
    relay, heard = Relay(), list[Event]()
    said = [Notice(text=str(number), wall_ns=number) for number in range(4)]
    relay(said[0])
    relay(said[1])
    relay.attach(heard.append)
    relay(said[2])
    relay(said[3])
    assert heard == said


OLD = ServerProcess(pid=10, start_ticks=100, exe="llama-server", model_name="a.gguf", port=8080)


@pytest.mark.parametrize(
    ("others", "was_named", "expected"),
    [
        ([replace(OLD, pid=11, start_ticks=200)], True, [11]),  # restarted as it was
        ([replace(OLD, pid=11, start_ticks=200, port=9000)], True, [11]),  # the same model elsewhere
        ([replace(OLD, pid=11, start_ticks=200, model_name="b.gguf")], True, [11]),  # another quantisation, same place
        ([replace(OLD, pid=11, start_ticks=200, model_name="b.gguf", port=9000)], True, []),  # none of ours
        ([replace(OLD, pid=11, start_ticks=200, model_name="b.gguf", port=9000)], False, [11]),  # any will do
        ([replace(OLD, pid=9, start_ticks=50, model_name="b.gguf")], False, []),  # was there all the time
        (
            [
                replace(OLD, pid=11, start_ticks=200, model_name="b.gguf"),
                replace(OLD, pid=12, start_ticks=300),
            ],
            True,
            [12],
        ),
    ],
)
def test_only_what_may_be_the_same_server_is_followed(
    others: list[ServerProcess], *, was_named: bool, expected: list[int]
) -> None:
    assert [server.pid for server in successors(OLD, others, was_named=was_named)] == expected
