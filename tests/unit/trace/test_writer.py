import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moewatch.domain.sample import Header, Host, Sample, TargetIdentity
from moewatch.errors import MoewatchError, UnusableFileError
from moewatch.trace.reader import read_trace
from moewatch.trace.writer import TraceWriter

HEADER = Header(host=Host(), target=TargetIdentity(pid=1))
SAMPLES = [Sample(mono_ns=i * 10**9, wall_ns=i) for i in range(50)]

NAMES = pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])


@NAMES
def test_what_is_written_can_be_read_at_once_and_after_the_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with TraceWriter(path, HEADER) as writer:
        for i, sample in enumerate(SAMPLES):
            writer.write(sample)
            if i % 10 == 0:
                assert list(read_trace(path)[1]) == SAMPLES[: i + 1]
    header, samples = read_trace(path)
    assert header == HEADER
    assert list(samples) == SAMPLES
    writer.close()


@NAMES
def test_recording_of_a_killed_writer_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    program = f"""
import os, signal
from pathlib import Path
from moewatch.trace.writer import TraceWriter
from moewatch.domain.sample import Header, Host, Sample, TargetIdentity
writer = TraceWriter(Path({str(path)!r}), Header(host=Host(), target=TargetIdentity(pid=1)))
for i in range(50):
    writer.write(Sample(mono_ns=i * 10**9, wall_ns=i))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert list(read_trace(path)[1]) == SAMPLES


def test_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("precious")
    with pytest.raises(UnusableFileError, match="exists already"):
        TraceWriter(path, HEADER)
    assert path.read_text() == "precious"
    TraceWriter(path, HEADER, overwrite=True).close()
    assert read_trace(path)[0] == HEADER


def test_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnusableFileError, match="cannot be created: No such file or directory"):
        TraceWriter(tmp_path / "no" / "run.jsonl", HEADER)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_at_the_header_is_one_sentence() -> None:
    with pytest.raises(MoewatchError, match="stopped: No space left on device; it holds no samples"):
        TraceWriter(Path("/dev/full"), HEADER, overwrite=True)


@NAMES
def test_full_disk_later_is_said_once_and_keeps_what_was_written(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    writer = TraceWriter(path, HEADER)
    for sample in SAMPLES[:10]:
        writer.write(sample)

    class Full:
        """A file on a disk that takes five more bytes."""

        closed = False

        def __init__(self, real: "Full") -> None:
            self.real = real
            self.room = 5

        def write(self, chunk: bytes) -> int:
            if not self.room:
                raise OSError(28, os.strerror(28))
            taken = self.real.write(chunk[: self.room])
            self.room = 0
            return taken

        def close(self) -> None:
            self.real.close()

    monkeypatch.setattr(writer, "_file", Full(writer._file))  # type: ignore[arg-type]  # a stand-in for the raw file
    with pytest.raises(MoewatchError, match="what was written before can be replayed"):
        writer.write(SAMPLES[10])
    writer.write(SAMPLES[11])
    writer.close()
    assert list(read_trace(path)[1]) == SAMPLES[:10]
