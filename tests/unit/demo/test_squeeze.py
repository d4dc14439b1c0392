import errno
import itertools
import os
from pathlib import Path

import pytest

from moewatch.clock import ManualClock
from moewatch.demo import squeeze
from moewatch.units import MIB

MODEL, EXPERTS = 800 * MIB, 700 * MIB
OTHERS = MODEL - EXPERTS + squeeze.OWN_BYTES


def test_without_a_cgroup_the_server_is_told_to_page_out() -> None:
    said: list[str] = []
    way = squeeze.PageOut(said.append)
    assert way.wrap(["server"]) == ["server"]
    way.hold(5 * MIB)
    way.hold(None)
    assert said == ["experts 5242880", "experts all"]


def test_a_limit_goes_down_in_steps_and_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def write(_path: Path, text: str) -> int:
        written.append(int(text))
        return len(text)

    monkeypatch.setattr(Path, "write_text", write)
    (tmp_path / "memory.max").touch()
    group = squeeze.Cgroup(tmp_path, MODEL, EXPERTS, ManualClock())
    group.hold(300 * MIB)
    assert written[0] > MODEL
    assert written[-1] == OTHERS + 300 * MIB
    assert all(0 < a - b <= squeeze.STEP_BYTES for a, b in itertools.pairwise(written))
    del written[:]
    group.hold(None)
    assert len(written) == 1
    assert written[0] > MODEL


def test_a_refused_step_is_tried_again_and_then_left_at_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    floor = OTHERS + 600 * MIB

    def write(_path: Path, text: str) -> int:
        nonlocal tries
        if int(text) < floor:
            tries += 1
            raise OSError(errno.EBUSY, "busy")
        return len(text)

    monkeypatch.setattr(Path, "write_text", write)
    clock = ManualClock()
    squeeze.Cgroup(tmp_path, MODEL, EXPERTS, clock).hold(100 * MIB)
    assert tries == squeeze.STEP_TRIES
    assert clock.mono_ns() == squeeze.STEP_TRIES * squeeze.STEP_WAIT_NS


def test_a_group_that_may_not_be_limited_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _text: str) -> int:
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(PermissionError):
        squeeze.Cgroup(tmp_path, MODEL, EXPERTS, ManualClock())
    assert list(tmp_path.iterdir()) == []


def test_places_under_cgroup_v1_are_our_own_group_then_the_top(tmp_path: Path) -> None:
    own = tmp_path / "memory" / "user" / "me"
    own.mkdir(parents=True)
    (tmp_path / "memory" / "cgroup.procs").touch()
    assert list(squeeze.parents(tmp_path, "4:memory:/user/me\n0::/\n")) == [own, tmp_path / "memory"]
    # In a container /proc names a path of the host that is not there.
    assert list(squeeze.parents(tmp_path, "4:cpu,memory:/docker/1234\n")) == [tmp_path / "memory"]


def test_places_under_cgroup_v2_must_hand_the_memory_controller_down(tmp_path: Path) -> None:
    session = tmp_path / "user.slice" / "session.scope"
    session.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    (tmp_path / "user.slice" / "cgroup.subtree_control").write_text("memory pids\n")
    membership = "0::/user.slice/session.scope\n"
    assert list(squeeze.parents(tmp_path, membership)) == [tmp_path / "user.slice", tmp_path]
    (tmp_path / "user.slice" / "cgroup.subtree_control").write_text("pids\n")
    assert list(squeeze.parents(tmp_path, membership)) == [tmp_path]
    assert list(squeeze.parents(tmp_path, "0::/../../outside\n")) == [tmp_path]


def test_no_cgroup_file_system_leaves_paging_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(squeeze.parents(tmp_path, "")) == []
    monkeypatch.setattr(squeeze, "parents", lambda: iter(()))
    monkeypatch.setattr(squeeze.Scope, "is_possible", staticmethod(lambda: False))
    made = [make() for make in squeeze.ways(lambda _: None, MODEL, EXPERTS, ManualClock())]
    assert [type(way) for way in made] == [squeeze.PageOut]


def test_groups_of_demos_that_were_killed_are_swept(tmp_path: Path) -> None:
    dead = tmp_path / f"{squeeze.PREFIX}4194999"  # above the kernel's largest pid
    alive = tmp_path / f"{squeeze.PREFIX}{os.getpid()}"
    foreign = tmp_path / f"{squeeze.PREFIX}notes"
    for path in (dead, alive, foreign):
        path.mkdir()
    squeeze.sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, foreign])
