"""Events that come before anybody listens are not lost, and come first."""

from moewatch.cli.feed import Relay
from moewatch.domain.events import Event, Notice


def test_what_was_said_before_comes_first() -> None:
    relay, heard = Relay(), list[Event]()
    said = [Notice(text=str(number), wall_ns=number) for number in range(4)]
    relay(said[0])
    relay(said[1])
    relay.attach(heard.append)
    relay(said[2])
    relay(said[3])
    assert heard == said
