"""The llama-server that is installed: which options it knows, which devices it sees. Asked, never guessed from a version."""

import os
import re
import shutil
import subprocess

from msgspec import Struct

from moewatch.errors import UsageError

NAMES = ("llama-server",)
PATIENCE_S = 10.0  # --help takes 0.05 s; with a GPU driver that wakes up, --list-devices some seconds
OUTPUT_LIMIT = 1 << 20  # --help is 40 KiB
_FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


class InstalledServer(Struct, frozen=True, kw_only=True):
    """What it answered; `flags` is empty when there is none or it did not answer."""

    path: str = ""
    flags: frozenset[str] = frozenset()
    device_list: str = ""

    def knows(self, name: str) -> bool:
        """Whether it has that option; all options are taken for known when none could be asked for."""
        return not self.flags or name in self.flags


def find_server(named: str | None = None) -> InstalledServer:
    """Ask the llama-server at `named`, or the one on the PATH; raises UsageError for a name that is no program."""
    path = named if named is not None else next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        return InstalledServer()
    if shutil.which(path) is None:
        raise UsageError(f"{path} is no program; name the llama-server to ask, or leave --server out.")
    return InstalledServer(path=path, flags=parse_flags(_ask(path, "--help")), device_list=_ask(path, "--list-devices"))


def parse_flags(text: str) -> frozenset[str]:
    """Every option that a help text names."""
    return frozenset(_FLAG.findall(text))


def _ask(path: str, question: str) -> str:
    """What it prints to that; "" when it does not answer in time. It loads no model and is ended with its answer."""
    try:
        done = subprocess.run(  # noqa: S603 - the person's own program, found on the PATH or named
            [path, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout[:OUTPUT_LIMIT] + b"\n" + done.stderr[:OUTPUT_LIMIT]).decode(errors="replace")
