"""The context's memory by arithmetic that a person can follow; tests/live/test_estimate.py asks the real server."""

from typing import Any

import pytest

from moewatch.analysis.kvcache import KV_TYPES, derive_kv_cache, trained_context

EMBD, HEADS = 4096, 32


def cache(architecture: str, n_layer: int, context: int = 4096, kv_type: str = "f16", **keys: Any) -> Any:
    common: dict[str, Any] = {"embedding_length": EMBD, "attention.head_count": HEADS}
    metadata = {f"{architecture}.{key}": value for key, value in (common | keys).items()}
    return derive_kv_cache(metadata, architecture, n_layer, context, kv_type)


def more(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys that are no Python names."""
    return keys


def gqa(kv_heads: Any = 8, head: int = 128) -> dict[str, Any]:
    return {"attention.head_count_kv": kv_heads, "attention.key_length": head, "attention.value_length": head}


def test_grouped_queries() -> None:
    assert cache("qwen3moe", 48, **gqa(4)).total_bytes == 48 * 4096 * 2 * 4 * 128 * 2


def test_defaults_of_what_is_not_said() -> None:
    assert cache("llama", 2).total_bytes == 2 * 4096 * 2 * EMBD * 2


@pytest.mark.parametrize(("kv_type", "row_bytes"), [("f32", 512), ("f16", 256), ("q8_0", 136), ("q4_0", 72)])
def test_types(kv_type: str, row_bytes: int) -> None:
    assert kv_type in KV_TYPES
    assert cache("llama", 1, 256, kv_type, **gqa(1)).total_bytes == 256 * 2 * row_bytes


def test_a_context_is_rounded_up() -> None:
    assert cache("llama", 1, 4097, **gqa(1)).context == 4352


def test_windows_by_period() -> None:
    found = cache("gemma3", 12, 32768, **gqa(1), **more({"attention.sliding_window": 1024}))
    assert found.kinds == {"window": 10, "full": 2}
    assert found.layer_bytes[0] == 1536 * 512
    assert found.layer_bytes[5] == 32768 * 512


def test_windows_by_the_headers_own_pattern() -> None:
    found = cache("gemma4", 3, 8192, **gqa(1), **more({
        "attention.sliding_window": 512, "attention.sliding_window_pattern": (True, False, True),
        "attention.key_length_swa": 64, "attention.value_length_swa": 64}))  # fmt: skip
    assert found.layer_bytes == (1024 * 256, 8192 * 512, 1024 * 256)


def test_a_window_larger_than_the_context_costs_no_more() -> None:
    assert cache("gpt-oss", 2, 256, **gqa(1), **more({"attention.sliding_window": 128})).layer_bytes == (
        256 * 512,
        256 * 512,
    )


def test_the_full_layer_comes_first_in_some() -> None:
    found = cache("smallthinker", 8, 8192, **gqa(1), **more({"attention.sliding_window": 512}))
    assert [size == 8192 * 512 for size in found.layer_bytes] == [True, False, False, False] * 2


def test_a_window_that_llama_cpp_ignores() -> None:
    assert cache("qwen2", 2, 8192, **gqa(1), **more({"attention.sliding_window": 512})).kinds == {"full": 2}


def test_chunks_that_no_header_mentions() -> None:
    found = cache("llama4", 4, 65536, **gqa(1))
    assert found.layer_bytes == ((8192 + 512) * 512,) * 3 + (65536 * 512,)


def test_latent_attention_keeps_one_vector_a_token() -> None:
    found = cache("deepseek2", 61, 4096, **more({
        "attention.head_count_kv": 1, "attention.kv_lora_rank": 512, "attention.key_length_mla": 192,
        "rope.dimension_count": 64}))  # fmt: skip
    assert found.total_bytes == 61 * 4096 * 576 * 2
    assert found.kinds == {"latent": 61}


def test_states_have_a_fixed_size() -> None:
    keys: dict[str, Any] = {"ssm.conv_kernel": 4, "ssm.inner_size": 3072, "ssm.state_size": 128, "ssm.group_count": 1}
    short, long = (cache("granitehybrid", 3, n, **gqa((0, 4, 0)), **keys) for n in (4096, 8192))
    assert short.kinds == {"recurrent": 2, "full": 1}
    assert short.layer_bytes[0] == long.layer_bytes[0] == (3 * (3072 + 256) + 128 * 3072) * 4
    assert long.layer_bytes[1] == 2 * short.layer_bytes[1]


def test_every_fourth_layer_attends() -> None:
    keys: dict[str, Any] = {"ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16}
    assert cache("qwen3next", 48, **gqa(2, 256), **keys).kinds == {"recurrent": 36, "full": 12}
    assert cache("qwen35moe", 8, **gqa(2), **keys, full_attention_interval=2).kinds == {"recurrent": 4, "full": 4}


def test_layers_of_experts_alone_keep_nothing() -> None:
    keys: dict[str, Any] = {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "feed_forward_length": (0, 0, 1856),
    }
    assert cache("nemotron_h_moe", 3, **gqa((0, 2, 0)), **keys).kinds == {"recurrent": 1, "full": 1, "none": 1}


def test_recurrent_all_through() -> None:
    assert cache("rwkv7", 2, **more({"wkv.head_size": 64})).total_bytes == 2 * (2 * EMBD + EMBD * 64) * 4


def test_layers_that_share_or_only_draft_keep_nothing() -> None:
    assert cache("gemma3n", 30, **gqa(1)).kinds == {"full": 20, "none": 10}
    assert cache("gemma4", 10, **gqa(1), **more({"attention.shared_kv_layers": 4})).kinds == {"full": 6, "none": 4}
    assert cache("glm4moe", 3, **gqa(1), nextn_predict_layers=1).kinds == {"full": 2, "none": 1}


def test_what_is_not_said_is_unknown() -> None:
    assert derive_kv_cache({}, "llama", 2, 4096) is None
    assert cache("mamba", 2) is None


def test_trained_context() -> None:
    assert trained_context({"a.context_length": 32768}, "a") == 32768
    assert trained_context({"a.context_length": 1 << 40}, "a") is None
    assert trained_context({"a.context_length": "long"}, "a") is None
