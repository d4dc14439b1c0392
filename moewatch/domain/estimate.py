"""What `moewatch estimate` speaks of before anything runs: a model taken apart, a machine, and what to expect. Frozen records.

Sizes are bytes, rates bytes per second, times seconds; None is unknown.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct

from moewatch.domain.sample import ModelSummary

Metadata = Mapping[str, object]  # the header's numbers, flags, short texts and short arrays


class LayerBytes(Struct, frozen=True, kw_only=True):
    """One block's weights. `dense_bytes` holds all that every token needs, router and shared experts included."""

    layer: int
    dense_bytes: int = 0
    router_bytes: int = 0
    shared_bytes: int = 0
    expert_bytes: int = 0
    embedding_bytes: int = 0  # token tables that lie in a block
    draft: bool = False  # drafts further tokens; not loaded unless the server drafts

    @property
    def needed_bytes(self) -> int:
        """All of it but token tables."""
        return self.dense_bytes + self.expert_bytes


class ModelParts(Struct, frozen=True, kw_only=True):
    """A model taken apart: what its headers say, added up."""

    summary: ModelSummary
    layers: tuple[LayerBytes, ...]
    outside_bytes: int  # dense weights outside the blocks: output, norms; the token table when it is tied
    table_bytes: int  # token tables outside the blocks, not tied to the output
    type_bytes: Mapping[str, int]  # tensor type: bytes
    n_tensors: int
    tensor_bytes: int  # the sum over all tensors, without headers and padding
    header_bytes: int
    slice_bytes: int | None  # one expert's part of one stacked tensor, the mean by bytes; what a fault begins to read
    n_vocab: int | None
    metadata: Metadata
    digest: str = ""  # which model it is, by sizes and places (modelfile/identity.py)

    @property
    def architecture(self) -> str:
        """The prefix of the model's keys."""
        return self.summary.architecture

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return bool(self.summary.expert_bytes)

    @property
    def router_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.router_bytes for layer in self.layers)

    @property
    def shared_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.shared_bytes for layer in self.layers)

    @property
    def used_ratio(self) -> float:
        """Share of the experts that one token uses; 1 when the header does not say."""
        n_expert, n_used = self.summary.n_expert, self.summary.n_expert_used
        return n_used / n_expert if n_expert and n_used else 1.0


class CacheKind(enum.StrEnum):
    """What a layer keeps of the tokens before."""

    FULL = "full"  # keys and values of the whole context
    WINDOW = "window"  # of a sliding window or chunk
    LATENT = "latent"  # multi-head latent attention: one compressed vector a token
    RECURRENT = "recurrent"  # a state of fixed size
    NONE = "none"  # shares another layer's, or has no attention


class KvCache(Struct, frozen=True, kw_only=True):
    """The context's memory: for `context` tokens in one sequence, kept in `kv_type`."""

    context: int
    kv_type: str
    layer_bytes: tuple[int, ...]  # of each block
    kinds: Mapping[str, int]  # CacheKind: number of layers
    is_assumed: bool = False  # the header lacks what is needed; a common shape was assumed

    @property
    def total_bytes(self) -> int:
        """Of all layers."""
        return sum(self.layer_bytes)


class Range(Struct, frozen=True):
    """From `low` to `high`."""

    low: float
    high: float


class Gpu(Struct, frozen=True, kw_only=True):
    """A graphics card that llama.cpp could use."""

    name: str
    total_bytes: int
    free_bytes: int | None = None
    source: str = ""


class Machine(Struct, frozen=True, kw_only=True):
    """This machine, or one described by flags."""

    ram_bytes: int  # all of it, or the limit that holds here
    room_bytes: int  # of that, for the server and its files: what other programs hold is taken off
    vram_bytes: int = 0
    vram_room_bytes: int = 0  # of that, free now; all of it where that is not known
    swap_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    ram_scope: str = ""  # in words: "this machine", "limit of the cgroup x", "given"
    taken_bytes: int | None = None  # held by other programs; None when the machine is only described
    disk_bytes_per_s: Range | None = None  # random reads at `fault_bytes`; a range of one value when measured or given
    disk_scope: str = ""  # in words: where the rate comes from
    fault_bytes: int = 128 << 10  # what one page fault reads: the disk's read-ahead
    memory_bytes_per_s: float | None = None  # measured speed of copying memory, all cores; None: assumed
    n_cores: int | None = None  # physical ones that may be used
    n_threads: int | None = None  # logical ones


class Placement(Struct, frozen=True, kw_only=True):
    """Where the weights go. `n_gpu_layers` as llama.cpp counts: the output is one more than the blocks."""

    n_gpu_layers: int
    n_cpu_moe: int | None  # the experts of so many first layers stay on the CPU; None without experts or GPU
    gpu_bytes: int  # weights, cache and buffers on the GPU
    host_dense_bytes: int  # weights that every token needs, in host memory
    host_expert_bytes: int
    gpu_dense_bytes: int
    gpu_expert_bytes: int
    host_anon_bytes: int  # the server's own memory on the host: cache, buffers, itself


class Prior(Struct, frozen=True, kw_only=True):
    """The rule of thumb: memory against expert bytes (all weights of a dense model)."""

    ratio: float
    band: str  # fits, fluctuates, poor


class Expectation(Struct, frozen=True, kw_only=True):
    """What a token costs by the model of ours."""

    cached_ratio: float  # of the weights that compete for memory, how many have room
    missing_bytes_per_token: Range
    tokens_per_s: Range
    first_token_s: Range
    prompt_tokens: int
    disk_ratio: Range  # share of a token's time that is spent waiting for the disk


class Flag(Struct, frozen=True, kw_only=True):
    """One option of the llama-server command, and why."""

    words: tuple[str, ...]
    reason: str


class Estimate(Struct, frozen=True, kw_only=True):
    """Everything `moewatch estimate` says of one model on one machine."""

    parts: ModelParts
    machine: Machine
    kv_cache: KvCache | None
    compute: Range  # bytes of compute buffers
    placement: Placement
    prior: Prior | None
    expectation: Expectation
    flags: tuple[Flag, ...]
    warnings: tuple[str, ...]
