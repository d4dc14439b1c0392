"""Which process is the server, and by which path its model can be opened."""

import os
from pathlib import Path

import pytest

from moewatch.domain.sample import LoadMode
from moewatch.errors import ForbiddenError, TargetError
from moewatch.server.discovery import find_servers, inspect_pid, read_mapped_ranges
from moewatch.server.modelpaths import DELETED_WORDS, REPLACED_WORDS
from tests.unit.server.fake_proc import FIXTURES, FakeProc


def test_a_server_that_maps_its_model(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    argv = ["/usr/bin/llama-server", "-m", str(model), "--port", "9001", "--sleep-idle-seconds", "60"]
    proc.add(42, argv, proc.line(model), parent=7, environ={"LLAMA_ARG_HOST": "0.0.0.0"})  # noqa: S104 - as people set it
    server = inspect_pid(proc.root, 42)
    assert (server.pid, server.start_ticks, server.exe, server.uid, server.parent) == (
        42,
        1042,
        "llama-server",
        1000,
        7,
    )
    assert server.model_paths == (model,)
    assert server.mapped_bytes == 1 << 20
    assert server.load_mode is LoadMode.MMAP
    assert (server.host, server.port, server.may_sleep, server.is_hidden, server.detail) == (
        "0.0.0.0",  # noqa: S104 - compared, not bound
        9001,
        True,
        False,
        "",
    )


def test_all_shards_are_one_model_in_order(proc: FakeProc) -> None:
    shards = [proc.model(f"big-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    proc.add(42, ["llama-server", "-m", str(shards[0])], "".join(proc.line(shard) for shard in reversed(shards)))
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == tuple(shards)
    assert server.mapped_bytes == 3 << 20


def test_the_model_of_argv_is_taken_and_the_others_are_named(proc: FakeProc) -> None:
    main, draft, eye = proc.model("main.gguf"), proc.model("draft.gguf"), proc.model("mmproj-F16.gguf")
    maps = proc.line(draft, size=8 << 20) + proc.line(main) + proc.line(eye)
    proc.add(42, ["llama-server", "-m", "main.gguf", "-md", str(draft), "-mm", str(eye)], maps)
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == (main,)
    assert server.detail == "It also maps draft.gguf (draft model), mmproj-F16.gguf (projector)"


def test_without_a_word_in_argv_the_largest_is_the_model(proc: FakeProc) -> None:
    small, large, eye = proc.model("a.gguf"), proc.model("b.gguf"), proc.model("mmproj-b.gguf")
    maps = proc.line(small) + proc.line(large, size=2 << 20) + proc.line(eye, size=4 << 20)
    proc.add(42, ["python", "serve.py"], maps, comm="python3")
    assert inspect_pid(proc.root, 42).model_paths == (large,)


def test_a_model_without_the_ending_is_known_by_its_first_bytes(proc: FakeProc) -> None:
    blob = proc.model("blobs/sha256-abc", 32 << 20)
    other = proc.model("font.bin", 48 << 20, b"OTTO")
    maps = proc.line(other, size=48 << 20) + proc.line(blob, size=32 << 20)
    proc.add(42, ["/usr/bin/ollama", "runner", "--port", "4000"], maps, comm="ollama")
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == (blob,)
    assert server.detail == ""


def test_shards_in_the_hugging_face_cache_get_their_names_back(proc: FakeProc) -> None:
    names = [f"snapshots/rev/m-0000{n}-of-00002.gguf" for n in (1, 2)]
    blobs = [proc.model(f"hub/blobs/{n}" + "e" * 40, 32 << 20) for n in (1, 2)]
    for name, blob in zip(names, blobs, strict=True):
        link = proc.models / "hub" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../blobs/{blob.name}")
    proc.add(42, ["llama-server", "-hf", "a/b"], "".join(proc.line(blob, size=32 << 20) for blob in blobs))
    server = inspect_pid(proc.root, 42)
    assert [path.name for path in server.model_paths] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    ranges = read_mapped_ranges(proc.root, 42, [str(path) for path in server.model_paths])
    assert ranges == {0: [(0, 32 << 20)], 1: [(0, 32 << 20)]}


def test_a_deleted_model_is_read_through_the_process(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    line = proc.line(model, deleted=True)
    home = proc.add(42, ["llama-server", "-m", str(model)], line)
    kept = proc.models / "kept"  # the inode lives on
    model.rename(kept)
    (home / "map_files").mkdir()
    by_map = home / "map_files" / line.split()[0]
    by_map.symlink_to(kept)
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == (by_map,)
    assert server.detail == DELETED_WORDS
    by_map.unlink()
    (home / "fd" / "3").symlink_to(kept)
    assert inspect_pid(proc.root, 42).model_paths == (home / "fd" / "3",)
    proc.model("m.gguf")  # another file of the same name
    assert inspect_pid(proc.root, 42).detail == REPLACED_WORDS
    (home / "fd" / "3").unlink()
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == ()
    assert "cannot be opened from here" in server.detail


def test_a_file_of_another_inode_is_not_taken_for_the_model(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    proc.add(42, ["llama-server", "-m", str(model)], proc.line(model, inode=model.stat().st_ino + 1))
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == ()
    assert server.detail.startswith("The file on disk is another one now")


def test_a_container_is_reached_through_its_root(proc: FakeProc) -> None:
    inside = proc.model("rootfs/models/m.gguf")
    home = proc.add(
        42, ["llama-server", "-m", "/models/m.gguf"], proc.line("/models/m.gguf", inode=inside.stat().st_ino)
    )
    (home / "root").unlink()
    (home / "root").symlink_to(proc.models / "rootfs")
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == (home / "root" / "models" / "m.gguf",)
    assert server.model_paths[0].samefile(inside)


@pytest.mark.parametrize(
    ("words", "locked_kib", "anon_kib", "mode"),
    [
        ("-lm none", 0, 2000, LoadMode.NONE),
        ("-lm dio", 0, 2000, LoadMode.DIO),
        ("--mlock", 1024, 2000, LoadMode.MLOCK),
        ("", 0, 10, LoadMode.UNKNOWN),  # not loaded yet
    ],
)
def test_a_server_that_maps_nothing_is_known_by_argv(
    proc: FakeProc, words: str, locked_kib: int, anon_kib: int, mode: LoadMode
) -> None:
    model = proc.model("m.gguf")
    proc.add(42, ["llama-server", "-m", "m.gguf", *words.split()], "", locked_kib=locked_kib, anon_kib=anon_kib)
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == (model,)
    assert server.mapped_bytes == 0
    assert server.load_mode is mode


def test_locked_and_mapped(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    proc.add(42, ["llama-server", "-m", str(model)], proc.line(model), locked_kib=1024)
    assert inspect_pid(proc.root, 42).load_mode is LoadMode.MMAP_MLOCK


def test_no_such_process(proc: FakeProc) -> None:
    with pytest.raises(TargetError, match=r"^No process 123\. "):
        inspect_pid(proc.root, 123)


def test_a_process_that_is_no_server_is_named(proc: FakeProc) -> None:
    proc.add(42, ["bash"], comm="bash")
    proc.add(43, ["vim", "-m", str(proc.model("m.gguf"))], comm="vim")
    with pytest.raises(TargetError, match=r"^PID 42 is bash and maps no GGUF; "):
        inspect_pid(proc.root, 42)
    with pytest.raises(TargetError, match=r"^PID 43 is vim and maps no GGUF; "):
        inspect_pid(proc.root, 43)


def test_a_router_names_its_children(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    proc.add(42, ["llama-server", "--models-dir", "/srv"], rss_pages=9000)
    proc.add(43, ["llama-server", "-m", str(model)], proc.line(model), parent=42, rss_pages=2000)
    proc.add(44, ["llama-server", "-m", str(model)], proc.line(model), parent=42, rss_pages=3000)
    with pytest.raises(TargetError, match=r"watch the child that has one: --pid 43 44$"):
        inspect_pid(proc.root, 42)
    assert [server.pid for server in find_servers(proc.root, [42, 43, 44])] == [44, 43]
    assert [server.pid for server in find_servers(proc.root, [])] == [44, 43]
    assert [server.pid for server in find_servers(proc.root)] == [44, 43]


def test_a_router_without_a_child_says_so(proc: FakeProc) -> None:
    proc.add(42, ["llama-server", "--models-dir", "/srv"])
    with pytest.raises(TargetError, match="load one first"):
        find_servers(proc.root, [42])


def test_only_a_server_that_maps_nothing_is_still_a_candidate(proc: FakeProc) -> None:
    proc.model("m.gguf")
    proc.add(42, ["llama-server", "-m", "m.gguf", "-lm", "none"])
    assert [server.pid for server in find_servers(proc.root, [42, 99])] == [42]
    assert [server.pid for server in find_servers(proc.root)] == [42]


def test_a_server_comes_before_a_script_and_a_script_is_found_alone(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    proc.add(41, ["python", "own.py", "m.gguf"], proc.line(model), comm="python3", rss_pages=90_000)
    proc.add(40, ["moewatch", "pin", "--pid", "41"], proc.line(model), comm="python3", rss_pages=95_000)
    assert [server.pid for server in find_servers(proc.root)] == [41]
    proc.add(42, ["llama-server", "-m", str(model)], proc.line(model), rss_pages=100)
    assert [server.pid for server in find_servers(proc.root)] == [42, 41]
    proc.add(43, ["llama-server", "-m", str(model), "-lm", "none"], rss_pages=9000)
    assert [server.pid for server in find_servers(proc.root)] == [42, 41]


def test_no_server_is_no_error_when_none_was_named(proc: FakeProc) -> None:
    proc.add(42, ["bash"], comm="bash")
    assert find_servers(proc.root) == []
    assert find_servers(proc.root, []) == []
    with pytest.raises(TargetError, match="PID 42 is bash"):
        find_servers(proc.root, [42, 43])


def test_another_users_server_is_watched_as_far_as_it_goes(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    model = proc.model("m.gguf")
    proc.add(42, ["llama-server", "-m", str(model)], proc.line(model), uid=0)
    proc.hide(42, monkeypatch)
    server = inspect_pid(proc.root, 42)
    assert server.is_hidden
    assert server.model_paths == (model,)
    assert server.mapped_bytes is None
    assert server.load_mode is LoadMode.UNKNOWN
    assert server.detail == (
        "PID 42 belongs to root: disk reads and memory shares are hidden. For all of it: sudo moewatch --pid 42"
    )


def test_another_users_server_without_a_model_we_can_see(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(42, ["llama-server", "-m", "/srv/hidden.gguf"], uid=54321)
    proc.hide(42, monkeypatch)
    server = inspect_pid(proc.root, 42)
    assert server.model_paths == ()
    assert "sudo -u '#54321' moewatch --pid 42" in server.detail


def test_another_users_shell_is_refused(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(42, ["bash"], comm="bash", uid=54321)
    proc.hide(42, monkeypatch)
    with pytest.raises(ForbiddenError, match=r"^PID 42 belongs to #54321: .* moewatch --pid 42\. "):
        inspect_pid(proc.root, 42)


def test_real_maps_are_counted_by_offset(proc: FakeProc) -> None:
    home = proc.add(42, ["llama-server"])
    (home / "maps").write_bytes((FIXTURES / "maps_vk_99.txt").read_bytes())
    ranges = read_mapped_ranges(proc.root, 42, ["/elsewhere/tiny-moe.gguf", "/elsewhere/other.gguf"])
    assert ranges == {0: [(0x4000, 0x10E000), (0x243B000, 0x243C000)], 1: []}


def test_a_zombie_is_no_server(proc: FakeProc) -> None:
    home = proc.add(42, ["llama-server"])
    (home / "stat").write_text((home / "stat").read_text().replace(" S ", " Z "))
    with pytest.raises(TargetError, match="No process 42"):
        inspect_pid(proc.root, 42)


def test_nothing_else_of_the_environment_is_kept(proc: FakeProc) -> None:
    model = proc.model("m.gguf")
    proc.add(
        42,
        ["llama-server", "-m", str(model)],
        proc.line(model),
        environ={"PASSWORD": "s3cr3t", "GGML_VK_VISIBLE_DEVICES": "0"},
    )
    server = inspect_pid(proc.root, 42)
    assert server.software_gpu == "0"
    assert "s3cr3t" not in repr(server)


def test_a_fifo_named_like_a_model_does_not_block(proc: FakeProc) -> None:
    path = Path(proc.models / "m.gguf")
    os.mkfifo(path)
    proc.add(42, ["llama-server", "-m", str(path)])
    assert inspect_pid(proc.root, 42).model_paths == ()
