"""Tokens per second before anything runs: what is missing in memory per token, through the disk. Pure.

One token takes the time to work through the weights it needs plus the time to read those that are not in memory:

    amplification  r = 1 + fault / slice          a fault reads more than the expert's slice of a tensor
    cached share   c = s / (1 + (r - 1)(1 - s))   s = room for experts / expert bytes; what was read too much takes room as well
    missing bytes    = used experts x r x (1 - c)^m

m says how much better the cache does than chance: 1 for a router that picks evenly and forgets, more when the experts of
one token are likely again at the next. Fitted to a real llama-server with memory for 70, 50 and 30 % of the experts and
read-ahead of 16 KiB to 4 MiB it was 3.3 to 4.4, for a router that prefers no expert; trained routers were not measured, so
the assumed range goes further both ways. Errors are taken to be independent: they are combined as squares, of logarithms where
figures are multiplied (docs/explanation/estimate.md).
"""

import math

from moewatch.analysis.kvcache import UBATCH_TOKENS
from moewatch.domain.estimate import Expectation, Machine, ModelParts, Placement, Range
from moewatch.units import GB, MB

SKEW_LOW, SKEW_HIGH = 2.8, 4.8
# A pattern that goes round (a dense model, or one token's needs above the room) evicts what it will need next: with room
# for 90 % of a dense model 640 MB/s were read for 0.5 tokens/s, so about 0.8 of it each time (measured)
ROUND_LOW, ROUND_HIGH = 0.5, 1.0
# Weights worked through per second without a measurement: from a laptop with one DDR4 channel to a desktop with two of DDR5
HOST_ASSUMED = Range(8 * GB, 60 * GB)
GPU_ASSUMED = Range(150 * GB, 900 * GB)  # memory of a laptop GPU to that of the largest for desktops
HOST_RATIO = Range(
    0.32, 0.9
)  # of measured memory traffic: what llama.cpp gets out of it (0.42 to 0.84 for F16 on 2 cores)
# Random reads of 128 KiB by a few threads, where nothing was measured [?]
DISK_ASSUMED = Range(200 * MB, 3 * GB)  # SATA SSD to a good NVMe
ROTATING_ASSUMED = Range(8 * MB, 40 * MB)
# Faults through a mapping against plain reads: pages are made for them, and threads wait for the one that faults (410 MB/s
# re-read, 470 while waiting, where plain reads made 700 to 800; measured)
DISK_RATIO = Range(0.5, 1.0)
LAYER_S = Range(10e-6, 120e-6)  # each layer's fixed cost: threads that wait for one another, small kernels
PREFILL_GAIN = Range(1.2, 8.0)  # a token of a batch against a single one, on the CPU
_SMALL_BATCH = 4


def missing_per_token(parts: ModelParts, placement: Placement, machine: Machine) -> tuple[float, Range]:
    """(cached share of the weights in host memory, bytes to read for each token)."""
    dense, experts = placement.host_dense_bytes, placement.host_expert_bytes
    room = max(0, machine.room_bytes - placement.host_anon_bytes)
    needed = dense + experts
    if needed <= room:
        return 1.0, Range(0.0, 0.0)
    cached = room / needed
    used = experts * parts.used_ratio
    if not experts:
        return cached, Range(ROUND_LOW * dense, ROUND_HIGH * dense)
    if room < dense + used:
        # no less than with just enough room for one token's: less memory is never faster
        least = _missing_experts(parts, machine, used, parts.used_ratio)
        return cached, Range(max(ROUND_LOW * (dense + used), least.low), max(ROUND_HIGH * (dense + used), least.high))
    return cached, _missing_experts(parts, machine, used, (room - dense) / experts)


def _missing_experts(parts: ModelParts, machine: Machine, used_bytes: float, share: float) -> Range:
    """Bytes of experts to read for each token where so large a share of all experts has room."""
    amplification = 1 + machine.fault_bytes / parts.slice_bytes if parts.slice_bytes else 1.0
    share /= 1 + (amplification - 1) * (1 - share)
    return Range(
        used_bytes * amplification * (1 - share) ** SKEW_HIGH,
        used_bytes * amplification * (1 - share) ** SKEW_LOW,
    )


def _product(*factors: Range) -> Range:
    """The range of a product of independent figures, all above zero; of nothing where one is zero."""
    if any(factor.low <= 0 for factor in factors):
        return Range(0.0, math.prod(factor.high for factor in factors))
    middle = math.prod(math.sqrt(factor.low * factor.high) for factor in factors)
    spread = math.sqrt(sum((math.log(factor.high / factor.low) / 2) ** 2 for factor in factors))
    return Range(middle / math.exp(spread), middle * math.exp(spread))


def _inverse(value: Range) -> Range:
    return Range(1 / value.high, 1 / value.low)


def _sum(*parts: Range) -> Range:
    """The range of a sum of independent figures."""
    middles = [math.sqrt(part.low * part.high) for part in parts]
    down = math.sqrt(sum((middle - part.low) ** 2 for middle, part in zip(middles, parts, strict=True)))
    up = math.sqrt(sum((part.high - middle) ** 2 for middle, part in zip(middles, parts, strict=True)))
    return Range(sum(middles) - down, sum(middles) + up)


def _exactly(value: float) -> Range:
    return Range(value, value)


def _work_s(parts: ModelParts, placement: Placement, machine: Machine) -> Range:
    """Time of one token when everything is in memory."""
    used = parts.used_ratio
    host = placement.host_dense_bytes + placement.host_expert_bytes * used
    gpu = placement.gpu_dense_bytes + placement.gpu_expert_bytes * used
    rate = HOST_ASSUMED
    if machine.memory_bytes_per_s is not None:
        rate = _product(HOST_RATIO, _exactly(machine.memory_bytes_per_s))
    layers = _product(_exactly(max(1, len(parts.layers))), LAYER_S)
    return _sum(_product(_exactly(host), _inverse(rate)), _product(_exactly(gpu), _inverse(GPU_ASSUMED)), layers)


def _wait_s(n_bytes: Range, machine: Machine) -> Range:
    """Time to read so much through page faults."""
    return _product(n_bytes, _inverse(machine.disk_bytes_per_s or DISK_ASSUMED), _inverse(DISK_RATIO))


def derive_expectation(parts: ModelParts, placement: Placement, machine: Machine, prompt_tokens: int) -> Expectation:
    """Tokens per second and the time to the first token of a prompt.

    The first token's low end finds the cache as full as it can be, the high end finds nothing in memory.
    """
    cached, missing = missing_per_token(parts, placement, machine)
    work, wait = _work_s(parts, placement, machine), _wait_s(missing, machine)
    return Expectation(
        cached_ratio=cached,
        missing_bytes_per_token=missing,
        tokens_per_s=_inverse(_sum(work, wait)),
        first_token_s=_first_token(parts, placement, machine, prompt_tokens),
        prompt_tokens=prompt_tokens,
        disk_ratio=Range(wait.low / (work.high + wait.low), wait.high / (work.low + wait.high)),
    )


def _first_token(parts: ModelParts, placement: Placement, machine: Machine, prompt_tokens: int) -> Range:
    work = _work_s(parts, placement, machine)
    touched = 1 - (1 - parts.used_ratio) ** min(prompt_tokens, UBATCH_TOKENS)  # of the experts, by one batch
    needed = placement.host_dense_bytes + touched * placement.host_expert_bytes
    room = max(0, machine.room_bytes - placement.host_anon_bytes)
    n_batches = -(-prompt_tokens // UBATCH_TOKENS)
    again = max(0.0, needed - room)
    cold = needed + (n_batches - 1) * (needed if again else 0.0)  # a round that does not fit keeps nothing of use
    gain = PREFILL_GAIN if prompt_tokens > _SMALL_BATCH else Range(1.0, 1.0)
    return Range(
        max(work.low, work.low * prompt_tokens / gain.high) + _wait_s(_exactly(n_batches * again), machine).low,
        work.high * prompt_tokens / gain.low + _wait_s(_exactly(cold), machine).high,
    )
