"""The search finds the fastest that fits on machines that are made up, in few runs."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moewatch.analysis import flags, tuning
from moewatch.analysis.tuning import Candidate, Trial

Machine = Callable[[int], float | None]


def run(machine: Machine, step: Callable[[dict[int, float | None]], int | None]) -> dict[int, float | None]:
    measured: dict[int, float | None] = {}
    while (value := step(measured)) is not None:
        assert value not in measured, "nothing is tried twice"
        measured[value] = machine(value)
    return measured


def fastest(measured: dict[int, float | None]) -> int | None:
    ran = {value: rate for value, rate in measured.items() if rate is not None}
    return max(ran, key=lambda value: ran[value]) if ran else None


def gpu(edge: int) -> Machine:
    """Faster with more on the GPU, until it is full."""
    return lambda n_cpu_moe: 40.0 - 0.5 * n_cpu_moe if n_cpu_moe >= edge else None


@given(n_layer=st.integers(1, 100), edge=st.integers(0, 100), guess=st.integers(0, 100))
def test_splits_end_near_the_edge_in_six_runs(n_layer: int, edge: int, guess: int) -> None:
    edge, guess = min(edge, n_layer), min(guess, n_layer)
    measured = run(gpu(edge), lambda m: tuning.next_split(m, n_layer, guess))
    assert len(measured) <= tuning.MAX_RUNS
    assert all(0 <= value <= n_layer for value in measured)
    assert next(iter(measured)) == guess
    best = fastest(measured)
    assert best is not None
    assert edge <= best <= edge + max(1, n_layer // 16, n_layer // 2**4)


def test_a_driver_that_swaps_is_over_the_edge_too() -> None:
    def swapping(n_cpu_moe: int) -> float:
        return 40.0 - 0.5 * n_cpu_moe if n_cpu_moe >= 20 else 3.0 + 0.1 * n_cpu_moe

    for guess in (18, 20, 30):
        best = fastest(run(swapping, partial(tuning.next_split, n_layer=48, guess=guess)))
        assert best is not None
        assert 20 <= best <= 24


def test_where_nothing_runs_the_search_ends() -> None:
    measured = run(lambda _: None, lambda m: tuning.next_split(m, 48, 20))
    assert list(measured) == [20, 48]


def test_threads_are_yours_the_cores_half_and_all_of_them() -> None:
    assert tuning.first_threads(8, 16, 12) == (12, 8, 4, 16)
    assert tuning.first_threads(2, 2, None) == (2, 1)
    assert tuning.first_threads(None, None, None) == (1,)


@pytest.mark.parametrize("peak", [3, 6, 8, 12, 16])
def test_threads_end_near_the_peak(peak: int) -> None:
    measured = run(
        lambda threads: 20.0 - abs(threads - peak), lambda m: tuning.next_threads(m, tuning.first_threads(8, 16, None))
    )
    best = fastest(measured)
    assert len(measured) <= tuning.MAX_RUNS
    assert best is not None
    assert abs(best - peak) <= 2


def trial(threads: int, *rates: float, failed: str | None = None) -> Trial:
    return Trial(candidate=Candidate(((flags.THREADS, threads),)), command=(), tokens_per_s=rates, failed=failed)


def test_the_best_two_run_again_the_slower_first() -> None:
    trials = [trial(1, 5.0), trial(2, 9.0), trial(4, 8.0), trial(8, failed="it ended")]
    assert [t.tokens_per_s for t in tuning.finalists(trials)] == [(8.0,), (9.0,)]
    assert tuning.finalists([trial(8, failed="it ended")]) == ()


def test_the_best_is_by_the_mean_and_near_ones_are_named() -> None:
    trials = [trial(1, 5.0), trial(2, 9.0, 9.2), trial(4, 10.0, 8.0), trial(8, failed="it ended")]
    best = tuning.best_of(trials)
    assert best is trials[1]
    assert tuning.close_to(best, trials) == (trials[2],)
    assert tuning.best_of([trials[3]]) is None


def test_a_candidate_replaces_the_option_under_all_its_names() -> None:
    both = Candidate(((flags.N_CPU_MOE, 20), (flags.THREADS, 8)))
    said = ["-m", "x", "-t", "4", "--n-cpu-moe=7", "-ncmoe", "9", "-c", "4096"]
    assert both.applied(said) == ["-m", "x", "-c", "4096", "--n-cpu-moe", "20", "--threads", "8"]
    assert both.label == "--n-cpu-moe 20 --threads 8"


def test_the_search_goes_on_from_the_best_so_far() -> None:
    split = Candidate(((flags.N_CPU_MOE, 20),))
    trials = [Trial(candidate=split, command=(), tokens_per_s=(9.0,))]
    following = tuning.search(lambda m: tuning.next_threads(m, (8, 4)), flags.THREADS, split, trials)
    assert following is not None
    assert following.label == "--n-cpu-moe 20 --threads 8"
    trials.append(Trial(candidate=following, command=(), tokens_per_s=(10.0,)))
    last = tuning.search(lambda m: tuning.next_threads(m, (8, 4)), flags.THREADS, following, trials)
    assert last is not None
    assert last.label == "--n-cpu-moe 20 --threads 4"


@pytest.mark.parametrize("words", [("-ot", ".ffn_.*_exps.=CPU"), ("-cmoe",), ("-ngl", "0"), ("--device", "none")])
def test_experts_that_are_placed_already_are_not_moved(words: tuple[str, ...]) -> None:
    assert tuning.split_conflict(words)
    assert tuning.split_conflict(("-ngl", "99")) is None
