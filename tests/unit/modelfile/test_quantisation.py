"""The tables held against the package that is the authority on them."""

import gguf
import pytest

from moewatch.modelfile.quantisation import BLOCKS, FILE_TYPES, REMOVED, name_quantisation


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    authority = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    # an older package may know fewer types; what both know must agree, and nothing the package knows may lack
    assert {kind: found for kind, found in BLOCKS.items() if kind in authority} == authority


def test_file_types_are_those_of_the_gguf_package() -> None:
    authority = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    authority.pop(int(gguf.LlamaFileType.GUESSED))
    assert {kind: name for kind, name in FILE_TYPES.items() if kind in authority} == authority


def test_removed_types_are_not_readable_ones() -> None:
    assert not REMOVED.keys() & BLOCKS.keys()


@pytest.mark.parametrize(
    ("dominant", "file_type", "name"),
    [
        ("Q4_K", 15, "Q4_K_M"),
        ("Q4_K", 14, "Q4_K_S"),
        ("MXFP4", 1, "MXFP4"),  # gpt-oss says F16
        ("MXFP4", 38, "MXFP4_MOE"),
        ("IQ2_XXS", 10, "IQ2_XXS"),
        ("Q8_0", None, "Q8_0"),
        ("Q8_0", 999, "Q8_0"),
        ("", 7, "Q8_0"),
        ("", None, ""),
    ],
)
def test_the_name_of_a_quantisation(dominant: str, file_type: object, name: str) -> None:
    assert name_quantisation(dominant, file_type) == name
