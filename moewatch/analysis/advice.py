"""What to do: ordered by expected gain and by how cheap it is, each with its reason, its command and where the gain comes from. Pure.

Never advised: what cannot work for this model, machine or command line. What costs nothing and no restart comes first.
"""

from collections.abc import Callable, Iterator

from moewatch.analysis import restarts
from moewatch.analysis.memory import HOST, who_took
from moewatch.analysis.situation import Situation
from moewatch.analysis.verdict import LEVELS_OFF_RATIO
from moewatch.analysis.words import is_cold, size
from moewatch.domain.frame import Advice, Note, State
from moewatch.units import GIB, MIB, format_mb, format_rate

MAX_ADVICE = 6
BUSY_CORES_RATIO = 0.5  # of the physical cores: llama-server at work uses all that -t gives it, by default half or more
HOST_RESERVE_BYTES = 2 * GIB  # stays for the machine itself when a cgroup's limit is raised
MARGIN = 1.05  # the kernel keeps a little of a cgroup's limit for page tables and the like


def advise(now: Situation) -> tuple[Advice, ...]:
    """The advice for this moment, the best first; empty when there is nothing to do."""
    found: list[Advice] = []
    for make in _CANDIDATES[now.state]:
        for advice in make(now):
            if all(advice.id != other.id for other in found):
                found.append(advice)
    return tuple(found[:MAX_ADVICE])


# --- without a restart ---------------------------------------------------------------------------------------------


def _close_who_took(now: Situation) -> Iterator[Advice]:
    growth = who_took(now.memory)
    if growth is None:
        return
    best = now.rates.best_tokens_per_s
    before = f"Before that, {format_rate(best)} tokens/s. " if best else ""
    lost = size(now.memory.model_lost_bytes or 0)
    yield Advice(
        id="close_program",
        title=f"Close {growth.name}: it took {size(growth.bytes)}.",
        command=None,
        reason=f"{before}Since it (PID {growth.pid}) grew, the model has {lost} less in memory.",
        gain=f"back to {format_rate(best)} tokens/s (measured before)" if best else f"{lost} of room (measured)",
        restart=False,
    )


def _raise_limit(now: Situation) -> Iterator[Advice]:
    limit, scope, ram = now.memory.limit_bytes, now.memory.limit_scope, now.header.host.ram_bytes
    missing = _missing(now)
    if limit is None or scope in (None, HOST) or ram is None or not missing:
        return
    whole = None if now.needed_bytes is None else now.needed_bytes + (now.memory.target_anon_bytes or 0)
    if whole is not None and limit >= whole:
        return  # all of it fits: whatever is read, it is not for want of room
    wanted = min(round((limit + missing) * MARGIN), ram - HOST_RESERVE_BYTES)
    if whole is not None:
        wanted = min(wanted, round(whole * MARGIN))
    if wanted < limit + restarts.WORTH_BYTES / 2:
        return  # the machine itself has no more
    yield Advice(
        id="raise_limit",
        title=f"Raise the memory limit to {size(wanted)} (now {size(limit)}).",
        command=_limit_command(scope or "", wanted),
        reason=f"The limit of {scope} is {size(limit)} of this machine's {size(ram)}.",
        gain=f"room for {size(wanted - limit)} more of the model, which misses up to {size(missing)} (measured)",
        restart=False,
    )


def _limit_command(scope: str, wanted: int) -> str | None:
    mib = -(-wanted // MIB)
    if scope.startswith("docker-") and scope.endswith(".scope"):
        return (
            f"docker update --memory {mib}m --memory-swap {mib}m {scope.removeprefix('docker-').removesuffix('.scope')}"
        )
    if scope.endswith((".service", ".scope", ".slice")):
        return f"sudo systemctl set-property --runtime {scope} MemoryMax={mib}M"
    return None


def _pause_reader(now: Situation) -> Iterator[Advice]:
    if Note.DISK_BUSY_ELSEWHERE not in now.notes:
        return
    rate = now.reader.bytes_per_s if now.reader else now.rates.other_read_bytes_per_s
    who = now.reader.name if now.reader else "the program that reads the disk"
    yield Advice(
        id="pause_reader",
        title=f"Let {who} finish, or pause it.",
        command=f"kill -STOP {now.reader.pid}   # goes on with: kill -CONT {now.reader.pid}" if now.reader else None,
        reason=f"It reads {format_mb(rate)} MB/s from the disk that holds the model; what the server reads has to wait.",
        gain=f"up to {format_mb(rate)} MB/s of disk for the server (measured)",
        restart=False,
    )


def _close_largest(now: Situation) -> Iterator[Advice]:
    """Not the cause, but memory all the same: only where other programs share the server's limit."""
    if now.memory.limit_scope != HOST or not now.others:
        return
    largest = max(now.others, key=lambda other: other.anon_bytes)
    if largest.anon_bytes < restarts.WORTH_BYTES:
        return
    yield Advice(
        id="close_program",
        title=f"If you can do without it, close {largest.name}: it holds {size(largest.anon_bytes)}.",
        command=None,
        reason="It is the largest other program; the model gets what it leaves.",
        gain=f"{size(largest.anon_bytes)} of room{restarts.of_missing(now, largest.anon_bytes)}",
        restart=False,
    )


# --- when nothing is to be done about paging -----------------------------------------------------------------------


def _wait(now: Situation) -> Iterator[Advice]:
    reason = {
        State.LOADING: "Reading the model at the start is normal, also twice when it is larger than memory.",
        State.WARMING: "Parts come in that were not needed before; that ends by itself if they fit.",
        State.RECOVERING: "What was pushed out comes back as it is needed; nothing leaves any more.",
    }[now.state]
    title = "Wait: this ends by itself."
    if now.state is State.WARMING and _is_pushed_out(now):
        title, reason = "Look again in ten seconds.", "As much is pushed out as is read: it may level off, or go on."
    yield Advice(id="wait", title=title, command=None, reason=reason, gain="none", restart=False)


def _is_pushed_out(now: Situation) -> bool:
    """Whether parts of the model leave as fast as others come: no end may be promised."""
    again, departed = now.rates.reread_bytes_per_s, now.rates.departed_bytes_per_s
    if again is None or departed is None:
        return False
    read = again + (now.rates.first_read_bytes_per_s or 0.0)
    return departed >= LEVELS_OFF_RATIO * read and read > 0


def _compute_bound(now: Situation) -> Iterator[Advice]:
    cpu, cores = now.rates.cpu_ratio, now.header.host.cpus_physical or now.header.host.cpus_logical
    busy = f" It keeps {cpu:.1f} of {cores} cores busy." if cpu is not None and cores else ""
    title = "If this is slow: stop tuning I/O, you are compute-bound."
    if cpu is not None and cores and cpu < BUSY_CORES_RATIO * cores:
        title = "If this is slow: neither the disk nor memory is why."
        busy += " Look for what it waits for: too few threads, requests that pause, a GPU, the network."
    yield Advice(
        id="compute_bound",
        title=title,
        command=None,
        reason=f"The disk costs less than 5 % of the time, so no disk, cache or memory setting makes it faster.{busy}",
        gain="none from memory or disk (measured); a GPU, fewer bits or a smaller model would help",
        restart=False,
    )


def _warm(now: Situation) -> Iterator[Advice]:
    if not is_cold(now):
        return
    yield Advice(
        id="warm",
        title="Warm the cache before you send the next prompt.",
        command=f"moewatch warm --pid {now.header.target.pid}",
        reason="Weights that every token needs are not in memory; the next answer would wait for them.",
        gain="with a hot set the first answer begins after a quarter of the time, without one a little sooner (measured in a lab)",
        restart=False,
    )


_Maker = Callable[[Situation], Iterator[Advice]]
_PAGING: tuple[_Maker, ...] = (
    _close_who_took,
    _raise_limit,
    _pause_reader,
    restarts.no_repack,
    restarts.load_mode,
    restarts.read_ahead,
    restarts.more_on_gpu,
    restarts.prompt_cache,
    restarts.context,
    _close_largest,
    restarts.smaller_quantisation,
    restarts.kv_type,
    restarts.threads,
    restarts.faster_disk,
)
_CANDIDATES: dict[State, tuple[_Maker, ...]] = {
    State.UNKNOWN: (),
    State.IDLE: (_warm, restarts.no_repack, restarts.load_mode),
    State.LOADING: (_wait, _pause_reader),
    State.WARMING: (_wait, _pause_reader),
    State.STEADY: (_compute_bound, restarts.threads, restarts.no_repack, restarts.load_mode),
    State.THRASHING: _PAGING,
    State.RECOVERING: (_wait, _pause_reader),
}


def _missing(now: Situation) -> int | None:
    """Bytes of the model that have no room: what its use shows to be short at most, else all that is not in memory."""
    high, fits, needed = now.working_set.high_bytes, now.working_set.fits_bytes, now.needed_bytes
    wanted = high if high is not None else needed
    return None if wanted is None or fits is None else max(0, wanted - fits)
