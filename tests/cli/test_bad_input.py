"""Whatever a shell, a terminal or a file does to the commands: one sentence, the right exit code, nothing lost, no traceback."""

import fcntl
import gzip
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gguf_models import qwen3moe, write_model

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests/fixtures/traces/b50-1.jsonl.gz"
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
WAIT_S = 30.0
MAPPER = (
    "import mmap, sys, time\n"
    "file = open(sys.argv[1], 'rb')\n"
    "held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    "file.close()\n"
    "print('mapped', flush=True)\n"
    "sys.stdin.read()\n"
)
IN_TERMINAL = (  # the terminal on stdin becomes the one whose end is a hangup
    "import fcntl, os, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execv(sys.argv[1], sys.argv[1:])\n"
)


def shell(words: str, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `words` in a shell where `$M` is moewatch and `$1`, `$2` are `args`."""
    return subprocess.run(
        ["/bin/bash", "-c", f'M() {{ "$0" -m moewatch "$@"; }}; {words}', sys.executable, *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        check=False,
    )


def assert_sentence(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "fault of moewatch" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(qwen3moe(), tmp_path / "model.gguf")[0]


@pytest.fixture
def server(model: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that maps the model, as a server of another name does."""
    with subprocess.Popen(
        [sys.executable, "-c", MAPPER, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert select.select([process.stdout], [], [], WAIT_S)[0]
        assert process.stdout.readline() == "mapped\n"
        yield process
        process.stdin.close()
        process.wait(WAIT_S)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ['replay "$1" --json', "--version", "stream --help"])
def test_streams_that_the_shell_closed(closed: str, command: str) -> None:
    result = shell(f"M {command} {closed}", str(TRACE))
    assert (result.returncode, result.stderr) == (0, "")
    if ">&-" not in closed.replace("2>&-", ""):
        assert result.stdout


def test_talk_does_not_get_among_the_data_when_stderr_is_closed() -> None:
    result = shell('M replay "$1" 2>&-', str(TRACE))
    assert result.returncode == 0
    assert "no terminal" not in result.stdout


def test_a_closed_stdout_is_not_where_the_recording_goes(server: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    result = shell('M record -o "$1" --for 0 --no-http --pid "$2" >&- 2>&-', str(path), str(server.pid))
    assert result.returncode == 0
    assert {next(iter(json.loads(line))) for line in path.read_text().splitlines()} == {"format", "mono_ns"}


@pytest.mark.parametrize("command", ["--help", "--version", "stream --help", 'replay "$1"'])
def test_a_full_disk_under_any_output(command: str) -> None:
    result = shell(f"M {command} >/dev/full", str(TRACE))
    assert result.returncode == 5
    assert "No space left" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ['replay "$1"', '--once --for 0 --no-http --pid "$2"', 'residency --pid "$2"'])
def test_a_locale_without_our_signs(server: subprocess.Popen[str], command: str) -> None:
    result = shell(f"M {command}", str(TRACE), str(server.pid), env=ASCII)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert "\\u" not in result.stdout


def test_json_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    path = tmp_path / "größe.bin"
    path.write_bytes(b"x" * 5000)
    result = shell('M residency --json "$1"', str(path), env=ASCII | {"LC_ALL": "C.UTF-8"})
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["files"] == [str(path)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("M frobnicate", 2, "no command 'frobnicate'"),
        ('M residency ""', 2, "empty"),
        ('M warm ""', 2, "empty"),
        ('M --once --model ""', 2, "empty"),
        ("M stream --pod 1", 2, "--pod"),
        ("M stream --pid 12 x", 2, "'x' is no process id"),
        ("M stream --pid ١٢", 2, "no process id"),
        ("M stream --pid 99999999999999999999", 2, "no process id"),
        ("M stream --for 999999999h", 2, "100 years"),
        ("M stream --interval 5.1", 2, "0.2 s to 5 s"),
        ("M stream --interval nan", 2, "no duration"),
        ("M residency /dev/zero", 5, "name a model file"),
        ("M estimate /dev/zero", 5, "is a device"),
        ("M warm /proc/self/maps", 5, "is empty"),
        ("M replay /dev/zero", 5, "not a file"),
        ("M record -o / --force", 5, "is a folder"),
        ("M record -o -", 2, "name one"),
        (f"M record -o /tmp/{'a' * 300}", 5, "too long"),
        ("M record -o /proc/x", 5, "/proc/x"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_is_wrong(words: str, code: int, said: str) -> None:
    result = shell(words)
    assert_sentence(result, code, said)
    assert result.stdout == ""


@pytest.mark.parametrize("kind", ["folder", "empty", "pipe", "text", "torn"])
@pytest.mark.parametrize("command", ['estimate "$1"', 'warm "$1"', '--once --for 0 --pid "$2" --model "$1"'])
def test_what_is_no_whole_model(
    server: subprocess.Popen[str], model: Path, tmp_path: Path, command: str, kind: str
) -> None:
    path = tmp_path / f"{kind}.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"empty": b"", "text": b"root:x:0:0", "torn": model.read_bytes()[:-5000]}[kind])
    assert_sentence(shell(f"M {command}", str(path), str(server.pid)), 5, path.name)


@pytest.mark.parametrize("pids", ['"$1"', '"$1 1"', '"$1\n999999999"', '"1,$1"', "$1 --pid 1"])
def test_pids_as_pgrep_prints_them(server: subprocess.Popen[str], pids: str) -> None:
    result = shell(f"M --once --json --for 0 --no-http --pid {pids}", str(server.pid))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["target"]["pid"] == server.pid


@pytest.mark.parametrize("command", ["stream --pid", 'stream --pid ""', '--once --pid "$(true)"'])
def test_an_empty_pgrep_waits_and_says_so(command: str, tmp_path: Path) -> None:
    """In a /proc of its own, where no server runs."""
    inside = f"timeout -s INT 2 {sys.executable} -m moewatch {command}"
    result = shell(f"unshare --mount --pid --fork --mount-proc /bin/bash -c '{inside}' 2>&1", str(tmp_path))
    if "unshare:" in result.stdout:
        pytest.skip("no namespaces here")
    assert "No llama-server yet; waiting" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_server_that_ends_is_three(server: subprocess.Popen[str]) -> None:
    command = [sys.executable, "-m", "moewatch", "stream", "--no-http", "--interval", "0.2", "--pid", str(server.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as stream:
        assert stream.stdout is not None
        assert select.select([stream.stdout], [], [], WAIT_S)[0]
        server.terminate()
        server.wait(WAIT_S)
        _, said = stream.communicate(timeout=WAIT_S)
    assert stream.returncode == 3
    assert said.splitlines()[-1] == f"moewatch: Process {server.pid} has ended"


def test_a_deleted_model_keeps_its_name(server: subprocess.Popen[str], model: Path) -> None:
    model.unlink()
    page = shell('M --once --for 0 --no-http --pid "$1"', str(server.pid))
    assert page.returncode == 0
    assert "model file was deleted while the server runs" in page.stdout
    assert "map_files" not in page.stdout
    assert "map_files" not in shell('M residency --pid "$1"', str(server.pid)).stdout


def test_a_replaced_model_is_told_from_a_deleted_one(server: subprocess.Popen[str], model: Path) -> None:
    model.with_suffix(".new").write_bytes(b"something else")
    model.with_suffix(".new").rename(model)
    stream = shell('M stream --for 0 --no-http --pid "$1"', str(server.pid))
    assert_sentence(stream, 0, "replaced while the server runs")
    checks = {c["id"]: c for c in json.loads(shell('M doctor --json --pid "$1"', str(server.pid)).stdout)["checks"]}
    assert checks["model"]["status"] == "limited"
    assert checks["residency"]["status"] == "ok"


def test_a_truncated_model_is_said_and_nothing_is_called_resident(server: subprocess.Popen[str], model: Path) -> None:
    os.truncate(model, model.stat().st_size - mmap.PAGESIZE)
    page = shell('M --once --for 0 --no-http --pid "$1"', str(server.pid))
    assert page.returncode == 0
    assert "the download is not finished" in page.stdout
    assert "100 %" not in page.stdout


def test_recordings_are_known_by_their_content(tmp_path: Path) -> None:
    packed, plain = tmp_path / "packed.jsonl", tmp_path / "plain.jsonl.gz"
    packed.write_bytes(TRACE.read_bytes())
    plain.write_bytes(gzip.decompress(TRACE.read_bytes()))
    first, second = (shell('M replay --json "$1" | head -n 2', str(path)) for path in (packed, plain))
    assert first.stdout == second.stdout != ""
    assert first.stderr == second.stderr == ""


@pytest.mark.parametrize("flag", ["", "--json"])
def test_a_recording_without_samples_is_said(tmp_path: Path, flag: str) -> None:
    path = tmp_path / "header.jsonl"
    path.write_bytes(gzip.decompress(TRACE.read_bytes()).splitlines(keepends=True)[0])
    assert_sentence(shell(f'M replay {flag} "$1"', str(path)), 5, "holds no samples")


@pytest.mark.parametrize("content", ["zeros", "backwards", "not utf-8", "long line"])
def test_odd_recordings_end_in_frames_or_a_sentence(tmp_path: Path, content: str) -> None:
    lines = gzip.decompress(TRACE.read_bytes()).splitlines(keepends=True)[:80]
    if content == "zeros":
        header = json.loads(lines[0])
        header["model"] = {k: 0 if type(v) is int else v for k, v in header["model"].items()}
        lines[0] = json.dumps(header).encode() + b"\n"
    elif content == "backwards":
        lines[1:] = reversed(lines[1:])
    else:
        lines.insert(3, b"\xff\xfe\n" if content == "not utf-8" else b"a" * (5 << 20) + b"\n")
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"".join(lines))
    result = shell('M replay --json "$1"', str(path))
    if content in ("zeros", "backwards"):
        assert (result.returncode, result.stderr) == (0, "")
        assert len(result.stdout.splitlines()) == len(lines) - 1
    else:
        assert_sentence(result, 5, "odd.jsonl, line 4")
        assert len(result.stdout.splitlines()) == 2


def test_a_recording_that_cannot_be_written_ends_the_command(server: subprocess.Popen[str]) -> None:
    result = shell('M record --force -o /dev/full --no-http --pid "$1"', str(server.pid))
    assert_sentence(result, 5, "No space left")


@pytest.mark.usefixtures("hangup_counts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_close_the_recording(server: subprocess.Popen[str], tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "kept.jsonl.gz"
    command = [sys.executable, "-m", "moewatch", "record", "-o", str(path), "--no-http", "--interval", "0.2"]
    with subprocess.Popen([*command, "--pid", str(server.pid)], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], WAIT_S)[0]  # its first sentence: it records
        process.send_signal(number)
        said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert len(gzip.decompress(path.read_bytes()).splitlines()) >= 2  # whole, with its end


def test_a_hangup_that_is_ignored_stays_ignored(server: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    words = (
        '"$0" -m moewatch record -o "$1" --no-http --for 2 --interval 0.2 --pid "$2" & sleep 1; kill -HUP $!; wait $!'
    )
    result = shell(f"trap '' HUP; {words}", str(path), str(server.pid))
    assert result.returncode == 0, result.stderr
    assert len(path.read_text().splitlines()) > 4


@pytest.mark.parametrize("term", ["dumb", ""])
def test_without_a_screen_there_are_lines(server: subprocess.Popen[str], term: str) -> None:
    inner = f"timeout -s INT 3 {sys.executable} -m moewatch --no-http --pid {server.pid}"
    result = shell(f'script -qec "{inner}" /dev/null', env={"TERM": term})
    assert "TERM says that this terminal draws nothing: one line per sample" in result.stdout
    assert "\x1b[" not in result.stdout


def test_a_redirected_stderr_is_not_drawn_into(server: subprocess.Popen[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = f"timeout -s INT 3 {sys.executable} -m moewatch --no-http --pid {server.pid} 2>{log}"
    result = shell(f"script -qec '{inner}' /dev/null", env={"TERM": "xterm"})
    assert "\x1b[" not in log.read_text()
    assert "stderr is no terminal: one line per sample" in log.read_text()
    assert "tokens/s" in result.stdout


def test_a_dashboard_that_dies_of_a_fault_says_so_in_a_sentence() -> None:
    """A report of 0 pixels ends Textual's thread for keys at the next move of the mouse."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "moewatch", "replay", str(TRACE)]
    with subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:  # fmt: skip
        os.close(theirs)
        drawn = b""
        while b"REPLAY" not in drawn:
            assert select.select([ours], [], [], WAIT_S)[0]
            drawn += os.read(ours, 1 << 16)
        os.write(ours, b"\x1b[48;24;80;0;0t\x1b[<35;10;5M\x1b[<35;11;6M")
        said = b""
        while select.select([ours], [], [], WAIT_S)[0]:
            try:
                said += os.read(ours, 1 << 16)
            except OSError:  # EIO: nobody has the other end any more
                break
        os.close(ours)
        assert process.wait(timeout=WAIT_S) == 70
    *_, last = said.decode().strip().splitlines()
    assert last.startswith("moewatch: this is a fault of moewatch itself (ZeroDivisionError: ")
    assert b"Traceback" not in said


@pytest.mark.usefixtures("hangup_counts")
def test_a_terminal_that_closes_ends_the_dashboard_and_keeps_the_recording(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    path = tmp_path / "kept.jsonl"
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "moewatch", "--no-http", "--record", str(path), "--pid", str(server.pid)]
    with subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command], cwd=ROOT, start_new_session=True,
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color"},
    ) as process:  # fmt: skip
        os.close(theirs)
        drawn = b""
        while b"MOEWATCH" not in drawn.upper() or not path.exists():
            assert select.select([ours], [], [], WAIT_S)[0]
            drawn += os.read(ours, 1 << 16)
        os.close(ours)
        assert process.wait(timeout=WAIT_S) == 130
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    "url", ["http://", "https://x", "http://x:0", "http://:99999", "http://[::1", f"http://{'a' * 64}", "http://a..b"]
)
def test_an_address_that_is_none(server: subprocess.Popen[str], url: str) -> None:
    result = shell('M --once --for 0 --pid "$1" --url "$2"', str(server.pid), url)
    assert_sentence(result, 2, "write for instance http://127.0.0.1:8080")


def test_an_address_without_a_server_is_a_gap(server: subprocess.Popen[str]) -> None:
    result = shell('M --once --json --for 0 --pid "$1" --url http://127.0.0.1:1', str(server.pid))
    gaps = [gap["detail"] for gap in json.loads(result.stdout)["gaps"] if gap["field"] == "server"]
    assert gaps == ["nothing listens on 127.0.0.1:1"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("MemoryError()", "too little memory"),
        ("OSError(errno.ENOMEM, 'no')", "too little memory"),
        ("ImportError('x.so: failed to map segment from shared object')", "too little memory"),
        ("OSError(errno.EMFILE, 'no')", "too few open files"),
        ("BlockingIOError(errno.EAGAIN, 'no')", "no other process or thread"),
        ('RuntimeError("can\'t start new thread")', "no other process or thread"),
    ],
)  # fmt: skip
def test_what_a_limit_does_not_give_is_no_fault_of_ours(error: str, said: str) -> None:
    program = (
        f"import errno\nfrom moewatch.cli.diagnostics import guarded\n"
        f"def work():\n    raise {error}\nraise SystemExit(guarded(work))\n"
    )
    assert_sentence(shell('"$0" -c "$1"', program), 4, said)


@pytest.fixture
def odd_server(model: Path) -> Iterator[tuple[int, Path]]:
    """It maps a file whose name is no UTF-8, and so is one of its words."""
    odd = Path(os.fsdecode(os.fsencode(model.parent) + b"/m\xff\x1b[31m.gguf"))
    model.rename(odd)
    with subprocess.Popen(
        [sys.executable, "-c", MAPPER, odd, b"--alias", b"\xfe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert select.select([process.stdout], [], [], WAIT_S)[0]
        yield process.pid, odd
        process.stdin.close()
        process.wait(WAIT_S)


def test_words_that_are_no_utf_8_are_recorded_and_printed(odd_server: tuple[int, Path], tmp_path: Path) -> None:
    pid, odd = odd_server
    path = tmp_path / "kept.jsonl"
    recorded = shell('M record -o "$1" --for 0 --no-http --pid "$2"', str(path), str(pid))
    assert recorded.returncode == 0, recorded.stderr
    assert "\\udcfe" in json.loads(path.read_text().splitlines()[0])["target"]["argv"]
    assert shell('M replay --json "$1"', str(path)).returncode == 0
    looked = shell('M residency --json "$1"', str(odd))
    assert looked.returncode == 0, looked.stderr
    assert json.loads(looked.stdout)["files"][0].endswith("/m\\udcff\x1b[31m.gguf")
