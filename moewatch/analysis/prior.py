"""The rule of thumb that is passed around: memory against expert bytes. Pure."""

from moewatch.domain.estimate import ModelParts, Prior

FITS_RATIO, FLUCTUATES_RATIO = 0.7, 0.4
FITS, FLUCTUATES, POOR = "fits", "fluctuates", "poor"
DOUBT = (
    "The rule (70 % and more, 40 to 70 %, below) has no published source and knows neither disk nor router: memory for "
    "70 % of the experts lost half the speed where all were used alike (measured)."
)


def derive_prior(parts: ModelParts, ram_bytes: int) -> Prior | None:
    """All memory over all expert bytes; over all weights of a dense model, for which nothing less than all is enough."""
    needed = parts.summary.expert_bytes or parts.summary.dense_bytes
    if not needed:
        return None
    ratio = ram_bytes / needed
    if not parts.is_moe:
        return Prior(ratio=ratio, band=FITS if ratio >= 1 else POOR)
    band = FITS if ratio >= FITS_RATIO else FLUCTUATES if ratio >= FLUCTUATES_RATIO else POOR
    return Prior(ratio=ratio, band=band)
