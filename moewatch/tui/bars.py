"""The two bars: where the memory is, and what of the model is in it. Cells and figures add up to the whole."""

from dataclasses import dataclass

from moewatch.domain.frame import Frame, Memory
from moewatch.domain.sample import ModelSummary
from moewatch.tui.glyphs import Glyphs
from moewatch.tui.rows import Role, Row, Span, clean, fit, width_of
from moewatch.units import GIB, format_percent, shares

TENTH = GIB / 10
SMALL_BYTES = 10 * GIB  # a whole below this is shown in hundredths: a model of 1.6 GiB has 0.05 that every token needs
# Server and model are read a moment apart: so much more than the limit is that; above it the limit was just lowered, or
# the pages are charged to another cgroup, which read them first.
OVERLAP_RATIO = 0.02
PROGRAMS_SHOWN = 2
_OPTIONAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One stretch of a bar; `keep` says how long its legend stays when room gets short (larger leaves first)."""

    sign: str
    name: str
    size_bytes: int
    role: Role
    keep: int = 0
    of_bytes: int | None = None  # shown as `1.7 of 1.7`


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A whole and its parts, in order; they add up."""

    label: str
    total_bytes: int
    parts: tuple[Part, ...]
    missing: str = ""  # why there is no bar
    over_bytes: int = 0  # what the parts are more than the limit that the label shows

    @property
    def label_bytes(self) -> int:
        """The figure beside its name."""
        return self.total_bytes - self.over_bytes

    @property
    def decimals(self) -> int:
        """Decimals of its figures in GiB."""
        return 2 if 0 < self.total_bytes < SMALL_BYTES else 1


def memory_bar(frame: Frame | None, glyphs: Glyphs) -> Bar:
    """Who has the memory that counts for the server: the machine's, or its cgroup's limit."""
    memory = frame.memory if frame else Memory()
    label = "RAM" if memory.limit_scope in (None, "host") else "LIMIT"
    if memory.limit_bytes is None:
        return Bar(label=label, total_bytes=0, parts=(), missing="not read yet" if frame is None else "not readable")
    must = (memory.target_anon_bytes or 0) + (memory.model_resident_bytes or 0)
    over = must - memory.limit_bytes
    if over <= memory.limit_bytes * OVERLAP_RATIO:
        over = 0
    total = left = memory.limit_bytes + over
    parts: list[Part] = []

    def take(sign: str, name: str, size: int | None, role: Role, keep: int) -> None:
        nonlocal left
        if size is not None:
            size = max(0, min(size, left))  # readings of two instants may overlap; the later parts give way
            left -= size
            parts.append(Part(sign=sign, name=name, size_bytes=size, role=role, keep=keep))

    take(glyphs.server, "server", memory.target_anon_bytes, Role.STRONG, 0)
    take(glyphs.model, "model", memory.model_resident_bytes, Role.MEMORY, 0)
    grown = sorted(memory.grew, key=lambda g: -(g.anon_bytes or g.bytes))[:PROGRAMS_SHOWN]
    after_cache = len(parts)
    for n, growth in enumerate(grown):
        take(glyphs.program, fit(clean(growth.name), 15), growth.anon_bytes or growth.bytes, Role.OTHER, 1 + n)
    programs = parts[after_cache:]
    del parts[after_cache:]
    take(glyphs.cache, "cache", memory.other_cache_bytes, Role.FIRST, 3)
    parts.extend(programs)
    free_bytes = None if memory.free_bytes is None else max(0, min(memory.free_bytes, left))
    rest = left - (free_bytes or 0)
    name = "rest" if free_bytes is not None else "rest, free"
    parts.append(Part(sign=glyphs.rest, name=name, size_bytes=rest, role=Role.DIM, keep=4))
    if free_bytes is not None:
        parts.append(Part(sign=glyphs.free, name="free", size_bytes=free_bytes, role=Role.DIM, keep=5))
    return Bar(label=label, total_bytes=total, parts=tuple(parts), over_bytes=over)


def model_bar(frame: Frame | None, summary: ModelSummary | None, glyphs: Glyphs) -> Bar:
    """What of the model's files is in memory, by class; what is on the GPU needs none."""
    if summary is None:
        return Bar(label="MODEL", total_bytes=0, parts=(), missing="its files are not known yet")
    total = summary.total_bytes
    if frame is None:
        return Bar(label="MODEL", total_bytes=total, parts=(), missing="not read yet")
    residency, memory = frame.residency, frame.memory
    left = total
    parts: list[Part] = []

    def take(part: Part) -> None:
        nonlocal left
        size = max(0, min(part.size_bytes, left))
        left -= size
        parts.append(
            Part(
                sign=part.sign, name=part.name, size_bytes=size, role=part.role, keep=part.keep,
                of_bytes=part.of_bytes,
            )
        )  # fmt: skip

    dense, experts = residency.dense_resident_bytes, residency.expert_resident_bytes
    if dense is not None:
        take(
            Part(
                sign=glyphs.dense, name="every token", size_bytes=dense, role=Role.MEMORY_STRONG,
                of_bytes=residency.dense_needed_bytes,
            )
        )  # fmt: skip
        if summary.expert_bytes:
            take(
                Part(
                    sign=glyphs.experts, name="experts", size_bytes=experts or 0, role=Role.MEMORY,
                    of_bytes=residency.expert_needed_bytes,
                )
            )  # fmt: skip
        if residency.embedding_resident_bytes:
            size = residency.embedding_resident_bytes
            take(Part(sign=glyphs.table, name="token table", size_bytes=size, role=Role.MEMORY, keep=5))
    elif memory.model_resident_bytes is not None:
        take(Part(sign=glyphs.experts, name="in memory", size_bytes=memory.model_resident_bytes, role=Role.MEMORY))
    else:
        return Bar(label="MODEL", total_bytes=total, parts=(), missing="what is in memory cannot be read")
    if residency.not_needed_bytes:
        name = "on the GPU" if not residency.not_needed_assumed else "on the GPU (assumed)"
        take(Part(sign=glyphs.gpu, name=name, size_bytes=residency.not_needed_bytes, role=Role.DIM, keep=1))
    mapped = frame.target.load_mode.is_mapped
    name = "on disk" if mapped is not False else "not in the cache"
    parts.append(Part(sign=glyphs.disk, name=name, size_bytes=left, role=Role.DIM, keep=2))
    return Bar(label="MODEL", total_bytes=total, parts=tuple(parts))


def cells(bar: Bar, width: int, glyphs: Glyphs) -> Row:
    """The bar in exactly `width` cells."""
    if not bar.parts:
        return (Span(fit(f"{glyphs.dash} {bar.missing}", width, glyphs.ellipsis).ljust(width), Role.DIM),)
    counts = shares([part.size_bytes for part in bar.parts], width)
    for n, part in enumerate(bar.parts):  # what is there is seen, at the expense of the longest
        longest = max(range(len(counts)), key=counts.__getitem__)
        if not counts[n] and part.size_bytes > TENTH and counts[longest] > 1:
            counts[n] += 1
            counts[longest] -= 1
    return tuple(Span(p.sign * n, p.role) for p, n in zip(bar.parts, counts, strict=True) if n)


def legend(bar: Bar, width: int, *, compact: bool = False) -> Row:
    """Sign, name and GiB of each part, the figures adding up to the whole; what does not fit leaves by its order."""
    if not bar.parts:
        return ()
    decimals = bar.decimals
    units = shares([part.size_bytes for part in bar.parts], round(bar.total_bytes * 10**decimals / GIB))
    entries = [
        (
            part,
            (Span(part.sign.replace(" ", ""), part.role), Span(_figure(part, n, decimals, compact=compact), Role.DIM)),
        )
        for part, n in zip(bar.parts, units, strict=True)
        if n or part.keep < _OPTIONAL  # cache, rest and free are left out when they are nothing
    ]
    excess = Span(f"  {bar.over_bytes / GIB:,.{decimals}f} over the limit", Role.STRONG)
    width -= width_of((excess,)) if bar.over_bytes else 0
    while True:
        row: list[Span] = []
        for _, entry in entries:
            row.extend((Span(" " if compact else "  "), *entry) if row else entry)
        if width_of(row) <= width or not entries:
            return (*row, excess) if bar.over_bytes else tuple(row)
        entries.remove(max(entries, key=lambda entry: entry[0].keep))


def _figure(part: Part, units: int, decimals: int, *, compact: bool) -> str:
    if compact and part.of_bytes:
        return f"{part.name} {format_percent(min(1.0, part.size_bytes / part.of_bytes))}%"
    lead = " " if part.sign.strip() and not compact else ""
    shown = f"{units / 10**decimals:,.{decimals}f}"
    of = ""
    if part.of_bytes is not None:  # all of it is shown as all of it, whichever way the parts were rounded to add up
        whole = f"{part.of_bytes / GIB:,.{decimals}f}"
        of = f" of {shown if part.size_bytes >= part.of_bytes else whole}"
    return f"{lead}{part.name} {shown}{of}"
