"""Owns stderr: one clear sentence for every trouble, the right exit code, and never a traceback."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

from moewatch.cli import output
from moewatch.errors import ExitCode, MoewatchError

EX_SOFTWARE = 70  # sysexits(3): a fault of our own, told apart from every documented code
TRACEBACK_VARIABLE = "MOEWATCH_TRACEBACK"


def say(text: str) -> None:
    """One sentence to the person; escapes are made harmless, since file and process names are other people's."""
    with contextlib.suppress(OSError):  # a terminal that has gone, a full disk: nobody is there to be told
        print(f"moewatch: {output.printable(text)}", file=sys.stderr, flush=True)


def ask(text: str) -> str:
    """A question on stderr; what was typed on stdin, empty at its end."""
    print(text, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def guarded(work: Callable[[], int]) -> int:
    """Run a command; every way it can end becomes a sentence and an exit code."""
    output.prepare_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        code = work()
        sys.stdout.flush()  # a full disk is told now, not by the interpreter at its end
    except MoewatchError as error:
        say(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has left (`| head`): no more to say, and no complaint from the interpreter's last flush.
        _forget_stdout()
        return int(ExitCode.OK)
    except OSError as error:
        _forget_stdout()
        say(f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}; nothing more could be done.")
        return int(ExitCode.UNUSABLE_FILE)
    except Exception as error:  # noqa: BLE001 - the last net: a person beside a struggling server gets a sentence
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        say(
            f"this is a fault of moewatch itself ({type(error).__name__}: {error}); {TRACEBACK_VARIABLE}=1 shows where, for a report."
        )
        return EX_SOFTWARE
    return code


def _forget_stdout() -> None:
    """What is left in its buffer goes nowhere, so that the interpreter's last flush has nothing to complain of."""
    with contextlib.suppress(OSError):  # no descriptor behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    """SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does: recordings closed, children ended, groups removed."""
    if signum == signal.SIGHUP:
        # SIGCONT comes with it (setpgid(2)): Textual would set up the terminal again, which is no more, and fail
        signal.signal(signal.SIGCONT, lambda _signum, _frame: None)
    raise KeyboardInterrupt
