"""What `moewatch doctor` says to a person."""

import pytest

from moewatch.cli.doctor import Check, check_lines
from moewatch.server.discovery import ServerProcess

SERVERS = [ServerProcess(pid=pid, start_ticks=1, exe="llama-server") for pid in (10, 20, 30)]
WAITS = "process.blkio_delay_ns_total: kernel.task_delayacct is 0"


def test_a_good_finding_says_what_it_is_for() -> None:
    lines = list(check_lines([Check(id="vm", status="ok", finding="readable")], SERVERS[:1]))
    assert lines == [
        "ok  re-read counters   readable: the kernel's own count of what was pushed out and came back",
        "",
        "All that matters can be read.",
    ]


def test_a_bad_one_has_no_field_name_in_it() -> None:
    check = Check(id="process", status="limited", finding=WAITS, effect="it is unknown", remedy="sudo x")
    line, effect, *_ = check_lines([check], SERVERS[:1])
    assert line == "--  server's counters  wait per thread: kernel.task_delayacct is 0"
    assert effect.strip() == "so it is unknown; remedy: sudo x"
    (whole, *_) = check_lines([Check(id="pressure", status="missing", finding="pressure: off")], SERVERS[:1])
    assert whole == "!!  memory stall       off"


def test_of_several_servers_one_is_named_and_how_to_look_at_the_others() -> None:
    first = next(check_lines([], SERVERS))
    assert first == "3 servers run; this is about PID 10. The others: --pid 20, --pid 30"


@pytest.mark.parametrize(
    ("check", "last"),
    [
        (
            ("process", "limited", WAITS),
            "All that matters can be read; the verdict does not need what is missing above.",
        ),
        (("pressure", "missing", "pressure: off"), "All that matters can be read; the verdict does not need"),
        (
            ("residency", "missing", "residency: denied"),
            "What is missing above lowers the confidence; the dashboard works.",
        ),
        (("target", "missing", "no llama-server runs"), "No server to watch yet"),
        (("terminal", "limited", "TERM is dumb"), "The dashboard needs another terminal"),
        (("terminal", "limited", "xterm, but the locale's encoding is ascii"), "All that matters can be read;"),
    ],
)
def test_the_last_line_is_what_it_comes_to(check: tuple[str, str, str], last: str) -> None:
    identity, status, finding = check
    lines = list(check_lines([Check(id=identity, status=status, finding=finding)], SERVERS[:1]))
    assert lines[-1].startswith(last)
