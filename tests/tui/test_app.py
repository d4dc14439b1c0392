"""The dashboard under a pilot: keys, sizes, pause, the death of the target, and the way out."""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from moewatch.domain.events import Candidates, Ended, Event, FrameReady, Notice, Position, Started, Waiting
from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.frame import Frame, State
from moewatch.errors import TargetError
from moewatch.tui.app import MoewatchApp
from moewatch.tui.screens import Page, Question
from moewatch.units import S
from tests.support.frames import HEADER, design_frame, wall, with_parts
from tests.support.screens import lines_of


class ScriptedFeed:
    """Tells what the test says, on the test's thread; remembers what it was asked."""

    def __init__(self) -> None:
        self.sink: Callable[[Event], None] = lambda _: None
        self.asked: list[Any] = []
        self.running = False
        self.fault: Exception | None = None
        self.slices: tuple[ExpertSlice, ...] = ()

    def start(self, sink: Callable[[Event], None]) -> None:
        if self.fault:
            raise self.fault
        self.sink, self.running = sink, True

    def stop(self) -> None:
        self.running = False

    def next_target(self) -> None:
        self.asked.append("next")

    def set_paused(self, paused: bool) -> None:  # noqa: FBT001 - the protocol's
        self.asked.append(("paused", paused))

    def set_speed(self, speed: float) -> None:
        self.asked.append(("speed", speed))

    def seek(self, delta_ns: int) -> None:
        self.asked.append(("seek", delta_ns))

    def expert_slices(self, layer: int, expert: int) -> tuple[ExpertSlice, ...]:
        self.asked.append(("slices", layer, expert))
        return self.slices

    def file_strips(self, stretches: int) -> tuple[FileStrip, ...]:
        self.asked.append(("strips", stretches))
        return tuple(FileStrip(name="a.gguf", size_bytes=59 << 30, shares=bytes(stretches)) for _ in range(1))


def make(**options: Any) -> tuple[MoewatchApp, ScriptedFeed]:
    feed = ScriptedFeed()
    return MoewatchApp(feed, zone=UTC, **{"ascii": False, **options}), feed


def later(frame: Frame, seconds: int) -> Frame:
    return msgspec.structs.replace(
        frame, mono_ns=frame.mono_ns + seconds * S, wall_ns=frame.wall_ns + seconds * S
    )  # fmt: skip


async def tell(pilot: Pilot[None], feed: ScriptedFeed, *events: Event) -> None:
    await pilot.pause()
    for event in events:
        feed.sink(event)
    await pilot.pause()


STARTED = Started(header=HEADER, wall_ns=wall("12:30:00"))
FRAME = FrameReady(frame=design_frame())


async def test_first_screen_stands_before_the_first_frame() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "? WATCHING" in app.screen_text
        assert feed.running
    assert not feed.running


async def test_a_frame_is_shown() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        assert "▲ THRASHING, severe" in app.screen_text
        assert "410 MB from disk AGAIN" in app.screen_text


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(20, 4, "▲ 3.1 t/s"), (21, 4, "▌▲ THRASHING"), (10, 3, "▲ 3.1 t/s"), (39, 10, "▸ Close firefox"), (40, 20, "AGAIN MB/s  1,270"),
     (80, 24, "disk MB/s"), (120, 40, "faults/s that wait"), (200, 60, "server's RSS")],
)  # fmt: skip
async def test_it_follows_the_terminals_size(width: int, height: int, expected: str) -> None:
    app, feed = make()
    async with app.run_test(size=(100, 30)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.resize_terminal(width, height)
        await pilot.pause()
        rows = app._lines.row_texts
        assert len(rows) == height
        assert {len(row) for row in rows} == {width}
        assert expected in app.screen_text


async def test_growing_again_leaves_no_row_cut() -> None:
    app, feed = make()
    async with app.run_test(size=(19, 5)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.resize_terminal(100, 30)
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 1)))
        for y, row in enumerate(app._lines.row_texts):
            assert app._lines.render_line(y).text == row


async def test_only_changed_rows_are_sent() -> None:
    app, feed = make()
    async with app.run_test(size=(120, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        sent, drawn = app._lines.rows_sent, app._layout.plots.drawn
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 1)))
        assert app._lines.rows_sent - sent == 1  # the time of the sample
        assert app._layout.plots.drawn == drawn


async def test_a_slow_terminal_loses_no_frame() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        frames = [FrameReady(frame=later(design_frame(), n)) for n in range(50)]
        await tell(pilot, feed, STARTED, *frames)
        assert app._session.frames == 50
        assert app._session.history.span_ns == 49 * S
        assert "12:31:56" in app.screen_text


async def test_help_lists_exactly_the_keys_that_work() -> None:
    app, feed = make()
    async with app.run_test(size=(120, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        shown = app._lines.row_texts[-1]
        assert [key.key for key in app.live_keys()] == ["?", "a", "e", "p", "m", "c", "S", "+", "-", "q"]
        assert all(f"{key.key} {key.label}" in shown for key in app.live_keys())
        await pilot.press("question_mark")
        page = app.screen
        assert isinstance(page, Page)
        assert "read AGAIN" in page._lines.text
        await pilot.press("escape")
        assert app._on_dashboard


async def test_a_long_page_says_how_to_scroll() -> None:
    for plain, scroll in ((False, "↑↓ PgUp PgDn scroll"), (True, "^v PgUp PgDn scroll")):
        app, feed = make(ascii=plain)
        async with app.run_test(size=(80, 24)) as pilot:
            await tell(pilot, feed, STARTED, FRAME)
            await pilot.press("question_mark")
            assert isinstance(app.screen, Page)
            assert app.screen._lines.row_texts[-1].rstrip().endswith(scroll)


async def test_advice_shows_command_gain_and_restart() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("a")
        text = lines_of(app).text
        assert "llama-server -m gpt-oss-120b-00001-of-00002.gguf -c 8192" in text
        assert "yes, of the server" in text
        assert "about 11 tokens/s, measured at 12:26" in text
        await pilot.press("q")
        assert app._on_dashboard


async def test_a_page_longer_than_the_screen_scrolls_and_ends() -> None:
    app, feed = make()
    async with app.run_test(size=(40, 6)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("question_mark")
        page = app.screen
        assert isinstance(page, Page)
        first = page._lines.text
        await pilot.press("down", "down")
        assert page._lines.text != first
        for _ in range(40):
            await pilot.press("pagedown")
        assert "axis" in page._lines.text or "known" in page._lines.text


async def test_home_and_end_go_to_the_ends_of_a_page() -> None:
    app, feed = make()
    async with app.run_test(size=(40, 12)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("question_mark")
        page = app.screen
        assert isinstance(page, Page)
        first = page._lines.row_texts[-1]
        await pilot.press("end")
        last, _, length = page._lines.row_texts[-1].split("-")[1].partition(" of ")
        assert int(last) == int(length.split()[0]) > 12
        await pilot.press("home")
        assert page._lines.row_texts[-1] == first


async def test_a_click_on_a_key_does_what_the_key_does() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.click(offset=(app._lines.row_texts[-1].index("advice"), 23))
        await pilot.pause()
        assert isinstance(app.screen, Page)


async def test_pause_holds_the_picture_while_all_is_remembered() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("p")
        changed = with_parts(later(design_frame(), 192), rates={"tokens_per_s": 9.9})
        await tell(pilot, feed, FrameReady(frame=changed))
        assert "PAUSED at 12:31:07: what you see is 3:12 old." in app._lines.row_texts[0]
        assert "3.1 tokens/s" in app.screen_text
        assert app._session.frames == 2
        await pilot.press("p")
        assert "9.9 tokens/s" in app.screen_text
        assert "PAUSED" not in app.screen_text


async def test_death_and_restart_of_the_target() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await tell(pilot, feed, Ended(text="The server ended at 12:40:02. Waiting…", wall_ns=wall("12:40:02")))
        assert "✕ ENDED" in app.screen_text
        assert "THRASHING" not in app.screen_text.split("\n")[1]
        target = msgspec.structs.replace(HEADER.target, pid=48990, start_ticks=5)
        header = msgspec.structs.replace(HEADER, target=target)
        await tell(pilot, feed, Started(header=header, wall_ns=wall("12:40:31")))
        assert "New server, PID 48990; counters start again." in app.screen_text
        frame = later(design_frame(), 600)
        frame = with_parts(frame, target={"id": target.id, "pid": 48990})
        await tell(pilot, feed, FrameReady(frame=frame))
        assert "▲ THRASHING" in app.screen_text
        await pilot.press("escape")
        assert "New server" not in app.screen_text


async def test_the_end_of_a_recording_leaves_its_last_verdict() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        position = Position(name="a.jsonl.gz", elapsed_ns=580 * S, total_ns=580 * S, speed=4.0)
        ended = Ended(text="The recording is over.", wall_ns=wall("12:40:02"), final=True)
        await tell(pilot, feed, STARTED, position, FRAME, ended)
        assert "▲ THRASHING" in app.screen_text
        assert "The recording is over." in app.screen_text


async def test_waiting_for_a_server() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, Waiting(text="No llama-server yet; waiting.", wall_ns=wall("12:00:00")))
        assert "? WAITING" in app.screen_text
        assert "No llama-server yet; waiting." in app.screen_text


async def test_a_feed_that_cannot_start_says_so() -> None:
    app, feed = make()
    feed.fault = TargetError("No process 77; moewatch without --pid finds servers by itself.")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "No process 77" in app.screen_text


async def test_a_notice_stays_until_it_is_dismissed() -> None:
    app, feed = make()
    text = "Recording stopped at 12:50: no space left. Watching goes on."
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME, Notice(text=text, wall_ns=0))
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 60)))
        assert text in app.screen_text
        await pilot.press("escape")
        assert text not in app.screen_text


async def test_tab_works_only_with_two_servers() -> None:
    app, feed = make()
    async with app.run_test(size=(120, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("tab")
        assert feed.asked == []
        await tell(pilot, feed, Candidates(servers=((48213, "gpt-oss-120b"), (48377, "qwen3-30b"))))
        assert "Tab other server" in app._lines.row_texts[-1]
        await pilot.press("tab")
        assert feed.asked == ["next"]


async def test_zoom_changes_the_column_and_stops_at_its_ends() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        assert "one column = 2 s" in app.screen_text
        await pilot.press("plus", "plus", "plus")
        assert "one column = 1 min" in app.screen_text
        await pilot.press("minus", "minus", "minus", "minus")
        assert "one column = 2 s" in app.screen_text


async def test_columns_are_narrow_only_while_they_show_all_there_is() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        assert "one column = 2 s" in app.screen_text
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 100)))
        assert "one column = 5 s" in app.screen_text
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 200)))
        assert "one column = 10 s" in app.screen_text


async def test_mark_is_put_on_the_axis() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("m")
        assert "12:31 mark" in app.screen_text


async def test_replay_keys_reach_the_feed_and_only_in_a_replay() -> None:
    app, feed = make()
    async with app.run_test(size=(120, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("space", "right", "left_square_bracket")
        assert feed.asked == []
        position = Position(name="a.jsonl.gz", elapsed_ns=131 * S, total_ns=580 * S, speed=4.0)
        await tell(pilot, feed, position)
        assert "REPLAY a.jsonl.gz" in app._lines.row_texts[0]
        await pilot.press("space", "left", "right_square_bracket", "left_square_bracket")
        assert feed.asked == [("paused", True), ("seek", -10 * S), ("speed", 8.0), ("speed", 2.0)]
        await tell(pilot, feed, msgspec.structs.replace(position, paused=True))
        assert "PAUSED" in app._lines.row_texts[0]


async def test_copy_takes_the_banner() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("c")
        assert "410 MB from disk AGAIN" in app.clipboard
        assert "Copied" in app.screen_text


async def test_save_writes_svg_and_text_without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        notice = Notice(text="Cannot write /home/someone/x", wall_ns=0)
        await tell(pilot, feed, STARTED, FRAME, notice)
        await pilot.press("S")
        assert "Saved moewatch-123107.svg" in app.screen_text
    text = (tmp_path / "moewatch-123107.txt").read_text(encoding="utf-8")
    assert "THRASHING" in text
    assert "/home/someone" not in text
    assert "/home/someone" not in (tmp_path / "moewatch-123107.svg").read_text(encoding="utf-8")


async def test_quit_at_once_when_little_is_lost() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running or app._exit


async def long_watch(pilot: Pilot[None], feed: ScriptedFeed) -> None:
    await tell(pilot, feed, STARTED, FRAME, FrameReady(frame=later(design_frame(), 900)))


async def test_quit_asks_starts_on_cancel_and_takes_no_early_key() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await long_watch(pilot, feed)
        await pilot.press("q", "right", "enter")
        assert isinstance(app.screen, Question)  # the keys came too early
        await pilot.pause(0.6)
        await pilot.press("enter")
        assert app._on_dashboard
        assert app.is_running


async def test_quit_can_be_confirmed() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await long_watch(pilot, feed)
        await pilot.press("q")
        await pilot.pause(0.6)
        await pilot.press("right", "enter")
        await pilot.pause()
        assert app._exit
    words = app.closing_words()
    assert "▲ THRASHING, severe" in words
    assert "moewatch record -o moewatch.jsonl.gz --pid 48213" in words
    assert max(map(len, words.split("\n"))) <= 79


async def test_closing_words_name_the_worst_minute() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        frames = [FrameReady(frame=later(design_frame(), n)) for n in range(60)]
        await tell(pilot, feed, STARTED, *frames)
    assert "worst minute: 1,270 MB/s read AGAIN, 3.1 tokens/s" in app.closing_words()


async def test_no_color_leaves_no_colour() -> None:
    app, feed = make(no_color=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        for y in range(40):
            for segment in app._lines.render_line(y):
                assert segment.style is None or segment.style.color is None


async def test_a_long_pause_is_rung_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []
    app, feed = make(bell=True)
    monkeypatch.setattr(app, "bell", lambda: rings.append(1))
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await pilot.press("p")
        for seconds in (59, 61, 62, 119, 121):
            await tell(pilot, feed, FrameReady(frame=later(design_frame(), seconds)))
        assert len(rings) == 2


async def test_remarks_that_find_no_room_are_counted_and_on_the_advice_page() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        remarks = ("Limit: 24.0 GiB, set by docker-ab12.scope.", "Swap is in use.", "The third.")
        await tell(pilot, feed, STARTED, FrameReady(frame=with_parts(design_frame(), verdict={"remarks": remarks})))
        assert "Limit: 24.0 GiB, set by docker-ab12.scope.  +2, a: more" in app.screen_text
        await pilot.press("a")
        assert "The third." in lines_of(app).text


async def test_bell_rings_only_on_a_change_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []
    app, feed = make(bell=True)
    monkeypatch.setattr(app, "bell", lambda: rings.append(1))
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        await tell(pilot, feed, FrameReady(frame=later(design_frame(), 1)))
        assert rings == []
        changed = with_parts(later(design_frame(), 2), verdict={"state": State.STEADY, "severity": None})
        await tell(pilot, feed, FrameReady(frame=changed))
        assert rings == [1]


async def test_closing_words_name_what_shows_it_again_where_the_process_is_gone() -> None:
    app, feed = make(again="moewatch demo")
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
    assert "watch again: moewatch demo" in app.closing_words()
    assert "--pid" not in app.closing_words()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), (120, 40)])
async def test_a_long_remark_wraps_and_loses_no_word(width: int, height: int) -> None:
    app, feed = make()
    text = (
        "Another program reads 238 MB/s from the same disk; the server reads nothing, and that is not why it is slow."
    )
    async with app.run_test(size=(width, height)) as pilot:
        await tell(pilot, feed, STARTED, FrameReady(frame=with_parts(design_frame(), verdict={"remarks": (text,)})))
        assert text in " ".join(app.screen_text.split())


async def test_the_program_to_close_is_named_with_the_time_it_took_the_memory() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FRAME)
        assert "Close firefox: it took 6.2 GiB at 12:28." in app.screen_text
        await pilot.press("a")
        assert "Close firefox: it took 6.2 GiB at 12:28." in lines_of(app).text
        await pilot.press("escape")
        unknown = msgspec.structs.replace(design_frame().memory.grew[0], since_wall_ns=None)
        await tell(pilot, feed, FrameReady(frame=with_parts(later(design_frame(), 1), memory={"grew": (unknown,)})))
        assert "Close firefox: it took 6.2 GiB. Before that" in app.screen_text
