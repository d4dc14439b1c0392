"""Every error that a person may meet, and the exit code each one carries.

MoewatchError                 one sentence: what, and what to do; never a traceback
+-- UsageError           2    the command line does not make sense
+-- TargetError          3    no such process, not a llama-server, or it ended
|   +-- TargetEndedError 3    it ended while it was watched
+-- ForbiddenError       4    the kernel or a permission forbids what was asked
|   +-- UnsupportedError 4    this kernel or platform does not have it
+-- UnusableFileError    5    a model, recording or hot set cannot be used
    +-- ParseError       5    its bytes (or a kernel file's) are not what they should be
"""

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; scripts depend on them (docs/reference/cli.md)."""

    OK = 0
    FINDING = 1
    USAGE = 2
    NO_TARGET = 3
    FORBIDDEN = 4
    UNUSABLE_FILE = 5
    INTERRUPTED = 130


class MoewatchError(Exception):
    """Base of all: `str(error)` is one sentence a person understands, with what to do."""

    exit_code = ExitCode.FINDING


class UsageError(MoewatchError):
    """The command line does not make sense."""

    exit_code = ExitCode.USAGE


class TargetError(MoewatchError):
    """There is no such process, it maps no model, or it has ended."""

    exit_code = ExitCode.NO_TARGET


class TargetEndedError(TargetError):
    """The watched process ended, or its pid now belongs to another process."""


class ForbiddenError(MoewatchError):
    """The kernel or a permission forbids what was asked."""

    exit_code = ExitCode.FORBIDDEN


class UnsupportedError(ForbiddenError):
    """This kernel or platform does not have what is needed."""


class UnusableFileError(MoewatchError):
    """A model, a recording or a hot set cannot be used."""

    exit_code = ExitCode.UNUSABLE_FILE


class ParseError(UnusableFileError):
    """The bytes of a file, or of a kernel interface, are not what they should be."""
