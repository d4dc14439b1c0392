"""Any bytes from a web server, any metadata and any names: a value or one sentence, never another exception."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.analysis.kvcache import KV_TYPES, derive_kv_cache, trained_context
from moewatch.clock import SystemClock
from moewatch.errors import MoewatchError
from moewatch.modelfile.choices import choose, group_models
from moewatch.modelfile.fetcher import Fetcher
from moewatch.modelfile.hub import download_url, parse_short, repository_of
from moewatch.modelfile.layout import derive_layout
from moewatch.modelfile.remote import read_remote_shards
from moewatch.server.gpus import parse_devices
from moewatch.server.installed import parse_flags
from tests.support.range_server import RangeServer, Request

KEYS = (
    "context_length", "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers", "ssm.inner_size",
    "attention.kv_lora_rank", "attention.key_length_mla", "ssm.state_size", "ssm.conv_kernel", "nextn_predict_layers",
    "full_attention_interval", "attention.recurrent_layers", "feed_forward_length", "wkv.head_size", "shortconv.l_cache",
)  # fmt: skip
ARCHITECTURES = ("llama", "gemma3", "gemma3n", "gpt-oss", "llama4", "deepseek2", "qwen3next", "granitehybrid", "rwkv7",
                 "nemotron_h", "falcon-h1", "lfm2", "smallthinker", "unheard-of")  # fmt: skip
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(0, 9)
VALUES = NUMBERS | st.booleans() | st.floats() | st.text() | st.lists(NUMBERS | st.booleans(), max_size=9).map(tuple)


@given(
    architecture=st.sampled_from(ARCHITECTURES),
    values=st.dictionaries(st.sampled_from(KEYS), VALUES),
    n_layer=st.integers(0, 12),
    context=st.integers(1, 1 << 27),
    kv_type=st.sampled_from(sorted(KV_TYPES)),
)
def test_any_metadata_gives_a_cache_or_nothing(
    architecture: str, values: dict[str, Any], n_layer: int, context: int, kv_type: str
) -> None:
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    found = derive_kv_cache(metadata, architecture, n_layer, context, kv_type)
    if found is not None:
        assert len(found.layer_bytes) == n_layer
        assert all(size >= 0 for size in found.layer_bytes)
        assert sum(found.kinds.values()) == n_layer
    trained = trained_context(metadata, architecture)
    assert trained is None or 0 < trained <= 1 << 27


@settings(max_examples=60)
@given(
    body=st.binary(max_size=300),
    status=st.sampled_from([200, 204, 206, 206, 206, 301, 302, 304, 400, 416]),
    said=st.sampled_from(["bytes 0-99/100", "bytes 0-9/4096", "bytes */5", ""])
    | st.text("bytes 0123456789-/", max_size=20),
    location=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30).map(lambda text: "/m" + text),
)
def test_any_reply_is_one_sentence(body: bytes, status: int, said: str, location: str) -> None:
    def answer(request: Request) -> None:
        request.reply(status, body, Content_Range=said, Location=location)

    class Clock(SystemClock):
        def sleep_until(self, mono_ns: int, stop: object = None) -> bool:  # noqa: ARG002 - the protocol's
            return False

    with RangeServer() as server, Fetcher(Clock()) as fetcher:
        server.routes["/m.gguf"] = answer
        try:
            derive_layout(read_remote_shards(fetcher, server.url("m.gguf"), Clock()))
        except MoewatchError as error:
            assert "\n" not in str(error)  # noqa: PT017 - both ends are right


@given(
    st.dictionaries(
        st.text(max_size=60) | st.from_regex(r"[ab/]{0,4}-0000\d-of-0000\d\.gguf", fullmatch=True), st.none()
    )
)
def test_any_names_are_grouped(names: dict[str, int | None]) -> None:
    choices = group_models(names)
    assert sum(len(choice.paths) for choice in choices) <= len(names)
    try:
        choose(choices, "", "o/r")
    except MoewatchError:
        assert not choices


@given(st.text(max_size=200))
def test_any_text_is_parsed(text: str) -> None:
    parse_devices(text)
    parse_flags(text)
    repository_of(text, "https://hub.example")
    assert download_url(text, "https://hub.example") == text
    try:
        parse_short(text, "https://hub.example")
    except MoewatchError as error:
        assert error.exit_code == 2  # noqa: PT017 - both ends are right
