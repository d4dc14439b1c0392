"""A warm-up for the dashboard: plans, reads and keeps watching on one thread, and tells how it goes."""

import json
import queue
import shlex
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from moewatch.cli.warm import PROOF_NS, plan_json
from moewatch.clock import Clock, SystemClock
from moewatch.domain.layout import ModelLayout
from moewatch.domain.warm import Levels, Plan, WarmOutcome, What
from moewatch.domain.warm_events import (
    WarmEvent,
    WarmFailed,
    WarmOffer,
    WarmProof,
    WarmSaid,
)
from moewatch.errors import MoewatchError
from moewatch.units import S

if TYPE_CHECKING:
    from moewatch.cache.run import Warming
    from moewatch.cache.warmup import Preparation, Warmup

FRESH_NS = 5 * S  # an older offer is made again before it is carried out: memory has moved on
JOIN_S = 10.0  # a read that hangs is not waited for any longer
Tell = Callable[[WarmEvent], None]


class LiveWarmer:
    """Warms the model of the server that is watched; see tui/feed.py, Warmer."""

    def __init__(self, *, model: Path | None = None, clock: Clock | None = None) -> None:
        self._model = model
        self._clock = clock or SystemClock()
        self._job: _Job | None = None

    def plan(self, pid: int, tell: Tell) -> None:
        """On a new thread; the old one is told to end and waited for by the new one."""
        old, self._job = self._job, _Job(pid, self._model, self._clock, tell)
        if old is not None:
            old.cancel()
        self._job.start(after=old)

    def replan(self, budget_bytes: int) -> None:
        """Another offer."""
        if self._job is not None:
            self._job.ask(budget_bytes)

    def start(self) -> None:
        """Read."""
        if self._job is not None:
            self._job.ask(None)

    def cancel(self) -> None:
        """No further read is begun."""
        if self._job is not None:
            self._job.cancel()

    def save_hot_set(self) -> None:
        """On a thread of its own: looking at every page takes 15 ms per GiB."""
        if self._job is not None:
            threading.Thread(target=self._job.save, name="hotset", daemon=True).start()

    def save_plan(self) -> None:
        """A few hundred ranges: written at once."""
        if self._job is not None:
            self._job.save_plan()

    def close(self) -> None:
        """Stop and wait."""
        job, self._job = self._job, None
        if job is not None:
            job.hush()
            job.cancel()
            job.join()


class _Job:
    """One warm-up, from the first look to the first request."""

    def __init__(self, pid: int, model: Path | None, clock: Clock, tell: Tell) -> None:
        self._pid = pid
        self._model = model
        self._clock = clock
        self._tell = tell
        self._asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # a budget, or None: start
        self._cancelled = threading.Event()
        self._warming: Warming | None = None
        self._layout: ModelLayout | None = None
        self._plan: Plan | None = None  # of the newest offer
        self._thread: threading.Thread | None = None

    def start(self, after: "_Job | None") -> None:
        self._thread = threading.Thread(target=self._run, args=(after,), name="warm", daemon=True)
        self._thread.start()

    def ask(self, budget_bytes: int | None) -> None:
        self._asked.put(budget_bytes)

    def cancel(self) -> None:
        self._cancelled.set()
        self._asked.put(None)
        if self._warming is not None:
            self._warming.cancel()

    def hush(self) -> None:
        self._tell = lambda _event: None

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def save(self) -> None:
        """What is in memory now becomes one of the kept hot sets."""
        from moewatch.cache.hotset import Seen  # noqa: PLC0415 - nothing eager
        from moewatch.cache.hotset_keeper import keep, take_hotset  # noqa: PLC0415 - nothing eager

        if self._layout is None:
            return
        now_ns = self._clock.wall_ns()
        try:
            created = datetime.fromtimestamp(now_ns / S, UTC).isoformat(timespec="seconds")
            path = keep(take_hotset(self._layout, created=created, seen=Seen()), now_ns)
        except (MoewatchError, OSError) as error:
            self._tell(WarmSaid(text=f"The hot set was not saved: {error}"))
        else:
            self._tell(WarmSaid(text=f"The hot set is saved: {path.name}; the next plan uses it."))

    def save_plan(self) -> None:
        """The newest offer, as `warm --dry-run --json` prints it, beside the hot sets."""
        from moewatch.cache.hotset_keeper import state_directory  # noqa: PLC0415 - nothing eager

        plan, layout = self._plan, self._layout
        if plan is None or layout is None:
            return
        stamp = datetime.fromtimestamp(self._clock.wall_ns() / S, UTC).strftime("%Y%m%dT%H%M%SZ")
        path = state_directory().parent / "plans" / f"{stamp}.json"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(json.dumps(plan_json(plan, layout.paths), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            self._tell(WarmSaid(text=f"The plan was not saved: {path}: {error.strerror}."))
        else:
            self._tell(WarmSaid(text=f"The plan is saved: {path}"))

    # --- on its thread -------------------------------------------------------------------------------------------

    def _run(self, after: "_Job | None") -> None:
        from moewatch.cache.warmup import Warmup  # noqa: PLC0415 - nothing eager

        if after is not None:
            after.join()
        try:
            with Warmup.open(clock=self._clock, model=self._model, pids=[self._pid]) as warmup:
                self._layout = warmup.layout
                self._find_hot_set(warmup)
                self._offer_and_read(warmup)
        except (MoewatchError, OSError) as error:
            self._tell(WarmFailed(text=str(error)))

    def _find_hot_set(self, warmup: "Warmup") -> None:
        from moewatch.cache.hotset_file import read_hotset  # noqa: PLC0415 - nothing eager
        from moewatch.cache.hotset_keeper import offered_for  # noqa: PLC0415 - nothing eager

        for path in offered_for(warmup.layout)[:1]:
            warmup.hot = read_hotset(path).file_runs
            warmup.hot_name = path.name.partition(".")[0]

    def _offer_and_read(self, warmup: "Warmup") -> None:
        from moewatch.cache.lock import only_one  # noqa: PLC0415 - nothing eager

        budget: int | None = None
        preparation = warmup.prepare(What.AUTO)
        made_ns = self._clock.mono_ns()
        self._tell(self._offer(warmup, preparation, budget))
        while not self._cancelled.is_set():
            asked = self._asked.get()
            if self._cancelled.is_set():
                return
            is_start = asked is None
            if not is_start or self._clock.mono_ns() - made_ns > FRESH_NS:
                speed = preparation.disk_bytes_per_s
                budget = asked if not is_start else budget
                preparation = warmup.prepare(What.AUTO, budget_bytes=budget, with_speed=False)
                preparation = msgspec.structs.replace(preparation, disk_bytes_per_s=speed)
                made_ns = self._clock.mono_ns()
                if not is_start or preparation.refusal:
                    self._tell(self._offer(warmup, preparation, budget))
            if is_start and not preparation.refusal:
                with only_one(warmup.layout):
                    self._read(warmup, preparation)
                return

    def _offer(self, warmup: "Warmup", preparation: "Preparation", budget: int | None) -> WarmOffer:
        from moewatch.cache.guard import gone_limit  # noqa: PLC0415 - nothing eager
        from moewatch.cache.vigil import left_limit  # noqa: PLC0415 - nothing eager

        command = f"moewatch warm --pid {self._pid}"
        if self._model is not None:
            command = f"moewatch warm {shlex.quote(str(self._model))} --pid {self._pid}"
        if budget is not None:
            command += f" --budget {budget >> 20}M"
        self._plan = plan = preparation.plan
        return WarmOffer(
            model_name=warmup.layout.summary.name,
            plan=plan,
            room=preparation.room,
            before=preparation.before,
            phase=preparation.phase,
            charged_to=preparation.charged_to,
            command=command,
            hot_name=preparation.hot_name,
            refusal=preparation.refusal,
            disk_bytes_per_s=preparation.disk_bytes_per_s,
            gone_limit_bytes=gone_limit(plan.planned_bytes),
            watch_limit_bytes=left_limit(plan.resident_bytes + plan.planned_bytes - plan.displaced_bytes),
        )

    def _read(self, warmup: "Warmup", preparation: "Preparation") -> None:
        self._warming = warming = warmup.start(preparation)
        if self._cancelled.is_set():
            warming.cancel()
        for progress in warming.run():
            self._tell(progress)
        outcome = WarmOutcome(
            planned_bytes=preparation.plan.planned_bytes,
            read_bytes=warming.read_bytes,
            seconds=warming.elapsed_ns / S,
            before=preparation.before,
            after=warmup.levels(),
            gone_bytes=warming.ruling.gone_bytes,
            reason=warming.reason,
            stopped=warming.stopped,
        )
        self._tell(outcome)
        if warming.reason is not None or self._sleep(PROOF_NS):
            return
        later = warmup.levels()
        self._tell(WarmProof(later=later))
        self._watch(warmup, later)

    def _watch(self, warmup: "Warmup", start: Levels) -> None:
        """Until the first request, the server's end or a cancel."""
        from moewatch.cache.vigil import keep_vigil  # noqa: PLC0415 - nothing eager

        for event in keep_vigil(warmup, start.resident_bytes, self._clock, self._cancelled):
            self._tell(event)

    def _sleep(self, span_ns: int) -> bool:
        """True when it was cancelled meanwhile."""
        return self._clock.sleep_until(self._clock.mono_ns() + span_ns, self._cancelled)
