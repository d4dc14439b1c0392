"""Asks the terminal how wide it draws a block: some draw signs of ambiguous width (UAX #11) two columns wide.

Done once, before the dashboard takes the terminal over. A terminal that does not answer in time is taken to be narrow.
"""

import os
import re
import select
import termios
import tty
from collections.abc import Callable

ANSWER_WITHIN_S = 0.15  # a local terminal answers in 1 ms, one over a slow ssh line in 100
_ASK = b"\r\xe2\x96\x88\x1b[6n"  # a full block at the left edge, then DSR 6: where is the cursor (ECMA-48)
_CLEAN = b"\r\x1b[K"
_ANSWER = re.compile(rb"\x1b\[\d{1,5};(\d{1,5})R")
_MOST_BYTES = 256  # of typed keys that may stand before the answer


def draws_blocks_wide(read_fd: int, write_fd: int, *, within_s: float = ANSWER_WITHIN_S) -> bool:
    """Whether a block takes two columns; False as well when there is no terminal or no answer."""
    if not (os.isatty(read_fd) and os.isatty(write_fd)):
        return False
    try:
        before = termios.tcgetattr(read_fd)
    except termios.error:
        return False
    try:
        tty.setcbreak(read_fd, termios.TCSANOW)
        os.write(write_fd, _ASK)
        column = _column(lambda: _read(read_fd, within_s))
        os.write(write_fd, _CLEAN)
    except (OSError, termios.error):
        return False
    finally:
        termios.tcsetattr(read_fd, termios.TCSANOW, before)
    return column is not None and column > 2  # noqa: PLR2004 - after one narrow sign the cursor is in column 2


def _read(fd: int, within_s: float) -> bytes:
    ready, _, _ = select.select([fd], [], [], within_s)
    return os.read(fd, 32) if ready else b""


def _column(read: Callable[[], bytes]) -> int | None:
    answer = b""
    while len(answer) < _MOST_BYTES:
        piece = read()
        answer += piece
        found = _ANSWER.search(answer)
        if found:
            return int(found[1])
        if not piece:
            return None
    return None
