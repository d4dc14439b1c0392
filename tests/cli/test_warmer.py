"""The dashboard's warm-up on a real file of a real disk and a process that maps it."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.cli.warmer import LiveWarmer
from moewatch.clock import SystemClock
from moewatch.domain.warm import WarmOutcome, WarmProgress
from moewatch.domain.warm_events import WarmEvent, WarmFailed, WarmOffer, WarmOver, WarmProof, WarmSaid
from moewatch.units import MS
from tests.support.model_disk import evict

PATIENCE_S = 20
NEARLY_ALL = 0.98  # a kernel with DAMON takes idle pages away, also from tests
MAPPER = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); print('mapped', flush=True); sys.stdin.read()"


class HastyClock(SystemClock):
    """Does not wait ten seconds for a proof."""

    def sleep_until(self, mono_ns: int, stop: threading.Event | None = None) -> bool:
        return super().sleep_until(min(mono_ns, self.mono_ns() + 200 * MS), stop)


class Told:
    """What a warmer told, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[WarmEvent] = queue.SimpleQueue()

    def __call__(self, event: WarmEvent) -> None:
        self._queue.put(event)

    def next(self) -> WarmEvent:
        return self._queue.get(timeout=PATIENCE_S)

    def until(self, kind: type) -> WarmEvent:
        while True:
            event = self.next()
            if isinstance(event, kind):
                return event


@pytest.fixture
def mapper(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A process that maps the cold model and touches nothing."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    evict(model)
    process = subprocess.Popen(
        [sys.executable, "-c", MAPPER, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def warmer() -> Iterator[LiveWarmer]:
    made = LiveWarmer(clock=HastyClock())
    yield made
    made.close()


def test_offer_start_proof_and_the_servers_end(mapper: subprocess.Popen[str], warmer: LiveWarmer) -> None:
    told = Told()
    warmer.plan(mapper.pid, told)
    offer = told.next()
    assert isinstance(offer, WarmOffer)
    assert offer.plan.planned_bytes > 0
    assert offer.command == f"moewatch warm --pid {mapper.pid}"
    warmer.save_plan()
    said = told.next()
    assert isinstance(said, WarmSaid)
    saved = json.loads(Path(said.text.removeprefix("The plan is saved: ")).read_text())
    assert saved["planned_bytes"] == offer.plan.planned_bytes == sum(each["length"] for each in saved["ranges"])
    warmer.start()
    outcome = told.until(WarmOutcome)
    assert isinstance(outcome, WarmOutcome)
    assert outcome.stopped is None
    assert outcome.read_bytes == offer.plan.planned_bytes
    proof = told.until(WarmProof)
    assert isinstance(proof, WarmProof)
    assert proof.later.dense_ratio is not None
    assert proof.later.dense_ratio >= NEARLY_ALL
    warmer.save_hot_set()
    said = told.until(WarmSaid)
    assert isinstance(said, WarmSaid)
    assert said.text.startswith("The hot set is saved")
    mapper.kill()
    over = told.until(WarmOver)
    assert isinstance(over, WarmOver)
    assert over.text.startswith("The server ended")


def test_a_smaller_budget_is_another_offer_and_nothing_was_read(
    mapper: subprocess.Popen[str], warmer: LiveWarmer, model: Path
) -> None:
    told = Told()
    warmer.plan(mapper.pid, told)
    first = told.next()
    assert isinstance(first, WarmOffer)
    warmer.replan(first.plan.planned_bytes // 2)
    second = told.next()
    assert isinstance(second, WarmOffer)
    assert second.plan.planned_bytes <= first.plan.planned_bytes // 2 + (1 << 20)
    assert "--budget" in second.command
    assert second.before.resident_bytes < model.stat().st_size // 2
    warmer.cancel()
    warmer.close()


def test_a_second_plan_ends_the_first(mapper: subprocess.Popen[str], warmer: LiveWarmer) -> None:
    first, second = Told(), Told()
    warmer.plan(mapper.pid, first)
    assert isinstance(first.next(), WarmOffer)
    warmer.plan(mapper.pid, second)
    assert isinstance(second.next(), WarmOffer)
    warmer.start()
    assert isinstance(second.next(), WarmProgress)
    warmer.cancel()
    assert isinstance(second.until(WarmOutcome), WarmOutcome)


def test_a_process_that_is_gone_is_said_in_a_sentence(mapper: subprocess.Popen[str], warmer: LiveWarmer) -> None:
    mapper.kill()
    mapper.wait()
    told = Told()
    warmer.plan(mapper.pid, told)
    failed = told.next()
    assert isinstance(failed, WarmFailed)
    assert failed.text.startswith(f"No process {mapper.pid}.")
