"""Which smaller quantisation of a model would fit its room. Pure."""

from moewatch.domain.sample import ModelSummary

# Bits per weight of what people download, over whole models (llama.cpp, tools/quantize/README.md, Llama-3.1-8B); the
# order is the one in which quality falls
BITS: dict[str, float] = {
    "F32": 32.0,
    "BF16": 16.0,
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.7,
    "Q5_K_S": 5.57,
    "Q4_K_M": 4.89,
    "Q4_K_S": 4.67,
    "IQ4_XS": 4.46,
    "Q3_K_M": 4.0,
    "IQ3_XXS": 3.25,
    "Q2_K": 3.16,
    "IQ2_XXS": 2.38,
}
# Names that stand for one of those when a file only says which type most of its bytes have
ALIASES = {
    "Q5_K": "Q5_K_M", "Q5_0": "Q5_K_S", "Q5_1": "Q5_K_M", "Q4_K": "Q4_K_M", "Q4_0": "Q4_K_S", "Q4_1": "Q4_K_M",
    "IQ4_NL": "IQ4_XS", "Q3_K": "Q3_K_M", "Q3_K_L": "Q3_K_M", "Q3_K_S": "Q3_K_M", "IQ3_S": "Q3_K_M", "IQ3_M": "Q3_K_M",
    "IQ3_XS": "IQ3_XXS", "Q2_K_S": "Q2_K", "IQ2_M": "Q2_K", "IQ2_S": "IQ2_XXS", "IQ2_XS": "IQ2_XXS",
}  # fmt: skip
OFFERED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K")
WORTH_SHARE = 0.85  # of today's size at most: below that a new download changes nothing that is felt


def smaller(model: ModelSummary, room_bytes: int | None) -> tuple[str, int] | None:
    """(name, about how many bytes) of the largest quantisation that has room, else of one that at least comes closer.

    None when the model's is not known, does not shrink (experts in MXFP4: the model was trained in it, and files called
    Q4 or Q2 of it have the same experts), or nothing smaller is offered.
    """
    name = ALIASES.get(model.quantisation, model.quantisation)
    bits = BITS.get(name)
    if model.mxfp4_experts or bits is None or "MXFP4" in model.quantisation:
        return None
    sizes = [(other, round(model.total_bytes * BITS[other] / bits)) for other in OFFERED]
    less = [(other, size) for other, size in sizes if size <= WORTH_SHARE * model.total_bytes]
    if not less:
        return None
    if room_bytes is not None:
        for other, size in less:
            if size <= room_bytes:
                return other, size
    # nothing fits: four bits are as far down as quality holds; below that, the next smaller one
    return next(((other, size) for other, size in less if BITS[other] <= BITS["Q4_K_M"]), less[-1])
