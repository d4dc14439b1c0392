"""Recordings: what is written is what is read, and any bytes give Samples or one sentence."""

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.domain.sample import (
    DeviceReading,
    Gap,
    Header,
    Host,
    ProcessReading,
    ResidencyReading,
    Sample,
    ServerReading,
    TargetIdentity,
)
from moewatch.errors import UnusableFileError
from moewatch.trace.format import format_line, parse_sample
from moewatch.trace.reader import read_trace
from moewatch.trace.writer import TraceWriter

COUNT = st.one_of(st.none(), st.integers(0, 2**63 - 1))
HEADER_LINE = format_line(Header(host=Host(), target=TargetIdentity(pid=1)))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def records(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    return st.builds(
        kind,
        **{
            name: COUNT
            for name in kind.__struct_fields__
            if name.endswith(("_total", "_bytes")) and not name.startswith("not_needed")
        },
    )


SAMPLES = st.builds(
    Sample,
    mono_ns=st.integers(0, 2**62),
    wall_ns=st.integers(0, 2**62),
    process=st.none() | records(ProcessReading),
    residency=st.none() | records(ResidencyReading),
    devices=st.none() | st.dictionaries(TEXT, records(DeviceReading), max_size=3),
    server=records(ServerReading),
    gaps=st.lists(
        st.builds(Gap, field=TEXT, reason=st.sampled_from(["denied", "absent"]), detail=TEXT), max_size=2
    ).map(tuple),
)


@given(SAMPLES)
def test_a_line_is_read_as_it_was_written(sample: Sample) -> None:
    line = format_line(sample)
    assert line.count(b"\n") == 1
    assert format_line(parse_sample(line, "x", 2)) == line


@settings(max_examples=30)
@given(st.lists(SAMPLES, max_size=8), st.sampled_from(["a.jsonl", "a.jsonl.gz"]), st.integers(0, 400))
def test_a_recording_cut_anywhere_is_its_beginning(samples: list[Sample], name: str, cut: int) -> None:
    header = Header(host=Host(), target=TargetIdentity(pid=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with TraceWriter(path, header) as writer:
            for sample in samples:
                writer.write(sample)
        written = path.read_bytes()
        path.write_bytes(written[: len(written) - cut])
        try:
            found = [format_line(s) for s in read_trace(path)[1]]
        except UnusableFileError:
            return  # cut inside the header
    assert found == [format_line(s) for s in samples][: len(found)]


@settings(max_examples=100)
@given(st.binary(max_size=300), st.sampled_from(["a.jsonl", "a.jsonl.gz"]), st.sampled_from([b"", HEADER_LINE]))
def test_any_bytes_give_samples_or_one_sentence(junk: bytes, name: str, before: bytes) -> None:
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(before + junk)
        try:
            list(read_trace(path)[1])
        except UnusableFileError as error:
            said = str(error)
    assert "\n" not in said
