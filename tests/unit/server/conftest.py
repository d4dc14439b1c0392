"""A fake /proc, and the model that the fixtures speak of."""

from pathlib import Path

import pytest

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.linux.root import KernelRoot
from tests.unit.server.fake_proc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    tree = tmp_path / "proc"
    tree.mkdir()
    models = tmp_path / "models"
    models.mkdir()
    return FakeProc(tree, KernelRoot(proc=tree, sys=tmp_path / "sys", page_bytes=4096, tick_hz=100), models)


def _tensor(name: str, offset: int, end: int) -> Tensor:
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    is_expert = "_exps" in name
    kind = WeightClass.EXPERT if is_expert else WeightClass.EMBEDDING if "token_embd" in name else WeightClass.DENSE
    return Tensor(
        name=name,
        file_index=0,
        offset=offset,
        size_bytes=end - offset,
        weight_class=kind,
        layer=layer,
        n_expert=16 if is_expert else 0,
    )


@pytest.fixture
def tiny_moe() -> ModelLayout:
    """The model of the maps fixtures: offsets as its header has them."""
    tensors = [
        _tensor("token_embd.weight", 0x4D80, 0x10D980),
        _tensor("output_norm.weight", 0x10D980, 0x10E180),
        _tensor("output.weight", 0x10E180, 0x216D80),
    ]
    block = 0x889200  # every block is laid out alike
    parts = {
        "attn_norm": (0x0, 0x800),
        "ffn_norm": (0x800, 0x1000),
        "attn_q": (0x1000, 0x101000),
        "attn_k": (0x101000, 0x141000),
        "attn_v": (0x141000, 0x181000),
        "attn_output": (0x181000, 0x281000),
        "ffn_gate_inp": (0x281200, 0x289200),
        "ffn_gate_exps": (0x289200, 0x489200),
        "ffn_up_exps": (0x489200, 0x689200),
        "ffn_down_exps": (0x689200, 0x889200),
    }
    for layer in range(4):
        begin = 0x216D80 + layer * block
        tensors += [_tensor(f"blk.{layer}.{name}.weight", begin + a, begin + b) for name, (a, b) in parts.items()]
    file = ModelFile(name="tiny-moe.gguf", size_bytes=0x243B580)
    summary = ModelSummary(files=(file,), total_bytes=file.size_bytes, n_layer=4, n_expert=16, n_expert_used=2)
    return ModelLayout(files=(file,), paths=("/srv/models/tiny-moe.gguf",), tensors=tuple(tensors), summary=summary)
