"""What a test needs of the machine that `make test` does not set up; .ci/run installs it and forbids the skip."""

import os
import shutil

import pytest


def missing(*tools: str, root: bool = False) -> str | None:
    """What of this is not there, in a sentence, or None."""
    if root and os.geteuid() != 0:
        return "not root: only root can mount a disk, limit memory or become someone else"
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)} (.ci/run lists the Debian packages)" if absent else None


def needs(*tools: str, root: bool = False) -> pytest.MarkDecorator:
    """Skip a test where something of this is missing."""
    reason = missing(*tools, root=root)
    return pytest.mark.skipif(reason is not None, reason=reason or "")
