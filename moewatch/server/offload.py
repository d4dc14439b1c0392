"""Which tensors need no RAM because they are on the GPU: seen in maps, assumed from argv, or shown by their absence. Pure.

Measured with software Vulkan (4 layers, file order: token_embd, output, blk.0 .. blk.3; llama.cpp unmaps only the ends of
a shard after the upload):

| options | still mapped of 0 .. 0x243b580 |
|---|---|
| `--device none -ngl 0` | all from 0x4000 (the header's first pages go) |
| `-ngl 99 -ot .ffn_.*_exps.=CPU` | all from 0x4000: attention is on the GPU and yet mapped |
| `-ngl 99`, and no word with `--fit on` | 0x4000 .. 0x10e000 (token_embd) and the last page |
| `-ngl 2` | 0x4000 .. 0x1bb3000 and the last page: blk.3 is gone, and output, which counts as the last layer |
| `-ngl 99 --n-cpu-moe 3` | the same: experts of blk.0 .. blk.2 stay |
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.server.argv import Options

# absent while so many tokens are generated = not needed: a needed tensor is read for every token, an expert tensor
# (all experts of a layer) as well
CONFIRM_TOKENS = 200
# and in so many looks: under the LRU cliff with 30 % resident a needed tensor is absent in one look with p = 0.7, in 20
# looks with 0.0008
CONFIRM_LOOKS = 20
# pages at the two ends are shared with neighbours, and a fault there drags in a read-ahead window (128 KiB on a PC)
EDGE_BYTES = 256 << 10
# so much of a tensor has to come back during generation to withdraw an assumption
REREAD_SHARE = 0.05

_GPU_LIBRARY = re.compile(
    r"libggml-(?:cuda|hip|vulkan|sycl|musa|cann|opencl|metal)\b|libcuda\.so|libamdhip64\.so|libcublas\.so"
)
_GPU_NODE = re.compile(r"/dev/(?:nvidia\d|nvidiactl|kfd|dri/renderD|davinci)")
_SOFTWARE_VULKAN = "libvulkan_lvp"
_CPU_BUFFERS = ("CPU", "Host", "host")  # CPU, CPU_REPACK, CUDA_Host ...


class NotNeeded(Struct, frozen=True, kw_only=True):
    """Names of tensors that need no RAM; `assumed` when some are known from argv only."""

    names: frozenset[str] = frozenset()
    assumed: bool = False


def has_gpu(mapped_paths: Collection[str], options: Options, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the process offloads to a device: a GPU library is loaded, argv does not turn it off, and it finds one.

    A Vulkan build without a GPU loads libggml-vulkan and the software driver all the same, and leaves it alone unless
    GGML_VK_VISIBLE_DEVICES names it.
    """
    if options.is_gpu_disabled:
        return False
    if options.has_rpc:
        return True
    paths = [path for path in mapped_paths if path.startswith("/")]
    if any(_GPU_NODE.match(path) for path in paths):
        return True
    libraries = {found[0] for path in paths if (found := _GPU_LIBRARY.match(path.rpartition("/")[2]))}
    if libraries == {"libggml-vulkan"}:
        is_software = any(_SOFTWARE_VULKAN in path for path in paths)
        return is_software and bool((environ or {}).get("GGML_VK_VISIBLE_DEVICES"))
    return bool(libraries)


def not_needed(
    layout: ModelLayout,
    options: Options,
    mapped_ranges: Mapping[int, Sequence[tuple[int, int]]] | None,
    absent: Collection[str] = frozenset(),
    *,
    gpu: bool = False,
    needed: Collection[str] = frozenset(),
) -> NotNeeded:
    """The tensors that need no RAM.

    Args:
        layout: all tensors.
        options: the server's command line.
        mapped_ranges: per file index the (start, end) file offsets still mapped; None when maps cannot be read.
        absent: names shown to be unused (`AbsenceLedger.absent`).
        gpu: whether there is a device to offload to (`has_gpu`); without one argv says nothing.
        needed: names whose pages are read during generation (`AbsenceLedger.needed`): never assumed.
    """
    seen = _outside(layout, mapped_ranges) | frozenset(absent)
    # llama.cpp leaves the layers that only draft tokens (MTP) out of the load (TENSOR_SKIP in src/llama-model.cpp)
    drafting = frozenset(tensor.name for tensor in layout.tensors if tensor.draft)
    assumed = (drafting | (_assumed(layout, options) if gpu else frozenset())) - seen - frozenset(needed)
    return NotNeeded(names=seen | assumed, assumed=bool(assumed))


class AbsenceLedger:
    """Remembers which tensors stayed away while tokens were generated, and which came back."""

    def __init__(self, layout: ModelLayout) -> None:
        # one row of the token table is read for a token: most of it may stay away for hours, wherever it is
        self._sizes = {
            tensor.name: tensor.size_bytes
            for tensor in layout.tensors
            if tensor.weight_class is not WeightClass.EMBEDDING
        }
        self._since: dict[str, tuple[int, int]] = {}  # name -> (tokens_total when first absent, looks)
        self._before: Mapping[str, int] | None = None
        self._tokens_before: int | None = None
        self.absent: frozenset[str] = frozenset()
        self.needed: frozenset[str] = frozenset()

    def update(self, resident_bytes: Mapping[str, int], tokens_total: int | None) -> None:
        """One look: resident bytes of each tensor (those not scanned are left out) and the tokens so far.

        Looks between which no token was generated (load, idle, prompt) say nothing: at load every page is read in
        order to be uploaded.
        """
        before, tokens_before = self._before, self._tokens_before
        self._before, self._tokens_before = resident_bytes, tokens_total
        if tokens_total is None or tokens_before is None or tokens_total < tokens_before:
            self._since.clear()
            return
        if tokens_total == tokens_before:
            return
        confirmed, needed = set(self.absent), set(self.needed)
        for name, resident in resident_bytes.items():
            size = self._sizes.get(name)
            if size is None or size <= 2 * EDGE_BYTES:
                continue  # too small to be told from its neighbours' edges
            if resident > EDGE_BYTES:
                self._since.pop(name, None)
                grown = resident - (before or {}).get(name, resident)
                if grown > max(EDGE_BYTES, REREAD_SHARE * size):
                    confirmed.discard(name)
                    needed.add(name)
                continue
            since, looks = self._since.get(name, (tokens_before, 0))
            self._since[name] = (since, looks + 1)
            if tokens_total - since >= CONFIRM_TOKENS and looks + 1 >= CONFIRM_LOOKS:
                confirmed.add(name)
                needed.discard(name)
        self.absent, self.needed = frozenset(confirmed), frozenset(needed)


def _outside(layout: ModelLayout, mapped_ranges: Mapping[int, Sequence[tuple[int, int]]] | None) -> frozenset[str]:
    """Tensors without a mapped page of their own; nothing when no shard is mapped at all (then none is in the cache)."""
    if not mapped_ranges or not any(mapped_ranges.values()):
        return frozenset()
    return frozenset(
        tensor.name for tensor in layout.tensors if not _touches(tensor, mapped_ranges.get(tensor.file_index, ()))
    )


def _touches(tensor: Tensor, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether more than the edge pages shared with neighbours is mapped."""
    overlap = sum(
        max(0, min(end, tensor.offset + tensor.size_bytes) - max(start, tensor.offset)) for start, end in ranges
    )
    edge = min(tensor.size_bytes - 1, _EDGE_PAGE_BYTES)
    return overlap > edge


_EDGE_PAGE_BYTES = 1 << 16  # the largest page of a supported machine: a fragment's end is rounded up to it


def _assumed(layout: ModelLayout, options: Options) -> frozenset[str]:
    """What llama.cpp would put on the device (src/llama-model.cpp, load_tensors; measured above).

    The window is n_layer + 1 layers long, counted from the end, and the output is the last of them. Older builds count
    only the blocks and move the output when N exceeds them: one layer fewer is assumed here than such a build moves.
    """
    if not options.gpu_layers:
        return frozenset()  # 0, or left to --fit: the split is not known
    n_layer = layout.summary.n_layer or layout.n_layer
    first = n_layer + 1 - options.gpu_layers
    overrides = [(compiled, buffer) for pattern, buffer in options.overrides if (compiled := _compile(pattern))]
    has_output = any(tensor.name == "output.weight" for tensor in layout.tensors)
    names = set()
    for tensor in layout.tensors:
        if tensor.layer is not None:
            on_device = tensor.layer >= first
        else:
            # a token table tied to the output is copied to the device; of the original one row a token is read
            on_device = tensor.name.startswith("output") or (tensor.name == "token_embd.weight" and not has_output)
        for pattern, buffer in overrides:
            if pattern.search(tensor.name):
                on_device = not any(word in buffer for word in _CPU_BUFFERS)
                break
        if on_device:
            names.add(tensor.name)
    return frozenset(names)


def _compile(pattern: str) -> re.Pattern[str] | None:
    """std::regex and Python's agree on what people write here; what does not compile stopped the server as well."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
