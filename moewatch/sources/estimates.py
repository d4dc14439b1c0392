"""What was estimated before a model ran, kept to be held against what is measured.

One small file a model in $XDG_STATE_HOME/moewatch/estimates (~/.local/state by default). Nothing depends on it: what
cannot be written is not kept, what cannot be read or makes no sense was never estimated.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

VERSION = 1
MAX_BYTES = 4096  # one is 120 bytes
# An estimate for another amount of memory says nothing here; the kernel's own part of the RAM and a limit's rounding do
MEMORY_TOLERANCE = 0.1

_Rate = Annotated[float, Meta(gt=0, lt=1e6)]


class KeptEstimate(Struct, frozen=True, kw_only=True):
    """One estimate: tokens per second from `low` to `high` on a machine with so much memory."""

    version: int = VERSION
    low_tokens_per_s: _Rate
    high_tokens_per_s: _Rate
    ram_bytes: Annotated[int, Meta(gt=0)]


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where they lie; a relative path in the variable counts as unset (XDG base directory specification)."""
    home = environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path(environ.get("HOME", "/")) / ".local/state"
    return base / "moewatch" / "estimates"


def keep_estimate(digest: str, estimate: KeptEstimate, where: Path | None = None) -> bool:
    """Write it, whole or not at all, in place of an older one; False when it cannot be written."""
    where = where or folder()
    temporary: Path | None = None
    try:
        where.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{digest}.", dir=where)
        temporary = Path(name)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(estimate) + b"\n")
        temporary.replace(where / f"{digest}.json")
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return False
    return True


def find_estimate(digest: str, memory_bytes: int | None, where: Path | None = None) -> tuple[float, float] | None:
    """(low, high) tokens per second that were estimated of this model with about this much memory; None: never were."""
    try:
        fd = os.open((where or folder()) / f"{digest}.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        kept = msgspec.json.decode(content, type=KeptEstimate)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if kept.version != VERSION or kept.low_tokens_per_s > kept.high_tokens_per_s or memory_bytes is None:
        return None
    if abs(memory_bytes - kept.ram_bytes) > MEMORY_TOLERANCE * kept.ram_bytes:
        return None
    return kept.low_tokens_per_s, kept.high_tokens_per_s
