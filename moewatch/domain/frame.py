"""Everything a view may see: figures derived from two or more Samples, and the verdict on them.

Every figure is None when unknown, and `gaps` says why. The keys are the contract of docs/reference/cli.md.
"""

import enum

from msgspec import Struct

from moewatch.domain.sample import Device, Gap, Host, LoadMode, ModelSummary, Phase


class State(enum.StrEnum):
    """The verdict's states; what each means stands in docs/explanation/verdict.md."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    LOADING = "loading"
    WARMING = "warming"
    STEADY = "steady"
    THRASHING = "thrashing"
    RECOVERING = "recovering"


class Severity(enum.StrEnum):
    """How much time thrashing costs."""

    LIGHT = "light"
    MODERATE = "moderate"
    SEVERE = "severe"


class Cause(enum.StrEnum):
    """What brought the state about."""

    WORKING_SET = "working_set"
    DENSE_CLIFF = "dense_cliff"
    MEMORY_TAKEN = "memory_taken"
    LIMIT_LOWERED = "limit_lowered"
    READAHEAD = "readahead"
    COLD_START = "cold_start"
    TOPIC_CHANGE = "topic_change"
    LOAD = "load"
    OTHER_READER = "other_reader"
    UNKNOWN = "unknown"


class Method(enum.StrEnum):
    """How re-reads were told from first reads."""

    LEDGER = "ledger"  # counted: read_bytes against cachestat
    REFAULTS = "refaults"  # the kernel's count: workingset_refault_file
    MINCORE = "mincore"  # at least: seen by sampling
    NONE = "none"


class Note(enum.StrEnum):
    """What stands beside any state."""

    DISK_BUSY_ELSEWHERE = "disk_busy_elsewhere"
    DENSE_WEIGHTS_EVICTED = "dense_weights_evicted"
    MEMORY_TAKEN = "memory_taken"
    READAHEAD_OFF = "readahead_off"
    READAHEAD_LARGE = "readahead_large"
    LEDGER_SHARED = "ledger_shared"
    SWAP_IN_USE = "swap_in_use"
    REPACK_DUPLICATE = "repack_duplicate"
    NOT_MAPPED = "not_mapped"
    LOCKED = "locked"
    LIMIT_IS_CGROUP = "limit_is_cgroup"
    COLD = "cold"
    TOPIC_CHANGE = "topic_change"


class Target(Struct, frozen=True, kw_only=True):
    """Who is watched; `files` and the rest of the model's figures stand in `model`."""

    id: str
    pid: int
    exe: str
    files: tuple[dict[str, str | int], ...]  # name, size_bytes
    model_name: str
    load_mode: LoadMode
    host: Host
    devices: tuple[Device, ...]
    file_system: str | None = None
    interval_ns: int = 1_000_000_000


class Rates(Struct, frozen=True, kw_only=True):
    """Over the last `window_ns` (10 s when there is so much); see analysis/rates.py for how each is derived."""

    window_ns: int = 0
    majflt_per_s: float | None = None
    minflt_per_s: float | None = None
    process_read_bytes_per_s: float | None = None
    device_read_bytes_per_s: float | None = None
    other_read_bytes_per_s: float | None = None
    first_read_bytes_per_s: float | None = None
    reread_bytes_per_s: float | None = None
    departed_bytes_per_s: float | None = None
    refault_bytes_per_s: float | None = None
    mean_request_bytes: float | None = None
    memory_stall_ratio: float | None = None
    io_stall_ratio: float | None = None
    cpu_ratio: float | None = None
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    read_bytes_per_token: float | None = None
    reread_bytes_per_token: float | None = None
    majflt_per_token: float | None = None
    miss_ratio: float | None = None
    method: Method = Method.NONE
    best_tokens_per_s: float | None = None  # best steady rate of this run, with the wall time it was measured
    best_wall_ns: int | None = None


class Residency(Struct, frozen=True, kw_only=True):
    """How much of what the host needs is in the page cache; parts on the GPU are in no ratio."""

    resident_ratio: float | None = None
    dense_ratio: float | None = None
    expert_ratio: float | None = None
    by_layer: tuple[float | None, ...] | None = None
    not_needed_bytes: int | None = None
    not_needed_assumed: bool = False
    age_ns: int | None = None
    backend: str = "none"
    dense_resident_bytes: int | None = None
    dense_needed_bytes: int | None = None
    expert_resident_bytes: int | None = None
    expert_needed_bytes: int | None = None
    embedding_resident_bytes: int | None = None
    experts: str | None = None


class Growth(Struct, frozen=True, kw_only=True):
    """Another process that took memory while we watched."""

    pid: int
    name: str
    bytes: int
    since_ns: int  # mono_ns
    since_wall_ns: int | None = None
    anon_bytes: int | None = None  # what it holds now


class Memory(Struct, frozen=True, kw_only=True):
    """Where the memory is, against the limit that counts for the target."""

    limit_bytes: int | None = None
    limit_scope: str | None = None  # "host" or the cgroup's name
    available_bytes: int | None = None
    free_bytes: int | None = None
    target_anon_bytes: int | None = None
    target_rss_bytes: int | None = None
    model_resident_bytes: int | None = None
    model_lost_bytes: int | None = None  # how much less of the model is in memory than at its most, in this run
    other_cache_bytes: int | None = None
    swap_used_bytes: int | None = None
    grew: tuple[Growth, ...] = ()


class Server(Struct, frozen=True, kw_only=True):
    """What the server says of itself."""

    phase: Phase = Phase.UNKNOWN
    tokens_total: int | None = None
    source: str = "none"
    n_active: int | None = None


class WorkingSet(Struct, frozen=True, kw_only=True):
    """How many bytes generation reuses: an honest range, None when it cannot be told."""

    low_bytes: int | None = None
    high_bytes: int | None = None
    fits_bytes: int | None = None
    short_bytes: int | None = None


class ExpertMap(Struct, frozen=True, kw_only=True):
    """What of each expert is in the page cache: index = layer * n_expert + expert. Not the router's choices.

    As of `seen_ns`, the same object in every Frame until a newer map comes. All of it is seen by sampling: `again_bytes`
    are at least what was read.
    """

    n_layer: int
    n_expert: int
    bytes_per_expert: tuple[int, ...]  # of each layer, over all its tensors; 0: it has no routed experts
    not_needed_layers: tuple[int, ...] = ()  # their experts are on the GPU: no memory is needed for them
    resident: bytes  # share in memory, 0 to 255; 255 only when all of it is
    again_bytes: tuple[int, ...]  # read AGAIN within `again_window_ns`
    again_window_ns: int  # 60 s, less soon after the start
    left_s: (
        bytes  # seconds before `seen_ns` at which it was last seen to leave (half of it or more); 255: not within 254 s
    )
    seen_ns: int  # mono_ns at which the oldest part was looked at
    seen_wall_ns: int

    def share(self, layer: int, expert: int) -> float | None:
        """Share in memory, 0 to 1; None where that layer has no experts, or they are on the GPU."""
        if not self.bytes_per_expert[layer] or layer in self.not_needed_layers:
            return None
        return self.resident[layer * self.n_expert + expert] / 255


class Evenness(enum.StrEnum):
    """How unequal the experts' use is."""

    SKEWED = "skewed"  # a few experts get most of the use
    BETWEEN = "between"
    EVEN = "even"


class Skew(Struct, frozen=True, kw_only=True):
    """How unequal the use of the experts is, as far as memory and reads show it (analysis/skew.py)."""

    evenness: Evenness
    resident_share: float  # of the experts' bytes, in memory ...
    use_share: float  # ... and what share of the use they get
    top_share: float  # of the use, that the tenth of the experts that are used most gets: at least
    touched_ratio: float | None  # of the routed bytes, in memory at some time of the last minute; None without maps
    text: str


class Progress(Struct, frozen=True, kw_only=True):
    """What is still to come while loading or warming."""

    remaining_bytes: int | None = None
    eta_low_ns: int | None = None
    eta_high_ns: int | None = None
    read_bytes: int | None = None  # loading: what has been read of the model so far
    first_bytes: int | None = None  # warming: read for the first time in the last minute
    levels_off: bool = False  # warming: less comes in than before


class Own(Struct, frozen=True, kw_only=True):
    """moewatch's own cost, and how late this sample was."""

    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    late_ns: int = 0


class Evidence(Struct, frozen=True, kw_only=True):
    """One figure the verdict rests on, with the threshold it was held against."""

    id: str
    value: float | None
    unit: str
    threshold: float | None
    text: str


class Advice(Struct, frozen=True, kw_only=True):
    """One action, why, the exact command, what it gains and where that comes from."""

    id: str
    title: str
    command: str | None
    reason: str
    gain: str
    restart: bool


class Verdict(Struct, frozen=True, kw_only=True):
    """The one sentence, and what it rests on."""

    state: State
    severity: Severity | None = None
    since_ns: int
    since_wall_ns: int | None = None
    confidence: float = 0.0
    loss_ratio: float | None = None
    loss_method: str | None = None  # rate, wait, stall
    cause: Cause = Cause.UNKNOWN
    headline: str = ""
    headline_short: str = ""  # the same in 38 columns
    remarks: tuple[str, ...] = ()  # sentences on what is special here (analysis/remarks.py)
    evidence: tuple[Evidence, ...] = ()
    notes: tuple[Note, ...] = ()
    advice: tuple[Advice, ...] = ()


class Frame(Struct, frozen=True, kw_only=True, rename={"own": "self"}):
    """One target at one tick, judged."""

    schema: str = "moewatch-frame/1"
    mono_ns: int
    wall_ns: int
    target: Target
    model: ModelSummary | None = None
    active_bytes_per_token: int | None = None  # A, less what is on the GPU
    rates: Rates = Rates()
    residency: Residency = Residency()
    memory: Memory = Memory()
    server: Server = Server()
    working_set: WorkingSet = WorkingSet()
    experts: ExpertMap | None = None
    skew: Skew | None = None
    progress: Progress = Progress()
    verdict: Verdict
    own: Own = Own()
    gaps: tuple[Gap, ...] = ()
