"""Whether holding part of a model in memory helps, which part, and when to let go of it. Pure.

Measured from outside a stock server, in one memory group: a dense model with memory for 90 % of it went from 0.7-1.2
tokens/s to 2.9-3.1 with 82 % of it held, since what is used in a circle is pushed out just before it is used again. An MoE
lost half of its speed (27 to 14 and 85 to 46 tokens/s) when experts that were not the ones in use were held, and gained nothing
from holding what every token needs, which stays by itself.
"""

import enum
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from moewatch.cache.plan import class_runs
from moewatch.cache.runs import Run, first_bytes, intersect, normalise, subtract, total
from moewatch.domain.frame import Frame, State
from moewatch.domain.labels import READY_DENSE_RATIO
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.domain.sample import LoadMode, Phase
from moewatch.domain.warm import FileRun
from moewatch.units import MIB, S, format_size

# Of the room, besides what is kept for programs: through this window the part that is not held streams. 82 of 90 parts held
# left 9 %, of which programs keep 6; with less than two read-ahead windows a thread the server reads the same page twice.
STREAM_RATIO, STREAM_FLOOR_BYTES = 0.03, 16 * MIB
EVEN_RATIO = 0.9  # a hot set of so much of the experts says nothing of which are hot
MAX_RANGES = 16_384  # mappings of one process; the kernel's default limit is 65,530 (vm.max_map_count)
SLOWER_RATIO = 0.8  # of the speed before ...
SLOWER_NS = 10 * S  # ... for so long: the rate itself is one of 10 s, so this is 20 s of slower work
SETTLE_NS = 10 * S  # after the last page was held: until then the rate is still of the time before
STALL_RATIO = 0.10  # memory PSI full; a server that fits shows 0, a thrashing one 0.03-0.11 (all recordings)
STALL_FACTOR = 2.0  # and so many times what it was before
STALL_NS = 5 * S
LEFT_DIVISOR = 2  # less than half of what was to be kept for programs is left

Files = list[list[Run]]  # runs per shard


class Part(enum.StrEnum):
    """What may be held."""

    DENSE = "dense"
    HOT = "hot"


class Facts(Struct, frozen=True, kw_only=True):
    """What a decision rests on; sizes are of whole pages that the host needs (nothing that is on the GPU)."""

    dense_bytes: int
    expert_bytes: int
    active_bytes: int | None  # A: what one token needs
    room_bytes: int  # of the model in memory, programs as they are
    kept_bytes: int  # of that, left for programs to grow
    load_mode: LoadMode = LoadMode.MMAP
    is_moe: bool = False
    hot_bytes: int | None = None  # experts in the tiers of the hot set that fit; None without one
    is_hot_proven: bool = False
    dense_ratio: float | None = None  # in memory, while it worked
    has_worked: bool = False  # tokens came while it was watched
    is_even: bool = False  # its experts were used alike while it was watched (analysis/skew.py)
    state: State = State.UNKNOWN
    budget_bytes: int | None = None  # what was asked for

    @property
    def needed_bytes(self) -> int:
        """All that the host needs."""
        return self.dense_bytes + self.expert_bytes

    @property
    def most_bytes(self) -> int:
        """That may be held: the room less what programs and the stream of the rest need; never more than asked for."""
        stream = max(STREAM_FLOOR_BYTES, int(STREAM_RATIO * self.room_bytes))
        most = max(0, self.room_bytes - self.kept_bytes - stream)
        return most if self.budget_bytes is None else min(most, self.budget_bytes)


def tiers_that_fit(sizes: Sequence[int], facts: Facts) -> int:
    """How many tiers of a hot set, hottest first, may be held beside what every token needs; the first at least."""
    left = facts.most_bytes - facts.dense_bytes
    count = 0
    for size in sizes:
        left -= size
        if left < 0:
            break
        count += 1
    return max(1, count)


class Decision(Struct, frozen=True, kw_only=True):
    """`helps` says whether to hold anything; `reason` is one sentence either way."""

    helps: bool
    reason: str
    may_force: bool = True  # False: holding is of no use at all, so not even --force does it


def decide(facts: Facts, parts: Sequence[Part]) -> Decision:
    """Before anything is held."""
    if (never := _impossible(facts, parts)) is not None:
        return Decision(helps=False, reason=never, may_force=False)
    fits = facts.needed_bytes <= facts.room_bytes - facts.kept_bytes
    if fits and facts.state is not State.THRASHING:
        return Decision(
            helps=False,
            reason=f"Everything fits; nothing to hold: the model needs {format_size(facts.needed_bytes)}, there is room "
            f"for {format_size(facts.room_bytes - facts.kept_bytes)}.",
        )
    if not facts.is_moe:
        return Decision(
            helps=True,
            reason=f"All {format_size(facts.dense_bytes)} are used in a circle and {format_size(facts.room_bytes)} have "
            "room: without holding a part, each page is pushed out just before it is used again.",
        )
    return _decide_moe(facts, parts)


def _decide_moe(facts: Facts, parts: Sequence[Part]) -> Decision:
    if facts.active_bytes is not None and facts.active_bytes > facts.room_bytes and Part.DENSE in parts:
        return Decision(
            helps=True,
            reason=f"One token needs {format_size(facts.active_bytes)} and {format_size(facts.room_bytes)} have room, so "
            "even what every token needs is pushed out before it is used again.",
        )
    if Part.HOT in parts and facts.hot_bytes is not None:
        return _decide_hot(facts)
    if facts.has_worked and facts.dense_ratio is not None and facts.dense_ratio < READY_DENSE_RATIO:
        return Decision(
            helps=True,
            reason="Weights that every token needs are being pushed out; holding them keeps them in memory.",
        )
    alike = "whose experts are used alike" if facts.is_even else "and no hot set is known"
    return Decision(
        helps=False,
        reason=f"This is a mixture of experts {alike}: what every token needs stays in memory by itself, "
        "and holding experts that are not the ones in use took half of the speed (27 to 14 tokens/s, measured). "
        "Save a hot set while it runs well: moewatch hotset save FILE",
    )


def _impossible(facts: Facts, parts: Sequence[Part]) -> str | None:
    if facts.load_mode.is_mapped is False:
        return (
            f"The server copied the model into its own memory (load mode {facts.load_mode}): "
            "pages of the file are of no use to it."
        )
    if facts.load_mode is LoadMode.MMAP_MLOCK:
        return "The server holds the model itself (mlock); nothing to hold."
    if not facts.is_moe and Part.DENSE not in parts:
        return "This model has no experts, so there is no hot set to hold; use --what dense."
    if facts.most_bytes < MIB:
        return (
            f"There is no room to hold anything: {format_size(facts.room_bytes)} for the model, of which "
            f"{format_size(facts.kept_bytes)} are kept for programs."
        )
    return None


def _decide_hot(facts: Facts) -> Decision:
    hot = facts.hot_bytes or 0
    if facts.is_even:
        return Decision(
            helps=False,
            reason="Its experts are used alike now, so to hold some takes the room from the others: half of the speed was "
            "lost (27 to 14 tokens/s, measured).",
        )
    if not facts.is_hot_proven:
        return Decision(
            helps=False,
            reason="The hot set is not proven: it was not taken from a run that was watched and steady, and holding "
            "experts that are not the ones in use took half of the speed (27 to 14 tokens/s, measured). "
            "Save one while it runs well: moewatch hotset save FILE --for 15",
        )
    if hot > EVEN_RATIO * facts.expert_bytes:
        return Decision(
            helps=False,
            reason=f"The hot set is nearly all experts ({format_size(hot)} of {format_size(facts.expert_bytes)}): all are "
            "used alike, and to hold some takes the room from the others.",
        )
    if hot + facts.dense_bytes > facts.most_bytes:
        return Decision(
            helps=False,
            reason=f"The hot set does not fit: with what every token needs it is {format_size(hot + facts.dense_bytes)}, "
            f"and {format_size(facts.most_bytes)} may be held.",
        )
    return Decision(
        helps=True,
        reason=f"A proven hot set of {format_size(hot)} (of {format_size(facts.expert_bytes)} of experts) fits; holding it "
        "keeps other reads from pushing it out.",
    )


def choose_runs(
    layout: ModelLayout,
    parts: Sequence[Part],
    most_bytes: int,
    *,
    hot: Sequence[FileRun] = (),
    not_needed: frozenset[str] = frozenset(),
    page_bytes: int = 4096,
) -> Files:
    """What to hold, in whole pages, never more than `most_bytes`.

    What every token needs, from the first layer on, in one piece as far as it goes; then the hot set, hottest first.
    """
    classes = class_runs(layout, not_needed, page_bytes)
    chosen: Files = [[] for _ in layout.files]
    left = most_bytes
    if Part.DENSE in parts:
        for index, runs in enumerate(classes[WeightClass.DENSE]):
            chosen[index] = first_bytes(runs, left, page_bytes)
            left -= total(chosen[index])
    if Part.HOT in parts:
        known = [normalise(run for files in classes.values() for run in files[index]) for index in range(len(chosen))]
        for each in hot:
            if left <= 0 or not 0 <= each.file_index < len(known):
                continue
            run = (each.offset, each.offset + each.length)
            new = subtract(intersect([run], known[each.file_index]), chosen[each.file_index])
            taken = first_bytes(new, left, page_bytes)
            left -= total(taken)
            chosen[each.file_index] = normalise([*chosen[each.file_index], *taken])
    return _few_enough(chosen)


def _few_enough(files: Files) -> Files:
    """The longest ranges when there are more than a process may map; so the budget holds."""
    lengths = sorted((end - start for runs in files for start, end in runs), reverse=True)
    if len(lengths) <= MAX_RANGES:
        return files
    least = lengths[MAX_RANGES]
    return [[run for run in runs if run[1] - run[0] > least] for runs in files]


class Watch(Struct, frozen=True, kw_only=True):
    """What has to be remembered from frame to frame while pages are held."""

    before_tokens_per_s: float | None
    before_stall_ratio: float | None
    kept_bytes: int
    held_since_ns: int | None = None  # when the last page was held
    slower_since_ns: int | None = None
    stalled_since_ns: int | None = None


class Look(Struct, frozen=True, kw_only=True):
    """One look at the server and its memory while pages are held."""

    mono_ns: int
    phase: Phase
    tokens_per_s: float | None
    stall_ratio: float | None  # memory PSI full, over the last seconds
    left_bytes: int | None  # that programs can still take


def look_of(frame: Frame, *, stall_ratio: float | None, left_bytes: int | None) -> Look:
    """From a Frame and what it does not carry."""
    return Look(
        mono_ns=frame.mono_ns,
        phase=frame.server.phase,
        tokens_per_s=frame.rates.tokens_per_s,
        stall_ratio=stall_ratio,
        left_bytes=left_bytes,
    )


def with_look(watch: Watch, look: Look) -> tuple[Watch, str | None]:
    """The same with one look more, and why to let go now: one sentence, None while all is well."""
    if look.left_bytes is not None and look.left_bytes < watch.kept_bytes // LEFT_DIVISOR:
        return watch, f"memory is running short: {format_size(look.left_bytes)} are left for programs"
    stall, before = look.stall_ratio, watch.before_stall_ratio or 0.0
    is_stalled = stall is not None and stall > max(STALL_RATIO, STALL_FACTOR * before)
    watch = replace(watch, stalled_since_ns=_since(watch.stalled_since_ns, look.mono_ns, holds=is_stalled))
    if _lasts(watch.stalled_since_ns, look.mono_ns, STALL_NS):
        return watch, f"memory pressure rose: everything waits for memory {100 * (stall or 0):.0f} % of the time"
    is_slower = (
        watch.held_since_ns is not None
        and look.mono_ns - watch.held_since_ns >= SETTLE_NS
        and look.phase is Phase.GENERATE
        and watch.before_tokens_per_s is not None
        and look.tokens_per_s is not None
        and look.tokens_per_s < SLOWER_RATIO * watch.before_tokens_per_s
    )
    watch = replace(watch, slower_since_ns=_since(watch.slower_since_ns, look.mono_ns, holds=is_slower))
    if _lasts(watch.slower_since_ns, look.mono_ns, SLOWER_NS):
        return watch, (
            f"the server got slower: {look.tokens_per_s or 0:.1f} tokens/s, before {watch.before_tokens_per_s or 0:.1f}"
        )
    return watch, None


def _since(since_ns: int | None, now_ns: int, *, holds: bool) -> int | None:
    if not holds:
        return None
    return now_ns if since_ns is None else since_ns


def _lasts(since_ns: int | None, now_ns: int, long_ns: int) -> bool:
    return since_ns is not None and now_ns - since_ns >= long_ns
