"""Owns stderr: one clear sentence for every trouble, the right exit code, and never a traceback."""

import contextlib
import errno
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
_NO_MEMORY = "there is too little memory for moewatch here; see what `ulimit -v` and the memory group allow."
_SHORTAGES = {
    errno.ENOMEM: _NO_MEMORY,
    errno.EMFILE: "too few open files are allowed here; `ulimit -n 64` is enough.",
    errno.ENFILE: "the machine has no room for another open file (fs.file-max).",
    errno.EAGAIN: "no other process or thread may be started here; see what `ulimit -u` and the group's pids.max allow.",
}


class Fault(Exception):  # noqa: N818 - a word of its own: no error of the person's
    """A fault of our own that was caught elsewhere; its text names it."""


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
        code = int(error.exit_code)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has left (`| head`): no more to say, and no complaint from the interpreter's last flush.
        _forget_stdout()
        code = int(ExitCode.OK)
    except OSError as error:
        _forget_stdout()
        if shortage := _shortage(error):
            say(shortage)
            code = int(ExitCode.FORBIDDEN)
        else:
            where = f" ({error.filename})" if error.filename else ""
            say(f"{error.strerror or error}{where}; nothing more could be done.")
            code = int(ExitCode.UNUSABLE_FILE)
    except Exception as error:  # noqa: BLE001 - the last net: a person beside a struggling server gets a sentence
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        if shortage := _shortage(error):
            say(shortage)
            code = int(ExitCode.FORBIDDEN)
        else:
            what = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
            say(f"this is a fault of moewatch itself ({what}); {TRACEBACK_VARIABLE}=1 shows where, for a report.")
            code = EX_SOFTWARE
    return code


def _shortage(error: Exception) -> str | None:
    """What the machine or a limit (setrlimit(2), cgroups(7)) does not give, in words; None when it is something else."""
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    if isinstance(error, OSError):
        return _SHORTAGES.get(error.errno or 0)
    if isinstance(error, ImportError):  # dlopen(3): its only word for ENOMEM
        return _NO_MEMORY if "failed to map segment" in str(error) else None
    # threading: a thread's stack found no room, or it is one too many
    is_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    return f"{_SHORTAGES[errno.EAGAIN]} Or of memory: `ulimit -v`." if is_thread else None


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
