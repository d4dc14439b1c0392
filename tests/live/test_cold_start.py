"""A cold start that fits in memory: a storm of reads that is never called thrashing."""

from pathlib import Path

import pytest

from moewatch.domain.frame import State
from tests.support.driver import Driver
from tests.support.judge import assert_mostly, assert_never_thrashing, span
from tests.support.llama import LlamaServer
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import SMALL, write_model
from tests.support.watch import Watching, between, share_of, timeline, wait_mapped

INTERVAL_S = 0.5
DISK_BYTES_PER_S = 80_000_000  # 0.63 GB take about 8 s: time to look at the loading
WORK_S = 14.0
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
            with span("load") as load:
                server.wait_ready()
            with span("work") as work, Driver(server.port) as driver:
                driver.hold(WORK_S)
    frames = watching.frames()
    assert_never_thrashing(frames)
    loading = between(frames, load.start_ns, load.end_ns)
    what = timeline(frames, load.start_ns) + watching.said()
    assert share_of(loading, State.LOADING, State.UNKNOWN) == 1, what
    assert any(frame.verdict.state is State.LOADING for frame in loading), what
    seen = max(frame.rates.process_read_bytes_per_s or 0 for frame in loading)
    assert 0.5 * DISK_BYTES_PER_S < seen < 1.5 * DISK_BYTES_PER_S, what

    assert_mostly(frames, work, State.STEADY, State.WARMING)
    last = between(frames, work.start_ns, work.end_ns)[-1]
    assert last.residency.resident_ratio == pytest.approx(1, abs=WITHIN)
    assert last.rates.majflt_per_s == pytest.approx(0, abs=2)
    heard = sum(1 for token in driver.token_mono_ns if last.mono_ns - last.rates.window_ns < token <= last.mono_ns)
    assert last.rates.tokens_per_s == pytest.approx(heard / (last.rates.window_ns / 1e9), rel=0.25)
    assert watching.exit_code == 130, what
