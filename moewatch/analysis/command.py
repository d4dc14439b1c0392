"""The llama-server command for a placement, with a reason for each option, in the words that the installed build knows. Pure."""

from collections.abc import Callable, Sequence

from moewatch.analysis import flags as names
from moewatch.analysis.kvcache import DEFAULT_KV_TYPE
from moewatch.domain.estimate import Flag, KvCache, Machine, ModelParts, Placement
from moewatch.units import format_size

Knows = Callable[[str], bool]

# Weight types that the CPU backend repacks into memory of its own when it may (ggml-cpu/repack.cpp); with a mapped file
# both are held (RSS 25.9 against 13.9 GB, llama.cpp#16761)
_REPACKED = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "IQ4_NL", "Q8_0", "MXFP4"})
_OVERRIDE_EXPERTS = r".ffn_.*_exps.=CPU"


def build_command(
    parts: ModelParts, placement: Placement, machine: Machine, cache: KvCache | None, knows: Knows
) -> tuple[Flag, ...]:
    """The options in the order in which a person would write them; `knows(name)` is whether the build has one."""
    found: list[Flag] = []

    def add(options: Sequence[str], value: str | None, reason: str) -> bool:
        known = [name for name in options if knows(name)]
        if not known:
            return False
        # the long name reads better a year later; the last of a tuple is the longest-lived
        name = next((name for name in known if name.startswith("--")), known[0])
        found.append(Flag(words=(name,) if value is None else (name, value), reason=reason))
        return True

    _add_gpu(parts, placement, add)
    n_threads = machine.n_cores
    if n_threads:
        add(names.THREADS, str(n_threads), "one thread for each physical core; hyper-threads share what is scarce")
    if cache is not None:
        add(names.CONTEXT, str(cache.context), f"the context takes {format_size(cache.total_bytes)}")
        add(names.PARALLEL, "1", "one request at a time: all of the context and the cache is its own")
        if cache.kv_type != DEFAULT_KV_TYPE:
            add(names.CACHE_TYPE_K, cache.kv_type, "as asked for")
            if cache.kv_type not in ("f32", "bf16"):
                add(names.FLASH_ATTENTION, "on", "values in such a type need it")
            add(names.CACHE_TYPE_V, cache.kv_type, "as asked for")
    add(
        names.LOAD_MODE,
        "mmap",
        "weights stay in the page cache: they survive a restart, and what does not fit is left out",
    )
    is_short = placement.host_dense_bytes + placement.host_expert_bytes > machine.room_bytes - placement.host_anon_bytes
    if is_short and _REPACKED.intersection(parts.type_bytes):
        add(names.NO_REPACK, None, "repacked weights would be held twice, in memory that is short already")
    if is_short:
        add(names.PROMPT_CACHE, "0", "8 GiB of old prompts would take the weights' room")
    return tuple(found)


def _add_gpu(parts: ModelParts, placement: Placement, add: Callable[[Sequence[str], str | None, str], bool]) -> None:
    if not placement.n_gpu_layers:
        return
    n_layer = len(parts.layers)
    is_all = placement.n_gpu_layers > n_layer
    what = "what every token needs" if parts.is_moe else "the weights"
    add(
        names.GPU_LAYERS,
        str(placement.n_gpu_layers),
        f"{what} and the cache on the GPU, {'all layers' if is_all else f'as many of {n_layer} layers as fit'}",
    )
    if not placement.n_cpu_moe:
        return
    left = n_layer - placement.n_cpu_moe
    reason = (
        f"experts of the last {left} layers on the GPU, the others in memory"
        if left
        else "all experts in memory: not one layer of them fits on the GPU"
    )
    if add(names.N_CPU_MOE, str(placement.n_cpu_moe), reason):
        return
    # older builds: a pattern that says the same
    pattern = (
        _OVERRIDE_EXPERTS if not left else rf"blk\.({'|'.join(map(str, range(placement.n_cpu_moe)))})\.ffn_.*_exps.=CPU"
    )
    add(names.OVERRIDE_TENSOR, pattern, reason)
