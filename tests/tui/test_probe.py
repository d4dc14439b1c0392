"""The width question to the terminal, asked of a pseudo-terminal that answers as told."""

import os
import pty
import threading

import pytest

from moewatch.tui.probe import draws_blocks_wide


def ask(answer: bytes | None) -> tuple[bool, bytes]:
    """What is concluded from the answer, and what the terminal was sent."""
    ours, theirs = pty.openpty()
    sent = b""

    def terminal() -> None:
        nonlocal sent
        while not sent.endswith(b"\x1b[6n"):
            sent += os.read(ours, 64)
        if answer is not None:
            os.write(ours, answer)

    thread = threading.Thread(target=terminal, daemon=True)
    thread.start()
    try:
        wide = draws_blocks_wide(theirs, theirs, within_s=2.0 if answer else 0.05)
        thread.join(5)
        sent += os.read(ours, 64)
    finally:
        os.close(ours)
        os.close(theirs)
    return wide, sent


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"\x1b[5;2R", False), (b"\x1b[5;3R", True), (b"typed\x1b[12;3R", True), (b"\x1b[1;1R", False), (None, False)],
)  # fmt: skip
def test_the_answer_decides(answer: bytes | None, *, expected: bool) -> None:
    wide, sent = ask(answer)
    assert wide is expected
    assert sent.startswith("\r█\x1b[6n".encode())
    assert sent.endswith(b"\r\x1b[K")  # nothing stays on screen


def test_a_pipe_is_not_asked() -> None:
    reading, writing = os.pipe()
    try:
        assert draws_blocks_wide(reading, writing) is False
    finally:
        os.close(reading)
        os.close(writing)
