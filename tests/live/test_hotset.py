"""A server that works on one topic under a memory limit: its hot set, saved, evicted and brought back."""

import json
import time
from pathlib import Path

import pytest

from tests.support.driver import Driver
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import SMALL, MoeShape, write_model
from tests.support.watch import moewatch

# one topic of four: its quarter of the experts and some of the rest fit into memory for 60 % of them
TOPICS = MoeShape(topic_gain=8.0, seed=SMALL.seed)
EXPERT_SHARE = 0.6
WORK_S = 5.0
BROUGHT_BACK = 0.9


@pytest.mark.live
def test_a_hot_set_is_saved_evicted_and_brought_back(model_disk: ModelDisk, models: Path, tmp_path: Path) -> None:  # noqa: ARG001 - mounted
    (model,) = write_model(models, TOPICS)
    evict(model)
    limit_bytes = memory_for((model,), TOPICS.expert_bytes, EXPERT_SHARE)
    path = tmp_path / "topic.hotset"
    with (
        MemoryLimit("hotset", limit_bytes) as limit,
        LlamaServer(model, log=tmp_path / "server.log", limit=limit) as server,
    ):
        server.wait_ready()
        pid = ("--pid", str(server.pid))
        with Driver(server.port, topic=1) as driver:
            driver.hold(WORK_S)
            saved = moewatch("hotset", "save", str(path), *pid, "--for", "4", "--json")
        assert saved.returncode == 0, saved.stderr
        hotset = json.loads(saved.stdout)
        assert hotset["basis"] == "watched"
        assert hotset["seen"]["tokens"] > 0
        assert hotset["size_bytes"] < 0.9 * model.stat().st_size
        time.sleep(1)  # the request that was dropped ends with its token
        limit.evict_all()
        shown = moewatch("hotset", "show", str(path), *pid, "--json")
        assert json.loads(shown.stdout)["resident_bytes"] < 0.2 * hotset["size_bytes"], shown.stderr
        restored = moewatch("hotset", "restore", str(path), *pid, "--json")
        assert restored.returncode == 0, restored.stderr
        last = json.loads(restored.stdout.splitlines()[-1])
        what = f"{last} {hotset}"
        assert last["stopped"] is None, what
        assert last["after"]["hot_ratio"] > BROUGHT_BACK, what
        assert last["later"]["hot_ratio"] > BROUGHT_BACK, what
        assert last["later"]["dense_ratio"] > BROUGHT_BACK, what
