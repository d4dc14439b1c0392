"""Small models on sparse files: a layout and the files it describes, without a GGUF header."""

from pathlib import Path

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary


def layout_of(paths: list[Path], tensors: list[Tensor]) -> ModelLayout:
    """Of files that exist; sizes are taken from them."""
    files = tuple(ModelFile(name=path.name, size_bytes=path.stat().st_size) for path in paths)
    return ModelLayout(
        files=files,
        paths=tuple(map(str, paths)),
        tensors=tuple(tensors),
        summary=ModelSummary(files=files, total_bytes=sum(file.size_bytes for file in files)),
    )


def moe_tensors(n_layer: int, *, dense_bytes: int, expert_bytes: int, start: int, file_index: int = 0) -> list[Tensor]:
    """An embedding table of `dense_bytes`, then for each layer its dense weights and its experts, end to end."""
    sizes: list[tuple[str, int, WeightClass, int | None]] = [
        ("token_embd.weight", dense_bytes, WeightClass.EMBEDDING, None)
    ]
    for layer in range(n_layer):
        sizes += [
            (f"blk.{layer}.attn.weight", dense_bytes, WeightClass.DENSE, layer),
            (f"blk.{layer}.ffn_up_exps.weight", expert_bytes, WeightClass.EXPERT, layer),
        ]
    tensors: list[Tensor] = []
    offset = start
    for name, size, weight_class, of_layer in sizes:
        tensors.append(
            Tensor(
                name=name,
                file_index=file_index,
                offset=offset,
                size_bytes=size,
                weight_class=weight_class,
                layer=of_layer,
                n_expert=8 if weight_class is WeightClass.EXPERT else 0,
            )
        )
        offset += size
    return tensors


def sparse_file(path: Path, size_bytes: int) -> Path:
    """A file of that size without blocks."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path
