"""`moewatch record`: raw samples to a file, to be replayed, compared or shown to others."""

import argparse
import os
from pathlib import Path

from moewatch.cli import diagnostics
from moewatch.cli.options import add_for, add_target, new_parser
from moewatch.cli.stream import Printer, watch
from moewatch.domain.events import Event
from moewatch.domain.frame import Frame
from moewatch.domain.sample import Header, Sample
from moewatch.errors import ExitCode, MoewatchError, UnusableFileError, UsageError
from moewatch.trace.writer import TraceWriter
from moewatch.units import S

SAY_EVERY_NS = 10 * S


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = new_parser(
        "record", "Raw samples of one server to a file (JSON Lines; gzip when its name ends in .gz) until interrupted."
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to; an existing file is kept unless --force"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_target(parser)
    add_for(parser, "end after so many seconds")
    return parser


def main(options: argparse.Namespace) -> int:
    """Record until interrupted, until the time is over or until the target ends."""
    if options.output == "-":
        raise UsageError("A recording is a file, to be opened again; name one: -o server.jsonl.gz")
    recorder = FileRecorder(Path(options.output), force=options.force)
    recorder.check()
    options.json = False
    try:
        code = watch(options, _Progress(limit_ns=options.for_ns, recorder=recorder))
    finally:
        recorder.close()
        if recorder.count:
            diagnostics.say(
                f"{recorder.count} samples in {options.output}; moewatch replay {options.output} shows them."
            )
    if recorder.failure is not None:
        raise recorder.failure
    # A target that ended is the natural end of its recording.
    return int(ExitCode.OK) if code == ExitCode.NO_TARGET and recorder.count else code


class FileRecorder:
    """A Recorder (moewatch/sampler.py) that writes one recording of one target; a second target is not mixed in."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        self.count = 0
        self.failure: MoewatchError | None = None  # why it could not be written on
        self._force = force
        self._writer: TraceWriter | None = None
        self._begun = False

    def check(self) -> None:
        """Fail before anything is watched when the file cannot be written.

        Raises:
            UnusableFileError: it exists, or its folder does not, or may not be written to.
        """
        folder = self.path.parent
        try:
            exists = self.path.exists()
            if exists and self.path.is_dir():
                raise UnusableFileError(f"{self.path} is a folder; name a file in it for the recording.")
            if exists and not self._force:
                raise UnusableFileError(f"{self.path} exists already; choose another name, or --force replaces it.")
            if not folder.is_dir():
                raise UnusableFileError(
                    f"{folder} is no folder; make it first, or choose another place for the recording."
                )
            if not os.access(self.path if exists else folder, os.W_OK):
                raise UnusableFileError(f"{self.path} may not be written; choose another place for the recording.")
            if not exists:
                # Tried, not asked: root may write everywhere, and yet /proc takes no file, nor does a full disk.
                self.path.touch(exist_ok=False)
                self.path.unlink()
        except OSError as error:
            raise UnusableFileError(
                f"{self.path} cannot be written: {error.strerror}; choose another name for the recording."
            ) from error

    def begin(self, header: Header) -> None:
        """Open the file for the first target.

        Raises:
            MoewatchError: there is another target; the recording of the first one is complete.
        """
        if self._begun:
            self.close()
            raise MoewatchError(f"The recording {self.path.name} is complete: it is of the first server only.")
        self._begun = True
        try:
            self._writer = TraceWriter(self.path, header, overwrite=self._force)
        except MoewatchError as error:
            self.failure = error
            raise

    def take(self, sample: Sample) -> None:
        """Write one Sample."""
        if self._writer is None:
            return
        try:
            self._writer.write(sample)
        except MoewatchError as error:
            self.failure = error
            raise
        self.count += 1

    def close(self) -> None:
        """Close the file; twice is fine."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Progress(Printer):
    """Says on stderr from time to time what is seen, so that a person knows that it runs."""

    def __init__(self, *, limit_ns: int | None, recorder: FileRecorder) -> None:
        super().__init__(as_json=False, limit_ns=limit_ns, recorder=recorder)
        self._said_ns: int | None = None
        self._file = recorder

    def __call__(self, event: Event) -> None:
        """Watching without recording is not what was asked for: the end of the one is the end of the other."""
        if self._file.failure is None:
            super().__call__(event)
        else:
            self.stop()

    def show(self, frame: Frame, *, last: bool) -> None:
        """The headline now and then."""
        if last or self._said_ns is None or frame.mono_ns - self._said_ns >= SAY_EVERY_NS:
            self._said_ns = frame.mono_ns
            diagnostics.say(f"{frame.verdict.state.value}: {frame.verdict.headline}")
