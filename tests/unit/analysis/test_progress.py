"""What is still to come: exact for a load that fits, a band for a warm-up that levels off, nothing otherwise."""

from pathlib import Path
from typing import Any

import pytest

from moewatch.analysis.progress import derive_progress, fit_decay
from moewatch.analysis.window import Window
from moewatch.domain.frame import Progress, Rates, Residency, State
from moewatch.domain.sample import LoadMode, Phase, ServerReading
from moewatch.trace.reader import read_trace
from moewatch.units import GIB, MB, S
from tests.support.situations import DENSE_MODEL, TOTAL, cgroup, header, process, scan, window

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
ROOMY = header(host=header().host.__class__(ram_bytes=128 * GIB))


def derive(found: Window, state: State, rates: Rates | None = None) -> Progress:
    return derive_progress(found, rates or Rates(), Residency(), state)


def loading(rate_mb: int, **more: Any) -> Any:
    def change(t: float) -> dict[str, Any]:
        return {
            "server": ServerReading(phase=Phase.LOADING),
            "residency": scan(resident_bytes=int(t) * rate_mb * MB),
            "process": process(read_bytes_total=int(t) * rate_mb * MB),
            **more,
        }

    return change


def test_a_steady_load_has_an_exact_end() -> None:
    found = derive(window(loading(1000), seconds=20, of=ROOMY), State.LOADING)
    assert found.read_bytes == 20_000 * MB
    assert found.remaining_bytes == TOTAL - 20_000 * MB
    assert found.eta_low_ns == found.eta_high_ns == pytest.approx((TOTAL - 20_000 * MB) / 1e9 * S, rel=1e-6)


def test_a_load_that_slows_down_has_a_band() -> None:
    def change(t: float) -> dict[str, Any]:
        read = int(min(t, 17) * 1000 + max(0.0, t - 17) * 250) * MB
        return {"server": ServerReading(phase=Phase.LOADING), "residency": scan(resident_bytes=read)}

    found = derive(window(change, seconds=20, of=ROOMY), State.LOADING)
    assert found.remaining_bytes is not None
    assert found.eta_low_ns == pytest.approx(found.remaining_bytes / 775e6 * S, rel=1e-3)  # 10 s
    assert found.eta_high_ns == pytest.approx(found.remaining_bytes / 250e6 * S, rel=1e-3)  # 3 s


def test_a_file_above_memory_has_no_end_to_foresee() -> None:
    found = derive(window(loading(1000), seconds=20), State.LOADING)  # 59 GiB of model, 31 of RAM
    assert found == Progress(read_bytes=20_000 * MB)


def test_a_cgroup_limit_is_memory_too() -> None:
    found = derive(window(loading(1000, cgroup=cgroup()), seconds=20, of=ROOMY), State.LOADING)
    assert found.remaining_bytes is None


def test_a_copy_is_followed_by_what_the_process_read() -> None:
    def change(t: float) -> dict[str, Any]:
        return {
            "server": ServerReading(phase=Phase.LOADING),
            "process": process(read_bytes_total=int(t) * 20 * MB),
            "residency": scan(resident_bytes=0),
        }

    of = header(load_mode=LoadMode.NONE, model=DENSE_MODEL)
    found = derive(window(change, seconds=20, of=of), State.LOADING)
    assert found.read_bytes == 400 * MB
    assert found.eta_low_ns == pytest.approx((GIB - 400 * MB) / 20e6 * S, rel=1e-3)


def test_a_loaded_model_has_nothing_to_come() -> None:
    found = derive(window(lambda _: {"residency": scan(resident_bytes=TOTAL)}, of=ROOMY), State.LOADING)
    assert (found.remaining_bytes, found.eta_low_ns, found.eta_high_ns) == (0, 0, 0)


def test_a_load_that_stands_still_has_no_eta() -> None:
    found = derive(window(lambda _: {"residency": scan(resident_bytes=GIB)}, of=ROOMY), State.LOADING)
    assert found.remaining_bytes == TOTAL - GIB
    assert (found.eta_low_ns, found.eta_high_ns) == (None, None)


@pytest.mark.parametrize("state", [State.STEADY, State.IDLE, State.THRASHING, State.UNKNOWN])
def test_other_states_have_no_progress(state: State) -> None:
    assert derive(window(loading(10)), state) == Progress()


def warming(rate_mb: Any) -> Any:
    """Bytes that come in for the first time at `rate_mb(t)`."""
    totals = [0.0]
    for t in range(200):
        totals.append(totals[-1] + rate_mb(t) * MB)

    def change(t: float) -> dict[str, Any]:
        read = int(totals[int(t)])
        return {"process": process(read_bytes_total=read), "residency": scan(resident_bytes=GIB + read)}

    return change


def test_exponential_warm_up_is_foreseen() -> None:
    """1 GB/s that halves every 8 s: the rest until 3 % of the peak is known, and lies within the band."""
    found = derive(window(warming(lambda t: 1000 * 0.5 ** (t / 8)), seconds=24, of=ROOMY), State.WARMING)
    rate, done = 1000 * 0.5**3, 30.0
    left_s = 8 * 2.06  # log2(125 / 30)
    assert found.levels_off
    assert found.eta_low_ns is not None
    assert found.eta_high_ns is not None
    assert found.remaining_bytes is not None
    assert found.eta_low_ns / S < left_s
    assert left_s < found.eta_high_ns / S < 6 * left_s
    # integral of the rate down to the one that no longer matters
    true = (rate - done) * 8 / 0.693 * MB
    assert 0.5 * true < found.remaining_bytes < 2.5 * true
    assert found.first_bytes == pytest.approx(1000 * 8 / 0.693 * (1 - 0.5**3) * MB, rel=0.1)


def test_constant_arrivals_do_not_level_off() -> None:
    found = derive(window(warming(lambda _: 500), seconds=40, of=ROOMY), State.WARMING)
    assert (found.remaining_bytes, found.eta_low_ns, found.levels_off) == (None, None, False)
    assert found.first_bytes == pytest.approx(20e9, rel=0.01)


def test_a_second_topic_is_judged_from_its_own_peak() -> None:
    def two(t: int) -> float:
        return 300 * 0.7**t if t < 20 else 600 * 0.6 ** (t - 20)

    found = derive(window(warming(two), seconds=22, of=ROOMY), State.WARMING)
    assert found.remaining_bytes is None  # 2 s after the new peak: too early
    found = derive(window(warming(two), seconds=36, of=ROOMY), State.WARMING)
    assert found.remaining_bytes is not None
    assert found.remaining_bytes < 30 * MB


def test_never_more_to_come_than_is_absent() -> None:
    def change(t: float) -> dict[str, Any]:
        base = warming(lambda s: 1000 * 0.5 ** (s / 8))(t)
        return {**base, "residency": scan(resident_bytes=TOTAL - 10 * MB)}

    found = derive(window(change, seconds=24, of=ROOMY), State.WARMING)
    assert found.remaining_bytes == 10 * MB


def test_no_decay_from_too_few_bins() -> None:
    assert fit_decay(2 * S, [100.0, 50.0, 25.0, 12.0]) is None
    assert fit_decay(2 * S, [100.0, 50.0, 25.0, 12.0, 6.0]) is not None
    assert fit_decay(2 * S, []) is None
    assert fit_decay(2 * S, [0.0] * 10) is None


def test_without_io_only_what_came_first_is_known() -> None:
    found = derive(window(lambda _: {"process": None}, seconds=40), State.WARMING)
    assert found.remaining_bytes is None


@pytest.mark.parametrize("name", ["b30-1", "b50-1", "b70-2", "i-1"])
def test_thrashing_never_looks_like_a_warm_up_that_ends(name: str) -> None:
    """Recordings with memory for a part: asked every 4 s, no end may be foreseen while it thrashes."""
    head, samples = read_trace(TRACES / f"{name}.jsonl.gz")
    found, asked = Window(header=head), 0
    for i, one in enumerate(samples):
        found = found.pushed(one)
        if i % 20 == 0 and one.server.phase in (Phase.GENERATE, Phase.PROMPT) and one.mono_ns > 18 * S:
            progress = derive(found, State.WARMING)
            assert progress.remaining_bytes is None
            asked += 1
    assert asked >= 4


def test_a_recorded_topic_switch_is_foreseen_within_what_came() -> None:
    """Recording C2: the third topic's burst; 10 s after it the rest is small, and is said to be small."""
    head, samples = read_trace(TRACES / "c-2.jsonl.gz")
    found = Window(header=head)
    for one in samples:
        if one.mono_ns > 50 * S:
            break
        found = found.pushed(one)
    progress = derive(found, State.WARMING)
    assert progress.levels_off
    assert progress.remaining_bytes is None or progress.remaining_bytes < 30 * MB


def test_recovery_ends_when_all_is_there() -> None:
    """Recording G: 5 s after the pressure ended the decay alone would foresee 1.3 GB, but no more than 0.2 are absent."""
    head, samples = read_trace(TRACES / "g-1.jsonl.gz")
    found = Window(header=head)
    for one in samples:
        if one.mono_ns > 36 * S:
            break
        found = found.pushed(one)
    progress = derive(found, State.RECOVERING)
    assert progress.remaining_bytes is not None
    assert progress.remaining_bytes < 250 * MB
    assert progress.eta_high_ns is not None
    assert progress.eta_high_ns < 40 * S
