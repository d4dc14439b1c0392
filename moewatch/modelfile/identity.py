"""Which model it is, before and after the download: by what its headers say of sizes and places, not by name or path."""

import hashlib

from moewatch.domain.layout import ModelLayout

DIGEST_DIGITS = 16


def derive_digest(layout: ModelLayout) -> str:
    """The same for a model across a network and on a disk, and for every copy; 16 hexadecimal digits.

    Of the sizes of all shards and of every tensor's name, place and size. Fine-tunes of one model in one quantisation may
    share it: they are equally large and equally fast.
    """
    digest = hashlib.sha256()
    for file in layout.files:
        digest.update(b"%d\n" % file.size_bytes)
    for tensor in layout.tensors:
        place = f"{tensor.name}\0{tensor.file_index} {tensor.offset} {tensor.size_bytes}\n"
        digest.update(place.encode(errors="replace"))
    return digest.hexdigest()[:DIGEST_DIGITS]
