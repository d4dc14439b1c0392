"""What a person reads about a warm-up: plan, refusal, proof. The same on every screen. Pure."""

from collections.abc import Iterable, Iterator

from moewatch.cache.budget import room_words
from moewatch.cache.warmup import AT_WORK, Preparation
from moewatch.domain.labels import PHASE_WORDS, READY_DENSE_RATIO, STEP_WORDS
from moewatch.domain.layout import WeightClass
from moewatch.domain.sample import Phase
from moewatch.domain.warm import Levels, Step, WarmOutcome
from moewatch.units import GIB, MB, MIB, UNKNOWN, S, format_duration, format_percent, format_size, shares

SMALL_MODEL_BYTES = 8 * GIB  # below, MiB say more


def plan_lines(preparation: Preparation, model_name: str) -> Iterator[str]:
    """The plan as a page: what is read, in which order, what stays cold, who pays."""
    plan, room = preparation.plan, preparation.room
    needed = sum(each.size_bytes for each in plan.classes)
    unit, name = _unit(needed)
    yield f"PLAN   {model_name}: {plan_sentence(preparation)}"
    cold = sum(each.left_cold_bytes for each in plan.classes if each.weight_class is not WeightClass.EMBEDDING)
    if cold and plan.planned_bytes:
        yield f"       It does not raise the lasting speed: {format_size(cold)} of weights stay on disk."
    if cold and plan.planned_bytes and Step.HOT not in {each.step for each in plan.steps} and _experts(preparation):
        yield "       Without a saved hot set this helps the first answer only a little."
    yield ""
    yield f"  in this order                             now     after   to read   {name}"
    yield from _table_rows(preparation, unit)
    yield ""
    speed = preparation.disk_bytes_per_s
    if speed:
        yield f"  speed       {speed / MB:,.0f} MB/s, measured on this disk just now, past the cache"
    yield f"  room        {room_words(room)}"
    if plan.budget_bytes != room.budget_bytes:
        above = "; above the room, so it stops when memory is full" if plan.budget_bytes > room.budget_bytes else ""
        yield f"  budget      {format_size(plan.budget_bytes)} of the model in memory, as you said{above}"
    if plan.displaced_bytes:
        yield f"  pushed out  {format_size(plan.displaced_bytes)} of other parts of the model, which are in no proven order"
    elif room.other_cache_bytes and plan.planned_bytes:
        yield f"  pushed out  {format_size(room.other_cache_bytes)} of other cache at most. No program, no part of the model"
    if preparation.is_limited:
        yield f"  charged to  {preparation.charged_to}"
    yield f"  the server  {_server_words(preparation)}"


def _table_rows(preparation: Preparation, unit: int) -> Iterator[str]:
    """Each step and what is no step's; the columns add up to the last row."""
    plan = preparation.plan
    after = plan.resident_bytes + plan.planned_bytes - plan.displaced_bytes
    totals = (plan.resident_bytes, after, plan.planned_bytes)
    columns = [
        _tenths([getattr(each, name) for each in plan.steps], total, unit)
        for name, total in zip(("resident_bytes", "after_bytes", "planned_bytes"), totals, strict=True)
    ]
    for number, (each, *figures) in enumerate(zip(plan.steps, *columns, strict=False), 1):
        words = STEP_WORDS[each.step]
        if each.step is Step.HOT and preparation.hot_name:
            words = f'{words} "{preparation.hot_name}"'
        yield _row(f"{number}  {words}", figures)
    rest = [column[-1] for column in columns]
    if any(rest):
        yield _row("   rest of the file, not asked for", rest)
    yield _row("   model in memory", [round(10 * total / unit) for total in totals])


def _tenths(sizes: list[int], total: int, unit: int) -> list[int]:
    """Tenths of the unit, the rest of `total` last; they add up."""
    return shares([*sizes, max(0, total - sum(sizes))], round(10 * total / unit))


def _row(words: str, tenths: Iterable[int]) -> str:
    now, after, to_read = (tenth / 10 for tenth in tenths)
    return f"  {words:<37}{now:>9,.1f}{after:>9,.1f}{to_read:>10,.1f}"


def _server_words(preparation: Preparation) -> str:
    if not preparation.has_server:
        return "none has this model open"
    if preparation.phase is Phase.UNKNOWN:
        return "does not say what it is doing"
    return PHASE_WORDS[preparation.phase]


def plan_sentence(preparation: Preparation) -> str:
    """What it comes to, in one sentence."""
    plan = preparation.plan
    if plan.planned_bytes:
        speed = preparation.disk_bytes_per_s
        about = f" in about {format_duration(max(S, round(plan.planned_bytes / speed * S)))}" if speed else ""
        return f"reads {format_size(plan.planned_bytes)}{about}."
    if plan.left_cold_bytes and any(each.after_bytes < each.size_bytes for each in plan.steps):
        return f"nothing to read: the {format_size(plan.left_cold_bytes)} that are not in memory do not fit."
    return "nothing to read: all that was asked for is in memory."


def refusal_lines(preparation: Preparation) -> Iterator[str]:
    """Why nothing was started, and what would make it possible."""
    plan = preparation.plan
    yield "NOT STARTED   Nothing was read, nothing has changed."
    yield from preparation.refusal
    if preparation.phase not in AT_WORK:
        return
    left = max(0, plan.budget_bytes - plan.resident_bytes)
    yield ""
    yield f"  room for the model     {format_size(plan.budget_bytes):>10}, without what is kept for programs"
    yield f"  in memory already      {format_size(plan.resident_bytes):>10}"
    yield f"  left to fill           {format_size(left):>10}"
    yield f"  the server is          {PHASE_WORDS[preparation.phase]:>10}"
    yield ""
    yield "What would make it possible: wait until the answer is finished, end a program that takes memory, or restart"
    yield "the server with a smaller context. There is no --force: a model read from front to back into less memory than"
    yield "it has left 42 % of the weights that every token needs (measured)."


def outcome_lines(outcome: WarmOutcome, later: Levels | None, needed_bytes: int) -> Iterator[str]:
    """Before, after and a little later, side by side."""
    unit, name = _unit(needed_bytes)
    yield headline(outcome, later)
    yield ""
    yield f"  {name + ' in memory':<34}{'before':>9}{'after':>9}{'later' if later else '':>9}"
    rows = [
        (STEP_WORDS[Step.DENSE], "dense"),
        (STEP_WORDS[Step.HOT], "hot"),
        ("experts", "expert"),
    ]
    columns = [outcome.before, outcome.after, *([later] if later else [])]
    for words, key in rows:
        sizes = [getattr(each, f"{key}_bytes") for each in columns]
        ratio = getattr(columns[-1], f"{key}_ratio")
        if ratio is not None:
            yield f"  {words:<34}{''.join(_cell(size, unit) for size in sizes)}{format_percent(ratio):>9} %"
    yield f"  {'all of the model':<34}{''.join(_cell(each.resident_bytes, unit) for each in columns)}"
    yield ""
    speed = outcome.read_bytes / outcome.seconds / MB if outcome.seconds else 0
    yield (
        f"  read  {format_size(outcome.read_bytes)} in {outcome.seconds:.1f} s, {speed:,.0f} MB/s; "
        f"{format_size(outcome.gone_bytes)} of it left again"
    )


def headline(outcome: WarmOutcome, later: Levels | None) -> str:
    """READY, or what is missing for it."""
    last = later or outcome.after
    if outcome.stopped is not None:
        return f"STOPPED   {outcome.stopped}."
    if is_ready(last) is None:
        return "DONE   This model has no weights that every token needs."
    if not is_ready(last):
        missing = format_percent(last.dense_ratio)
        return f"COLD   {missing} % of the weights that every token needs are in memory."
    if later is None:
        return "READY   All weights that every token needs are in memory."
    return "READY   looked up twice, 10 s apart: all weights that every token needs are in memory."


def is_ready(levels: Levels) -> bool | None:
    """Whether what every token needs is there; None when there is no such thing."""
    return None if levels.dense_ratio is None else levels.dense_ratio >= READY_DENSE_RATIO


def _experts(preparation: Preparation) -> int:
    return preparation.plan.of_class(WeightClass.EXPERT).size_bytes


def _unit(size_bytes: int) -> tuple[int, str]:
    return (GIB, "GiB") if size_bytes >= SMALL_MODEL_BYTES else (MIB, "MiB")


def _cell(size_bytes: int | None, unit: int, width: int = 9) -> str:
    return f"{UNKNOWN:>{width}}" if size_bytes is None else f"{size_bytes / unit:>{width},.1f}"
