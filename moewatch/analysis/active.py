"""A: the bytes that one token needs, less what lies on the GPU. Pure."""

from moewatch.domain.sample import ModelSummary, ResidencyReading


def derive_active_bytes(model: ModelSummary | None, residency: ResidencyReading | None) -> int | None:
    """Bytes of weights that one token needs in host memory: the dense ones whole, and used/total of the experts.

    None when the model's header was not read. A tensor that is not needed in host memory (on the GPU) is not in it.
    """
    if model is None:
        return None
    active = model.active_bytes_per_token
    if active is None or residency is None:
        return active
    spared = residency.not_needed_dense_bytes
    if model.n_expert and model.n_expert_used is not None:
        spared += residency.not_needed_expert_bytes * model.n_expert_used // model.n_expert
    return max(0, active - spared)
