"""What was estimated is found again for the same model and memory, and for nothing else."""

from pathlib import Path

import pytest

from moewatch.clock import ManualClock
from moewatch.domain.sample import LoadMode
from moewatch.modelfile.identity import derive_digest
from moewatch.modelfile.layout import read_layout
from moewatch.server.discovery import ServerProcess
from moewatch.sources.estimates import KeptEstimate, find_estimate, folder, keep_estimate
from moewatch.sources.live import LiveSource
from moewatch.units import GIB, S
from tests.support.gguf_models import ARCHITECTURES, write_model
from tests.support.proctree import ProcTree
from tests.support.scripted_cache import ScriptedPageCache

KEPT = KeptEstimate(low_tokens_per_s=3.0, high_tokens_per_s=5.5, ram_bytes=32 * GIB)


def test_it_is_found_for_about_the_same_memory(tmp_path: Path) -> None:
    assert find_estimate("ab", 32 * GIB, tmp_path) is None
    assert keep_estimate("ab", KEPT, tmp_path / "new")
    assert find_estimate("ab", 31 * GIB, tmp_path / "new") == (3.0, 5.5)
    assert find_estimate("ab", 24 * GIB, tmp_path / "new") is None
    assert find_estimate("ab", None, tmp_path / "new") is None
    assert find_estimate("cd", 32 * GIB, tmp_path / "new") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ab.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"low_tokens_per_s":5,"high_tokens_per_s":3,"ram_bytes":34359738368}',
        b'{"low_tokens_per_s":-1,"high_tokens_per_s":3,"ram_bytes":34359738368}',
        b'{"version":2,"low_tokens_per_s":1,"high_tokens_per_s":3,"ram_bytes":34359738368}',
        b"[" * 4000,
        b"\xff",
    ],
)
def test_what_makes_no_sense_was_never_estimated(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ab.json").write_bytes(content)
    assert find_estimate("ab", 32 * GIB, tmp_path) is None


def test_what_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not keep_estimate("ab", KEPT, tmp_path / "file" / "deeper")


def test_a_relative_folder_counts_as_unset() -> None:
    assert folder({"XDG_STATE_HOME": "x", "HOME": "/h"}) == Path("/h/.local/state/moewatch/estimates")
    assert folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/moewatch/estimates")


def test_a_copy_is_the_same_model_and_another_is_not(tmp_path: Path) -> None:
    (first,) = write_model(ARCHITECTURES["qwen3moe"](), tmp_path / "a.gguf")
    (copy,) = write_model(ARCHITECTURES["qwen3moe"](), tmp_path / "b.gguf")
    (other,) = write_model(ARCHITECTURES["olmoe"](), tmp_path / "c.gguf")
    same, copied, else_ = (derive_digest(read_layout(path)) for path in (first, copy, other))
    assert same == copied != else_


def test_a_watched_model_carries_its_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "kernel").mkdir()
    tree = ProcTree.captured(tmp_path / "kernel", "linux-6.18-cgroup1").process(4242)
    (model,) = write_model(ARCHITECTURES["qwen3moe"](), tmp_path / "m.gguf")
    cache = ScriptedPageCache()
    cache.add(model)
    server = ServerProcess(
        pid=4242, start_ticks=1000, exe="llama-server", model_paths=(model,), load_mode=LoadMode.MMAP
    )

    def header_estimate() -> tuple[tuple[float, float] | None, int]:
        source = LiveSource.open(
            server,
            clock=ManualClock(),
            interval_ns=S,
            http=False,
            residency=False,
            root=tree.root,
            page_cache=cache,
        )
        try:
            header = source.header
            return header.estimate_tokens_per_s, header.memory_limit_bytes or header.host.ram_bytes or 0
        finally:
            source.close()

    before, memory = header_estimate()
    kept = KeptEstimate(low_tokens_per_s=3.0, high_tokens_per_s=5.5, ram_bytes=memory)
    assert keep_estimate(derive_digest(read_layout(model)), kept)
    assert (before, header_estimate()[0]) == (None, (3.0, 5.5))
