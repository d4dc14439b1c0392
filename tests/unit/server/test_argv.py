"""llama-server's command line and environment, and what must never be stored of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moewatch.domain.sample import LoadMode
from moewatch.server.argv import ALL_LAYERS, Options, parse_options, redact_argv


def parse(text: str, **environ: str) -> Options:
    return parse_options(["llama-server", *text.split()], environ)


@pytest.mark.parametrize("text", ["-m /m.gguf --port 9001 --host ::1", "--model=/m.gguf --port=9001 --host=::1"])
def test_both_spellings_of_a_value(text: str) -> None:
    options = parse(text)
    assert (options.model, options.port, options.host) == ("/m.gguf", 9001, "::1")


def test_underscores_count_as_hyphens_and_the_last_word_wins() -> None:
    options = parse("--n_gpu_layers 5 -c 100 --ctx-size 4096 -np 4 -t 8 --metrics --no-slots")
    assert (options.gpu_layers, options.context, options.parallel, options.threads) == (5, 4096, 4, 8)
    assert options.has_metrics
    assert not options.has_slots


@pytest.mark.parametrize(
    ("text", "layers"),
    [("-ngl 0", 0), ("-ngl 99", 99), ("-ngl all", ALL_LAYERS), ("-ngl auto", None), ("-ngl -1", None), ("", None)],
)
def test_gpu_layers(text: str, layers: int | None) -> None:
    assert parse(text).gpu_layers == layers
    assert parse(text).is_gpu_disabled is (layers == 0)


def test_device_none_disables_the_gpu() -> None:
    assert parse("-ngl 99 --device none").is_gpu_disabled
    assert not parse("-ngl 99 -dev Vulkan0").is_gpu_disabled


def test_overrides_keep_their_order() -> None:
    options = parse("-ot blk\\.0\\.=CUDA0,.ffn_.*_exps.=CPU -ncmoe 2 -cmoe")
    assert [buffer for _, buffer in options.overrides] == ["CUDA0", "CPU", "CPU", "CPU"]
    assert options.overrides[0][0] == "blk\\.0\\."
    assert "(0|1)" in options.overrides[2][0]
    assert options.n_cpu_moe == 2
    assert options.is_cpu_moe


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", None),
        ("-lm auto", None),
        ("-lm none", LoadMode.NONE),
        ("--load-mode mmap+mlock", LoadMode.MMAP_MLOCK),
        ("--mlock", LoadMode.MLOCK),
        ("--no-mmap", LoadMode.NONE),
        ("--no-mmap --mlock", LoadMode.MLOCK),
        ("--mmap --mlock", LoadMode.MMAP_MLOCK),
        ("-dio", LoadMode.DIO),
        ("-dio -ndio", None),
        ("--mlock -lm dio", LoadMode.DIO),
        ("-lm dio -lm mmap", LoadMode.MMAP),
    ],
)
def test_asked_load_mode(text: str, mode: LoadMode | None) -> None:
    assert parse(text).load_mode is mode


def test_the_environment_fills_in_and_the_command_line_wins() -> None:
    options = parse(
        "--port 81", LLAMA_ARG_PORT="80", LLAMA_ARG_MODEL="/m.gguf", LLAMA_ARG_CPU_MOE="1", LLAMA_ARG_MLOCK="0"
    )
    assert (options.port, options.model, options.is_cpu_moe, options.load_mode) == (81, "/m.gguf", True, None)


def test_of_several_keys_the_first_is_used() -> None:
    assert parse("--api-key one,two").api_key == "one"


def test_sleep_and_router() -> None:
    assert parse("--sleep-idle-seconds 60").may_sleep
    assert not parse("--sleep-idle-seconds -1").may_sleep
    assert parse("--models-dir /srv").is_router


@pytest.mark.parametrize(
    "text", ["-m", "--port", "--port 99999999", "--port ٣", "-ngl 1_0", "-ot =", "-ncmoe x", "--=", "-"]
)
def test_nonsense_counts_as_not_said(text: str) -> None:
    options = parse(text)
    assert options.port is None
    assert options.gpu_layers is None
    assert options.overrides == ()


@given(st.lists(st.text(max_size=30), max_size=12))
def test_any_words_give_options(words: list[str]) -> None:
    assert isinstance(parse_options(words), Options)
    assert len(redact_argv(words)) == len(words)


def test_secrets_are_redacted_and_nothing_else() -> None:
    argv = [
        "llama-server",
        "-m",
        "/m.gguf",
        "--api-key",
        "abc",
        "--hf-token=xyz",
        "-hft",
        "tok",
        "--db-password",
        "p",
        "--port",
        "80",
    ]
    hidden = redact_argv(argv)
    assert hidden == (
        "llama-server", "-m", "/m.gguf", "--api-key", "***", "--hf-token=***", "-hft", "***", "--db-password", "***", "--port", "80",
    )  # fmt: skip


def test_secrets_in_other_places() -> None:
    argv = [
        "env",
        "LLAMA_API_KEY=abc",
        "--API_KEY",
        "-dashed",
        "-mu",
        "https://me:pw@host/m.gguf",
        "--mcp-servers-json",
        '{"h":1}',
    ]
    assert redact_argv(argv) == (
        "env", "LLAMA_API_KEY=***", "--API_KEY", "***", "-mu", "https://***@host/m.gguf", "--mcp-servers-json", "***",
    )  # fmt: skip


@given(
    st.text(alphabet="abcXYZ0123456789-_", min_size=8, max_size=40),
    st.sampled_from(["--api-key", "--hf-token", "-hft", "--my-Secret"]),
)
def test_a_secret_never_survives(secret: str, option: str) -> None:
    if secret.startswith("--"):
        secret = "x" + secret
    assert secret not in " ".join(redact_argv(["llama-server", option, secret, "--port", "1"]))
    assert secret not in " ".join(redact_argv(["llama-server", f"{option}={secret}"]))
