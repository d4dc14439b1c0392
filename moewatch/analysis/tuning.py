"""Which settings `moewatch tune` tries next, and which it picks: bracketed search over measured speeds. Pure.

Splits: with experts of fewer layers on the CPU (`--n-cpu-moe`) a server is faster, until the GPU has no room: then it
fails, or a driver that swaps makes it slower. Threads: speed rises with cores, falls where hyper-threads share one.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from moewatch.analysis import flags

MAX_RUNS = 6  # of one kind: a bracket of 48 layers is 3 wide by then
SPLIT_STEP = 16  # a sixteenth of the layers at most moves a sixteenth of the experts' work: about the noise
FINALISTS = 2
# Two runs of one setting differed by 2 % on a free core and by 15 to 30 % where another program took a core (measured)
NOISE = 0.05

Measured = Mapping[int, float | None]  # setting: tokens per second; None: it did not run
Setting = tuple[tuple[str, ...], int]  # the option's names (the first is written), its value


class Candidate(Struct, frozen=True):
    """Settings that are tried together."""

    settings: tuple[Setting, ...]

    @property
    def label(self) -> str:
        """`--n-cpu-moe 20 --threads 8`."""
        return " ".join(f"{long_name(names)} {value}" for names, value in self.settings)

    def applied(self, arguments: Sequence[str]) -> list[str]:
        """The server's arguments with these settings instead of their own."""
        left = list(arguments)
        for names, value in self.settings:
            left = [*without(left, names), long_name(names), str(value)]
        return left


class Trial(Struct, frozen=True, kw_only=True):
    """What came of a candidate: one rate for each time it ran; `failed` says why it did not."""

    candidate: Candidate
    command: tuple[str, ...]
    tokens_per_s: tuple[float, ...] = ()
    state: str | None = None
    reread_bytes_per_s: float | None = None
    failed: str | None = None

    @property
    def mean(self) -> float | None:
        """Tokens per second over all times; None when it failed."""
        return sum(self.tokens_per_s) / len(self.tokens_per_s) if self.tokens_per_s and self.failed is None else None


def long_name(names: Sequence[str]) -> str:
    """The one that reads best a year later."""
    return next((name for name in names if name.startswith("--")), names[0])


def without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """The arguments without an option that takes a value, under any of its names, as often as it is there."""
    left: list[str] = []
    skip = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not (equals and name in names):
            left.append(word)
    return left


def first_threads(physical: int | None, logical: int | None, given: int | None) -> tuple[int, ...]:
    """What the command says, physical cores, half of them, all hardware threads; each once."""
    cores = physical or logical or 1
    wanted = (given or 0, cores, max(1, cores // 2), logical or cores)
    return tuple(dict.fromkeys(count for count in wanted if count > 0))


def next_threads(measured: Measured, first: Sequence[int]) -> int | None:
    """The first ones in order, then between the best and its faster neighbour until they are close; None: done."""
    for count in first:
        if count not in measured:
            return count
    rates = {count: rate for count, rate in measured.items() if rate is not None}
    if not rates or len(measured) >= MAX_RUNS:
        return None
    best = max(rates, key=lambda count: rates[count])
    below = max((count for count in rates if count < best), default=None)
    above = min((count for count in rates if count > best), default=None)
    sides = sorted((count for count in (below, above) if count is not None), key=lambda count: -rates[count])
    for side in sides:
        middle = (side + best) // 2
        if abs(best - side) > max(1, best // 4) and middle not in measured:
            return middle
    return None


def next_split(measured: Measured, n_layer: int, guess: int) -> int | None:
    """How many layers' experts to keep on the CPU next; None: the bracket is narrow enough.

    `guess` comes first (what the estimate would place); what did not run has more on the GPU than it holds.
    """
    if guess not in measured:
        return guess
    if len(measured) >= MAX_RUNS:
        return None
    rates = {count: rate for count, rate in measured.items() if rate is not None}
    if not rates:
        highest = max(measured)
        return n_layer if highest < n_layer else None
    best = max(rates, key=lambda count: (rates[count], -count))
    below = max((count for count in measured if count < best), default=-1)
    if best - below > max(1, n_layer // SPLIT_STEP):
        return (below + best) // 2
    above = min(n_layer, best + max(1, n_layer // 8))
    if best < n_layer and not any(count > best for count in measured):
        return above  # none with less on the GPU was tried: is it over the edge already?
    return None


def search(
    next_value: Callable[[Measured], int | None], names: tuple[str, ...], base: Candidate, trials: Sequence[Trial]
) -> Candidate | None:
    """The next candidate that differs from `base` in this option alone; None when the search is over."""
    kept = tuple(setting for setting in base.settings if setting[0] != names)
    measured: dict[int, float | None] = {}
    for trial in trials:
        rest = tuple(setting for setting in trial.candidate.settings if setting[0] != names)
        value = next((value for name, value in trial.candidate.settings if name == names), None)
        if rest == kept and value is not None:
            measured[value] = trial.mean
    value = next_value(measured)
    return None if value is None else Candidate((*kept, (names, value)))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The fastest that ran."""
    return max((trial for trial in trials if trial.mean is not None), key=lambda trial: trial.mean or 0.0, default=None)


def finalists(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The best two that ran only once, the slower first: order shall not decide."""
    ran = sorted((trial for trial in trials if trial.mean is not None), key=lambda trial: -(trial.mean or 0.0))
    return tuple(reversed([trial for trial in ran[:FINALISTS] if len(trial.tokens_per_s) == 1]))


def close_to(best: Trial, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Others that are not told apart from the best: their spread meets its own, or the difference is noise."""
    floor = min(*best.tokens_per_s, (best.mean or 0.0) * (1 - NOISE))
    return tuple(
        trial for trial in trials if trial is not best and trial.mean is not None and max(trial.tokens_per_s) >= floor
    )


def split_conflict(arguments: Sequence[str]) -> str | None:
    """Why the experts of these arguments cannot be moved; None when they can."""
    moved = flags.value_of(tuple(arguments), flags.OVERRIDE_TENSOR)
    if moved is not None and "exps" in moved:
        return "--override-tensor says already where the experts go"
    if flags.has(tuple(arguments), flags.CPU_MOE):
        return "--cpu-moe says already where the experts go"
    if flags.keeps_off_gpu(tuple(arguments)):
        return "the command keeps everything off the GPU"
    return None
