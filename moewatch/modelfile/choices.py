"""Which models a list of file names holds: shards belong together, and a quantisation is told by its name. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from moewatch.errors import UnusableFileError
from moewatch.modelfile.shards import SHARD_NAME
from moewatch.modelfile.source import printable

# Beside a model, and none: vision projectors, importance matrices, vocabularies alone
_NO_MODEL = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix|vocab)(?:[-._]|$)", re.IGNORECASE)
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))(?=[-._/]|$)",
    re.IGNORECASE,
)
# what llama-server's own -hf takes when nothing is said (common/download.cpp), then by what people run
PREFERRED = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "MXFP4_MOE", "MXFP4", "Q4_0", "IQ4_XS", "Q5_K_M", "Q8_0")
_NAMED_AT_MOST = 12


class Choice(Struct, frozen=True, kw_only=True):
    """One model among the files: the path of its first shard, all its paths, its quantisation by name, its size."""

    path: str
    paths: tuple[str, ...]
    quantisation: str
    size_bytes: int | None = None


def group_models(sizes: Mapping[str, int | None]) -> list[Choice]:
    """The models among these paths, smallest first where sizes are known; incomplete splits are left out."""
    groups: dict[str, list[str]] = {}
    for path in sorted(sizes):
        if not path.lower().endswith(".gguf") or _NO_MODEL.search(path):
            continue
        folder, slash, name = path.rpartition("/")
        shard = SHARD_NAME.fullmatch(name)
        key = f"{folder}{slash}{shard[1]}-of-{shard[3]}" if shard else path
        groups.setdefault(key, []).append(path)
    found = []
    for paths in groups.values():
        shard = SHARD_NAME.fullmatch(paths[0].rpartition("/")[2])
        if shard and len(paths) != int(shard[3]):
            continue
        known = [size for path in paths if (size := sizes[path]) is not None]
        found.append(
            Choice(
                path=paths[0],
                paths=tuple(paths),
                quantisation=name_in_path(paths[0]),
                size_bytes=sum(known) if len(known) == len(paths) else None,
            )
        )
    return sorted(found, key=lambda choice: (choice.size_bytes or 0, choice.path))


def name_in_path(path: str) -> str:
    """`Q4_K_M` of `Q4_K_M/model-Q4_K_M-00001-of-00002.gguf`; "" when none is named. The file's name counts first."""
    folder, _, name = path.rpartition("/")
    for text in (name.removesuffix(".gguf"), folder):
        if found := _QUANTISATION.findall(text):
            return str(found[-1]).upper()
    return ""


def choose(choices: Sequence[Choice], wanted: str, where: str) -> Choice:
    """The one meant: by quantisation, or the one that llama-server would take; UnusableFileError names what there is."""
    if not choices:
        raise UnusableFileError(f"{printable(where)} holds no whole model (.gguf); check the name.")
    if wanted:
        by_name = [c for c in choices if c.quantisation == wanted.upper()] or [
            c for c in choices if wanted.upper() in c.path.upper()
        ]
        if not by_name:
            raise UnusableFileError(f"{printable(where)} has no {printable(wanted)}; there is {_names(choices)}.")
        return by_name[0]
    for name in PREFERRED:
        if preferred := [c for c in choices if c.quantisation == name]:
            return preferred[0]
    return choices[0]


def _names(choices: Iterable[Choice]) -> str:
    names = list(dict.fromkeys(c.quantisation or c.path for c in choices))
    shown = [printable(name) for name in names[:_NAMED_AT_MOST]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
