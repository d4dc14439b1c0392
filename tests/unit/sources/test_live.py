"""The live source on a made-up machine: what is read, what is missing and why, and when."""

from pathlib import Path

import pytest

from moewatch.clock import ManualClock
from moewatch.domain.sample import GapReason, LoadMode, Sample
from moewatch.errors import ParseError, TargetEndedError
from moewatch.server.discovery import ServerProcess
from moewatch.sources.live import LiveSource
from moewatch.units import S
from tests.support.gguf_models import ARCHITECTURES, write_model
from tests.support.proctree import ProcTree
from tests.support.scripted_cache import RESIDENT, ScriptedPageCache

PID = 4242


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    where = tmp_path / "kernel"
    where.mkdir()
    tree = ProcTree.captured(where, "linux-6.18-cgroup1").process(PID, majflt=7, rss_pages=1000, read_bytes=4096)
    return tree.write("/proc/self/statm", "9000 1500 500 10 0 20 0\n")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_model(ARCHITECTURES["qwen3moe"](), path)
    return path


def opened(
    tree: ProcTree, clock: ManualClock, *models: Path, residency: bool = True
) -> tuple[LiveSource, ScriptedPageCache]:
    cache = ScriptedPageCache()
    for path in models:
        cache.add(path)[:] = bytes([RESIDENT]) * len(cache.add(path))
    server = ServerProcess(pid=PID, start_ticks=1000, exe="llama-server", model_paths=models, load_mode=LoadMode.MMAP)
    source = LiveSource.open(
        server, clock=clock, interval_ns=S, http=False, residency=residency, root=tree.root, page_cache=cache
    )
    return source, cache


def next_sample(source: LiveSource, clock: ManualClock) -> Sample:
    clock.sleep_until(source.due_ns())
    return source.read()


def test_every_reading_of_an_instant(tree: ProcTree, model: Path) -> None:
    clock = ManualClock()
    source, _ = opened(tree, clock, model)
    try:
        sample = next_sample(source, clock)
        assert source.header.model is not None
        assert source.header.model.architecture == "qwen3moe"
        assert source.header.host.page_bytes == 4096
        assert sample.process is not None
        assert (sample.process.majflt_total, sample.process.read_bytes_total) == (7, 4096)
        assert sample.process.rss_bytes == 1000 * 4096
        assert sample.vm is not None
        assert sample.memory is not None
        assert sample.residency is not None
        assert sample.residency.resident_bytes == pytest.approx(model.stat().st_size, abs=4096)
        assert sample.own is not None
        assert sample.own.rss_bytes == 1500 * 4096
        assert [gap.reason for gap in sample.gaps if gap.field == "server"] == [GapReason.ABSENT]
    finally:
        source.close()


def test_samples_keep_their_beat_and_say_how_late_they_are(tree: ProcTree, model: Path) -> None:
    clock = ManualClock()
    source, _ = opened(tree, clock, model, residency=False)  # no second thread that sleeps on this clock
    try:
        first = next_sample(source, clock)
        second = next_sample(source, clock)
        assert second.mono_ns - first.mono_ns < S  # a rate soon, not after a whole interval
        third = next_sample(source, clock)
        assert third.mono_ns - second.mono_ns == S
        clock.advance(3 * S + S // 4)
        late = source.read()
        assert late.late_ns == 2 * S + S // 4
        assert next_sample(source, clock).mono_ns - third.mono_ns == 4 * S  # skipped beats are not caught up with
    finally:
        source.close()


def test_what_may_not_be_read_is_a_gap_and_never_a_number(tree: ProcTree, model: Path) -> None:
    clock = ManualClock()
    source, cache = opened(tree.deny(f"/proc/{PID}/io"), clock, model)
    try:
        sample = next_sample(source, clock)
        assert sample.process is not None
        assert sample.process.read_bytes_total is None
        assert sample.readers_read_bytes_total is None
        denied = {gap.field: gap for gap in sample.gaps}["process.read_bytes_total"]
        assert denied.reason is GapReason.DENIED
        assert cache.calls
    finally:
        source.close()


def test_the_end_of_the_process_ends_the_source(tree: ProcTree, model: Path) -> None:
    clock = ManualClock()
    source, _ = opened(tree, clock, model)
    try:
        next_sample(source, clock)
        tree.process(PID, start=2000)  # the pid belongs to another process now
        with pytest.raises(TargetEndedError):
            next_sample(source, clock)
    finally:
        source.close()


def test_a_model_that_was_found_but_cannot_be_used_leaves_a_gap(tree: ProcTree, tmp_path: Path) -> None:
    clock, broken = ManualClock(), tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    source, _ = opened(tree, clock, broken)
    try:
        sample = next_sample(source, clock)
        assert sample.residency is None
        assert [gap.reason for gap in sample.gaps if gap.field == "model"] == [GapReason.MALFORMED]
    finally:
        source.close()


def test_a_model_that_was_named_must_be_usable(tree: ProcTree, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    server = ServerProcess(pid=PID, start_ticks=1000, exe="llama-server")
    with pytest.raises(ParseError, match="broken"):
        LiveSource.open(server, clock=ManualClock(), interval_ns=S, model_paths=(broken,), http=False, root=tree.root)


def test_without_residency_parts_the_ledger_still_counts(tree: ProcTree, model: Path) -> None:
    clock = ManualClock()
    source, _ = opened(tree, clock, model, residency=False)
    try:
        sample = next_sample(source, clock)
        assert sample.residency is not None, sample.gaps
        assert sample.residency.resident_bytes is not None
        assert sample.residency.dense_resident_bytes is None
        assert [gap.detail for gap in sample.gaps if gap.field == "residency"] == ["turned off by --no-residency"]
    finally:
        source.close()
