"""Notes: facts that stand beside any state, each from evidence held against a named threshold. Pure."""

from moewatch.analysis.ledger import Ledger, derive_ledger
from moewatch.analysis.memory import HOST, who_took
from moewatch.analysis.situation import Reader
from moewatch.analysis.window import Window, difference
from moewatch.domain.frame import Memory, Note, Rates, Residency, State
from moewatch.domain.sample import LoadMode, ModelSummary, Phase
from moewatch.units import KIB, MB, MIB, S

LOOK_BACK_NS = 10 * S  # as the rates
# Another program reads the disk: 245 MB/s while the server read 0 in recording E; all others: 0-1 MB/s apart
BUSY_BYTES_PER_S = 20 * MB
BUSY_SHARE = 0.5  # of all the device's reads; a server that thrashes itself is at 0.00
READER_SHARE = 0.5  # a reader is named only when it did at least half of the foreign reads
# Resident share of what every token needs. A server that fits: 0.995-1.0; one that thrashes: 0.65-0.98 (B, G, I)
DENSE_RATIO = 0.98
# Where the token table is counted among the dense weights (a header without it, or tied), its rows may be out: the lab's
# table is 4 % of them, and 0.96 was harmless there
DENSE_RATIO_WITH_TABLE = 0.90
MAX_AGE_NS = 15 * S  # an older scan tells of another time
# Mean request. None at all: 4 KiB each (one page); 128 KiB read-ahead gives 107-255 KiB (all recordings)
REQUEST_OFF_BYTES = 16 * KIB
REQUEST_MIN_BYTES_PER_S = 4 * MB  # fewer requests than that say nothing of the rule
# Device setting: at 512 KiB three times the bytes of 128 KiB were re-read per token, at 4 MiB forty times
READAHEAD_LARGE_BYTES = 512 * KIB
SWAP_IN_BYTES_PER_S = 1 * MB
SWAP_TARGET_BYTES = 16 * MIB  # less is what idle libraries leave there
# Repacked weights: RssAnon 25.9 GB against 13.9 GB of file (llama.cpp#16761); KV cache and buffers alone: 3-7 % (all recordings)
REPACK_SHARE = 0.8
LOCKED_SHARE = 0.5  # locked memory as a share of the model; servers without mlock: 0
COLD_RATIO = 0.5  # idle, and less than half of what every token needs: not left over by anything, never loaded
TOPIC_BYTES_PER_S = 2 * MB  # arrivals that a person could feel; a settled server: 0-1 (C, K)
LONG_TOPIC_NS = 12 * S  # the server had been at work for so long that this is no cold start
DENSE_IN_RATIO = 0.95  # with the dense weights in memory it is other experts that come in


def derive_notes(window: Window, rates: Rates, residency: Residency, memory: Memory, state: State) -> tuple[Note, ...]:
    """All notes that hold now, in the order of docs/explanation/verdict.md."""
    if not window.samples:
        return ()
    ledger = derive_ledger(window, LOOK_BACK_NS)
    found = {
        Note.DISK_BUSY_ELSEWHERE: is_disk_busy_elsewhere(rates),
        Note.DENSE_WEIGHTS_EVICTED: is_dense_evicted(window, residency, state),
        Note.MEMORY_TAKEN: who_took(memory) is not None,
        Note.READAHEAD_OFF: is_readahead_off(window, rates),
        Note.READAHEAD_LARGE: is_readahead_large(window),
        Note.LEDGER_SHARED: ledger is not None and ledger.shared,
        Note.SWAP_IN_USE: is_swap_in_use(window),
        Note.REPACK_DUPLICATE: is_repacked(window),
        Note.NOT_MAPPED: window.header.target.load_mode.is_mapped is False,
        Note.LOCKED: is_locked(window),
        Note.LIMIT_IS_CGROUP: memory.limit_scope not in (None, HOST),
        Note.COLD: is_cold_start(residency, window, state),
        Note.TOPIC_CHANGE: is_topic_change(window, rates, residency, ledger, state),
    }
    return tuple(note for note, holds in found.items() if holds)


def is_disk_busy_elsewhere(rates: Rates) -> bool:
    """Most of what the disk reads is for somebody else, and it is much."""
    other, device = rates.other_read_bytes_per_s, rates.device_read_bytes_per_s
    return other is not None and device is not None and other >= max(BUSY_BYTES_PER_S, BUSY_SHARE * device)


def find_reader(window: Window, rates: Rates) -> Reader | None:
    """The process that keeps the disk busy, when its read_bytes (proc_pid_io(5)) account for half of it or more.

    Processes whose io file may not be read, or that are not among those listed, cannot be named.
    """
    if not is_disk_busy_elsewhere(rates):
        return None
    lists = [s for s in window.samples if s.others is not None]
    if len(lists) < 2:  # noqa: PLR2004 - two lists make a rate
        return None
    last, before = lists[-1], lists[-2]
    earlier = {other.pid: other for other in before.others or ()}
    span_ns = last.mono_ns - before.mono_ns
    best: Reader | None = None
    for other in last.others or ():
        known = earlier.get(other.pid)
        if known is None or known.name != other.name or span_ns <= 0:
            continue
        read = difference(known.read_bytes_total, other.read_bytes_total)
        rate = 0.0 if read is None else read * S / span_ns
        if rate >= READER_SHARE * (rates.other_read_bytes_per_s or 0) and (best is None or rate > best.bytes_per_s):
            best = Reader(name=other.name, pid=other.pid, bytes_per_s=rate)
    return best


def is_dense_evicted(window: Window, residency: Residency, state: State) -> bool:
    """Weights that every token needs are partly out while a request is in work. Not the token table, not the GPU's part."""
    ratio, model = residency.dense_ratio, window.header.model
    works = window.now.server.phase in (Phase.GENERATE, Phase.PROMPT) or (
        window.now.server.phase is Phase.UNKNOWN and state in (State.STEADY, State.THRASHING, State.RECOVERING)
    )
    if ratio is None or not works or state in (State.LOADING, State.IDLE, State.WARMING):
        return False
    if residency.age_ns is not None and residency.age_ns > MAX_AGE_NS:
        return False
    # the scan of a moment swings about the bar (0.8 to 0.97 within a minute of recording H): most of 10 s must be below
    bar = dense_bar(model)
    recent = [s.residency.dense_resident_bytes for s in window.since(LOOK_BACK_NS) if s.residency is not None]
    needed = residency.dense_needed_bytes
    ratios = [size / needed for size in recent if size is not None] if needed else []
    below = [one < bar for one in ratios] or [ratio < bar]
    return sum(below) > len(below) / 2


def dense_bar(model: ModelSummary | None) -> float:
    """The resident share of the dense weights below which they count as not in memory."""
    counted_apart = model is not None and (model.embedding_bytes or not model.n_expert)
    return DENSE_RATIO if counted_apart else DENSE_RATIO_WITH_TABLE


def is_readahead_off(window: Window, rates: Rates) -> bool:
    """Requests of about a page: each costs as much as one of 128 KiB (236 against 1,222 MB/s, llama.cpp#28223)."""
    request, read = rates.mean_request_bytes, rates.process_read_bytes_per_s
    other = rates.other_read_bytes_per_s
    if request is None or read is None or read < REQUEST_MIN_BYTES_PER_S or window.now.server.phase is Phase.LOADING:
        return False
    # somebody else's requests would be in the mean
    return request <= REQUEST_OFF_BYTES and (other is None or other <= read)


def is_readahead_large(window: Window) -> bool:
    """A disk under the model is set to read far ahead: with random experts, most of that is thrown away unused."""
    return any((device.read_ahead_bytes or 0) >= READAHEAD_LARGE_BYTES for device in window.header.devices)


def is_swap_in_use(window: Window) -> bool:
    """Parts of the server's own memory are swapped out, or the machine reads from swap now."""
    now, page_bytes = window.now, window.header.host.page_bytes
    if now.process is not None and (now.process.swap_bytes or 0) >= SWAP_TARGET_BYTES:
        return True
    samples = window.since(LOOK_BACK_NS)
    a, b = samples[0], samples[-1]
    if a.vm is None or b.vm is None or b.mono_ns <= a.mono_ns:
        return False
    pages = difference(a.vm.pswpin_total, b.vm.pswpin_total)
    return pages is not None and pages * page_bytes * S / (b.mono_ns - a.mono_ns) >= SWAP_IN_BYTES_PER_S


def is_repacked(window: Window) -> bool:
    """The server holds a second, rearranged copy of the weights while the file is mapped as well."""
    model, process = window.header.model, window.now.process
    if model is None or process is None or process.rss_anon_bytes is None:
        return False
    if not window.header.target.load_mode.is_mapped or not model.total_bytes:
        return False
    return process.rss_anon_bytes >= REPACK_SHARE * model.total_bytes


def is_locked(window: Window) -> bool:
    """The weights are locked in memory (mlock(2)): the kernel cannot push them out."""
    mode, model, process = window.header.target.load_mode, window.header.model, window.now.process
    locked = process.locked_bytes if process else None
    if locked is not None and model is not None and model.total_bytes:
        return locked >= LOCKED_SHARE * model.total_bytes
    return mode in (LoadMode.MLOCK, LoadMode.MMAP_MLOCK)


def is_cold_start(residency: Residency, window: Window, state: State) -> bool:
    """Before any request, most of what every token needs is not in memory."""
    if state is not State.IDLE or window.header.target.load_mode.is_mapped is False:
        return False
    if window.now.server.tokens_total:
        return False
    return residency.dense_ratio is not None and residency.dense_ratio < COLD_RATIO


def is_topic_change(window: Window, rates: Rates, residency: Residency, ledger: Ledger | None, state: State) -> bool:
    """Other experts come in although the server had been at work for a while with what it had."""
    if (
        state is not State.WARMING
        or ledger is None
        or not residency.dense_ratio
        or residency.dense_ratio < DENSE_IN_RATIO
    ):
        return False
    arrived = (rates.first_read_bytes_per_s or 0) + (rates.reread_bytes_per_s or 0)
    if arrived < TOPIC_BYTES_PER_S:
        return False
    # it had already worked before these 10 s, and read next to nothing then
    before = window.samples[: window.index_at(LONG_TOPIC_NS) + 1]
    working = [s for s in before if s.server.phase in (Phase.GENERATE, Phase.PROMPT)]
    if len(working) < 2 or working[-1].mono_ns - working[0].mono_ns < LONG_TOPIC_NS / 4:  # noqa: PLR2004 - a span has two ends
        return False
    recent = [s for s in working if s.mono_ns >= working[-1].mono_ns - LONG_TOPIC_NS / 4]
    a, b = recent[0], recent[-1]
    read = difference(
        a.process.read_bytes_total if a.process else None, b.process.read_bytes_total if b.process else None
    )
    if read is None or b.mono_ns <= a.mono_ns:
        return False
    return read * S / (b.mono_ns - a.mono_ns) < arrived / 2
