"""From a model and a machine to a placement, a speed and a command: properties that hold for any figures."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moewatch.analysis import flags
from moewatch.analysis.estimate import best_fit, derive_estimate
from moewatch.analysis.prior import derive_prior
from moewatch.domain.estimate import Estimate, LayerBytes, Machine, ModelParts, Range
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.export.estimate import WIDTH, answer, estimate_json, format_comparison, format_estimate
from moewatch.units import GIB, MIB

KEYS = {
    "x.embedding_length": 2048,
    "x.attention.head_count": 16,
    "x.attention.head_count_kv": 4,
    "x.context_length": 32768,
}


def moe(expert_gib: float = 16, dense_gib: float = 1, n_layer: int = 8, n_used: int = 8, **changes: Any) -> ModelParts:
    dense, expert = int(dense_gib * GIB / n_layer), int(expert_gib * GIB / n_layer)
    layers = tuple(
        LayerBytes(layer=i, dense_bytes=dense, router_bytes=MIB, expert_bytes=expert) for i in range(n_layer)
    )
    outside, table = 300 * MIB, 300 * MIB
    n_expert = 128 if expert_gib else 0
    summary = ModelSummary(
        files=(ModelFile(name="m.gguf", size_bytes=n_layer * (dense + expert) + outside + table, mtime_ns=0),),
        total_bytes=n_layer * (dense + expert) + outside + table,
        expert_bytes=n_layer * expert,
        dense_bytes=n_layer * dense + outside,
        embedding_bytes=table,
        architecture="x",
        n_layer=n_layer,
        n_expert=n_expert,
        n_expert_used=n_used if n_expert else 0,
        name="A model",
        quantisation="Q4_K_M",
    )
    given: dict[str, Any] = {
        "summary": summary,
        "layers": layers,
        "outside_bytes": outside,
        "table_bytes": table,
        "type_bytes": {"Q4_K": summary.total_bytes},
        "n_tensors": 100,
        "tensor_bytes": summary.total_bytes,
        "header_bytes": 9 * MIB,
        "slice_bytes": MIB if n_expert else None,
        "n_vocab": 150_000,
        "metadata": KEYS,
    }
    return ModelParts(**(given | changes))


def machine(room_gib: float = 32, vram_gib: float = 0, disk: float = 1e9, **changes: Any) -> Machine:
    given: dict[str, Any] = {
        "ram_bytes": int(room_gib * GIB),
        "room_bytes": int(room_gib * GIB),
        "vram_bytes": int(vram_gib * GIB),
        "vram_room_bytes": int(vram_gib * GIB),
        "disk_bytes_per_s": Range(disk, disk),
        "n_cores": 8,
        "n_threads": 16,
    }
    return Machine(**(given | changes))


def words(estimate: Estimate) -> list[str]:
    return [word for flag in estimate.flags for word in flag.words]


class TestPrior:
    """The rule of thumb."""

    @pytest.mark.parametrize(
        ("ram_gib", "band"), [(11.3, "fits"), (11.1, "fluctuates"), (6.5, "fluctuates"), (6.3, "poor")]
    )
    def test_bands(self, ram_gib: float, band: str) -> None:
        prior = derive_prior(moe(16), int(ram_gib * GIB))
        assert prior is not None
        assert prior.band == band
        assert prior.ratio == pytest.approx(ram_gib / 16)

    def test_a_dense_model_needs_all_of_it(self) -> None:
        needed = moe(0, 8).summary.dense_bytes
        assert needed is not None
        assert [getattr(derive_prior(moe(0, 8), size), "band", "") for size in (needed, needed - 1)] == ["fits", "poor"]


class TestPlacement:
    """What goes where."""

    def test_without_a_gpu_all_is_on_the_host(self) -> None:
        placed = derive_estimate(moe(), machine()).placement
        assert (placed.n_gpu_layers, placed.n_cpu_moe, placed.gpu_bytes) == (0, None, 0)

    def test_dense_weights_first_then_layers_of_experts(self) -> None:
        placed = derive_estimate(moe(16), machine(vram_gib=8)).placement
        assert placed.n_gpu_layers == 9
        assert placed.n_cpu_moe == 6  # two layers of 2 GiB beside 1.3 of dense weights, cache and buffers
        assert placed.host_dense_bytes == 0

    def test_all_of_it(self) -> None:
        estimate = derive_estimate(moe(16), machine(vram_gib=48))
        assert estimate.placement.n_cpu_moe == 0
        assert estimate.placement.host_expert_bytes == 0
        assert "--n-cpu-moe" not in words(estimate)

    def test_a_small_gpu_takes_some_layers_and_no_experts(self) -> None:
        placed = derive_estimate(moe(16, 4), machine(vram_gib=3)).placement
        assert 0 < placed.n_gpu_layers < 9
        assert placed.n_cpu_moe == 8
        assert placed.gpu_expert_bytes == 0

    @given(expert=st.floats(0, 200), dense=st.floats(0.1, 40), n_layer=st.integers(1, 100), vram=st.floats(0, 100))
    def test_never_more_than_there_is_and_nothing_lost(
        self, expert: float, dense: float, n_layer: int, vram: float
    ) -> None:
        parts = moe(expert, dense, n_layer)
        placed = derive_estimate(parts, machine(vram_gib=vram)).placement
        assert placed.gpu_bytes <= max(0, vram * GIB)
        assert placed.host_dense_bytes + placed.gpu_dense_bytes == parts.summary.dense_bytes
        assert placed.host_expert_bytes + placed.gpu_expert_bytes == parts.summary.expert_bytes
        assert 0 <= placed.n_gpu_layers <= n_layer + 1
        assert placed.n_cpu_moe is None or 0 <= placed.n_cpu_moe <= n_layer

    def test_layers_that_only_draft_are_not_loaded(self) -> None:
        parts = moe()
        layers = (*parts.layers, LayerBytes(layer=8, dense_bytes=5 * GIB, expert_bytes=5 * GIB, draft=True))
        with_draft = derive_estimate(moe(layers=layers), machine(vram_gib=48))
        assert with_draft.placement.gpu_dense_bytes == parts.summary.dense_bytes
        assert with_draft.placement.n_gpu_layers == 10
        assert any("only draft" in warning for warning in with_draft.warnings)


class TestSpeed:
    """Tokens per second."""

    def test_what_fits_reads_nothing(self) -> None:
        found = derive_estimate(moe(), machine(32)).expectation
        assert (found.cached_ratio, found.missing_bytes_per_token) == (1.0, Range(0.0, 0.0))
        assert found.disk_ratio.high == 0

    def test_the_fit_that_the_assumption_comes_from(self) -> None:
        """MB re-read per token where 100 MB of experts are used (8 of 128 of 1.61 GB, slices of 524 KB)."""
        parts = moe(1.5, 0.05, slice_bytes=524288)
        dense = (parts.summary.dense_bytes or 0) / GIB
        measured = {0.7: 3.9, 0.5: 12.6, 0.3: 37}
        for share, mega in measured.items():
            anon = derive_estimate(parts, machine()).placement.host_anon_bytes / GIB
            found = derive_estimate(parts, machine(dense + 1.5 * share + anon)).expectation.missing_bytes_per_token
            assert found.low / 1e6 < mega < found.high / 1e6

    @given(
        room=st.floats(0.5, 40), disk=st.floats(1e7, 1e10), used=st.integers(1, 128), vram=st.sampled_from([0.0, 6.0])
    )
    def test_more_memory_or_a_faster_disk_never_makes_it_slower(
        self, room: float, disk: float, used: int, vram: float
    ) -> None:
        parts = moe(16, 1, n_used=used)
        base = derive_estimate(parts, machine(room, vram, disk)).expectation
        assert 0 < base.tokens_per_s.low <= base.tokens_per_s.high
        assert 0 < base.first_token_s.low <= base.first_token_s.high
        faster = derive_estimate(parts, machine(room, vram, 2 * disk)).expectation
        assert faster.tokens_per_s.low >= base.tokens_per_s.low * (1 - 1e-9)
        assert faster.tokens_per_s.high >= base.tokens_per_s.high * (1 - 1e-9)
        everything = derive_estimate(parts, machine(64, vram, disk)).expectation
        assert everything.tokens_per_s.high >= base.tokens_per_s.high * (1 - 1e-9)

    @pytest.mark.parametrize("dense_gib", [0.05, 1, 4])
    @pytest.mark.parametrize("vram_gib", [0, 2, 6, 12, 24])
    @pytest.mark.parametrize("used", [1, 8, 32, 128])
    def test_more_memory_never_makes_it_slower_at_any_step(self, used: int, vram_gib: float, dense_gib: float) -> None:
        """Where one token's weights just fit there was a step the wrong way when the dense ones were on the GPU."""
        parts = moe(16, dense_gib, n_used=used)
        found = [derive_estimate(parts, machine(room / 4, vram_gib)).expectation for room in range(1, 100)]
        for less, more in pairwise(found):
            assert more.tokens_per_s.low >= less.tokens_per_s.low * (1 - 1e-9)
            assert more.tokens_per_s.high >= less.tokens_per_s.high * (1 - 1e-9)
            assert more.first_token_s.low <= less.first_token_s.low * (1 + 1e-9)
            assert more.first_token_s.high <= less.first_token_s.high * (1 + 1e-9)
            assert more.missing_bytes_per_token.high <= less.missing_bytes_per_token.high
        assert found[0].missing_bytes_per_token.low > 0 or vram_gib == 24

    def test_so_does_a_room_too_small_for_one_token(self) -> None:
        parts = moe(16, 4)
        used = parts.summary.active_bytes_per_token or 0
        anon = derive_estimate(parts, machine()).placement.host_anon_bytes / GIB
        above, below = (
            derive_estimate(parts, machine(used / GIB + anon + more)).expectation.missing_bytes_per_token
            for more in (0.05, -0.05)
        )
        assert below == Range(used / 2, used)
        assert above.high < below.low

    def test_a_dense_model_falls_off_a_cliff(self) -> None:
        parts = moe(0, 8)
        fits, nearly = (derive_estimate(parts, machine(room)).expectation for room in (12, 8))
        assert nearly.missing_bytes_per_token.low > 3 * GIB
        assert nearly.tokens_per_s.high < fits.tokens_per_s.low

    def test_one_token_after_the_other_of_a_long_prompt_reads_again(self) -> None:
        short, long = (
            derive_estimate(moe(), machine(8), prompt_tokens=n).expectation.first_token_s for n in (512, 4096)
        )
        assert long.low > 7 * short.low


class TestCommand:
    """The llama-server command."""

    def test_only_options_that_the_build_knows(self) -> None:
        old = {"-m", "-ngl", "--n-gpu-layers", "-t", "--threads", "-c", "--ctx-size", "-ot", "--override-tensor"}
        estimate = derive_estimate(moe(), machine(8, 8), knows=lambda name: name in old)
        used = [word for word in words(estimate) if re.fullmatch(r"--?[a-z].*", word)]
        assert set(used) == {"--n-gpu-layers", "--threads", "--ctx-size", "--override-tensor"}
        assert r"blk\.(0|1|2|3|4|5)\.ffn_.*_exps.=CPU" in words(estimate)

    def test_every_option_has_a_reason(self) -> None:
        estimate = derive_estimate(moe(), machine(8, 8), kv_type="q8_0")
        assert all(flag.reason for flag in estimate.flags)
        assert flags.value_of(tuple(words(estimate)), flags.THREADS) == "8"
        assert flags.value_of(tuple(words(estimate)), flags.CACHE_TYPE_V) == "q8_0"
        assert flags.value_of(tuple(words(estimate)), flags.FLASH_ATTENTION) == "on"
        assert flags.has(tuple(words(estimate)), flags.NO_REPACK)

    def test_warnings(self) -> None:
        short = derive_estimate(moe(), machine(8)).warnings
        assert any("--mlock" in warning for warning in short)
        assert any("hardware threads" in warning for warning in short)
        assert any("context does not fit" in w for w in derive_estimate(moe(), machine(0.2)).warnings)
        assert any("made for 32768" in w for w in derive_estimate(moe(), machine(), context=65536).warnings)
        assert derive_estimate(moe(), machine(32, n_threads=8)).warnings == ()


class TestWords:
    """Text and JSON."""

    @given(room=st.floats(0.1, 64), vram=st.sampled_from([0.0, 3.0, 8.0, 48.0]), expert=st.sampled_from([0.0, 16.0]))
    def test_a_page_is_80_columns_wide(self, room: float, vram: float, expert: float) -> None:
        estimate = derive_estimate(moe(expert), machine(room, vram))
        lines = format_estimate(estimate, ("-m", "model.gguf"))
        assert max(map(len, lines)) <= WIDTH
        assert all("None" not in line for line in lines)

    @pytest.mark.parametrize(
        ("room", "changes", "begins"),
        [
            (64, {}, "Yes: all of it fits in memory on that machine, about "),
            (64, {"taken_bytes": 0}, "Yes: all of it fits in memory here, about "),
            (12, {}, "It runs, but reads from disk: about "),
            (4, {"disk": 1e7}, "No: it would read from disk for every token, about "),
            (0.2, {}, "No: the server alone needs "),
        ],
    )
    def test_the_first_line_answers(self, room: float, changes: dict[str, Any], begins: str) -> None:
        estimate = derive_estimate(moe(), machine(room, **changes))
        assert answer(estimate).startswith(begins)
        assert answer(estimate).startswith(format_estimate(estimate, ("-m", "m"))[0])

    def test_a_wide_range_names_measure_where_that_was_not_used(self) -> None:
        here = derive_estimate(moe(), machine(64, taken_bytes=0))
        assert "--measure" in answer(here)
        assert "--measure" not in answer(derive_estimate(moe(), machine(64)))  # a described machine cannot be measured
        assert "--measure" not in answer(derive_estimate(moe(), machine(64, taken_bytes=0, memory_bytes_per_s=2e10)))

    @pytest.mark.parametrize(
        ("room", "rule"),
        [
            (64, "70 % of the experts or more it runs as from memory; here it is 100 %"),
            (8, "40 to 70 % of the experts its speed goes up and down; here it is 50 %"),
            (4, "less than 40 % of the experts it is not worth it; here it is 25 %"),
        ],
    )
    def test_the_rule_of_thumb_is_a_sentence(self, room: float, rule: str) -> None:
        page = " ".join(" ".join(format_estimate(derive_estimate(moe(), machine(room)), ("-m", "m"))).split())
        assert rule in page
        assert "dense" not in page

    def test_with_all_weights_on_the_gpu_memory_is_said_to_hold_none(self) -> None:
        page = " ".join(format_estimate(derive_estimate(moe(16), machine(vram_gib=48)), ("-m", "m")))
        assert "nothing: all weights are on the GPU" in page
        assert " 0 B" not in page

    def test_the_contracts_keys(self) -> None:
        found = estimate_json(derive_estimate(moe(), machine(8)), ("-m", "a b.gguf"))
        assert {"schema", "model", "kv_cache_bytes", "machine", "prior", "tokens_per_s", "first_token_s", "placement",
                "command", "warnings"} <= found.keys()  # fmt: skip
        assert str(found["command"]).startswith("llama-server -m 'a b.gguf' ")

    def test_the_best_of_several_is_the_largest_that_keeps_up(self) -> None:
        estimates = [derive_estimate(moe(size), machine(20)) for size in (4, 8, 12, 40)]
        assert best_fit(estimates) == 2
        assert best_fit([]) is None
        slow = [derive_estimate(moe(size), machine(2, disk=1e8)) for size in (20, 40)]
        assert best_fit(slow) == 0
        rows = [(f"m-{'x' * 40}-{i}.gguf", estimate) for i, estimate in enumerate(estimates)]
        lines = format_comparison(rows, 2)
        assert [line[0] for line in lines[1:]] == [" ", " ", ">", " "]
        assert max(map(len, lines)) <= WIDTH
