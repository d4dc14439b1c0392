"""Saves a hot set by itself after ten good minutes, keeps the last three of each model, offers them at the next start.

They lie in $XDG_STATE_HOME/moewatch/hotsets (~/.local/state by default), one folder per model, named by date and time;
when a fourth is written the oldest goes. Other files in that folder are left alone.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from moewatch.cache.heat import HeatWatch
from moewatch.cache.hotset import Files, HotModel, Hotset, Seen, decode_runs, encode_runs, make_hotset
from moewatch.cache.hotset_file import check_model, identify, read_hotset, write_hotset
from moewatch.cache.residency import ShardCache
from moewatch.clock import Clock
from moewatch.domain.events import Event, FrameReady, Started
from moewatch.domain.frame import Frame, State
from moewatch.domain.layout import ModelLayout
from moewatch.errors import MoewatchError
from moewatch.home import home_directory
from moewatch.linux.pagecache import SystemPageCache
from moewatch.linux.root import ReadingError
from moewatch.linux.shards import close_shards, open_shards
from moewatch.units import MINUTE, S

GOOD_NS = 10 * MINUTE
AGAIN_NS = 60 * MINUTE  # of good time until the next: three of them span an afternoon
LONGEST_STEP_NS = 15 * S  # frames come every 0.2 to 5 s; a longer gap is a pause and no proof of anything
KEPT = 3
OFFER_RATIO = 0.9  # with more of the experts in memory there is little to bring back
SUFFIX = ".hotset"
_NAME = re.compile(r"\d{8}T\d{6}Z(-\d)?\.hotset")
_MODEL_CHARACTERS = 40
# these end a good time; idle, unknown and warming only interrupt it
SPOILS = (State.THRASHING, State.RECOVERING, State.LOADING)


class GoodTime(Struct, frozen=True, kw_only=True):
    """How long the server has been steady with tokens, without thrashing since; `target` says whose it is."""

    target: str = ""
    mono_ns: int | None = None
    good_ns: int = 0
    tokens: int = 0  # generated in that time
    tokens_total: int | None = None
    saved_ns: int | None = None  # good time at which the last set was saved


def with_frame(good: GoodTime, frame: Frame) -> GoodTime:
    """The same with one Frame more. Pure."""
    if frame.target.id != good.target:
        good = GoodTime(target=frame.target.id)
    step_ns = 0 if good.mono_ns is None else max(0, min(frame.mono_ns - good.mono_ns, LONGEST_STEP_NS))
    total = frame.server.tokens_total
    new = max(0, total - good.tokens_total) if total is not None and good.tokens_total is not None else 0
    good = replace(good, mono_ns=frame.mono_ns, tokens_total=total)
    state = frame.verdict.state
    if state in SPOILS:
        return replace(good, good_ns=0, tokens=0, saved_ns=None)
    if state is State.STEADY and new:
        return replace(good, good_ns=good.good_ns + step_ns, tokens=good.tokens + new)
    return good


def should_save(good: GoodTime) -> bool:
    """Whether ten good minutes are over, or an hour since the last set. Pure."""
    if good.saved_ns is None:
        return good.good_ns >= GOOD_NS
    return good.good_ns - good.saved_ns >= AGAIN_NS


def state_directory() -> Path:
    """$XDG_STATE_HOME/moewatch/hotsets; a relative path there counts as unset (XDG base directory specification)."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else home_directory() / ".local" / "state"
    return base / "moewatch" / "hotsets"


def model_directory(model: HotModel) -> Path:
    """Where the sets of one model lie: a readable name, and the digest that counts."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.name)[:_MODEL_CHARACTERS].strip(".-") or "model"
    return state_directory() / f"{name}-{model.digest}"


def kept_sets(model: HotModel) -> list[Path]:
    """Saved by `keep`, newest first. The name may have been changed since: the digest is what is looked for."""
    found: list[Path] = []
    for folder in state_directory().glob(f"*-{model.digest}"):
        with contextlib.suppress(OSError):
            found += [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def offered_for(layout: ModelLayout) -> list[Path]:
    """Saved sets of this model that can be used, newest first; what is damaged is passed over."""
    try:
        model = identify(layout)
        candidates = kept_sets(model)
    except (MoewatchError, OSError, RuntimeError):  # RuntimeError: no home directory
        return []
    offered = []
    for path in candidates:
        with contextlib.suppress(MoewatchError):
            check_model(read_hotset(path), model, path.name)
            offered.append(path)
    return offered


def keep(hotset: Hotset, wall_ns: int) -> Path:
    """Write it under a name of its own, then let go of all but the newest three of this model.

    Raises:
        UnusableFileError: it cannot be written.
    """
    folder = model_directory(hotset.model)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MoewatchError(f"The hot set was not saved: {folder} cannot be made: {error.strerror}.") from None
    stamp = datetime.fromtimestamp(wall_ns / S, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = [f"{stamp}{suffix}{SUFFIX}" for suffix in ("", *(f"-{n}" for n in range(1, 10)))]
    path = next((folder / name for name in names if not (folder / name).exists()), folder / names[-1])
    write_hotset(hotset, path)
    for old in kept_sets(hotset.model)[KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def look_at(layout: ModelLayout) -> tuple[Files, int]:
    """What is in memory now, and the size of a page.

    Raises:
        MoewatchError: it cannot be known.
        ReadingError: a file cannot be opened.
    """
    shards = open_shards(layout)
    try:
        cache = ShardCache(SystemPageCache(), shards)
        return cache.resident(), cache.page_bytes
    finally:
        close_shards(shards)


def take_hotset(layout: ModelLayout, *, created: str, seen: Seen, first: Sequence[str] | None = None) -> Hotset:
    """What is in memory now, as a hot set; weighed against a `first` look (packed runs per shard) when there was one.

    Raises:
        MoewatchError: it cannot be known, or the model not be read.
        ReadingError: a file cannot be opened.
    """
    resident, page_bytes = look_at(layout)
    sizes = [file.size_bytes for file in layout.files]
    heat = HeatWatch(
        resident
        if first is None
        else [decode_runs(text, page_bytes, size) for text, size in zip(first, sizes, strict=True)]
    )
    heat.look(resident)
    return make_hotset(
        identify(layout),
        heat.tiers(),
        basis="residency" if first is None else "watched",
        created=created,
        page_bytes=page_bytes,
        seen=seen,
    )


class HotsetKeeper:
    """A sampler's sink (sampler.Sink): saves in a thread of its own, so that no Sample comes late.

    `layout_of` gives the layout of the target watched now, None when it has none. `tell` hears one sentence when a set
    was saved or could not be.
    """

    def __init__(
        self,
        clock: Clock,
        layout_of: Callable[[], ModelLayout | None],
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._clock = clock
        self._layout_of = layout_of
        self._tell = tell
        self._good = GoodTime()
        # in memory when the work began, packed: 500,000 runs are 1.5 MB instead of 60
        self._first: list[str] | None = None
        self._wants_first = True
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Started):
            self._good = GoodTime()
            self._first, self._wants_first = None, True
        elif isinstance(event, FrameReady):
            self._good = with_frame(self._good, event.frame)
            if self._wants_first and event.frame.verdict.state not in (State.LOADING, State.UNKNOWN):
                self._wants_first = False
                missing = (event.frame.residency.expert_ratio or 1.0) < OFFER_RATIO
                self._run(self._look_and_offer if missing else self._look)
            if should_save(self._good) and self._save(event.frame):
                self._good = replace(self._good, saved_ns=self._good.good_ns)

    def join(self, timeout_s: float = 10.0) -> None:
        """Wait for a save that is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, work: Callable[[ModelLayout], None]) -> bool:
        """In a thread; False while one is at work, or without a model."""
        layout = self._layout_of()
        if layout is None or (self._thread is not None and self._thread.is_alive()):
            return False
        self._thread = threading.Thread(target=work, args=(layout,), name="hotset", daemon=True)
        self._thread.start()
        return True

    def _look(self, layout: ModelLayout) -> None:
        with contextlib.suppress(MoewatchError, OSError):  # without it, the set is of one look
            resident, page_bytes = look_at(layout)
            self._first = [encode_runs(runs, page_bytes) for runs in resident]

    def _look_and_offer(self, layout: ModelLayout) -> None:
        self._look(layout)
        if offered := offered_for(layout):
            self._tell(f"A hot set of this model is saved ({offered[0].stem}): w brings it back.")

    def _save(self, frame: Frame) -> bool:
        seen = Seen(
            watched_ns=self._good.good_ns,
            state=State(frame.verdict.state).value,
            tokens=self._good.tokens,
            loss_ratio=frame.verdict.loss_ratio,
        )
        return self._run(lambda layout: self._work(layout, seen))

    def _work(self, layout: ModelLayout, seen: Seen) -> None:
        try:
            created = datetime.fromtimestamp(self._clock.wall_ns() / S, UTC).isoformat(timespec="seconds")
            hotset = take_hotset(layout, created=created, seen=seen, first=self._first)
            path = keep(hotset, self._clock.wall_ns())
        except ReadingError as error:
            self._tell(f"The hot set was not saved: {error.detail}.")
        except (
            MoewatchError,
            OSError,
            ValueError,
        ) as error:  # ValueError: the first look was of more runs than a set may have
            self._tell(f"The hot set was not saved: {error}")
        else:
            self._tell(f"Ten good minutes: the hot set is saved in {path}")
