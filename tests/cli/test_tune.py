"""The command without a real server: what it would start, what it refuses, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.gguf_models import qwen3moe, write_model

ROOT = Path(__file__).parents[2]
SLEEPER = '#!/bin/sh\ncase "$1" in --help|--list-devices) exit 0;; esac\nsleep 300 &\nwait\n'
FAILING = "#!/bin/sh\ncase \"$1\" in --help|--list-devices) exit 0;; esac\necho 'loading'\necho 'error: out of memory'\nexit 1\n"

# as much of a llama-server as tune asks for
ANSWERING = """
import http.server, os, pathlib, sys, time

with pathlib.Path(__file__).with_name("pids").open("a") as file:
    print(os.getpid(), file=file)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        for count in range(1, 200):
            self.wfile.write(b'data: {"tokens_predicted": %d}\\n\\n' % count)
            time.sleep(0.01)


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(qwen3moe(), tmp_path / "m.gguf")[0]


def program(folder: Path, text: str) -> str:
    path = folder / "llama-server"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def tune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moewatch", "tune", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_a_dry_run_shows_what_it_would_start(model: Path, tmp_path: Path) -> None:
    server = program(tmp_path, '#!/bin/sh\n[ "$1" = --help ] || [ "$1" = --list-devices ] || touch started\n')
    words = (
        "--",
        "nice",
        server,
        "-m",
        str(model),
        "--port",
        "9",
        "--host",
        "192.0.2.1",
        "--api-key",
        "hush",
        "-t",
        "3",
    )
    done = tune("--dry-run", "--json", "--candidates", "threads", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["schema"], record["best"], record["command"]) == ("moewatch-tune/1", None, None)
    assert record["runs"][0]["candidate"] == "--threads 3"
    assert record["runs"][0]["command"].startswith(f"nice {server} -m {model}")
    for run in record["runs"]:
        assert " --host 127.0.0.1 --port " in run["command"]
        assert not {"hush", "192.0.2.1", "9"} & set(run["command"].split())
    assert not (ROOT / "started").exists()
    assert "It would start" in tune("--dry-run", *words).stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "after two dashes"),
        (("--", "no-such-llama-server", "-m", "MODEL"), 2, "no program"),
        (("--", "SERVER"), 2, "names no model"),
        (("--", "SERVER", "-m", "absent.gguf"), 5, "absent.gguf"),
        (("--candidates", "split", "--", "SERVER", "-m", "MODEL", "-ngl", "0"), 2, "off the GPU"),
        (("--candidates", "all", "--", "SERVER", "-m", "MODEL"), 2, "neither threads nor split"),
        (("--", "SERVER", "-m", "MODEL", "--ssl-cert-file", "x"), 2, "TLS"),
    ],
)
def test_what_makes_no_sense_is_refused(
    model: Path, tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    names = {"MODEL": str(model), "SERVER": program(tmp_path, SLEEPER)}
    done = tune(*(names.get(word, word) for word in words))
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_servers_that_fail_are_named_with_their_own_words(model: Path, tmp_path: Path) -> None:
    done = tune("--json", "--for", "1", "--candidates", "threads", "--", program(tmp_path, FAILING), "-m", str(model))
    assert done.returncode == 3, done.stderr
    record = json.loads(done.stdout)
    assert record["best"] is None
    assert {run["failed"] for run in record["runs"]} == {"it ended with code 1: error: out of memory"}


def test_a_server_that_leaves_its_group_is_ended_all_the_same(model: Path, tmp_path: Path) -> None:
    (tmp_path / "answering.py").write_text(ANSWERING)
    away = f'case "$1" in --help|--list-devices) exit 0;; esac\nsetsid {sys.executable} {tmp_path}/answering.py "$@" &\nwait\n'
    server = program(tmp_path, f"#!/bin/sh\n{away}")
    done = tune("--json", "--for", "1", "--candidates", "threads", "--", server, "-m", str(model))
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert not any(run["failed"] for run in runs), "one stood in the way of the next"
    assert len(pids) > len(runs) > 0, "the best two are started twice"
    assert not any(psutil.pid_exists(pid) for pid in pids), "a server was left behind"


@pytest.mark.usefixtures("hangup_counts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_server_is_left_when_it_is_interrupted(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "moewatch", "tune", "--", program(tmp_path, SLEEPER), "-m", str(model)]
    started = subprocess.Popen(
        ["env", "--default-signal=INT,HUP", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ,
    )
    end = time.monotonic() + 30
    children: list[psutil.Process] = []
    while len(children) < 2 and time.monotonic() < end:  # the wrapper and what it started
        children = psutil.Process(started.pid).children(recursive=True)
        time.sleep(0.05)
    started.send_signal(number)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert len(children) >= 2
    assert psutil.wait_procs(children, timeout=5)[1] == [], "a server was left behind"
    assert "settings" in out
    assert "Traceback" not in err
