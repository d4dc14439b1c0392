"""Any bytes at all give a value or a ParseError, for each parser of a kernel file."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moewatch.errors import ParseError
from moewatch.linux.cgroup import parse_membership
from moewatch.linux.diskstats import parse_diskstats
from moewatch.linux.maps import parse_maps
from moewatch.linux.meminfo import parse_memory, parse_ram_bytes
from moewatch.linux.mounts import parse_mnt_id, parse_mountinfo
from moewatch.linux.others import parse_statm
from moewatch.linux.pid import parse_io, parse_stat, parse_status
from moewatch.linux.pressure import parse_pressure
from moewatch.linux.root import COUNT_LIMIT, parse_count
from moewatch.linux.vmstat import parse_vm
from tests.support.proctree import FIXTURES

CAPTURED = FIXTURES / "linux-6.18-cgroup1" / "proc"
Parser = Callable[[bytes], object]
PARSERS: list[tuple[Parser, bytes]] = [
    (parse_stat, (CAPTURED / "4242/stat").read_bytes()),
    (parse_status, (CAPTURED / "4242/status").read_bytes()),
    (parse_io, (CAPTURED / "4242/io").read_bytes()),
    (parse_maps, (CAPTURED / "4242/maps").read_bytes()),
    (parse_statm, (CAPTURED / "4242/statm").read_bytes()),
    (parse_membership, (CAPTURED / "4242/cgroup").read_bytes()),
    (parse_diskstats, (CAPTURED / "diskstats").read_bytes()),
    (parse_vm, (CAPTURED / "vmstat").read_bytes()),
    (parse_memory, (CAPTURED / "meminfo").read_bytes()),
    (parse_ram_bytes, (CAPTURED / "meminfo").read_bytes()),
    (parse_pressure, (CAPTURED / "pressure/memory").read_bytes()),
    (parse_mountinfo, (CAPTURED / "self/mountinfo").read_bytes()),
    (parse_mnt_id, b"pos:\t0\nflags:\t0100000\nmnt_id:\t27\nino:\t5\n"),
]
each_parser = pytest.mark.parametrize(("parser", "good"), PARSERS, ids=[parser.__name__ for parser, _ in PARSERS])


@each_parser
def test_captured_bytes_are_a_value(parser: Parser, good: bytes) -> None:
    parser(good)


@each_parser
@given(content=st.binary(max_size=400))
def test_any_bytes(parser: Parser, good: bytes, content: bytes) -> None:
    del good
    survives(parser, content)


@each_parser
@given(patch=st.binary(max_size=12), where=st.floats(0, 1), cut=st.floats(0, 1))
def test_captured_bytes_damaged(parser: Parser, good: bytes, patch: bytes, where: float, cut: float) -> None:
    """Overwritten somewhere and cut short: close enough to the real thing to get far."""
    at = int(where * len(good))
    survives(parser, (good[:at] + patch + good[at + len(patch) :])[: int(cut * len(good)) + 1])


@each_parser
@given(digits=st.integers(0, 10**25), which=st.integers(0, 500))
def test_figures_of_any_size(parser: Parser, good: bytes, digits: int, which: int) -> None:
    words = good.split(b" ")
    words[which % len(words)] = str(digits).encode()
    survives(parser, b" ".join(words))


@given(st.integers(0, COUNT_LIMIT - 1))
def test_every_counter_that_fits_is_itself(value: int) -> None:
    assert parse_count(str(value).encode()) == value


@given(comm=st.binary(max_size=16).filter(lambda comm: b"\0" not in comm))
def test_no_name_hides_the_fields_after_it(comm: bytes) -> None:
    good = PARSERS[0][1]
    stat = parse_stat(good.replace(b"(python3)", b"(" + comm + b")"))
    assert (stat.start_ticks, stat.majflt, stat.state) == (142175, 4, "S")


def survives(parser: Parser, content: bytes) -> None:
    with contextlib.suppress(ParseError):
        parser(content)
