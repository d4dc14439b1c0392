"""The command as a person runs it: files, folders, web addresses, the hub, and what goes wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_models import ModelSpec, TensorSpec, gpt_oss, qwen3moe, write_model
from tests.support.range_server import RangeServer

ROOT = Path(__file__).parents[2]
GIVEN = ("--ram", "32G", "--vram", "12G", "--disk-rate", "3G")
HEADS = {"context_length": 32768, "embedding_length": 256, "qwen3moe.attention.head_count": 4}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_ENDPOINT")}
    return subprocess.run(
        [sys.executable, "-m", "moewatch", "estimate", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env=kept | {"XDG_STATE_HOME": os.devnull} | environment,  # nothing is kept
        check=False,
    )


def estimate(*arguments: str, **environment: str) -> dict[str, Any]:
    done = run(*arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def assert_refused(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(qwen3moe().with_keys(**HEADS), tmp_path / "m-Q4_K_M.gguf")[0]


def test_the_contract(model: Path) -> None:
    found = estimate(str(model), *GIVEN, "--ctx", "4096", "--prompt", "100")
    assert found["schema"] == "moewatch-estimate/1"
    assert found["model"] | {
        "architecture": "qwen3moe", "n_layer": 2, "n_expert": 8, "n_expert_used": 2, "n_files": 1,
        "total_bytes": model.stat().st_size} == found["model"]  # fmt: skip
    sizes = found["model"]
    assert sizes["active_bytes_per_token"] == sizes["dense_bytes"] + sizes["expert_bytes"] // 4
    assert found["kv_cache_bytes"] == 2 * 4096 * 2 * 256 * 2
    assert found["machine"] | {
        "ram_bytes": 32 << 30, "vram_bytes": 12 << 30, "disk_bytes_per_s": 3 << 30} == found["machine"]  # fmt: skip
    assert found["prior"]["band"] == "fits"
    assert found["prior"]["ratio"] == (32 << 30) / sizes["expert_bytes"]
    assert 0 < found["tokens_per_s"]["low"] < found["tokens_per_s"]["high"]
    assert found["first_token_s"]["prompt_tokens"] == 100
    assert found["placement"]["n_gpu_layers"] == 3
    assert found["placement"]["n_cpu_moe"] == 0
    assert found["command"].startswith(f"llama-server -m {model} ")
    assert isinstance(found["warnings"], list)


def test_this_machine_and_words(model: Path) -> None:
    done = run(str(model))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= max(80, len(str(model)) + 20)
    for word in ("experts", "routers", "rule of thumb", "expected", "tokens/s", "--threads", "--measure"):
        assert word in done.stdout


def test_any_shard_and_a_folder(tmp_path: Path) -> None:
    paths = write_model(qwen3moe(n_layer=4), tmp_path / "m.gguf", split_tensors=20)
    found = [estimate(str(path), *GIVEN) for path in (*paths, tmp_path)]
    assert len({json.dumps(each["model"]) for each in found}) == 1
    assert found[0]["model"]["n_files"] == 3
    assert all(f"-m {paths[0]} " in each["command"] for each in found)


def test_a_folder_with_several(tmp_path: Path) -> None:
    for kind in ("Q4_K", "Q8_0"):
        spec = qwen3moe()
        tensors = tuple(TensorSpec(t.name, t.dims, kind) if "_exps" in t.name else t for t in spec.tensors)
        write_model(ModelSpec(spec.architecture, tensors, spec.keys), tmp_path / f"m-{kind}.gguf")
    assert_refused(run(str(tmp_path)), 2, "holds 2 models; name one, or add --compare")
    found = estimate(str(tmp_path), "--compare", *GIVEN)
    assert [row["file"] for row in found["compare"]] == ["m-Q4_K.gguf", "m-Q8_0.gguf"]
    assert found["best"] == "m-Q8_0.gguf"
    assert "m-Q8_0.gguf" in found["command"]
    text = run(str(tmp_path / "m-Q4_K.gguf"), "--compare", *GIVEN).stdout
    assert "> m-Q8_0.gguf" in text


def test_across_the_network_with_one_request(model: Path) -> None:
    with RangeServer(files={model.name: model.read_bytes()}) as server:
        there, here = estimate(server.url(model.name), *GIVEN), estimate(str(model), *GIVEN)
        assert len(server.seen) == 1
    assert there["model"] == here["model"]
    assert f"-m {model.name} " in there["command"]


def test_the_hub(model: Path, tmp_path: Path) -> None:
    (other,) = write_model(gpt_oss(), tmp_path / "m-MXFP4.gguf")
    files = {f"o/r/resolve/main/{path.name}": path.read_bytes() for path in (model, other)}
    listed = json.dumps([{"type": "file", "path": p.name, "size": p.stat().st_size} for p in (model, other)]).encode()
    with RangeServer(files=files) as hub:
        hub.routes["/api/models/o/r/tree/main"] = lambda request: request.reply(200, listed)
        where = {"HF_ENDPOINT": hub.origin, "HF_TOKEN": "secret"}
        usual = estimate("hf:o/r", *GIVEN, **where)
        asked = estimate("hf:o/r:mxfp4", *GIVEN, **where)
        both = estimate("hf:o/r", "--compare", *GIVEN, **where)
        page = estimate(hub.url(f"o/r/blob/main/{model.name}"), *GIVEN, **where)
        assert_refused(run("hf:o/r:Q2_K", **where), 5, "there is ")
        assert all(headers["Authorization"] == "Bearer secret" for _, headers in hub.seen)
    assert "-hf o/r:Q4_K_M " in usual["command"]
    assert asked["model"]["architecture"] == "gpt-oss"
    assert len(both["compare"]) == 2
    assert page["model"] == usual["model"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "MODEL-OR-URL"),
        (("x.gguf", "--ram", "much"), 2, "is no size"),
        (("x.gguf", "--ctx", "0"), 2, "number of tokens"),
        (("x.gguf", "--disk-rate", "0"), 2, "is no rate"),
        (("x.gguf", "--kv-type", "q2"), 2, "invalid choice"),
        (("x.gguf", "--server", "/no/such/program"), 2, "is no program"),
        (("hf:nothing",), 2, "write hf:owner/repo"),
        (("/no/such.gguf",), 5, "There is no file"),
        (("http://",), 5, "is no web address"),
        (("/dev/zero",), 5, "is a device"),
        (("docs",), 5, "holds no whole model"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], code: int, words: str) -> None:
    assert_refused(run(*arguments), code, words)


def test_no_server_at_the_address() -> None:
    with RangeServer() as gone:
        url = gone.url("m.gguf")
    assert_refused(run(url), 5, "no connection to the server")


def test_measured(model: Path, tmp_path: Path) -> None:
    with model.open("r+b") as file:
        file.truncate(64 << 20)
    found = estimate(str(model), "--measure", "--dir", str(tmp_path))
    assert found["machine"]["memory_bytes_per_s"] > 0
    known, assumed = found["machine"]["disk_bytes_per_s"], found["machine"]["disk_assumed_bytes_per_s"]
    assert (known is None) != (assumed is None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [model.name]


def test_nothing_heavy_is_imported_for_a_local_file(model: Path) -> None:
    code = (
        "import sys\nfrom moewatch.cli.main import run\nassert run(['estimate', sys.argv[1], '--json']) == 0\n"
        "heavy = {'textual', 'rich', 'numpy', 'gguf', 'plotext', 'httpx', 'pynvml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_estimate_of_this_machine_is_kept_and_is_the_same_across_a_network(model: Path, tmp_path: Path) -> None:
    def kept_by(name: str, *arguments: str) -> list[str]:
        estimate(*arguments, XDG_STATE_HOME=str(tmp_path / name))
        return sorted(path.name for path in (tmp_path / name).rglob("*.json"))

    here = kept_by("here", str(model), "--disk-rate", "3G")
    with RangeServer(files={model.name: model.read_bytes()}) as server:
        there = kept_by("there", server.url(model.name), "--disk-rate", "3G")
    assert len(here) == 1
    assert here == there
    assert kept_by("described", str(model), *GIVEN) == [], "another machine's figures say nothing of this one"
    (tmp_path / "file").write_text("")
    assert kept_by("file", str(model), "--disk-rate", "3G") == [], "nobody is troubled where it cannot be written"
