"""Options of llama-server under all their names: the last one counts."""

import pytest

from moewatch.analysis import flags


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (("s", "-c", "4096"), "4096"),
        (("s", "--ctx-size", "8192"), "8192"),
        (("s", "--ctx-size=8192"), "8192"),
        (("s", "-c", "4096", "--ctx-size", "8192"), "8192"),
        (("s", "-c"), None),
        (("s",), None),
        ((), None),
    ],
)
def test_the_last_value_counts(argv: tuple[str, ...], wanted: str | None) -> None:
    assert flags.value_of(argv, flags.CONTEXT) == wanted


def test_a_value_that_is_no_number_is_none() -> None:
    assert flags.number_of(("s", "-ngl", "all"), flags.GPU_LAYERS) is None


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (("s", "--n-cpu-moe", "20"), (20, "--n-cpu-moe 20")),
        (("s", "--cpu-moe"), (36, "--cpu-moe")),
        (("s", "-ot", ".ffn_.*_exps.=CPU"), (36, "-ot .ffn_.*_exps.=CPU")),
        (("s", "-ot", "attn=CUDA0"), None),
        (("s",), None),
    ],
)
def test_experts_that_argv_keeps_on_the_cpu(argv: tuple[str, ...], wanted: tuple[int, str] | None) -> None:
    assert flags.experts_on_cpu(argv, 36) == wanted


@pytest.mark.parametrize(
    ("argv", "off"),
    [(("s", "-ngl", "0"), True), (("s", "--device", "none"), True), (("s", "-ngl", "99"), False), (("s",), False)],
)
def test_argv_can_forbid_the_gpu(*, argv: tuple[str, ...], off: bool) -> None:
    assert flags.keeps_off_gpu(argv) is off
