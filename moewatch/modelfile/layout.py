"""From headers to a ModelLayout: every tensor's class, layer, experts and place; the model in figures."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.errors import ParseError
from moewatch.modelfile.classes import Place, classify_tensor, is_tied
from moewatch.modelfile.header import GgufHeader, TensorInfo
from moewatch.modelfile.quantisation import name_quantisation
from moewatch.modelfile.shards import SHARD_NAME, Shard, read_shards
from moewatch.modelfile.source import printable

# A layer or expert number sizes tables and heat maps; the most in the wild are 126 layers and 512 experts.
MAX_LAYERS = 4096
MAX_EXPERTS = 8192
MXFP4 = "MXFP4"


def read_layout(path: Path, known: Sequence[Path] = (), name: str = "") -> ModelLayout:
    """Where every weight of a model lies, from any of its shards; reads headers only.

    `known`: see shards.read_shards. `name`: what its server calls it, for a file that is opened below /proc because it
    was deleted, whose name there is an address or a number. Raises UnusableFileError (ParseError where the bytes are wrong) or ForbiddenError,
    each with one sentence.
    """
    layout = derive_layout(read_shards(path, known))
    if not name or not layout.paths[0].startswith("/proc/") or len(layout.files) > 1:
        return layout
    files = (replace(layout.files[0], name=name),)
    return replace(layout, files=files, summary=replace(layout.summary, files=files))


def derive_layout(shards: Sequence[Shard]) -> ModelLayout:
    """The same from headers that are at hand, all shards in order (shards.check_shards)."""
    header = shards[0].header
    placed = [(index, info) for index, shard in enumerate(shards) for info in shard.header.tensors]
    n_layer = _limited(header, "block_count", MAX_LAYERS, shards[0].name)
    n_expert = _limited(header, "expert_count", MAX_EXPERTS, shards[0].name)
    first_draft = _first_draft_layer(header, n_layer)
    names = [info.name for _, info in placed]
    _refuse_duplicates(names, shards[0].name)
    tied = is_tied(names)

    tensors: list[Tensor] = []
    for index, info in placed:
        place = classify_tensor(info.name, info.dims, n_expert=n_expert, tied=tied)
        _check_place(place, info, shards[index].name)
        tensors.append(
            Tensor(
                name=printable(info.name),
                file_index=index,
                offset=info.offset,
                size_bytes=info.size_bytes,
                weight_class=place.weight_class,
                layer=place.layer,
                n_expert=place.n_expert,
                first_expert=place.first_expert,
                draft=place.layer is not None and first_draft is not None and place.layer >= first_draft,
            )
        )

    files = tuple(ModelFile(name=s.name, size_bytes=s.size_bytes, mtime_ns=s.mtime_ns) for s in shards)
    layout = ModelLayout(
        files=files,
        paths=tuple(shard.path for shard in shards),
        tensors=tuple(tensors),
        summary=_summarise(shards, files, tensors, [info for _, info in placed]),
        header_bytes=tuple(shard.header.data_offset for shard in shards),
    )
    each = layout.expert_bytes_by_layer()
    return replace(layout, summary=replace(layout.summary, expert_bytes_by_layer=each if any(each) else ()))


def _key(header: GgufHeader, part: str) -> str:
    return f"{header.metadata.get('general.architecture', '')}.{part}"


def _limited(header: GgufHeader, part: str, limit: int, name: str) -> int | None:
    value = header.count(_key(header, part))
    if value is not None and value > limit:
        raise ParseError(f"{name} claims {value} for {part}, so it is damaged; fetch it again.")
    return value


def _first_draft_layer(header: GgufHeader, n_layer: int | None) -> int | None:
    """The first of the layers that only draft; llama.cpp counts them from the end of block_count."""
    n_draft = header.count(_key(header, "nextn_predict_layers")) or 0
    return n_layer - n_draft if n_layer is not None and 0 < n_draft < n_layer else None


def _refuse_duplicates(names: Sequence[str], name: str) -> None:
    if len(set(names)) != len(names):
        twice = next(tensor for tensor, times in Counter(names).items() if times > 1)
        raise ParseError(
            f"{name}: two shards have the tensor {printable(twice)}: files are mixed up; fetch the model again."
        )


def _check_place(place: Place, info: TensorInfo, name: str) -> None:
    if (place.layer or 0) >= MAX_LAYERS or place.first_expert + place.n_expert > MAX_EXPERTS:
        raise ParseError(
            f"{name}: tensor {printable(info.name)} is of no layer or expert that could be; the file is damaged."
        )


def _summarise(
    shards: Sequence[Shard], files: tuple[ModelFile, ...], tensors: Sequence[Tensor], infos: Sequence[TensorInfo]
) -> ModelSummary:
    header = shards[0].header
    by_class: Counter[WeightClass] = Counter()
    by_type: Counter[str] = Counter()
    expert_types: Counter[str] = Counter()
    for tensor, info in zip(tensors, infos, strict=True):
        by_class[tensor.weight_class] += tensor.size_bytes
        by_type[info.type_name] += tensor.size_bytes
        if tensor.weight_class is WeightClass.EXPERT:
            expert_types[info.type_name] += tensor.size_bytes
    weights = expert_types or by_type
    dominant = weights.most_common(1)[0][0] if weights else ""

    experts = [t.first_expert + t.n_expert for t in tensors if t.weight_class is WeightClass.EXPERT]
    n_expert = header.count(_key(header, "expert_count")) or max(experts, default=0)
    if n_expert < max(experts, default=0):  # llama.cpp refuses such a tensor for its shape
        raise ParseError(
            f"{shards[0].name} claims {n_expert} experts, but a tensor has {max(experts)}, so it is damaged; fetch it again."
        )
    n_used = header.count(_key(header, "expert_used_count")) or None
    if n_used is not None and 0 < n_expert < n_used:
        raise ParseError(
            f"{shards[0].name} claims to use {n_used} of {n_expert} experts, so it is damaged; fetch it again."
        )
    layers = [t.layer for t in tensors if t.layer is not None]
    return ModelSummary(
        files=files,
        total_bytes=sum(file.size_bytes for file in files),
        expert_bytes=by_class[WeightClass.EXPERT],
        dense_bytes=by_class[WeightClass.DENSE],
        embedding_bytes=by_class[WeightClass.EMBEDDING],
        architecture=header.text("general.architecture"),
        n_layer=header.count(_key(header, "block_count")) or 1 + max(layers, default=-1),
        n_expert=n_expert,
        n_expert_used=n_used if n_expert else 0,
        name=header.text("general.name") or _stem(files[0].name),
        quantisation=name_quantisation(dominant, header.metadata.get("general.file_type")),
        mxfp4_experts=bool(expert_types) and dominant == MXFP4,
    )


def _stem(name: str) -> str:
    """`model` of `model-00001-of-00003.gguf` and of `model.gguf`."""
    shard = SHARD_NAME.fullmatch(name)
    return shard[1] if shard else PurePath(name).stem
