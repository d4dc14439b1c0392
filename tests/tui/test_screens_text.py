"""What a screen says, as text: the design's example, sums that hold, every size drawn."""

import dataclasses
import re
from datetime import UTC
from typing import Any

import msgspec
import pytest

from moewatch.domain.events import Ended, Position, Waiting
from moewatch.domain.frame import Frame, Method, State
from moewatch.domain.sample import Gap, GapReason, LoadMode
from moewatch.tui import pages, viewmodel
from moewatch.tui.bars import Bar, Part, legend, memory_bar, model_bar
from moewatch.tui.footlines import METHODS
from moewatch.tui.glyphs import ASCII, BLOCKS, Glyphs, needs_ascii
from moewatch.tui.history import History, MarkKind
from moewatch.tui.layout import Key, Layout
from moewatch.tui.rows import Role, text_of, width_of
from moewatch.tui.viewmodel import View
from moewatch.units import GIB, MB, UNKNOWN, S
from tests.support.frames import HEADER, MODEL, design_frame, gib, run, wall, with_parts

KEYS = tuple(Key(k, label, label) for k, label in (("?", "help"), ("a", "advice"), ("p", "pause"), ("q", "quit")))
SIZES = ((1, 1), (4, 1), (19, 4), (20, 3), (20, 4), (39, 10), (40, 20), (40, 5), (79, 30), (80, 10), (80, 24), (119, 50),
         (120, 36), (120, 40), (200, 60), (300, 90))  # fmt: skip


def view_of(frame: Frame | None, glyphs: Glyphs = BLOCKS, **changes: Any) -> View:
    history = History()
    if frame is not None:
        history.add(frame)
    newest = frame.wall_ns if frame else 0
    view = View(frame=frame, history=history, header=HEADER, zone=UTC, newest_wall_ns=newest, glyphs=glyphs)
    return dataclasses.replace(view, **changes)


def screen(view: View, width: int, height: int) -> list[str]:
    return [text_of(row) for row in Layout().rows(view, width, height, KEYS)]


DESIGN_80 = {
    0: " moewatch  gpt-oss-120b 59.0 GiB · mapped (mmap) · nvme0n1  every 1 s  12:31:07",
    1: " ▌▲ THRASHING, severe   since 12:30:25       3.1 tokens/s    best 11.2 at 12:26",
    2: " ▌Every token reads 410 MB from disk AGAIN, of the 3,730 MB a token needs.",
    3: " ▌▸ Close firefox: it took 6.2 GiB at 12:28. Before that, 11 tokens/s.  a: more",
    6: "        GiB   █ server 2.1  ▓ model 19.8  ░ cache 1.1  ▒ firefox 6.3  = rest 1.7",
    8: "        GiB   █ every token 1.7 of 1.7  ▓ experts 17.6 of 56.7  · on disk 39.2",
    19: " counted, 10 s   again  1,270  pushed out  1,266  first     0 MB/s  others     8",
    20: " time lost       72 % against its best    memory stall 58 %       faults 3,180/s",
    21: " not readable    wait per thread: kernel.task_delayacct is 0",
    22: " moewatch itself: 0.8 % of a core, 43 MiB                        sample on time",
}
DESIGN_40 = {
    0: "gpt-oss-120b 59.0 GiB           12:31:07",
    1: "▌▲ THRASHING, severe  since 12:30:25",
    2: "▌3.1 tokens/s       best 11.2 at 12:26",
    3: "▌Every token reads 410 MB AGAIN.",
    7: "  █server 2.1 ▓model 19.8 ▒firefox 6.3",
    17: "not readable: wait per thread",
    18: "moewatch 0.8 % of a core     10 s a step",
}


@pytest.mark.parametrize(("width", "height", "expected"), [(80, 24, DESIGN_80), (40, 20, DESIGN_40)])
def test_the_designs_example_reads_as_designed(width: int, height: int, expected: dict[int, str]) -> None:
    rows = screen(view_of(design_frame()), width, height)
    assert {n: rows[n].rstrip() for n in expected} == expected


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_size_is_drawn_and_filled_exactly(width: int, height: int, glyphs: Glyphs) -> None:
    for frame in (None, design_frame()):
        rows = Layout().rows(view_of(frame, glyphs), width, height, KEYS)
        assert len(rows) == height
        assert {width_of(row) for row in rows} == {width}


def test_below_20_columns_only_state_and_tokens() -> None:
    for width, height in ((19, 10), (60, 3)):
        rows = [row.rstrip() for row in screen(view_of(design_frame()), width, height)]
        assert [row for row in rows if row] == ["▲ 3.1 t/s"]


def test_below_40_columns_only_the_banner() -> None:
    rows = [row.rstrip() for row in screen(view_of(design_frame()), 39, 10) if row.strip()]
    assert rows[0].startswith("▌▲ THRASHING, severe")
    assert "Every token reads 410 MB AGAIN." in rows[2]
    assert all(row.startswith("▌") for row in rows)


def test_all_of_a_part_is_shown_as_all_of_it() -> None:
    # 0.045 GiB rounds to 0.05 where the parts must add up, and to 0.04 alone
    sizes = (48_314_368, 500_000_000, 309_544_512)
    whole, experts, rest = (Part(sign="#", name=n, size_bytes=s, role=Role.DIM, of_bytes=o) for n, s, o in zip(
        ("every token", "experts", "on disk"), sizes, (sizes[0], 805_306_368, None), strict=True
    ))  # fmt: skip
    text = text_of(legend(Bar(label="MODEL", total_bytes=sum(sizes), parts=(whole, experts, rest)), 100))
    shown, of = re.findall(r"every token ([\d.]+) of ([\d.]+)", text)[0]
    assert shown == of
    assert " of 0.75" in text


def numbers(legend: str, sign: str = "") -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(sign + r" ([\d,]+\.\d+)(?! of|\d)", legend)]


def test_parts_of_the_memory_bar_add_up_to_the_whole() -> None:
    legend = screen(view_of(design_frame()), 120, 40)[6]
    assert numbers(legend) == [2.1, 19.8, 1.1, 6.3, 1.7, 0.2]
    assert sum(numbers(legend)) == pytest.approx(31.2)


def test_parts_of_the_model_bar_add_up_to_the_whole() -> None:
    legend = screen(view_of(design_frame()), 120, 40)[8]
    shown = [float(n) for n in re.findall(r"(?:every token|experts|token table|on disk) ([\d.]+)", legend)]
    assert sum(shown) == pytest.approx(59.0)


def test_awkward_remainders_still_add_up() -> None:
    third = int(1.15 * GIB)
    memory = {"limit_bytes": int(7.33 * GIB), "target_anon_bytes": third, "model_resident_bytes": third,
              "other_cache_bytes": third, "free_bytes": third, "grew": ()}  # fmt: skip
    legend = screen(view_of(with_parts(design_frame(), memory=memory)), 120, 40)[6]
    assert sum(numbers(legend)) == pytest.approx(7.33)


def test_parts_read_at_different_instants_never_exceed_the_limit() -> None:
    memory = {"model_resident_bytes": gib(28.0)}
    bar = memory_bar(with_parts(design_frame(), memory=memory), BLOCKS)
    assert sum(part.size_bytes for part in bar.parts) == bar.total_bytes == gib(31.2)


def test_a_limit_lowered_below_what_is_resident_hides_nothing() -> None:
    memory = {"limit_bytes": gib(15.0), "limit_scope": "a.scope", "grew": ()}
    rows = screen(view_of(with_parts(design_frame(), memory=memory)), 80, 24)
    assert rows[5].startswith(" LIMIT 15.0 ")
    assert rows[6].strip() == "GiB   █ server 2.1  ▓ model 19.8  6.9 over the limit"


def test_figures_of_one_screen_agree() -> None:
    rows = screen(view_of(design_frame()), 80, 24)
    per_token = int(re.search(r"reads (\d+) MB", rows[2])[1])  # type: ignore[index]  # None fails the test
    rate = float(re.search(r"([\d.]+) tokens/s", rows[1])[1])  # type: ignore[index]  # None fails the test
    again = int(re.search(r"again +([\d,]+)", rows[19])[1].replace(",", ""))  # type: ignore[index]  # None fails the test
    assert per_token * rate == pytest.approx(again, rel=0.01)
    assert f"AGAIN {again:,}" in rows[10]


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 24), (110, 24), (120, 40), (200, 60)])
def test_every_sign_of_the_disks_plot_is_named(width: int, height: int, glyphs: Glyphs) -> None:
    for rate in (0, 8 * MB, 143 * MB, 12_345 * MB):
        rates = dict.fromkeys(("reread_bytes_per_s", "first_read_bytes_per_s", "other_read_bytes_per_s"), rate)
        row = screen(view_of(with_parts(design_frame(), rates=rates), glyphs), width, height)[10]
        for sign, name in ((glyphs.again, "AGAIN"), (glyphs.first, "first"), (glyphs.others, "others")):
            assert re.search(f"{re.escape(sign)} ?{name}", row), row
        assert "MB/s" in row


def test_marks_of_one_minute_are_told_apart_by_seconds() -> None:
    view = view_of(design_frame())
    view.history.mark("mine", MarkKind.USER)
    assert "12:31 mine" in screen(view, 120, 40)[32]
    history = History()
    for second in range(0, 120, 10):
        frame = design_frame()
        history.add(
            msgspec.structs.replace(frame, mono_ns=frame.mono_ns + second * S, wall_ns=frame.wall_ns + second * S)
        )
        if second in {10, 40, 80}:
            history.mark(f"at {second}")
    row = next(row for row in screen(dataclasses.replace(view, history=history), 120, 40) if "one column" in row)
    assert "12:31:17 at 10" in row
    assert "12:31:47 at 40" in row
    assert "12:32 at 80" in row


def test_no_edge_stands_beside_nothing() -> None:
    rows = screen(view_of(with_parts(design_frame(), verdict={"advice": ()})), 80, 24)
    assert rows[2].startswith(" ▌Every token")
    assert not rows[3].strip()


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_help_is_whole_and_names_every_sign(width: int, glyphs: Glyphs) -> None:
    keys = (Key("w", "Warm cache", "warm"), Key("e", "experts", "experts"))
    rows = pages.help_page(keys, width, glyphs)
    assert max(width_of(row) for row in rows) <= width
    words = " ".join(" ".join(text_of(row) for row in rows).split())
    assert "asked for: shows a plan first" in words
    for sign, text in (
        (glyphs.gpu, "parts on the GPU"), (glyphs.first_answer, "at the upper edge"), (glyphs.cache, "cache: other files"),
        (glyphs.trace, "in the plot of GiB: the server's RSS"), (glyphs.table, "token table"),
        ("0 to 9" if glyphs is ASCII else "▀", "tenths" if glyphs is ASCII else "the upper of a row's"),
    ):  # fmt: skip
        assert f" {sign} {text}" in words
    if glyphs is ASCII:
        assert words.isascii()


@pytest.mark.parametrize("method", list(Method))
def test_how_it_was_counted_stands_beside_and_nothing_is_cut(method: Method) -> None:
    rates = {"method": method, "other_read_bytes_per_s": 9876 * MB, "first_read_bytes_per_s": 1234 * MB}
    row = screen(view_of(with_parts(design_frame(), rates=rates)), 80, 24)[19]
    assert row.startswith(f" {METHODS[method]}")
    assert row.endswith(" others 9,876")


def test_unknown_is_a_dash_with_its_reason() -> None:
    frame = with_parts(design_frame(), rates={"tokens_per_s": None, "memory_stall_ratio": None})
    gap = Gap(field="server", reason=GapReason.ABSENT, detail="the server has not answered for 40 s")
    text = "\n".join(screen(view_of(msgspec.structs.replace(frame, gaps=(gap,))), 120, 40))
    assert f"{UNKNOWN} tokens/s" in text
    assert f"memory stall {UNKNOWN}" in text
    assert "not readable    tokens/s: the server has not answered for 40 s" in text
    assert "0 tokens/s" not in text


def test_what_cannot_be_shown_is_counted() -> None:
    gaps = tuple(
        Gap(field=f"process.thing{n}", reason=GapReason.DENIED, detail="another user's process") for n in range(9)
    )
    row = screen(view_of(msgspec.structs.replace(design_frame(), gaps=gaps)), 80, 24)[21]
    assert row.rstrip().endswith("+8 more")


def test_residency_that_cannot_be_read_is_no_empty_bar() -> None:
    frame = with_parts(
        design_frame(), residency={"dense_resident_bytes": None}, memory={"model_resident_bytes": None}
    )  # fmt: skip
    bar = model_bar(frame, MODEL, BLOCKS)
    assert not bar.parts
    assert "cannot be read" in screen(view_of(frame), 80, 24)[7]


def test_the_part_on_the_gpu_is_named() -> None:
    frame = with_parts(design_frame(), residency={"not_needed_bytes": gib(22.4)})
    row = screen(view_of(frame), 120, 40)[8]
    assert "on the GPU 22.4" in row
    assert "on disk 16.8" in row


def test_a_cgroup_limit_is_not_called_ram() -> None:
    frame = with_parts(design_frame(), memory={"limit_scope": "docker-ab12.scope", "free_bytes": None})
    assert screen(view_of(frame), 80, 24)[5].startswith(" LIMIT 31.2")


@pytest.mark.parametrize(
    ("state", "dense", "expected"),
    [
        (State.UNKNOWN, 1.0, "? WATCHING"),
        (State.IDLE, 1.0, "○ IDLE, ready"),
        (State.IDLE, 0.4, "○ IDLE, cold"),
        (State.IDLE, None, "○ IDLE"),
        (State.LOADING, 1.0, "↓ LOADING, normal"),
        (State.WARMING, 1.0, "↗ WARMING UP"),
        (State.STEADY, 1.0, "● OK"),
        (State.RECOVERING, 1.0, "↘ RECOVERING"),
    ],
)
def test_state_is_a_word_and_a_symbol(state: State, dense: float | None, expected: str) -> None:
    frame = with_parts(design_frame(), verdict={"state": state, "severity": None}, residency={"dense_ratio": dense})
    assert viewmodel.symbol_and_word(view_of(frame)) == expected


def test_before_the_first_frame_the_screen_stands() -> None:
    rows = screen(view_of(None), 80, 24)
    assert "? WATCHING" in rows[1]
    assert "too early to judge" in rows[2]


def test_waiting_says_what_to_do() -> None:
    text = "No llama-server yet; waiting. Start one: llama-server -m MODEL.gguf   or try: moewatch demo"
    rows = screen(view_of(None, standstill=Waiting(text=text, wall_ns=wall("12:31:07"))), 80, 24)
    assert "? WAITING" in rows[1]
    assert "moewatch demo" in rows[2] + rows[3]


def test_the_end_of_the_server_replaces_the_verdict() -> None:
    ended = Ended(text="The server ended at 12:40:02. Waiting…", wall_ns=wall("12:40:02"))
    rows = screen(view_of(design_frame(), standstill=ended), 80, 24)
    assert "✕ ENDED" in rows[1]
    assert "THRASHING" not in "".join(rows[:4])
    assert f"{UNKNOWN} tokens/s" in rows[1]


def test_pause_is_loud_and_tells_its_age() -> None:
    view = view_of(design_frame(), paused_at_ns=wall("12:31:07"), newest_wall_ns=wall("12:34:19"))
    expected = "▮▮ PAUSED at 12:31:07: what you see is 3:12 old. Watching goes on. p resumes"
    assert screen(view, 80, 24)[0].rstrip() == expected


def test_replay_shows_the_recordings_clock() -> None:
    position = Position(name="squeeze.jsonl.gz", elapsed_ns=131 * S, total_ns=580 * S, speed=4.0)
    row = screen(view_of(design_frame(), position=position), 100, 24)[0]
    said, keys = re.split(" {3,}", row.strip())
    assert said == "REPLAY squeeze.jsonl.gz · 28 Nov 12:31:07 · 4x · 2:11 of 9:40"
    assert keys == "space ←→ [ ]"


def test_two_servers_are_told() -> None:
    view = view_of(design_frame(), servers=((48213, "gpt-oss-120b"), (48377, "qwen3-30b")))
    text = "\n".join(screen(view, 120, 40))
    assert "2 servers map a model. Watching 48213 gpt-oss-120b; Tab: 48377 qwen3-30b." in text


def test_own_lateness_is_said() -> None:
    frame = with_parts(design_frame(), own={"late_ns": 2_300_000_000})
    assert "This sample is 2.3 s late: the machine stalls us too." in screen(view_of(frame), 120, 40)[38]


def test_a_restart_is_tagged() -> None:
    frame = with_parts(design_frame(), verdict={"advice": (design_frame().verdict.advice[1],)})
    assert "(restart)" in screen(view_of(frame), 80, 24)[3]


def test_again_and_first_never_look_alike() -> None:
    for glyphs in (BLOCKS, ASCII):
        assert len({glyphs.again, glyphs.first, glyphs.others, glyphs.trickle}) == 4
        for again, first in ((900.0, 0.0), (0.0, 900.0)):
            rates = {"reread_bytes_per_s": again * MB, "first_read_bytes_per_s": first * MB}
            frame = with_parts(design_frame(), rates=rates)
            plot = [row[42:] for row in screen(view_of(frame, glyphs), 80, 24)[11:15]]
            assert (glyphs.again in "".join(plot)) is (again > 0)
            assert (glyphs.first in "".join(plot)) is (first > 0)


def test_names_cannot_steer_the_terminal() -> None:
    evil = "fire\x1b]2;gotcha\x07fox\nnext"
    frame = design_frame()
    grew = (msgspec.structs.replace(frame.memory.grew[0], name=evil),)
    frame = with_parts(frame, memory={"grew": grew}, target={"model_name": evil, "load_mode": LoadMode.MMAP})
    text = "".join(screen(view_of(frame), 200, 60))
    assert text.isprintable()


def test_ascii_screen_is_ascii_but_for_names() -> None:
    frames = list(run(300, squeeze_at=60))
    history = History()
    for frame in frames:
        history.add(frame)
    view = view_of(frames[-1], ASCII, history=history)
    for width, height in ((19, 4), (40, 20), (80, 24), (120, 40)):
        text = "".join(screen(view, width, height))
        assert text.isascii(), set(re.findall(r"[^\x00-\x7f]", text))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color", "LANG": "en_GB.UTF-8"}, False),
        ({"TERM": "linux", "LANG": "en_GB.UTF-8"}, True),
        ({"TERM": "xterm", "LANG": "C"}, True),
        ({"TERM": "xterm", "LC_ALL": "C", "LANG": "en_GB.UTF-8"}, True),
        ({"TERM": "xterm", "LC_CTYPE": "C.utf8"}, False),
        ({}, True),
    ],
)
def test_when_ascii_is_needed(environ: dict[str, str], *, expected: bool) -> None:
    assert needs_ascii(environ) is expected
