"""In which order and in what pieces a model's files are asked for. Pure."""

from collections.abc import Iterator

from msgspec import Struct

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass

# One cachestat over 64 MiB costs 8 us (2 MiB folios) to 2 ms (evicted, 4 KiB folios): a fine grain for 8 ms a second
PIECE_BYTES = 64 << 20
NO_TENSOR = -1  # header, padding, or a file that is no model
NO_CELL = -1  # not of an expert

# What every token needs comes first: after a start on a huge model its figures are there while experts are still counted
_ORDER = {WeightClass.DENSE: 0, WeightClass.EMBEDDING: 1, WeightClass.EXPERT: 2}


class Piece(Struct, frozen=True, gc=False):
    """`length` bytes of one file that belong to one tensor (its index in the layout), or to none.

    Of a tensor with experts a piece holds whole experts, or a part of one: `n_slices` of `slice_bytes` each, of
    consecutive experts from `cell` on (layer * n_expert + expert).
    """

    tensor: int
    file_index: int
    offset: int
    length: int
    is_last: bool  # of its tensor
    cell: int = NO_CELL
    n_slices: int = 0
    slice_bytes: int = 0


def plan_pieces(layout: ModelLayout, page_bytes: int) -> tuple[Piece, ...]:
    """Every byte of the files once, in pieces of at most 64 MiB; gaps of less than a page between tensors are left out."""
    ranked = sorted(
        range(len(layout.tensors)),
        key=lambda index: (
            _ORDER[layout.tensors[index].weight_class],
            layout.tensors[index].file_index,
            layout.tensors[index].offset,
        ),
    )
    n_expert = layout.n_expert
    by_expert = {index for index, _ in layout.by_expert()}
    pieces: list[Piece] = []
    for index in ranked:
        tensor = layout.tensors[index]
        if index in by_expert and tensor.layer is not None and tensor.size_bytes >= tensor.n_expert:
            pieces += _cut_experts(index, tensor, tensor.layer * n_expert + tensor.first_expert)
        else:
            pieces += _cut(index, tensor.file_index, tensor.offset, tensor.size_bytes)
    pieces += [piece for hole in _holes(layout, page_bytes) for piece in _cut(NO_TENSOR, *hole)]
    return tuple(pieces)


def _cut(tensor: int, file_index: int, offset: int, length: int) -> Iterator[Piece]:
    for done in range(0, length, PIECE_BYTES):
        size = min(PIECE_BYTES, length - done)
        yield Piece(tensor, file_index, offset + done, size, done + size == length)


def _cut_experts(index: int, tensor: Tensor, first_cell: int) -> Iterator[Piece]:
    """Whole experts, as many as fit; of one that does not fit, pieces of its own."""
    each = tensor.size_bytes // tensor.n_expert
    at_once = max(1, PIECE_BYTES // each)
    end = tensor.offset + tensor.size_bytes
    for expert in range(0, tensor.n_expert, at_once):
        n_slices = min(at_once, tensor.n_expert - expert)
        offset = tensor.offset + expert * each
        until = end if expert + n_slices == tensor.n_expert else offset + n_slices * each
        cell = first_cell + expert
        if n_slices > 1:
            yield Piece(index, tensor.file_index, offset, until - offset, until == end, cell, n_slices, each)
            continue
        for begin in range(offset, until, PIECE_BYTES):
            size = min(PIECE_BYTES, until - begin)
            yield Piece(index, tensor.file_index, begin, size, begin + size == end, cell, 1, size)


def _holes(layout: ModelLayout, page_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(file, offset, length) of what no tensor covers."""
    covered: list[list[tuple[int, int]]] = [[] for _ in layout.files]
    for tensor in layout.tensors:
        covered[tensor.file_index].append((tensor.offset, tensor.offset + tensor.size_bytes))
    for file_index, ranges in enumerate(covered):
        end = 0
        size = layout.files[file_index].size_bytes
        for begin, until in [*sorted(ranges), (size, size)]:
            if begin - end >= page_bytes or (not ranges and begin > end):
                yield file_index, end, begin - end
            end = max(end, until)
