"""llama.cpp's importance matrices as a prior: how often a calibration text used each expert.

Two forms (tools/imatrix/imatrix.cpp of llama.cpp). GGUF, since 2025-07: `general.type` is `imatrix`, and beside each weight
`NAME` stands `NAME.counts`, float32, one number per expert: the tokens routed to it. The older `.dat` has, for each weight, a
name, the number of calls and the sums of squared activations of all experts, end to end; since 2024-04 these are divided by
each expert's own count, so such a file tells experts that were never used from others, and little more.
"""

import array
import math
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from moewatch.cache.hotset import MAX_TIERS, Files
from moewatch.cache.runs import add, total, whole_pages
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.errors import MoewatchError, ParseError, UnusableFileError
from moewatch.modelfile.header import read_header
from moewatch.modelfile.source import ByteSource, FileSource, printable

COUNTS_SUFFIX = ".counts"
MAX_ENTRIES = 1 << 16  # weights in a .dat file; the most in the wild are some thousands
MAX_NAME_BYTES = 512
MAX_ROW_VALUES = 1 << 20  # of one expert: its inputs, 53,248 at most in the wild
MAX_CALLS = (1 << 31) - 1
FLOAT_BYTES = 4
_INT = struct.Struct("<i")

Heat = dict[tuple[int, int], float]  # (layer, expert): share of the layer's tokens


def read_imatrix(path: Path, layout: ModelLayout) -> Heat:
    """How much each expert was used, as a share within its layer (all experts of a layer together are 1).

    Raises:
        UnusableFileError: no imatrix, a damaged one (ParseError), or one that says nothing of this model's experts.
        ForbiddenError: it may not be read.
    """
    wanted = {tensor.name: tensor for tensor in layout.of_class(WeightClass.EXPERT) if tensor.layer is not None}
    if not wanted:
        raise UnusableFileError(
            f"{layout.files[0].name} has no experts, so an imatrix says nothing of what is hot in it."
        )
    with FileSource(path) as source:
        magic = source.read(0, 4)
        found = list(_gguf_counts(source, wanted) if magic == b"GGUF" else _dat_sums(source, wanted))
        name = source.name
    layers: dict[int, dict[int, float]] = {}
    for tensor, counts in found:
        layer = layers.setdefault(tensor.layer or 0, {})
        for expert, count in enumerate(counts, tensor.first_expert):
            layer[expert] = max(layer.get(expert, 0.0), count)
    if not layers:
        raise UnusableFileError(
            f"{name} says nothing of the experts of {printable(layout.summary.name)}; it is of another model."
        )
    return {
        (layer, expert): count / (sum(counts.values()) or 1.0)
        for layer, counts in layers.items()
        for expert, count in counts.items()
    }


def _gguf_counts(source: ByteSource, wanted: dict[str, Tensor]) -> Iterator[tuple[Tensor, Sequence[float]]]:
    header = read_header(source)
    if header.text("general.type") != "imatrix":
        raise UnusableFileError(f"{source.name} is a GGUF file but no imatrix; name one made by llama-imatrix.")
    if header.end_bytes > source.size_bytes:
        raise ParseError(f"{source.name} is cut short; fetch it again.")
    for info in header.tensors:
        tensor = wanted.get(printable(info.name.removesuffix(COUNTS_SUFFIX)))
        if tensor is None or not info.name.endswith(COUNTS_SUFFIX):
            continue
        n_counts = math.prod(info.dims)
        if info.type_name != "F32" or n_counts != tensor.n_expert:
            raise UnusableFileError(
                f"{source.name} counts {n_counts} experts in {printable(info.name)}, the model has {tensor.n_expert}; "
                "it is of another model."
            )
        yield tensor, _checked(_floats(source.read(info.offset, n_counts * FLOAT_BYTES)), source.name)


def _dat_sums(source: ByteSource, wanted: dict[str, Tensor]) -> Iterator[tuple[Tensor, Sequence[float]]]:
    """One weight of each layer is enough: gate, up and down of an expert are used together."""
    walk = _Walk(source)
    done: set[tuple[int | None, int]] = set()
    for _ in range(walk.count(MAX_ENTRIES)):
        name = walk.take(walk.count(MAX_NAME_BYTES)).decode("utf-8", "backslashreplace")
        walk.count(MAX_CALLS)
        n_values = walk.count(source.size_bytes // FLOAT_BYTES)
        tensor = wanted.get(printable(name))
        if tensor is None or (tensor.layer, tensor.first_expert) in done:
            walk.skip(n_values * FLOAT_BYTES)
            continue
        if n_values > MAX_ROW_VALUES * tensor.n_expert:
            raise ParseError(
                f"{source.name} has {n_values} values for {printable(name)}, so it is damaged; fetch it again."
            )
        if not n_values or n_values % tensor.n_expert:
            raise UnusableFileError(
                f"{source.name} has {n_values} values for {printable(name)}, no multiple of its {tensor.n_expert} "
                "experts; it is of another model."
            )
        done.add((tensor.layer, tensor.first_expert))
        each = n_values // tensor.n_expert * FLOAT_BYTES
        sums = [float(sum(_floats(walk.take(each)))) for _ in range(tensor.n_expert)]
        yield tensor, _checked(sums, source.name)


class _Walk:
    """Forward through a .dat file; ParseError where it makes no sense."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._at = 0

    def count(self, limit: int) -> int:
        """The next number, of 0 to `limit`."""
        number = int(_INT.unpack(self.take(_INT.size))[0])
        if not 0 <= number <= limit:
            raise self._refuse()
        return number

    def take(self, n_bytes: int) -> bytes:
        """The next bytes."""
        self.skip(n_bytes)
        content = self._source.read(self._at - n_bytes, n_bytes)
        if len(content) < n_bytes:
            raise self._refuse()
        return content

    def skip(self, n_bytes: int) -> None:
        """Pass over bytes that must be there."""
        if n_bytes > self._source.size_bytes - self._at:
            raise self._refuse()
        self._at += n_bytes

    def _refuse(self) -> ParseError:
        return ParseError(f"{self._source.name} is no imatrix, or a damaged one; name one made by llama-imatrix.")


def _floats(content: bytes) -> Sequence[float]:
    values = array.array("f", content)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _checked(values: Sequence[float], name: str) -> Sequence[float]:
    if not all(0 <= value < math.inf for value in values):
        raise ParseError(f"{name} is damaged: a count is no number of 0 or more; fetch it again.")
    return values


def heat_tiers(
    layout: ModelLayout, heat: Heat, budget_bytes: int, *, page_bytes: int = 4096
) -> list[tuple[float, Files]]:
    """The hottest experts of all layers up to a budget, as up to 16 tiers of about equal size, hottest first.

    Experts that were never used are left out however large the budget is.
    """
    slices: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for tensor in layout.of_class(WeightClass.EXPERT):
        if tensor.layer is None or tensor.draft:
            continue
        for expert in range(tensor.n_expert):
            offset, length = tensor.expert_range(expert)
            slices.setdefault((tensor.layer, tensor.first_expert + expert), []).append(
                (tensor.file_index, offset, length)
            )
    ranked = sorted((key for key in slices if heat.get(key)), key=lambda key: (-heat[key], key))
    chosen: list[tuple[int, int]] = []
    size = 0
    for key in ranked:
        size += sum(length for _, _, length in slices[key])
        if size > budget_bytes:
            break
        chosen.append(key)
    if not chosen:
        raise MoewatchError("the budget is smaller than one expert; give --budget SIZE with more.")
    step = -(-len(chosen) // MAX_TIERS)
    tiers: list[tuple[float, Files]] = []
    for first in range(0, len(chosen), step):
        files: Files = [[] for _ in layout.files]
        for key in chosen[first : first + step]:
            for index, offset, length in slices[key]:
                add(files[index], whole_pages(offset, offset + length, page_bytes, layout.files[index].size_bytes))
        if sum(map(total, files)):
            tiers.append((heat[chosen[first]], files))
    return tiers
