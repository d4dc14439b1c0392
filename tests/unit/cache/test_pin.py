"""When holding helps, what is held, when it is let go; and that the kernel really holds and releases it."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from moewatch.cache import pin
from moewatch.cache.child import ReaderEndedError
from moewatch.cache.holder import STEP_BYTES
from moewatch.cache.holding import HolderProcess, limit_words, read_left, steps
from moewatch.cache.pin import Facts, Look, Part, Watch, choose_runs, decide, tiers_that_fit, with_look
from moewatch.cache.runs import Run, total
from moewatch.clock import SystemClock
from moewatch.domain.frame import State
from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.domain.sample import LoadMode, Phase
from moewatch.domain.warm import FileRun
from moewatch.errors import UnusableFileError
from moewatch.linux.cgroup import locate
from moewatch.linux.pagecache import SystemPageCache
from moewatch.units import GIB, MIB, S
from tests.support.layouts import layout_of, moe_tensors, sparse_file
from tests.support.proctree import ProcTree

PAGE = os.sysconf("SC_PAGESIZE")
BOTH = (Part.DENSE, Part.HOT)

DENSE = Facts(
    dense_bytes=10 * GIB,
    expert_bytes=0,
    active_bytes=10 * GIB,
    room_bytes=9 * GIB,
    kept_bytes=GIB // 2,
    has_worked=True,
    dense_ratio=0.9,
    state=State.THRASHING,
)
MOE = msgspec.structs.replace(
    DENSE, dense_bytes=GIB, expert_bytes=20 * GIB, active_bytes=2 * GIB, is_moe=True, dense_ratio=1.0
)
PROVEN = msgspec.structs.replace(MOE, hot_bytes=5 * GIB, is_hot_proven=True, state=State.STEADY)


def changed(facts: Facts, **changes: object) -> Facts:
    return msgspec.structs.replace(facts, **changes)


@pytest.mark.parametrize(
    ("facts", "helps", "words"),
    [
        (DENSE, True, "in a circle"),
        (changed(DENSE, room_bytes=20 * GIB, state=State.STEADY), False, "Everything fits; nothing to hold"),
        (MOE, False, "27 to 14"),
        (changed(MOE, room_bytes=30 * GIB, state=State.IDLE), False, "Everything fits; nothing to hold"),
        (changed(MOE, active_bytes=9 * GIB + 1), True, "One token needs"),
        (changed(MOE, dense_ratio=0.7), True, "pushed out"),
        (changed(MOE, dense_ratio=0.7, has_worked=False), False, "mixture of experts"),
        (PROVEN, True, "proven hot set of 5.0 GiB"),
        (changed(PROVEN, is_hot_proven=False), False, "not proven"),
        (changed(PROVEN, is_even=True), False, "used alike now"),
        (changed(MOE, is_even=True), False, "whose experts are used alike"),
        (changed(PROVEN, hot_bytes=19 * GIB), False, "used alike"),
        (changed(PROVEN, hot_bytes=8 * GIB), False, "does not fit"),
        (changed(PROVEN, budget_bytes=3 * GIB), False, "does not fit"),
    ],
)
def test_the_decision(facts: Facts, helps: bool, words: str) -> None:  # noqa: FBT001 - the expected value
    decision = decide(facts, BOTH)
    assert decision.helps is helps
    assert words in decision.reason
    assert decision.may_force


@pytest.mark.parametrize(
    ("facts", "parts", "words"),
    [
        (changed(DENSE, load_mode=LoadMode.NONE), BOTH, "own memory"),
        (changed(DENSE, load_mode=LoadMode.MMAP_MLOCK), BOTH, "itself"),
        (DENSE, (Part.HOT,), "no experts"),
        (changed(DENSE, room_bytes=GIB // 2), BOTH, "no room"),
        (changed(DENSE, budget_bytes=1000), BOTH, "no room"),
    ],
)
def test_what_is_of_no_use_cannot_be_forced(facts: Facts, parts: tuple[Part, ...], words: str) -> None:
    decision = decide(facts, parts)
    assert not decision.helps
    assert not decision.may_force
    assert words in decision.reason


def test_the_rest_has_room_to_stream() -> None:
    """82 of 90 parts were held when it was measured: 91 %."""
    small = changed(DENSE, room_bytes=900 * MIB, kept_bytes=54 * MIB)
    assert small.most_bytes / small.room_bytes == pytest.approx(0.91, abs=0.01)
    assert DENSE.most_bytes < DENSE.room_bytes - DENSE.kept_bytes
    assert changed(DENSE, budget_bytes=GIB).most_bytes == GIB
    assert changed(DENSE, budget_bytes=100 * GIB).most_bytes == DENSE.most_bytes, "more than fits is never held"


def test_whole_tiers_are_held_and_the_first_decides() -> None:
    room = PROVEN.most_bytes - PROVEN.dense_bytes
    assert tiers_that_fit([room], PROVEN) == 1
    assert tiers_that_fit([room // 2, room // 4, room], PROVEN) == 2
    assert tiers_that_fit([room + 1, 1], PROVEN) == 1, "and decide says that it does not fit"


@pytest.fixture
def layout(tmp_path: Path) -> ModelLayout:
    path = sparse_file(tmp_path / "m.gguf", 4 * MIB)
    return layout_of([path], moe_tensors(3, dense_bytes=100_000, expert_bytes=800_000, start=5000))


def test_dense_is_held_from_the_first_layer_on(layout: ModelLayout) -> None:
    (runs,) = choose_runs(layout, (Part.DENSE,), 30 * PAGE, page_bytes=PAGE)
    first, second, _ = layout.of_class(WeightClass.DENSE)
    assert total(runs) == 30 * PAGE
    assert runs[0][0] <= first.offset
    assert first.offset + first.size_bytes <= runs[0][1]
    assert second.offset < runs[1][1] < second.offset + second.size_bytes, "then as much of the second as is left"


def test_the_hot_set_comes_after_dense_and_hottest_first(layout: ModelLayout) -> None:
    expert = next(layout.of_class(WeightClass.EXPERT))
    cold, hot = (FileRun(0, (expert.offset // PAGE + at) * PAGE, 4 * PAGE) for at in (10, 50))
    dense = sum(total(runs) for runs in choose_runs(layout, (Part.DENSE,), 1 << 40, page_bytes=PAGE))
    (runs,) = choose_runs(layout, BOTH, dense + 6 * PAGE, hot=[hot, cold], page_bytes=PAGE)
    assert total(runs) == dense + 6 * PAGE
    assert (hot.offset, hot.offset + 4 * PAGE) in runs
    assert (cold.offset, cold.offset + 2 * PAGE) in runs


def test_never_more_than_the_budget_nor_half_a_page(layout: ModelLayout) -> None:
    for budget in (0, 1, PAGE - 1, PAGE, 10 * PAGE + 7):
        (runs,) = choose_runs(layout, (Part.DENSE,), budget, page_bytes=PAGE)
        assert total(runs) == budget // PAGE * PAGE


def test_what_is_on_the_gpu_is_not_held(layout: ModelLayout) -> None:
    names = frozenset(tensor.name for tensor in layout.of_class(WeightClass.DENSE))
    assert choose_runs(layout, (Part.DENSE,), 1 << 40, not_needed=names, page_bytes=PAGE) == [[]]


def test_no_more_ranges_than_a_process_may_map(layout: ModelLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin, "MAX_RANGES", 2)
    (runs,) = choose_runs(layout, (Part.DENSE,), 1 << 40, page_bytes=PAGE)
    assert len(runs) <= 2


WATCH = Watch(before_tokens_per_s=10.0, before_stall_ratio=0.0, kept_bytes=GIB, held_since_ns=0)


def run(watch: Watch, *looks: Look) -> str | None:
    for look in looks:
        watch, why = with_look(watch, look)
        if why is not None:
            return f"{look.mono_ns // S}: {why}"
    return None


def looks(seconds: range, **changes: object) -> list[Look]:
    base = Look(mono_ns=0, phase=Phase.GENERATE, tokens_per_s=10.0, stall_ratio=0.0, left_bytes=2 * GIB)
    return [msgspec.structs.replace(base, mono_ns=second * S, **changes) for second in seconds]


def test_all_is_well() -> None:
    assert run(WATCH, *looks(range(100)), *looks(range(100, 200), tokens_per_s=8.1)) is None


def test_a_server_that_gets_slower_for_ten_seconds_is_let_go() -> None:
    said = run(WATCH, *looks(range(20)), *looks(range(20, 60), tokens_per_s=7.9))
    assert said == "30: the server got slower: 7.9 tokens/s, before 10.0"


def test_a_dip_is_forgiven() -> None:
    assert run(WATCH, *looks(range(20)), *looks(range(20, 29), tokens_per_s=1.0), *looks(range(29, 60))) is None


def test_the_time_right_after_holding_is_not_judged_nor_pauses() -> None:
    assert run(WATCH, *looks(range(10), tokens_per_s=1.0), *looks(range(10, 60))) is None
    assert run(WATCH, *looks(range(60), tokens_per_s=0.0, phase=Phase.IDLE)) is None
    assert run(WATCH, *looks(range(60), tokens_per_s=None)) is None
    still_reading = msgspec.structs.replace(WATCH, held_since_ns=None)
    assert run(still_reading, *looks(range(60), tokens_per_s=1.0)) is None


def test_pressure_is_let_go() -> None:
    said = run(WATCH, *looks(range(20)), *looks(range(20, 60), stall_ratio=0.3))
    assert said is not None
    assert said.startswith("25: memory pressure rose")
    was_so_before = msgspec.structs.replace(WATCH, before_stall_ratio=0.2)
    assert run(was_so_before, *looks(range(60), stall_ratio=0.3)) is None


def test_short_memory_is_let_go_at_once_even_while_it_is_read() -> None:
    watch = msgspec.structs.replace(WATCH, held_since_ns=None)
    said = run(watch, *looks(range(5)), *looks(range(5, 6), left_bytes=GIB // 2 - 1))
    assert said is not None
    assert said.startswith("5: memory is running short")


def test_steps_are_small_and_cover_everything() -> None:
    files: list[list[Run]] = [[(0, STEP_BYTES * 2 + PAGE)], [], [(PAGE, 3 * PAGE)]]
    assert list(steps(files)) == [
        (0, 0, STEP_BYTES),
        (0, STEP_BYTES, STEP_BYTES),
        (0, 2 * STEP_BYTES, PAGE),
        (2, PAGE, 2 * PAGE),
    ]


def test_the_remedy_for_the_limit_is_exact() -> None:
    words = limit_words(100 * MIB, 8 * MIB)
    assert f"--memlock={100 * MIB}:{100 * MIB}" in words
    assert "LimitMEMLOCK=102400K" in words
    assert "`ulimit -l` says 102400" in words
    assert "--budget 8M" in words


def test_a_little_more_than_the_limit_does_not_read_as_the_limit() -> None:
    assert "may lock 8.0 MiB of memory and 9.0 MiB are to be held" in limit_words(8 * MIB + 1, 8 * MIB)
    assert "--budget" not in limit_words(MIB, 64 << 10), "no budget of nothing"


SIZE = 4 * MIB  # below every default of RLIMIT_MEMLOCK (8 MiB; 64 KiB on old kernels, where root has CAP_IPC_LOCK)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "m.gguf"
    path.write_bytes(os.urandom(SIZE))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    yield path
    path.unlink(missing_ok=True)


def locked_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmLck"))


def drop(path: Path) -> int:
    """Try to drop the file from memory; what is still there in bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return SystemPageCache().mincore(fd, 0, SIZE).count(b"\x01") * PAGE
    finally:
        os.close(fd)


def settled(path: Path) -> int:
    """The same once the kernel is done with a process that has ended."""
    for _ in range(100):
        if not (left := drop(path)):
            return 0
        time.sleep(0.05)
    return left


def holder(path: Path) -> HolderProcess:
    return HolderProcess([str(path)], [path.name], SystemClock())


def test_held_pages_stay_and_are_released(file: Path) -> None:
    assert settled(file) == 0
    with holder(file) as process:
        (last,) = process.hold([[(0, SIZE // 2)]], SIZE)
        assert last.held_bytes == process.held_bytes == SIZE // 2
        assert locked_bytes(process.pid) == SIZE // 2
        assert drop(file) >= SIZE // 2, "what is held cannot be dropped"
        pid = process.pid
    assert not Path(f"/proc/{pid}").exists()
    assert settled(file) == 0, "released: pages can be dropped again"


def test_never_more_than_the_budget(file: Path) -> None:
    with holder(file) as process:
        assert list(process.hold([[(0, SIZE // 4), (SIZE // 2, SIZE)]], SIZE // 2)) != []
        assert process.held_bytes == locked_bytes(process.pid) == SIZE // 4


def test_a_killed_parent_releases(file: Path) -> None:
    code = (
        "import sys, time\n"
        "from moewatch.cache.holding import HolderProcess\n"
        "from moewatch.clock import SystemClock\n"
        "with HolderProcess([sys.argv[1]], ['m'], SystemClock()) as holder:\n"
        "    list(holder.hold([[(0, int(sys.argv[2]))]], 1 << 40))\n"
        "    print(holder.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(file), str(SIZE)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert locked_bytes(child) == SIZE
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
    assert settled(file) == 0


def test_a_killed_holder_is_one_sentence(file: Path) -> None:
    with holder(file) as process:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ReaderEndedError, match="signal 9"):
            list(process.hold([[(0, SIZE)]], SIZE))


def test_a_holder_killed_while_it_holds_is_noticed(file: Path) -> None:
    with holder(file) as process:
        process.check()
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ReaderEndedError, match="holding process was ended by signal 9"):
            process.check()


def test_a_file_that_was_cut(file: Path) -> None:
    with holder(file) as process:
        os.truncate(file, SIZE // 2)
        with pytest.raises(UnusableFileError, match="was cut"):
            list(process.hold([[(0, SIZE)]], SIZE))


def test_a_file_that_is_cut_while_it_is_held(file: Path) -> None:
    with holder(file) as process:
        list(process.hold([[(0, SIZE)]], SIZE))
        os.truncate(file, 0)
        with pytest.raises(UnusableFileError, match="was cut"):
            list(process.hold([[(0, SIZE)]], 2 * SIZE))


def test_the_kernel_s_limit_is_explained(file: Path) -> None:
    """Without CAP_IPC_LOCK (24 is PR_CAPBSET_DROP: the next exec lacks it, root or not) and with a limit of 1 MiB."""
    work = (
        "import sys\n"
        "from moewatch.cache.holding import HolderProcess, locked_limit\n"
        "from moewatch.clock import SystemClock\n"
        "from moewatch.errors import ForbiddenError\n"
        "assert locked_limit() == 1 << 20, locked_limit()\n"
        "with HolderProcess([sys.argv[1]], ['m'], SystemClock()) as holder:\n"
        "    try:\n"
        "        list(holder.hold([[(0, int(sys.argv[2]))]], 1 << 40))\n"
        "    except ForbiddenError as error:\n"
        "        print(error.exit_code, error)\n"
    )
    begin = (
        "import ctypes, os, resource, sys\n"
        "ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))\n"
        "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin, work, str(file), str(SIZE)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.startswith("4 This user may lock 1.0 MiB"), done.stderr
    assert "prlimit" in done.stdout


def test_the_limit_of_this_process_is_left_alone(file: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with holder(file) as process:
        list(process.hold([[(0, PAGE)]], SIZE))
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == before


def test_what_is_left_is_the_lesser_of_machine_and_group(tmp_path: Path) -> None:
    tree = ProcTree.captured(tmp_path, "linux-6.18-cgroup1")
    group = locate(tree.root, 4242)
    machine, both = read_left(tree.root, None), read_left(tree.root, group)
    assert machine is not None
    assert both is not None
    assert both < machine
    tree.deny("/proc/meminfo")
    assert read_left(tree.root, group) == both, "the group still says something"
    assert read_left(tree.root, None) is None
