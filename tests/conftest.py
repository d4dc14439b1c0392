"""Where nothing may skip, a skip is a failure: a test that silently did not run proves nothing."""

import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# No test is timed: the machine may be busy with something else.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

MAY_SKIP = os.environ.get("CI") != "true" and os.environ.get("MOEWATCH_NO_SKIP") != "1"


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that says what was missing; an expected failure is no skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"may not skip here (CI=true or MOEWATCH_NO_SKIP=1): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that skipped."""
    report = yield
    if not MAY_SKIP:
        forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skipped as a whole."""
    report = yield
    if not MAY_SKIP:
        forbid_skip(report)
    return report


@pytest.fixture
def hangup_counts() -> Iterator[None]:
    """Children take SIGHUP as in a terminal, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
