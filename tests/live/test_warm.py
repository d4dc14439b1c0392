"""Warming beside a real llama-server under a real memory limit: nothing is read twice, and what every token needs is there."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moewatch.linux.diskstats import read_diskstats
from moewatch.linux.root import KernelRoot
from tests.support.driver import Driver
from tests.support.llama import LlamaServer, memory_for
from tests.support.memory_limit import MemoryLimit
from tests.support.model_disk import ModelDisk, evict
from tests.support.moe_model import SMALL, write_model
from tests.support.watch import moewatch

EXPERT_SHARE = 0.5
FOREIGN_BYTES = 4 << 20  # of the disk's reads: the server's own few pages, file system metadata
WORK_S = 3.0
ALL_BUT_A_PAGE = 0.995  # a kernel with DAMON takes idle pages away


@pytest.fixture(scope="module")
def served(model_disk: ModelDisk, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    (model,) = write_model(models, SMALL)
    evict(model)
    log = tmp_path_factory.mktemp("warm") / "server.log"
    limit_bytes = memory_for((model,), SMALL.expert_bytes, EXPERT_SHARE)
    with MemoryLimit("warm", limit_bytes) as limit, LlamaServer(model, log=log, limit=limit) as server:
        server.wait_ready()
        yield Served(model_disk, limit, server)


class Served:
    """A server that is ready, in memory for half of its experts."""

    def __init__(self, disk: ModelDisk, limit: MemoryLimit, server: LlamaServer) -> None:
        self.disk, self.limit, self.server = disk, limit, server

    def work(self) -> None:
        with Driver(self.server.port) as driver:
            driver.hold(WORK_S)
        time.sleep(1)  # the request that was dropped ends with its token

    def read_in_file_order(self) -> None:
        """What people do today (vmtouch -t): the end of the file stays, its beginning is pushed out."""
        command = self.limit.launch(["cat", str(self.server.model)])
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)

    def disk_read_bytes(self) -> int:
        total = read_diskstats(KernelRoot.system(), [self.disk.device])[self.disk.device].read_bytes_total
        assert total is not None
        return total

    def warm(self, *arguments: str) -> tuple[dict[str, object], int, str]:
        """The last object, the exit code and what was said."""
        done = moewatch("warm", "--pid", str(self.server.pid), "--json", *arguments)
        return json.loads(done.stdout.splitlines()[-1]), done.returncode, done.stderr


@pytest.mark.live
@pytest.mark.parametrize("start", ["cold", "read in file order"])
def test_auto_reads_no_byte_twice_and_brings_all_that_every_token_needs(served: Served, start: str) -> None:
    served.work()
    served.limit.evict_all()
    if start == "read in file order":
        served.read_in_file_order()
    before_bytes = served.disk_read_bytes()
    last, code, said = served.warm()
    read_bytes = served.disk_read_bytes() - before_bytes
    what = f"{last} {said}"
    assert code == 0, what
    assert last["stopped"] is None, what
    assert last["read_bytes"] == last["planned_bytes"], what
    assert isinstance(last["read_bytes"], int)
    assert abs(read_bytes - last["read_bytes"]) < FOREIGN_BYTES, what
    before = last["before"]
    assert isinstance(before, dict)
    assert before["dense_ratio"] < 0.9, "there was nothing to do"
    for when in ("after", "later"):
        levels = last[when]
        assert isinstance(levels, dict)
        assert levels["dense_ratio"] > ALL_BUT_A_PAGE, what
    assert last["ready"] is True
    assert "server's memory group" in str(last["charged_to"])


@pytest.mark.live
def test_a_server_that_generates_in_full_memory_is_left_alone(served: Served) -> None:
    with Driver(served.server.port) as driver:
        driver.hold(WORK_S)
        last, code, said = served.warm()
    assert code == 1, f"{last} {said}"
    assert last["read_bytes"] == 0
    assert "push out" in str(last["stopped"])


@pytest.mark.live
def test_memory_that_vanishes_under_way_stops_it(served: Served) -> None:
    served.limit.evict_all()
    shrunk = threading.Timer(3.0, served.limit.set, [served.limit.usage_bytes() + (40 << 20)])
    shrunk.start()
    last, code, said = served.warm("--rate", "40MB")
    shrunk.join()
    assert code == 1, f"{last} {said}"
    assert last["reason"] in ("memory", "evicting")
    assert 0 < int(str(last["read_bytes"])) < int(str(last["planned_bytes"]))


@pytest.mark.live
def test_the_servers_end_stops_it(served: Served) -> None:
    served.limit.evict_all()
    ended = threading.Timer(2.0, served.server.stop)
    ended.start()
    began = time.monotonic()
    last, code, said = served.warm("--rate", "10MB")
    ended.join()
    assert code == 3, f"{last} {said}"
    assert "server ended" in str(last["stopped"])
    assert 0 < int(str(last["read_bytes"])) < int(str(last["planned_bytes"]))
    assert time.monotonic() - began < 10
