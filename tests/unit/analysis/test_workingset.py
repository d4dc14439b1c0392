"""The range of the working set: brackets the truth on recordings under known limits, and says nothing where it cannot know."""

import base64
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from moewatch.analysis.active import derive_active_bytes
from moewatch.analysis.memory import derive_memory
from moewatch.analysis.rates import derive_rates
from moewatch.analysis.residency import derive_residency
from moewatch.analysis.window import Window
from moewatch.analysis.workingset import derive_fits, derive_working_set
from moewatch.domain.frame import Memory, Rates, WorkingSet
from moewatch.domain.sample import Phase, ServerReading
from moewatch.trace.reader import read_trace
from moewatch.units import GIB, MB
from tests.support.situations import EXPERTS, TOTAL, header, process, scan, window

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
TRUTH = 1_665_262_400  # uniform routing uses all experts: the whole model


def judge(found: Window) -> WorkingSet:
    active = derive_active_bytes(found.header.model, found.carried.residency)
    rates = derive_rates(found, active, None)
    residency = derive_residency(found)
    return derive_working_set(found, rates, residency, derive_memory(found, residency))


@lru_cache(maxsize=16)
def of_recording(name: str, at_s: float) -> WorkingSet:
    head, samples = read_trace(TRACES / f"{name}.jsonl.gz")
    found = Window(header=head)
    for one in _until(samples, at_s):
        found = found.pushed(one)
    return judge(found)


def _until(samples: Iterator[Any], at_s: float) -> Iterator[Any]:
    first: int | None = None
    for one in samples:
        first = one.mono_ns if first is None else first
        if one.mono_ns - first > at_s * 1e9:
            return
        yield one


@pytest.mark.parametrize("name", ["b30-1", "b50-1", "b70-2", "b95-1", "s100-70-1", "xra512-1"])
@pytest.mark.parametrize("at_s", [20.0, 30.0, 36.0])
def test_brackets_the_truth_under_any_limit(name: str, at_s: float) -> None:
    found = of_recording(name, at_s if name != "xra512-1" else 20.0)
    if name == "s100-70-1" and at_s == 20.0:
        assert found.low_bytes is None  # it has just loaded
        return
    assert found.low_bytes is not None
    assert found.high_bytes is not None
    assert found.low_bytes <= TRUTH <= found.high_bytes


def test_more_is_missing_where_less_fits() -> None:
    found = [of_recording(name, 36.0) for name in ("b30-1", "b50-1", "b70-2", "b95-1")]
    fits = [one.fits_bytes or 0 for one in found]
    short = [one.short_bytes for one in found]
    assert fits == sorted(fits)
    assert all(amount is not None for amount in short)
    assert short == sorted(short, reverse=True, key=lambda amount: amount or 0)
    assert short[-1] == 0  # 95 % fits: a trickle is harmless
    assert (short[0] or 0) > 100 * MB


def test_low_exceeds_what_is_in_memory_when_it_thrashes() -> None:
    for name in ("b30-1", "b50-1", "b70-2"):
        found = of_recording(name, 36.0)
        assert found.low_bytes is not None
        assert found.fits_bytes is not None
        assert found.low_bytes > found.fits_bytes


def test_a_hot_set_that_fits_is_short_of_nothing() -> None:
    skewed = of_recording("k-1", 60.0)
    assert skewed.short_bytes == 0
    assert skewed.high_bytes is not None
    assert skewed.high_bytes < TRUTH


def test_ample_memory_is_short_of_nothing() -> None:
    ample = of_recording("a-1", 20.0)
    assert (ample.short_bytes, ample.high_bytes) == (0, TRUTH)


def test_a_dense_model_needs_all_of_it() -> None:
    found = of_recording("i-1", 40.0)
    assert found.low_bytes == found.high_bytes == 1_231_281_920
    assert found.short_bytes is not None
    assert found.short_bytes == pytest.approx(378e6, rel=0.02)


def test_a_prompt_alone_does_not_tell_how_much_is_missing() -> None:
    found = of_recording("h-1", 35.0)
    assert found.short_bytes is None
    assert found.low_bytes is not None


def test_a_prompts_reads_are_not_the_tokens() -> None:
    """Recording H, some tokens after a long prompt: its reads over those tokens would make a miss ratio of 0.5."""
    found = of_recording("h-1", 44.0)
    assert found.low_bytes is not None
    assert found.low_bytes < 1000 * MB


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.LOADING])
def test_no_request_no_working_set(phase: Phase) -> None:
    found = judge(window(lambda _: {"server": ServerReading(phase=phase)}))
    assert (found.low_bytes, found.high_bytes, found.short_bytes) == (None, None, None)


def test_without_residency_nothing_is_told() -> None:
    found = judge(window(lambda _: {"residency": None, "vm": None}))
    assert (found.low_bytes, found.high_bytes, found.short_bytes) == (None, None, None)


def test_sampling_alone_gives_no_upper_bound() -> None:
    def change(_: float) -> dict[str, Any]:
        seen = scan(evicted_bytes=None, arrived_first_bytes=0, arrived_again_bytes=100 * MB, departed_bytes=100 * MB)
        return {"process": None, "vm": None, "residency": seen}

    assert judge(window(change, seconds=40)).high_bytes == TOTAL


def test_eight_seconds_are_needed() -> None:
    assert judge(window(seconds=6)).low_bytes is None
    assert judge(window(seconds=10)).low_bytes is not None


def churning(t: float, experts: str | None = None) -> dict[str, Any]:
    """1 GB a second departs and comes back; 19 GiB stay."""
    return {
        "process": process(read_bytes_total=int(t * 1000 * MB)),
        "residency": scan(resident_bytes=19 * GIB, evicted_bytes=30 * GIB, experts=experts),
        "server": ServerReading(phase=Phase.GENERATE, tokens_total=int(t * 3), source="slots"),
    }


def test_maps_of_the_minute_are_joined() -> None:
    """Half of the experts are in memory at even times, the other half at odd ones: all were in use."""
    halves = [base64.b64encode(bytes([255, 0] * 64)).decode(), base64.b64encode(bytes([0, 255] * 64)).decode()]
    without = judge(window(churning, seconds=40))
    joined = judge(window(lambda t: churning(t, halves[int(t) // 13 % 2]), seconds=40))
    assert without.low_bytes is not None
    assert joined.low_bytes is not None
    assert joined.low_bytes > without.low_bytes
    assert joined.low_bytes >= EXPERTS


def test_a_broken_map_is_left_out() -> None:
    assert judge(window(lambda t: churning(t, "?"), seconds=40)).low_bytes is not None


def test_what_fits_is_what_is_there_while_parts_depart() -> None:
    memory = Memory(
        limit_bytes=31 * GIB, target_anon_bytes=2 * GIB, model_resident_bytes=19 * GIB, available_bytes=25 * GIB
    )
    assert derive_fits(Rates(), memory) == 25 * GIB
    assert derive_fits(Rates(departed_bytes_per_s=1e9, process_read_bytes_per_s=1e9), memory) == 19 * GIB
    assert derive_fits(Rates(), Memory()) is None


def test_what_is_on_the_gpu_is_not_needed() -> None:
    def change(t: float) -> dict[str, Any]:
        return {**churning(t), "residency": scan(resident_bytes=19 * GIB, not_needed_expert_bytes=30 * GIB)}

    found = judge(window(change, seconds=40))
    assert found.high_bytes is not None
    assert header().model is not None
    assert found.high_bytes <= 29 * GIB
