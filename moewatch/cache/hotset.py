"""The hot set: which pages of a model were in memory after a good run, in a small file that says whose they are.

docs/reference/hotset.md describes the format. Pages, never bytes of the model: a few hundred KiB for a model of 60 GiB. The
file is not trusted: every count is held against the model, and what does not fit it is refused in one sentence.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from moewatch.cache.runs import Run, intersect, normalise, subtract, total
from moewatch.domain.encoding import encode_json
from moewatch.domain.warm import FileRun
from moewatch.errors import ParseError
from moewatch.modelfile.source import printable

FORMAT = "moewatch-hotset"
VERSION = 1
MAX_RUNS = 1 << 20  # decoded in about a second
MAX_TIERS = 16
MAX_SHARDS = 4096
# numbers below 2^48 pages: varints of 7 bytes at most, so that a hostile one costs nothing
VARINT_BITS = 48

Files = list[list[Run]]  # runs per shard, in bytes


class HotFile(Struct, frozen=True, kw_only=True):
    """One shard as it was; the name is only for people, size and header tell models apart."""

    name: str
    size_bytes: Annotated[int, Meta(ge=0, le=1 << 50)]
    header_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class HotModel(Struct, frozen=True, kw_only=True):
    """Whose pages they are."""

    name: str
    files: Annotated[tuple[HotFile, ...], Meta(min_length=1, max_length=MAX_SHARDS)]

    @property
    def digest(self) -> str:
        """The same for every copy of the model, whatever its files are called; 12 hexadecimal digits."""
        text = "\n".join(f"{file.size_bytes} {file.header_sha256}" for file in self.files)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Seen(Struct, frozen=True, kw_only=True):
    """What was known of the run when the set was taken; all None: a look at one moment."""

    watched_ns: Annotated[int, Meta(ge=0)] | None = None
    state: str | None = None  # the verdict's, at the end
    tokens: Annotated[int, Meta(ge=0)] | None = None  # generated meanwhile
    loss_ratio: float | None = None


class Tier(Struct, frozen=True):
    """Pages that are equally hot, as runs in bytes per shard."""

    heat: float  # relative to the other tiers
    runs: Files

    @property
    def size_bytes(self) -> int:
        """Of all its runs."""
        return sum(map(total, self.runs))


class Hotset(Struct, frozen=True, kw_only=True):
    """A hot set in memory: the hottest tier first, no page in two tiers."""

    model: HotModel
    created: str = ""
    basis: str = "residency"  # or watched, imatrix
    page_bytes: int = 4096
    tiers: tuple[Tier, ...]
    seen: Seen = Seen()

    @property
    def size_bytes(self) -> int:
        """Of all pages in it."""
        return sum(tier.size_bytes for tier in self.tiers)

    @property
    def file_runs(self) -> tuple[FileRun, ...]:
        """Hottest first, by place within a tier: what a plan takes as its hot set."""
        return tuple(
            FileRun(file_index=index, offset=start, length=end - start)
            for tier in self.tiers
            for index, runs in enumerate(tier.runs)
            for start, end in runs
        )

    @property
    def runs(self) -> Files:
        """All tiers together."""
        return [
            normalise(run for tier in self.tiers for run in tier.runs[index]) for index in range(len(self.model.files))
        ]

    @property
    def is_proven(self) -> bool:
        """Whether it was taken from a run that was watched and lost no time: the pages that work needs, then."""
        return self.seen.state == "steady" and bool(self.seen.tokens)


class _StoredTier(Struct, kw_only=True):
    heat: float
    shards: Annotated[tuple[str, ...], Meta(max_length=MAX_SHARDS)]


class _Stored(Struct, kw_only=True):
    """The file, key by key."""

    format: str
    version: int
    created: Annotated[str, Meta(max_length=64)] = ""
    basis: Annotated[str, Meta(max_length=32)] = "residency"
    page_bytes: Annotated[int, Meta(ge=4096, le=65536)]
    model: HotModel
    seen: Seen = Seen()
    tiers: Annotated[tuple[_StoredTier, ...], Meta(max_length=MAX_TIERS)]


class _Head(Struct, kw_only=True):
    format: str = ""
    version: int = 0


def make_hotset(
    model: HotModel,
    tiers: Iterable[tuple[float, Sequence[Sequence[Run]]]],
    *,
    basis: str,
    created: str = "",
    page_bytes: int = 4096,
    seen: Seen = Seen(),  # noqa: B008 - frozen
) -> Hotset:
    """Whole pages, each in its hottest tier only, few enough runs to be read back."""
    taken: Files = [[] for _ in model.files]
    kept: list[Tier] = []
    for heat, files in tiers:
        runs = [
            subtract(_whole_pages(each, page_bytes, file.size_bytes), gone)
            for each, gone, file in zip(files, taken, model.files, strict=True)
        ]
        if any(runs):
            taken = [normalise([*gone, *new]) for gone, new in zip(taken, runs, strict=True)]
            kept.append(Tier(heat, runs))
    kept = _coarsened(kept, page_bytes)
    return Hotset(
        model=model, created=created, basis=basis, page_bytes=page_bytes, tiers=tuple(kept[:MAX_TIERS]), seen=seen
    )


def _whole_pages(runs: Iterable[Run], page: int, size: int) -> list[Run]:
    return normalise((start // page * page, min(-(-end // page) * page, size)) for start, end in runs)


def _coarsened(tiers: list[Tier], page_bytes: int) -> list[Tier]:
    """Close gaps of a page, then of two, four ... until there are few enough runs; each tier gives way to hotter ones."""
    gap = page_bytes
    while sum(len(runs) for tier in tiers for runs in tier.runs) > MAX_RUNS:
        taken: Files = [[] for _ in tiers[0].runs]
        wider: list[Tier] = []
        for tier in tiers:
            closed = [subtract(_close(runs, gap), gone) for runs, gone in zip(tier.runs, taken, strict=True)]
            taken = [normalise([*gone, *new]) for gone, new in zip(taken, closed, strict=True)]
            wider.append(Tier(tier.heat, closed))
        tiers = wider
        gap *= 2
    return tiers


def _close(runs: Sequence[Run], gap: int) -> list[Run]:
    closed: list[Run] = []
    for start, end in runs:
        if closed and start - closed[-1][1] <= gap:
            closed[-1] = (closed[-1][0], end)
        else:
            closed.append((start, end))
    return closed


def encode_hotset(hotset: Hotset) -> bytes:
    """The file's bytes: one JSON object and a newline."""
    page = hotset.page_bytes
    stored = _Stored(
        format=FORMAT,
        version=VERSION,
        created=hotset.created,
        basis=hotset.basis,
        page_bytes=page,
        model=hotset.model,
        seen=hotset.seen,
        tiers=tuple(
            _StoredTier(heat=tier.heat, shards=tuple(encode_runs(runs, page) for runs in tier.runs))
            for tier in hotset.tiers
        ),
    )
    return encode_json(stored) + b"\n"


def decode_hotset(content: bytes, name: str) -> Hotset:
    """From the bytes of a file called `name`.

    Raises:
        ParseError: it is none, is damaged, or is of a newer version; the sentence begins with the name.
    """
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head = _Head()
    if head.format != FORMAT:
        raise ParseError(f"{name} is no hot set; make one with: moewatch hotset save FILE")
    if head.version != VERSION:
        raise ParseError(f"{name} is a hot set of version {head.version}; this moewatch reads {VERSION}.")
    try:
        stored = msgspec.json.decode(content, type=_Stored)
        return _checked(stored)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"{name} is damaged ({printable(str(error))}); save it again.") from None


def _checked(stored: _Stored) -> Hotset:
    """Everything that is between these bytes and a plan; ValueError says what is wrong."""
    page = stored.page_bytes
    if page & (page - 1):
        raise ValueError("its page size is no power of two")
    budget = MAX_RUNS
    taken: Files = [[] for _ in stored.model.files]
    tiers: list[Tier] = []
    for tier in stored.tiers:
        if not 0 <= tier.heat < float("inf"):
            raise ValueError("a heat is no number of 0 or more")
        if len(tier.shards) != len(stored.model.files):
            raise ValueError("it has runs of other shards than it names")
        runs: Files = []
        for text, file, gone in zip(tier.shards, stored.model.files, taken, strict=True):
            found = decode_runs(text, page, file.size_bytes, limit=budget)
            budget -= len(found)
            if intersect(found, gone):
                raise ValueError("two tiers have the same page")
            runs.append(found)
        taken = [normalise([*gone, *new]) for gone, new in zip(taken, runs, strict=True)]
        tiers.append(Tier(tier.heat, runs))
    if tiers != sorted(tiers, key=lambda each: -each.heat):
        raise ValueError("its tiers are not in order")
    return Hotset(
        model=stored.model,
        created=stored.created,
        basis=stored.basis,
        page_bytes=page,
        tiers=tuple(tiers),
        seen=stored.seen,
    )


def encode_runs(runs: Sequence[Run], page_bytes: int) -> str:
    """Base64 of LEB128 varints, in pages: gap to the run before, length, gap, length ..."""
    out = bytearray()
    before = 0
    for start, end in runs:
        first, last = start // page_bytes, -(-end // page_bytes)
        for number in (first - before, last - first):
            left = number
            while left > 127:  # noqa: PLR2004 - seven bits a byte
                out.append(left & 127 | 128)
                left >>= 7
            out.append(left)
        before = last
    return base64.b64encode(bytes(out)).decode()


def decode_runs(text: str, page_bytes: int, size_bytes: int, *, limit: int = MAX_RUNS) -> list[Run]:
    """The runs again, in bytes, sorted, apart, inside the file; ValueError says what is wrong."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("runs are no base64") from None
    numbers: list[int] = []
    value = shift = 0
    for byte in packed:
        value |= (byte & 127) << shift
        if byte & 128:
            shift += 7
            if shift >= VARINT_BITS:
                raise ValueError("a run is longer than any file")
            continue
        numbers.append(value)
        value = shift = 0
        if len(numbers) > 2 * limit:
            raise ValueError(f"it has more than {MAX_RUNS} runs")
    if shift or len(numbers) % 2:
        raise ValueError("it ends in the middle of a run")
    runs: list[Run] = []
    at = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap
        at = start + length
        if not length or (runs and not gap):
            raise ValueError("runs are empty or touch")
        if (at - 1) * page_bytes >= size_bytes:
            raise ValueError("a run lies beyond the end of its file")
        runs.append((start * page_bytes, min(at * page_bytes, size_bytes)))
    return runs
