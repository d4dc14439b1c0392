"""A cold start that fits in memory: a storm of reads that is never called thrashing."""

import time
from pathlib import Path

import pytest

from moewatch.domain.frame import State
from tests.support.driver import Driver
from tests.support.llama import LlamaServer
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import SMALL, write_model
from tests.support.watch import Watching, between, share_of, timeline, wait_mapped

INTERVAL_S = 0.5
DISK_BYTES_PER_S = 80_000_000  # 0.63 GB take about 8 s: time to look at the loading
WORK_S = 14.0
SETTLED_S = 8.0  # after this much work, 6 s of grace included, the state must have settled
WITHIN = 0.02  # a few header pages and one table row per token are no reads that matter


@pytest.mark.live
def test_a_cold_start_that_fits_is_loading_then_calm_and_never_thrashing(
    model_disk: ModelDisk, models: Path, tmp_path: Path
) -> None:
    (model,) = write_model(models, SMALL)
    evict(model)
    with (
        MemoryLimit("cold", slow_disk=model_disk.device, read_bytes_per_s=DISK_BYTES_PER_S) as limit,
        LlamaServer(model, log=tmp_path / "server.log", limit=limit) as server,
    ):
        wait_mapped(server.pid, model)
        with Watching(server.pid, interval_s=INTERVAL_S, log=tmp_path / "moewatch.log") as watching:
            started_ns = time.monotonic_ns()
            server.wait_ready()
            ready_ns = time.monotonic_ns()
            with Driver(server.port) as driver:
                driver.hold(WORK_S)
                worked_ns = time.monotonic_ns()
    frames = watching.frames()
    what = timeline(frames, started_ns) + "\n" + watching.said()

    assert share_of(frames, State.THRASHING) == 0, what
    loading = between(frames, started_ns, ready_ns)
    assert share_of(loading, State.LOADING, State.UNKNOWN) == 1, what
    assert any(frame.verdict.state is State.LOADING for frame in loading), what
    seen = max(frame.rates.process_read_bytes_per_s or 0 for frame in loading)
    assert 0.5 * DISK_BYTES_PER_S < seen < 1.5 * DISK_BYTES_PER_S, what

    settled = between(frames, ready_ns + int(SETTLED_S * 1e9), worked_ns)
    assert share_of(settled, State.STEADY, State.WARMING) >= 0.85, what
    last = settled[-1]
    assert last.residency.resident_ratio == pytest.approx(1, abs=WITHIN)
    assert last.rates.majflt_per_s == pytest.approx(0, abs=2)
    heard = sum(1 for token in driver.token_mono_ns if token > worked_ns - last.rates.window_ns)
    assert last.rates.tokens_per_s == pytest.approx(heard / (last.rates.window_ns / 1e9), rel=0.25)
    assert watching.exit_code == 130, what
