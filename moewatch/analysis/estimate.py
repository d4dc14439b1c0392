"""One model on one machine: everything that can be said before it runs, put together. Pure."""

from collections.abc import Sequence

from moewatch.analysis.command import Knows, build_command
from moewatch.analysis.kvcache import DEFAULT_KV_TYPE, derive_kv_cache, trained_context
from moewatch.analysis.placement import compute_buffers, derive_placement
from moewatch.analysis.prior import derive_prior
from moewatch.analysis.speed import derive_expectation
from moewatch.domain.estimate import Estimate, KvCache, Machine, ModelParts, Placement
from moewatch.units import format_size

DEFAULT_CONTEXT = 8192  # or what the model was trained for, when that is less: room for a question and a long answer
DEFAULT_PROMPT_TOKENS = 512
# A model counts as fitting when the worst of the range still has this share of the best that memory alone would allow
GOOD_RATIO = 0.5


def derive_estimate(
    parts: ModelParts,
    machine: Machine,
    *,
    context: int | None = None,
    kv_type: str = DEFAULT_KV_TYPE,
    prompt_tokens: int = DEFAULT_PROMPT_TOKENS,
    knows: Knows = lambda _: True,
) -> Estimate:
    """`context` None: DEFAULT_CONTEXT or the trained one; `knows`: whether the installed llama-server has an option."""
    trained = trained_context(parts.metadata, parts.architecture)
    wanted = context if context is not None else min(DEFAULT_CONTEXT, trained or DEFAULT_CONTEXT)
    cache = derive_kv_cache(parts.metadata, parts.architecture, len(parts.layers), wanted, kv_type)
    compute = compute_buffers(parts, cache.context if cache else wanted)
    placement = derive_placement(parts, cache, compute, machine.vram_room_bytes)
    expectation = derive_expectation(parts, placement, machine, prompt_tokens)
    return Estimate(
        parts=parts,
        machine=machine,
        kv_cache=cache,
        compute=compute,
        placement=placement,
        prior=derive_prior(parts, machine.ram_bytes),
        expectation=expectation,
        flags=build_command(parts, placement, machine, cache, knows),
        warnings=tuple(_warnings(parts, machine, cache, placement, trained, expectation.cached_ratio)),
    )


def _warnings(  # noqa: PLR0917 - one caller
    parts: ModelParts,
    machine: Machine,
    cache: KvCache | None,
    placement: Placement,
    trained: int | None,
    cached_ratio: float,
) -> list[str]:
    found: list[str] = []
    weights = placement.host_dense_bytes + placement.host_expert_bytes
    if placement.host_anon_bytes > machine.room_bytes:
        found.append(
            f"The context does not fit: the server alone needs {format_size(placement.host_anon_bytes)}, there is room for "
            f"{format_size(machine.room_bytes)}; take a shorter one (--ctx) or a smaller type (--kv-type q8_0)."
        )
    if cache is None:
        found.append("The header does not say what the context takes in memory; it is left out here.")
    elif trained is not None and cache.context > -(-trained // 256) * 256:
        found.append(f"The model was made for {trained} tokens; beyond that it needs RoPE scaling and gets worse.")
    if cached_ratio < 1:
        found.append(
            f"{format_size(weights)} of weights and room for {format_size(max(0, machine.room_bytes - placement.host_anon_bytes))}: "
            "--mlock would fail or take all memory, and --no-mmap would swap or be killed."
        )
    if not parts.is_moe and cached_ratio < 1:
        found.append(
            "A dense model needs all of its weights for each token: a little too large is as slow as much too large."
        )
    if machine.n_threads and machine.n_cores and machine.n_threads > machine.n_cores:
        found.append(
            f"{machine.n_threads} hardware threads share {machine.n_cores} cores: more than {machine.n_cores} threads make it slower."
        )
    if parts.is_moe and parts.summary.n_expert_used is None:
        found.append("The header does not say how many experts a token uses; all are assumed.")
    if any(layer.draft for layer in parts.layers):
        draft = sum(layer.needed_bytes for layer in parts.layers if layer.draft)
        found.append(
            f"{format_size(draft)} are of layers that only draft; they are not needed unless the server drafts."
        )
    return found


def best_fit(estimates: Sequence[Estimate]) -> int | None:
    """Which of these quantisations to take: the largest that keeps up, else the fastest; None of nothing.

    Quality falls with size, so among those that lose at most half of their speed to the disk the largest is the best.
    """
    if not estimates:
        return None
    keep_up = [i for i, e in enumerate(estimates) if e.expectation.disk_ratio.high <= GOOD_RATIO]
    if keep_up:
        return max(keep_up, key=lambda i: estimates[i].parts.summary.total_bytes)
    return max(range(len(estimates)), key=lambda i: estimates[i].expectation.tokens_per_s.high)
