"""How much of what the host needs is in the page cache: ratios from the latest residency reading. Pure."""

from moewatch.analysis.window import Window
from moewatch.domain.frame import Residency


def derive_residency(window: Window) -> Residency:
    """Ratios of the newest scan; what lies on the GPU is in neither side of any ratio; all None without a scan."""
    carried, model = window.carried, window.header.model
    scan, scan_ns = carried.residency, carried.residency_ns
    if scan is None or scan_ns is None:
        return Residency()
    spared = scan.not_needed_dense_bytes + scan.not_needed_expert_bytes + scan.not_needed_embedding_bytes
    total = dense = expert = None
    if model is not None:
        total = model.total_bytes - spared
        dense = None if model.dense_bytes is None else model.dense_bytes - scan.not_needed_dense_bytes
        expert = None if model.expert_bytes is None else model.expert_bytes - scan.not_needed_expert_bytes
    return Residency(
        resident_ratio=_ratio(scan.resident_bytes, total),
        dense_ratio=_ratio(scan.dense_resident_bytes, dense),
        expert_ratio=_ratio(scan.expert_resident_bytes, expert),
        by_layer=None if scan.by_layer is None else tuple(None if x is None else min(1.0, x) for x in scan.by_layer),
        not_needed_bytes=spared,
        not_needed_assumed=scan.not_needed_assumed,
        age_ns=(scan.age_ns or 0) + window.now.mono_ns - scan_ns,
        backend=scan.backend,
        dense_resident_bytes=scan.dense_resident_bytes,
        dense_needed_bytes=dense,
        expert_resident_bytes=scan.expert_resident_bytes,
        expert_needed_bytes=expert,
        embedding_resident_bytes=scan.embedding_resident_bytes,
        experts=scan.experts,
    )


def _ratio(part: int | None, whole: int | None) -> float | None:
    """Clamped to 1: edge pages are shared between classes and counted in both."""
    return None if part is None or whole is None or whole <= 0 else min(1.0, part / whole)
