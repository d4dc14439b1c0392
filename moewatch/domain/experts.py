"""Per-expert figures at one moment, where one expert lies in the model's files, and what of a file is in memory."""

from array import array

from msgspec import Struct


class ExpertFigures(Struct, frozen=True, kw_only=True):
    """Index = layer * n_expert + expert; totals are bytes since the scan began, times mono_ns or -1 for never."""

    n_layer: int
    n_expert: int
    bytes_per_expert: tuple[int, ...]  # of each layer; 0: it has no routed experts
    share: bytes  # resident, 0 to 255
    resident_bytes: "array[int]"
    arrived_bytes: "array[int]"
    departed_bytes: "array[int]"
    again_bytes: "array[int]"  # of what arrived, at least so much had been there before
    recently_evicted_bytes: "array[int]"
    came_ns: "array[int]"  # when it was last seen to reach half of its bytes
    left_ns: "array[int]"  # when it was last seen to fall below half


class ExpertSlice(Struct, frozen=True, kw_only=True):
    """The part of one expert in one tensor; `pages` are runs (first page of the file, count, resident), in order."""

    tensor: str
    file: str
    offset: int
    length: int
    pages: tuple[tuple[int, int, bool], ...]


class FileStrip(Struct, frozen=True, kw_only=True):
    """One file in equal stretches from its first byte to its last."""

    name: str
    size_bytes: int
    shares: bytes  # of each stretch in memory, 0 to 255; 255 only when all of it is
