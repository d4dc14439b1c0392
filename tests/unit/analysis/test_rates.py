import pytest
from msgspec.structs import replace

from moewatch.analysis.rates import Best, derive_best, derive_rates, tokens_between
from moewatch.domain.frame import Method, Rates
from moewatch.domain.sample import Device, Phase, Sample
from moewatch.units import MB
from tests.support.readings import GB, sample, window

ACTIVE = 2 * GB


def test_rates_of_the_last_ten_seconds() -> None:
    # a storm in the first ten seconds must not show in the rates of the next ten
    made = window(
        sample(
            t,
            read=(1000 if t > 10 else 100 * t) * MB + max(0, t - 10) * 20 * MB,
            device=5000 * MB + (1000 if t > 10 else 100 * t) * MB + max(0, t - 10) * 50 * MB,
            resident=GB,
            evicted=0,
            majflt=30 * t,
            cpu_s=0.5 * t,
            tokens=4 * t,
            stalled_s=0.1 * t,
            refaults=0,
        )
        for t in range(21)
    )
    rates = derive_rates(made, ACTIVE, None)
    assert rates.window_ns == 10 * 10**9
    assert rates.process_read_bytes_per_s == pytest.approx(20 * MB)
    assert rates.device_read_bytes_per_s == pytest.approx(50 * MB)
    assert rates.other_read_bytes_per_s == pytest.approx(30 * MB)
    assert rates.reread_bytes_per_s == pytest.approx(20 * MB)
    assert rates.departed_bytes_per_s == pytest.approx(20 * MB)
    assert rates.first_read_bytes_per_s == 0
    assert rates.refault_bytes_per_s == 0
    assert rates.majflt_per_s == pytest.approx(30)
    assert rates.cpu_ratio == pytest.approx(0.5)
    assert rates.memory_stall_ratio == pytest.approx(0.1)
    assert rates.io_stall_ratio is None
    assert rates.tokens_per_s == pytest.approx(4)
    assert rates.read_bytes_per_token == pytest.approx(5 * MB)
    assert rates.majflt_per_token == pytest.approx(7.5)
    assert rates.miss_ratio == pytest.approx(5 * MB / ACTIVE)
    assert rates.mean_request_bytes == pytest.approx(128 * 1024, rel=0.01)
    assert rates.method is Method.LEDGER


def test_one_sample_gives_no_rate() -> None:
    rates = derive_rates(window([sample(0, read=5, majflt=5)]), ACTIVE, None)
    assert rates == Rates()


@pytest.mark.parametrize("field", ["majflt", "device", "tokens", "stalled_s", "refaults", "machine_refaults"])
def test_a_counter_that_went_back_is_unknown_and_never_negative(field: str) -> None:
    values = {"read": 100, "majflt": 100, "device": 100, "tokens": 100, "stalled_s": 1.0, "refaults": 100}
    made = window([sample(0, **{**values, field: 1000}), sample(5, **{**values, field: 10})])
    rates = derive_rates(made, ACTIVE, None)
    assert len(made.samples) == 2
    by_field = {
        "majflt": rates.majflt_per_s,
        "device": rates.device_read_bytes_per_s,
        "tokens": rates.tokens_per_s,
        "stalled_s": rates.memory_stall_ratio,
        "refaults": rates.refault_bytes_per_s,
        "machine_refaults": None,
    }
    assert by_field[field] is None


def test_a_disk_without_a_row_is_unknown() -> None:
    two = (Device(name="sda"), Device(name="sdb"))
    made = window([sample(0, read=0), sample(10, read=10)], devices=two)
    rates = derive_rates(made, ACTIVE, None)
    assert rates.device_read_bytes_per_s is None
    assert rates.other_read_bytes_per_s is None
    assert rates.process_read_bytes_per_s == 1


def test_others_read_nothing_less_than_zero() -> None:
    rates = derive_rates(window([sample(0, read=0), sample(10, read=100, device=90)]), ACTIVE, None)
    assert rates.other_read_bytes_per_s == 0


def test_tokens_count_over_the_time_in_which_the_server_generated() -> None:
    made = window(
        sample(t, tokens=max(0, t - 6) * 10, phase=Phase.GENERATE if t > 6 else Phase.IDLE) for t in range(11)
    )
    assert derive_rates(made, ACTIVE, None).tokens_per_s == pytest.approx(10)


def test_a_first_answer_after_the_first_sample_hides_no_rate() -> None:
    made = window(
        sample(t, read=t * 40 * MB, tokens=None if t < 2 else t * 10, phase=Phase.GENERATE if t > 1 else Phase.UNKNOWN)
        for t in range(11)
    )
    rates = derive_rates(made, ACTIVE, None)
    assert rates.tokens_per_s == pytest.approx(10)
    assert rates.read_bytes_per_token == pytest.approx(4 * MB)


def test_counters_that_move_when_a_request_ends_give_no_rate() -> None:
    def by_metrics(t: int) -> Sample:
        made = sample(t, tokens=100 * (t // 5))
        return replace(made, server=replace(made.server, source="metrics", phase=Phase.UNKNOWN))

    assert derive_rates(window(by_metrics(t) for t in range(11)), ACTIVE, None).tokens_per_s is None


def test_a_long_prompt_has_no_tokens_and_no_rate_per_token() -> None:
    made = window(sample(t, read=t * MB, tokens=5, phase=Phase.PROMPT) for t in range(11))
    rates = derive_rates(made, ACTIVE, None)
    assert rates.tokens_per_s == 0
    assert rates.read_bytes_per_token is None
    assert rates.miss_ratio is None


def test_tokens_that_began_again_are_unknown() -> None:
    assert tokens_between(sample(0, tokens=100), sample(1, tokens=3)) is None


def run(rate: float, n_active: int | None = 1, seconds: int = 11, start: int = 0) -> list[Sample]:
    return [sample(start + t, tokens=round(rate * t), n_active=n_active) for t in range(seconds)]


def best_after(samples: list[Sample], best: Best | None = None) -> Best | None:
    made = window(samples)
    return derive_best(made, made.samples[0].mono_ns, best)


def test_best_needs_twenty_tokens_at_one_number_of_requests() -> None:
    found = best_after(run(5))
    assert found is not None
    assert found.tokens_per_s == pytest.approx(5)
    assert found.n_active == 1
    assert best_after(run(1.5)) is None
    slow = best_after(run(1.5, seconds=21))
    assert slow is not None
    assert slow.tokens_per_s == pytest.approx(1.5)
    mixed = run(5)
    mixed[5] = sample(5, tokens=25, n_active=2)
    assert best_after(mixed) is None


def test_best_only_grows_but_begins_anew_for_another_number_of_requests() -> None:
    best = best_after(run(5))
    assert best_after(run(4), best) is best
    faster = best_after(run(6), best)
    assert faster is not None
    assert faster.tokens_per_s == pytest.approx(6)
    other = best_after(run(4, n_active=2), best)
    assert other is not None
    assert other.tokens_per_s == pytest.approx(4)
    assert other.n_active == 2


def test_without_a_model_there_is_no_miss_ratio() -> None:
    samples = [sample(t, read=t * MB, resident=GB, evicted=0, tokens=t) for t in range(11)]
    assert derive_rates(window(samples), None, None).miss_ratio is None
    assert derive_rates(window(samples), ACTIVE, None).miss_ratio == pytest.approx(MB / ACTIVE)
