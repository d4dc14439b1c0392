"""Writes a recording so that what was written can be read after any end, a kill or a full disk included."""

import zlib
from pathlib import Path
from typing import Self

from moewatch.domain.sample import Header, Sample
from moewatch.errors import UnusableFileError
from moewatch.trace.format import GZIP_WBITS, format_line


class TraceWriter:
    """One recording: the header at once, then a line per Sample, each handed to the kernel before `write` returns.

    A name that ends in `.gz` is compressed; each line ends with a sync flush, so that a killed recording can be read to
    its last line. Nothing is written after the first failure, and what was written stays.
    """

    def __init__(self, path: Path, header: Header, *, overwrite: bool = False) -> None:
        """Create the file. UnusableFileError when it exists (and `overwrite` is False) or cannot be created."""
        self.path = path
        self.failed = False
        self._n_written = 0
        self._pack = zlib.compressobj(wbits=GZIP_WBITS) if path.suffix == ".gz" else None
        try:
            # unbuffered: a line is in the page cache or it has failed
            self._file = path.open("wb" if overwrite else "xb", buffering=0)
        except FileExistsError as error:
            raise UnusableFileError(
                f"{path} exists already; choose another name for the recording or remove it first."
            ) from error
        except OSError as error:
            raise UnusableFileError(f"{path} cannot be created: {error.strerror}.") from error
        try:
            self._put(format_line(header))
        except BaseException:
            self._file.close()
            if not overwrite and not path.stat().st_size:
                path.unlink()  # ours, and of no use to anybody
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def write(self, sample: Sample) -> None:
        """Append one Sample. UnusableFileError once, when the disk is full or fails; silent from then on."""
        if not self.failed:
            self._put(format_line(sample))

    def close(self) -> None:
        """End the recording; again is harmless."""
        if self._file.closed:
            return
        try:
            if self._pack is not None and not self.failed:
                self._write_all(self._pack.flush(zlib.Z_FINISH))
        finally:
            self._file.close()

    def _put(self, line: bytes) -> None:
        if self._pack is not None:
            line = self._pack.compress(line) + self._pack.flush(zlib.Z_SYNC_FLUSH)
        self._write_all(line)
        self._n_written += 1

    def _write_all(self, chunk: bytes) -> None:
        try:
            while chunk:
                chunk = chunk[self._file.write(chunk) :]  # a nearly full disk takes a part first
        except OSError as error:
            self.failed = True
            kept = "what was written before can be replayed" if self._n_written > 1 else "it holds no samples"
            raise UnusableFileError(f"The recording {self.path.name} stopped: {error.strerror}; {kept}.") from error
