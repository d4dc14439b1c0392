"""Which tensors need no RAM, against maps of a real server that offloads."""

import pytest
from msgspec import structs

from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.linux.maps import parse_maps
from moewatch.server.argv import parse_options
from moewatch.server.offload import CONFIRM_LOOKS, AbsenceLedger, NotNeeded, has_gpu, not_needed
from tests.unit.server.fake_proc import FIXTURES

MIB = 1 << 20
EXPERTS = frozenset(f"blk.{n}.ffn_{part}_exps.weight" for n in range(4) for part in ("gate", "up", "down"))
OPTIONS = {
    "cpu": "--device none -ngl 0",
    "vk_auto": "",
    "vk_ot": "-ngl 99 -ot .ffn_.*_exps.=CPU",
    "vk_99": "-ngl 99",
    "vk_2": "-ngl 2",
    "vk_ncmoe": "-ngl 99 --n-cpu-moe 3",
}


def judge(name: str, layout: ModelLayout, environ: dict[str, str] | None = None) -> NotNeeded:
    maps = parse_maps((FIXTURES / f"maps_{name}.txt").read_bytes())
    options = parse_options(["llama-server", *OPTIONS[name].split()])
    ranges = {0: [(m.offset, m.offset + m.length) for m in maps if m.path.endswith(".gguf")]}
    gpu = has_gpu({m.path for m in maps}, options, {"GGML_VK_VISIBLE_DEVICES": "0"} if environ is None else environ)
    return not_needed(layout, options, ranges, gpu=gpu)


def left(judged: NotNeeded, layout: ModelLayout) -> frozenset[str]:
    return frozenset(tensor.name for tensor in layout.tensors) - judged.names


def test_without_a_gpu_everything_is_needed(tiny_moe: ModelLayout) -> None:
    assert judge("cpu", tiny_moe) == NotNeeded()


@pytest.mark.parametrize("name", ["vk_auto", "vk_99"])
def test_what_is_no_longer_mapped_is_seen(tiny_moe: ModelLayout, name: str) -> None:
    judged = judge(name, tiny_moe)
    assert left(judged, tiny_moe) <= {"token_embd.weight", "output_norm.weight"}
    assert "token_embd.weight" not in judged.names


def test_attention_on_the_gpu_is_assumed_while_the_whole_file_is_mapped(tiny_moe: ModelLayout) -> None:
    judged = judge("vk_ot", tiny_moe)
    assert judged.assumed
    assert left(judged, tiny_moe) == EXPERTS | {"token_embd.weight"}


def test_the_output_counts_as_the_last_layer(tiny_moe: ModelLayout) -> None:
    judged = judge("vk_2", tiny_moe)
    assert {name for name in judged.names if name.startswith("blk.")} == {
        tensor.name for tensor in tiny_moe.tensors if tensor.layer == 3
    }
    assert {"output.weight", "output_norm.weight"} <= judged.names


def test_experts_of_the_first_layers_stay(tiny_moe: ModelLayout) -> None:
    judged = judge("vk_ncmoe", tiny_moe)
    on_cpu = {name for name in EXPERTS if not name.startswith("blk.3.")}
    assert left(judged, tiny_moe) == on_cpu | {"token_embd.weight"}


def test_software_vulkan_is_no_gpu_unless_it_is_named(tiny_moe: ModelLayout) -> None:
    named = {"GGML_VK_VISIBLE_DEVICES": "0"}
    assert not has_gpu(["/opt/libggml-vulkan.so.0"], parse_options(["llama-server"]), named)  # no driver at all
    assert judge("vk_ot", tiny_moe, environ={}) == NotNeeded()


@pytest.mark.parametrize(
    ("paths", "words", "expected"),
    [
        (["/opt/libggml-cuda.so"], "", True),
        (["/usr/lib/libcuda.so.1"], "", True),
        (["/dev/nvidia0"], "", True),
        (["/dev/dri/renderD128", "/opt/libggml-vulkan.so.0"], "", True),
        (["/opt/libggml-vulkan.so.0"], "", False),
        (["/opt/libggml-cuda.so"], "-ngl 0", False),
        (["/opt/libggml-cuda.so"], "--device none -ngl 99", False),
        (["/opt/libggml-rpc.so", "/opt/libggml-cpu.so"], "", False),
        (["/opt/libggml-cpu.so"], "--rpc 10.0.0.2:50052", True),
        (["/models/libggml-cuda/m.gguf", "[heap]"], "", False),
    ],
)
def test_evidence_of_a_device(paths: list[str], words: str, *, expected: bool) -> None:
    assert has_gpu(paths, parse_options(["llama-server", *words.split()])) is expected


def test_left_to_fit_nothing_is_assumed(tiny_moe: ModelLayout) -> None:
    options = parse_options(["llama-server", "-ot", ".ffn_.*_exps.=CPU"])
    assert not_needed(tiny_moe, options, None, gpu=True) == NotNeeded()


def test_the_first_override_wins_and_a_broken_one_is_passed_over(tiny_moe: ModelLayout) -> None:
    options = parse_options(["llama-server", "-ngl", "99", "-ot", r"(=CPU,blk\.0\.attn=CPU,blk\.=Vulkan0,attn=CPU"])
    names = not_needed(tiny_moe, options, None, gpu=True).names
    assert "blk.0.attn_q.weight" not in names
    assert "blk.1.attn_q.weight" in names


def test_a_table_tied_to_the_output_is_copied(tiny_moe: ModelLayout) -> None:
    import msgspec  # noqa: PLC0415 - of this test alone

    tied = msgspec.structs.replace(tiny_moe, tensors=tuple(t for t in tiny_moe.tensors if t.name != "output.weight"))
    options = parse_options(["llama-server", "-ngl", "99"])
    assert "token_embd.weight" in not_needed(tied, options, None, gpu=True).names
    assert "token_embd.weight" not in not_needed(tiny_moe, options, None, gpu=True).names


def test_a_shard_that_is_not_mapped_at_all(tiny_moe: ModelLayout) -> None:
    options = parse_options(["llama-server"])
    assert not_needed(tiny_moe, options, {0: []}).names == frozenset()  # nothing mapped: it says nothing
    assert len(not_needed(tiny_moe, options, {0: [], 1: [(0, MIB)]}).names) == len(tiny_moe.tensors)


def resident(layout: ModelLayout, *present: str) -> dict[str, int]:
    return {t.name: t.size_bytes if t.name in present else 4096 for t in layout.tensors}


def test_absent_while_tokens_come_is_confirmed(tiny_moe: ModelLayout) -> None:
    ledger = AbsenceLedger(tiny_moe)
    look = resident(tiny_moe, *EXPERTS)
    for n in range(CONFIRM_LOOKS):
        ledger.update(look, 15 * n)
    assert ledger.absent == frozenset()
    ledger.update(look, 15 * CONFIRM_LOOKS)
    assert {"blk.0.attn_q.weight", "output.weight"} <= ledger.absent
    assert not ledger.absent & EXPERTS
    assert "blk.0.attn_norm.weight" not in ledger.absent  # too small to be told from its neighbours
    options = parse_options(["llama-server"])
    judged = not_needed(tiny_moe, options, None, ledger.absent)
    assert (judged.names, judged.assumed) == (ledger.absent, False)


def test_a_token_table_that_is_hardly_read_is_not_said_to_be_on_the_gpu(tiny_moe: ModelLayout) -> None:
    """A server without a GPU: of 8 MiB 220 KiB were in memory, since one row is read for a token."""
    tables = {tensor.name for tensor in tiny_moe.tensors if tensor.weight_class is WeightClass.EMBEDDING}
    assert tables == {"token_embd.weight"}
    ledger = AbsenceLedger(tiny_moe)
    for n in range(2 * CONFIRM_LOOKS):
        ledger.update(resident(tiny_moe), 20 * n)
    assert ledger.absent
    assert not ledger.absent & tables


def test_few_tokens_few_looks_or_none_confirm_nothing(tiny_moe: ModelLayout) -> None:
    for step, looks in ((1, 100), (1000, CONFIRM_LOOKS - 1), (0, 1000)):
        ledger = AbsenceLedger(tiny_moe)
        for n in range(looks + 1):
            ledger.update(resident(tiny_moe), step * n)
        assert ledger.absent == frozenset()
    ledger = AbsenceLedger(tiny_moe)
    for _ in range(100):
        ledger.update(resident(tiny_moe), None)
    assert ledger.absent == frozenset()


def test_one_look_in_which_it_is_there_starts_the_count_anew(tiny_moe: ModelLayout) -> None:
    ledger = AbsenceLedger(tiny_moe)
    for n in range(3 * CONFIRM_LOOKS):
        present = ["blk.0.attn_q.weight"] if n % (CONFIRM_LOOKS - 1) == 0 else []
        ledger.update(resident(tiny_moe, *present), 20 * n)
    assert "blk.0.attn_q.weight" not in ledger.absent
    assert "blk.1.attn_q.weight" in ledger.absent


def test_what_is_read_again_while_tokens_come_is_needed_after_all(tiny_moe: ModelLayout) -> None:
    options = parse_options(["llama-server", "-ngl", "99", "-ot", "exps=CPU"])
    ledger = AbsenceLedger(tiny_moe)
    for n in range(CONFIRM_LOOKS + 1):
        ledger.update(resident(tiny_moe), 20 * n)
    assert "blk.0.attn_q.weight" in ledger.absent
    ledger.update(resident(tiny_moe, "blk.0.attn_q.weight"), 20 * CONFIRM_LOOKS)  # no token since: it says nothing
    assert "blk.0.attn_q.weight" in ledger.absent
    ledger.update(resident(tiny_moe), 21 * CONFIRM_LOOKS)
    ledger.update(resident(tiny_moe, "blk.0.attn_q.weight"), 22 * CONFIRM_LOOKS)
    judged = not_needed(tiny_moe, options, None, ledger.absent, gpu=True, needed=ledger.needed)
    assert "blk.0.attn_q.weight" not in judged.names
    assert "blk.1.attn_q.weight" in judged.names


def test_layers_that_only_draft_are_not_loaded_unless_they_are_read(tiny_moe: ModelLayout) -> None:
    drafting = frozenset(tensor.name for tensor in tiny_moe.tensors if tensor.layer == 3)
    tensors = tuple(structs.replace(tensor, draft=tensor.name in drafting) for tensor in tiny_moe.tensors)
    layout = structs.replace(tiny_moe, tensors=tensors)
    judged = not_needed(layout, parse_options(["llama-server"]), None)
    assert (judged.names, judged.assumed) == (drafting, True)
    assert not not_needed(layout, parse_options(["llama-server"]), None, needed=drafting).names
