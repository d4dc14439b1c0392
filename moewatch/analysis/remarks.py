"""Sentences on what is special about this machine or this moment, besides the headline. Pure.

Each function returns one sentence (or two that belong together), or None when it does not apply.
"""

from moewatch.analysis.situation import Situation
from moewatch.analysis.words import QUIET_BYTES_PER_S, per_second, remedy_of, size
from moewatch.domain.frame import Method, Note, State
from moewatch.domain.sample import GapReason
from moewatch.units import GIB, UNKNOWN, S, format_duration, format_gib, format_mb, format_rate

# file systems without a row in /proc/diskstats (their reads are counted per process only)
NO_DISK_ROW = ("9p", "nfs", "nfs4", "zfs", "fuse", "virtiofs", "cifs", "smb3", "ceph")
LATE_NS = 2 * S  # a person notices two seconds; shorter delays change no figure over 10 s
SLEPT_NS = 5 * S  # the window breaks there, too
COMPARED_NS = 8 * S  # a rate over less is no figure to hold against an estimate; windows have 10 s


def remarks(now: Situation) -> tuple[str, ...]:
    """What a person should know of this machine or moment besides the headline, the most urgent first."""
    found = (
        slept(now),
        late(now),
        hidden(now),
        odd_model(now),
        not_mapped(now),
        disk_busy_elsewhere(now),
        offloaded(now),
        cgroup_limit(now),
        no_disk_row(now),
        hidden_counters(now),
        no_stall_figures(now),
        shared_reads(now),
        time_left(now),
        evenness(now),
        estimated(now),
    )
    return tuple(text for text in found if text)


def slept(now: Situation) -> str | None:
    """The machine was suspended."""
    if now.slept_ns < SLEPT_NS:
        return None
    return f"The machine slept {format_duration(now.slept_ns)}. Rates start again now."


def late(now: Situation) -> str | None:
    """Our own sample came late."""
    return (
        f"This sample is {now.late_ns / S:.1f} s late: the machine stalls us too." if now.late_ns >= LATE_NS else None
    )


def hidden(now: Situation) -> str | None:
    """Another user's process."""
    denied = {gap.field.split(".")[0] for gap in now.gaps if gap.reason is GapReason.DENIED}
    if not denied & {"process", "residency"}:
        return None
    remedy = remedy_of(now)
    whom = remedy.removeprefix("sudo -u ").strip("'") if remedy else "another user"
    cure = f"{remedy} moewatch" if remedy else "sudo moewatch"
    what = "disk reads and memory shares are hidden" if len(denied & {"process", "residency"}) > 1 else "some is hidden"
    return f"PID {now.header.target.pid} belongs to {whom}: {what}. For all of it: {cure}"


def odd_model(now: Situation) -> str | None:
    """Its file is cut short or damaged, or was deleted or replaced under the running server."""
    odd = (GapReason.MALFORMED, GapReason.VANISHED)
    return next((gap.detail for gap in now.gaps if gap.field == "model" and gap.reason in odd), None)


def not_mapped(now: Situation) -> str | None:
    """Load mode none, mlock or dio."""
    if now.is_mapped is not False:
        return None
    swap = now.memory.swap_used_bytes
    used = "" if swap is None else f" Swap in use: {format_gib(swap)} GiB."
    return (
        f"This server copied the model into its own memory (load mode {now.load_mode}): "
        f"paging of the file cannot be why it is slow.{used}"
    )


def disk_busy_elsewhere(now: Situation) -> str | None:
    """Another process reads the same disk."""
    if Note.DISK_BUSY_ELSEWHERE not in now.notes:
        return None
    rate = now.rates.other_read_bytes_per_s if now.reader is None else now.reader.bytes_per_s
    who = "Another program" if now.reader is None else now.reader.name
    own = now.rates.process_read_bytes_per_s
    nothing = own is not None and own < QUIET_BYTES_PER_S
    server = "the server reads nothing" if nothing else f"the server {UNKNOWN if own is None else per_second(own)}"
    return f"{who} reads {format_mb(rate)} MB/s from the same disk; {server}."


def offloaded(now: Situation) -> str | None:
    """A part of the model is on the GPU."""
    away, total = now.residency.not_needed_bytes, now.total_bytes
    if not away or total is None:
        return None
    about = "About " if now.residency.not_needed_assumed else ""
    on_gpu, all_of_it = format_gib(away), size(total)
    # the rest is the difference of the figures shown, so that they add up
    rest = round(total / GIB, 1) - round(away / GIB, 1)
    return f"{about}{on_gpu} of {all_of_it} are on the GPU and need no RAM; this page is about the other {rest:.1f}."


def cgroup_limit(now: Situation) -> str | None:
    """Not the machine's RAM is the limit, but a cgroup's."""
    limit, scope, ram = now.memory.limit_bytes, now.memory.limit_scope, now.header.host.ram_bytes
    if limit is None or scope in (None, "host"):
        return None
    machine = f", not the machine's {ram / GIB:.0f}" if ram else ""
    return f"Limit: {size(limit)}, set by {scope}{machine}."


def no_disk_row(now: Situation) -> str | None:
    """File systems whose disks have no counters."""
    kind = (now.header.file_system or "").lower()
    if not kind.startswith(NO_DISK_ROW) or now.header.devices:
        return None
    return f"The model lies on {kind}: reads are counted per process, this disk has no counters of its own."


def hidden_counters(now: Situation) -> str | None:
    """There is no cachestat: what comes back is seen by sampling only."""
    rate = now.rates.reread_bytes_per_s
    if now.rates.method is not Method.MINCORE or rate is None or now.state is State.THRASHING:
        return None  # thrashing says it in its headline
    return f"AGAIN: at least {per_second(rate)} (seen by sampling; a 6.5 kernel would count it)."


def no_stall_figures(now: Situation) -> str | None:
    """The kernel has no pressure figures."""
    if not any(gap.field.startswith("pressure") and gap.reason is not GapReason.DENIED for gap in now.gaps):
        return None
    return (
        f"memory stall: {UNKNOWN} (this kernel has it off; boot with psi=1). "
        "The verdict does not need it: re-reads are counted."
    )


def shared_reads(now: Situation) -> str | None:
    """Somebody else reads the same file."""
    return "Another program reads the same model file: again is for both together." if _is_shared(now) else None


def _is_shared(now: Situation) -> bool:
    return Note.LEDGER_SHARED in now.notes


def time_left(now: Situation) -> str | None:
    """Warm-up that levels off: what is still to come."""
    left, low, high = now.progress.remaining_bytes, now.progress.eta_low_ns, now.progress.eta_high_ns
    if now.state not in (State.WARMING, State.RECOVERING) or not left or low is None or high is None:
        return None
    when = f"{format_duration(low)} to {format_duration(high)}" if low else f"{format_duration(high)} at most"
    return f"About {size(left)} still to come: {when}."


def evenness(now: Situation) -> str | None:
    """Where paging costs time: whether a hot set would help, or only more memory."""
    return now.skew.text if now.skew is not None and now.state is State.THRASHING else None


def estimated(now: Situation) -> str | None:
    """What `moewatch estimate` said, beside what is measured; for one request at a time, which is what it speaks of."""
    expected, rate = now.header.estimate_tokens_per_s, now.rates.tokens_per_s
    if expected is None or not rate or now.rates.window_ns < COMPARED_NS or now.server.n_active not in (None, 1):
        return None
    if now.state not in (State.STEADY, State.THRASHING):  # a model that does not fit is expected to read again
        return None
    low, high = (format_rate(each) for each in expected)
    said = f"Estimated {low}-{high}" if low != high else f"Estimated {low}"
    return f"{said}, measured {format_rate(rate)} tokens/s."
