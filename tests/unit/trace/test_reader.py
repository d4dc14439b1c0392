import gzip
import json
from pathlib import Path

import pytest

from moewatch import engine
from moewatch.domain.sample import Header, Host, Sample, TargetIdentity
from moewatch.errors import ExitCode, ParseError, UnusableFileError
from moewatch.export import text
from moewatch.trace.format import MAX_LINE_BYTES, format_line
from moewatch.trace.reader import MAX_EMPTY_LINES, read_trace

HEADER = Header(host=Host(), target=TargetIdentity(pid=1))
SAMPLES = [Sample(mono_ns=i * 10**9, wall_ns=i) for i in range(5)]
LINES = [format_line(HEADER), *(format_line(s) for s in SAMPLES)]


def written(tmp_path: Path, content: bytes, name: str = "run.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_reads_header_and_samples(tmp_path: Path, name: str) -> None:
    header, samples = read_trace(written(tmp_path, b"".join(LINES), name))
    assert header == HEADER
    assert list(samples) == SAMPLES


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    torn = b"".join(LINES)[:-7]
    assert list(read_trace(written(tmp_path, torn))[1]) == SAMPLES[:-1]


def test_last_line_without_line_feed_that_is_whole_counts(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, b"".join(LINES)[:-1]))[1]) == SAMPLES


def test_cut_gzip_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(LINES))[:-12])  # the trailer and the end of the stream
    assert list(read_trace(path)[1])[:3] == SAMPLES[:3]


def test_two_gzip_members_are_one_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(LINES[:3])) + gzip.compress(b"".join(LINES[3:])))
    assert list(read_trace(path)[1]) == SAMPLES


def test_unknown_keys_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    lines = [LINES[0][:-2] + b',"labels":[],"colour":"blue"}\n', b"\n", LINES[1][:-2] + b',"mood":1}\n']
    assert list(read_trace(written(tmp_path, b"".join(lines)))[1]) == SAMPLES[:1]


def test_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, LINES[0].replace(b'"version":1', b'"version":2'))
    with pytest.raises(ParseError, match="version 2 and this moewatch reads up to version 1: update moewatch"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\x00\xff\xfe", "line 1 is not the header"),
        (b"[1, 2]\n", "line 1 is not the header"),
        (b'{"x":' + b"[" * 100_000, "line 1 is not the header"),
        (b'{"format":"moewatch-trace","version":1' + b"0" * 400 + b"}\n", "line 1 is not the header"),
        (b'{"format":"other","version":1}\n', "does not say"),
        (b'{"format":"moewatch-trace"}\n', "names no version"),
        (b'{"format":"moewatch-trace","version":1}\n', "line 1 cannot be read: .*host"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ParseError, match=said) as caught:
        read_trace(written(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code is ExitCode.UNUSABLE_FILE


def test_malformed_line_in_the_middle_is_named(tmp_path: Path) -> None:
    lines = [*LINES[:3], b'{"mono_ns": -}\n', *LINES[3:]]
    samples = read_trace(written(tmp_path, b"".join(lines)))[1]
    assert [next(samples), next(samples)] == SAMPLES[:2]
    with pytest.raises(ParseError, match=r"run\.jsonl, line 4 cannot be read"):
        next(samples)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", '"12"', "1e400", "9223372036854775808", "1" + 400 * "0"])
def test_a_counter_that_is_no_count_is_refused(tmp_path: Path, value: str) -> None:
    line = f'{{"mono_ns":1,"wall_ns":1,"process":{{"majflt_total":{value}}}}}\n'.encode()
    with pytest.raises(ParseError, match="line 2"):
        list(read_trace(written(tmp_path, LINES[0] + line))[1])


def test_the_largest_count_is_read_and_shown(tmp_path: Path) -> None:
    line = b'{"mono_ns":-9223372036854775807,"wall_ns":9223372036854775807,"process":{"majflt_total":9223372036854775807}}\n'
    header, samples = read_trace(written(tmp_path, LINES[0] + line))
    frame = engine.step(engine.start(header), next(samples))[1]
    assert text.format_line(frame)
    assert text.format_page(frame)


@pytest.mark.parametrize("key", ["mono_ns", "wall_ns"])
def test_a_time_that_no_clock_shows_is_refused(tmp_path: Path, key: str) -> None:
    times = {"mono_ns": 1, "wall_ns": 1} | {key: 1 << 70}
    with pytest.raises(ParseError, match="line 2 cannot be read"):
        list(read_trace(written(tmp_path, LINES[0] + json.dumps(times).encode() + b"\n"))[1])


def test_what_is_wrong_is_told_shortly_however_long_it_is(tmp_path: Path) -> None:
    line = b'{"mono_ns":1,"wall_ns":1,"server":{"phase":"' + b"a" * 5000 + b'\\u001b[31m"}}\n'
    with pytest.raises(ParseError, match=r"line 2 cannot be read: .*server\.phase") as caught:
        list(read_trace(written(tmp_path, LINES[0] + line))[1])
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_nothing_but_empty_lines_is_given_up(tmp_path: Path) -> None:
    for n_empty, n_samples in ((MAX_EMPTY_LINES, 5), (MAX_EMPTY_LINES + 1, None)):
        path = written(tmp_path, LINES[0] + b"\n" * n_empty + b"".join(LINES[1:]), "run.jsonl.gz")
        if n_samples is not None:
            assert len(list(read_trace(path)[1])) == n_samples
        else:
            with pytest.raises(ParseError, match="empty lines: this is no recording"):
                list(read_trace(path)[1])


def test_endless_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = written(tmp_path, LINES[0] + b" " * (MAX_LINE_BYTES + 2), "run.jsonl.gz")
    with pytest.raises(ParseError, match="line 2 is longer than 4 MiB"):
        list(read_trace(path)[1])


def test_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(b"this is no gzip file")
    with pytest.raises(ParseError, match="is no recording"):
        read_trace(path)
    path.write_bytes(b"\x1f\x8bbut no more than the magic")
    with pytest.raises(ParseError, match="cannot be read on from line 1"):
        read_trace(path)


@pytest.mark.parametrize("name", [".", "missing.jsonl"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableFileError, match="name a recording"):
        read_trace(tmp_path / name)
