"""The warm-up's pages and its screen: what they say, that sums hold, that no slip starts anything."""

import re
from collections.abc import Callable
from datetime import UTC
from typing import Any

import msgspec
import pytest
from textual import events
from textual.pilot import Pilot

from moewatch.domain.events import FrameReady, Position
from moewatch.domain.frame import Frame
from moewatch.domain.warm_events import WarmEvent, WarmFailed, WarmLeft, WarmOver, WarmProof, WarmSaid
from moewatch.tui import warmpages
from moewatch.tui.app import MoewatchApp
from moewatch.tui.glyphs import ASCII, BLOCKS, Glyphs
from moewatch.tui.rows import text_of, width_of
from moewatch.tui.screens import Question
from moewatch.tui.warm_screen import WarmScreen
from moewatch.tui.warmfigures import Scene
from moewatch.tui.warmstate import Stage, WarmState, about
from moewatch.units import GIB, S
from tests.support.frames import design_frame, gib, with_parts
from tests.support.screens import lines_of
from tests.support.warmups import AFTER, STORY, offer, outcome, plan, progress
from tests.tui.test_app import STARTED, ScriptedFeed, later, tell

ROOMY = with_parts(
    design_frame(),
    memory={"model_resident_bytes": gib(7.1), "free_bytes": gib(18.3), "other_cache_bytes": gib(1.9), "grew": ()},
)


class ScriptedWarmer:
    """Remembers what it was asked; the test tells the events."""

    def __init__(self) -> None:
        self.tell: Callable[[WarmEvent], None] = lambda _: None
        self.asked: list[Any] = []

    def plan(self, pid: int, tell: Callable[[WarmEvent], None]) -> None:
        self.asked.append(("plan", pid))
        self.tell = tell

    def replan(self, budget_bytes: int) -> None:
        self.asked.append(("replan", budget_bytes))

    def start(self) -> None:
        self.asked.append("start")

    def cancel(self) -> None:
        self.asked.append("cancel")

    def save_plan(self) -> None:
        self.asked.append("save plan")

    def save_hot_set(self) -> None:
        self.asked.append("save")

    def close(self) -> None:
        self.asked.append("close")


def state_of(told: tuple[WarmEvent, ...]) -> WarmState:
    state = WarmState()
    for event in told:
        state.take(event)
    return state


def screen(
    told: tuple[WarmEvent, ...], width: int, height: int, *, frame: Frame | None = ROOMY, glyphs: Glyphs = BLOCKS
) -> list[str]:
    scene = Scene(state=state_of(told), frame=frame, glyphs=glyphs, zone=UTC)
    return [text_of(row) for row in warmpages.page(scene, width, height)]


PLAN_80 = {
    0: " moewatch · warm                               gpt-oss-120b 59.0 GiB   12:31:07",
    1: " ▌PLAN   Nothing has been read yet.",
    2: " ▌Reads 18.3 GiB in about 16 s. The next answer will wait less at its start.",
    3: " ▌It does not raise the lasting speed: 33.5 GiB stay on disk, they do not fit.",
    5: "   in this order                              now    after   to read   GiB",
    6: "   1  weights every token needs               0.4      1.7       1.3",
    7: '   2  hot set "good chat"                     4.4     21.4      17.0',
    8: "      other parts, already in memory          2.3      2.3         -",
    9: "      model in memory                         7.1     25.4      18.3",
    22: "             ▸ [ Cancel ]      [ Start ]",
    23: " ←→ choose   Enter do it   -/+ budget   d dry run to a file   c copy   Esc back",
}
RUNNING_80 = {
    1: " ▌READING   46 %, about 8 s left",
    2: " ▌8.4 GiB of 18.3 GiB read, 1.29 GB/s. Nothing was pushed out so far.",
    3: " ▌Esc stops; what has been read stays in memory.",
    13: "   in memory      15.5 GiB   looked up: 7.1 GiB before + 8.4 GiB read",
    23: " ←→ choose   Enter do it   z to the background   Esc stop",
}
DONE_80 = {
    1: " ▌● READY   looked up twice, 10 s apart",
    2: " ▌All weights that every token needs are in memory, and 99 % of the hot set.",
    3: " ▌Now send one short prompt: it wakes the GPU and the prompt cache too.",
    23: ' Enter back   m mark "ready"   c copy the command   h save as a hot set',
}
REFUSED_80 = {
    1: " ▌✕ NOT STARTED   Nothing was read, nothing has changed.",
    2: " ▌Memory is full of parts the server is using: each GiB read would push out",
    22: "             ▸ [ Back ]",
    23: " Enter back   c copy the commands",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("plan", PLAN_80), ("running", RUNNING_80), ("done", DONE_80), ("refused", REFUSED_80)],
)
def test_the_designs_pages_read_as_designed(name: str, expected: dict[int, str]) -> None:
    rows = screen(STORY[name], 80, 24, frame=design_frame() if name == "refused" else ROOMY)
    assert {n: rows[n].rstrip() for n in expected} == expected


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@pytest.mark.parametrize("name", [*STORY, "failed", "looking"])
def test_every_size_is_filled_exactly_and_keeps_its_buttons(name: str, glyphs: Glyphs) -> None:
    told = STORY.get(name, (WarmFailed(text="PID 7 is gone."),) if name == "failed" else ())
    for width, height in (
        (1, 1),
        (19, 4),
        (60, 3),
        (20, 4),
        (39, 10),
        (40, 20),
        (79, 9),
        (80, 24),
        (120, 40),
        (200, 60),
    ):
        for frame in (ROOMY, None):
            scene = Scene(state=state_of(told), frame=frame, glyphs=glyphs, zone=UTC)
            rows = warmpages.page(scene, width, height)
            assert len(rows) == height
            assert {width_of(row) for row in rows} == {width}
            text = "\n".join(text_of(row) for row in rows)
            if width >= 39:
                assert all(label in text for label, _ in scene.buttons)
            if glyphs is ASCII:
                assert text.isascii(), set(re.findall(r"[^\x00-\x7f]", text))


def figures(row: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"(?<= )[\d,]+\.\d(?= |$)", row.replace(" - ", " 0.0 "))]


@pytest.mark.parametrize("gibibytes", [(0.4, 4.4, 7.1), (0.33, 4.44, 7.07), (0.0, 0.0, 0.0)])
def test_columns_of_the_plan_add_up(gibibytes: tuple[float, float, float]) -> None:
    dense, hot, resident = map(gib, gibibytes)
    base = plan()
    steps = tuple(
        msgspec.structs.replace(step, resident_bytes=size) for step, size in zip(base.steps, (dense, hot), strict=True)
    )
    made = offer(plan=plan(steps=steps, resident_bytes=resident))
    rows = [row.rstrip() + " " for row in screen((made,), 80, 24)]
    start = next(n for n, row in enumerate(rows) if "in this order" in row) + 1
    end = next(n for n, row in enumerate(rows) if "model in memory" in row)
    table = [figures(row) for row in rows[start:end]]
    for column, whole in enumerate(figures(rows[end])):
        assert sum(row[column] for row in table if len(row) > column) == pytest.approx(whole, abs=0.01)


def test_the_memory_after_is_the_memory_now_plus_what_is_read() -> None:
    bar = warmpages_memory(gib(25.4))
    now = warmpages_memory(gib(7.1))
    sizes = {part.name: part.size_bytes for part in bar}
    before = {part.name: part.size_bytes for part in now}
    assert sum(sizes.values()) == sum(before.values()) == gib(31.2)
    assert sizes["model"] - before["model"] == gib(25.4) - gib(7.1)
    assert before["server"] == sizes["server"]
    assert before["cache"] == sizes["cache"]  # there is room enough without it
    crowded = {part.name: part.size_bytes for part in warmpages_memory(gib(26.0))}
    assert crowded["cache"] < before["cache"]
    assert crowded["rest"] == pytest.approx(before["rest"], abs=2)


def warmpages_memory(resident: int) -> tuple[Any, ...]:
    from moewatch.tui.warmfigures import memory_with  # noqa: PLC0415 - named where it is used

    return memory_with(ROOMY, resident, BLOCKS).parts


def test_parts_of_the_model_bars_add_up_to_the_files() -> None:
    legend = next(row for row in screen(STORY["done"], 120, 40) if "every token" in row and "on disk" in row)
    shown = [float(n) for n in re.findall(r"(?:every token|experts|other parts|on disk) ([\d.]+)", legend)]
    assert len(shown) == 4
    assert sum(shown) == pytest.approx(59.0)


def test_nothing_to_read_offers_no_start() -> None:
    full = offer(plan=plan(ranges=(), resident_bytes=gib(59.0)))
    rows = screen((full,), 80, 24)
    assert "Nothing to read" in rows[2]
    assert "[ Start ]" not in "\n".join(rows)


def test_without_a_hot_set_it_says_how_little_it_helps() -> None:
    steps = plan().steps[:1]
    rows = screen((offer(plan=plan(steps=steps)),), 80, 24)
    assert "Without a saved hot set this helps the first answer only a little." in rows[3]


def test_what_left_again_is_said_and_what_ended_the_watch() -> None:
    told = (*STORY["done"], WarmLeft(left_bytes=2 * GIB))
    assert any(
        "2.0 GiB of the model have left memory again; w brings them back." in row for row in screen(told, 80, 24)
    )
    assert "2.0 GiB" in state_of(told).background_text()
    over = state_of((*told, WarmOver(text="The first request is here; 2.0 GiB had left by then.")))
    assert over.background_text() == ""


def test_not_ready_is_not_called_ready() -> None:
    cold = msgspec.structs.replace(AFTER, dense_ratio=0.5)
    rows = screen((offer(), outcome(), WarmProof(later=cold)), 80, 24)
    assert "COLD" in rows[1]
    assert "50 % of the weights" in rows[2]


def test_about_has_no_tenths() -> None:
    assert [about(n) for n in (0, 8 * S + 1, 75 * S)] == ["1 s", "8 s", "1:15"]


def test_a_speed_is_kept_for_every_second() -> None:
    state = state_of((offer(), *(progress(n // 4) for n in range(40))))
    assert len(state.speeds) == 9


# --- the screen --------------------------------------------------------------------------------------------------


def make() -> tuple[MoewatchApp, ScriptedFeed, ScriptedWarmer]:
    feed, warmer = ScriptedFeed(), ScriptedWarmer()
    return MoewatchApp(feed, warmer=warmer, zone=UTC, ascii=False), feed, warmer


async def offered(pilot: Pilot[None], feed: ScriptedFeed, warmer: ScriptedWarmer) -> None:
    await tell(pilot, feed, STARTED, FrameReady(frame=ROOMY))
    await pilot.press("w")
    warmer.tell(offer())
    await pilot.pause()


async def test_the_button_is_on_the_dashboard_and_a_click_plans() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FrameReady(frame=ROOMY))
        shown = app._lines.row_texts[-1]
        assert "[w Warm cache]" in shown
        await pilot.click(offset=(shown.index("Warm"), 23))
        await pilot.pause()
        assert isinstance(app.screen, WarmScreen)
        assert warmer.asked == [("plan", 48213)]
        assert "LOOKING" in app.screen._lines.text


async def test_no_button_before_a_server_and_none_in_a_replay() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await tell(pilot, feed, STARTED, FrameReady(frame=ROOMY))
        await tell(pilot, feed, Position(name="a", elapsed_ns=0, total_ns=S, speed=1.0))
        assert "Warm" not in app._lines.row_texts[-1]
        await pilot.press("w")
        assert warmer.asked == []


async def test_early_keys_and_pasted_text_start_nothing_and_enter_cancels() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await offered(pilot, feed, warmer)
        await pilot.press("right", "enter")  # within half a second
        app.screen.post_message(events.Paste("\r\n"))
        await pilot.pause()
        assert isinstance(app.screen, WarmScreen)
        assert "start" not in warmer.asked
        await pilot.pause(0.6)
        app.screen.post_message(events.Paste("\x1b[C\r"))
        await pilot.pause()
        assert isinstance(app.screen, WarmScreen)
        await pilot.press("enter")  # the focus is on Cancel
        assert app._on_dashboard
        assert "start" not in warmer.asked
        assert warmer.asked[-1] == "cancel"


async def test_an_early_click_on_start_starts_nothing() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await offered(pilot, feed, warmer)
        row = lines_of(app).row_texts[22]
        at = (row.index("Start"), 22)
        await pilot.click(offset=at)
        assert "start" not in warmer.asked
        await pilot.pause(0.6)
        await pilot.click(offset=at)
        await pilot.pause()
        assert "start" in warmer.asked


async def started(pilot: Pilot[None], feed: ScriptedFeed, warmer: ScriptedWarmer) -> None:
    await offered(pilot, feed, warmer)
    await pilot.pause(0.6)
    await pilot.press("right", "enter")
    warmer.tell(progress(read=gib(8.4)))
    await pilot.pause()


async def test_it_reads_stops_at_escape_and_says_what_stays() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await started(pilot, feed, warmer)
        assert warmer.asked[-1] == "start"
        assert "READING   46 %" in lines_of(app).text
        await pilot.press("escape")
        assert warmer.asked[-1] == "cancel"
        warmer.tell(STORY["stopped"][-1])
        await pilot.pause()
        assert "STOPPED   cancelled; what has been read stays in memory." in lines_of(app).text
        await pilot.press("escape")
        assert app._on_dashboard


async def test_the_background_shows_a_line_and_w_comes_back_to_the_same_run() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await started(pilot, feed, warmer)
        await pilot.press("z")
        assert app._on_dashboard
        assert "Warm: 46 % of 18.3 GiB read, about 8 s left. w shows it." in app.screen_text
        await pilot.press("w")
        assert isinstance(app.screen, WarmScreen)
        assert [each for each in warmer.asked if each == ("plan", 48213)] == [("plan", 48213)]
        assert "cancel" not in warmer.asked


async def test_after_the_proof_the_watch_goes_on_and_is_heard_on_the_dashboard() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await started(pilot, feed, warmer)
        warmer.tell(outcome())
        warmer.tell(WarmProof(later=AFTER))
        await pilot.pause(0.7)
        assert "Watching on: a line appears here" in lines_of(app).text
        await pilot.press("m")
        assert app._on_dashboard
        assert "12:31 ready" in app.screen_text
        assert "cancel" not in warmer.asked
        warmer.tell(WarmLeft(left_bytes=2 * GIB))
        await pilot.pause()
        assert "2.0 GiB of the model have left memory again; w brings them back." in app.screen_text
        await pilot.press("w")
        assert warmer.asked.count(("plan", 48213)) == 2


async def test_copy_save_and_budget() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await offered(pilot, feed, warmer)
        await pilot.press("minus")
        assert ("replan", gib(24.4)) not in warmer.asked
        await pilot.pause(0.6)
        await pilot.press("minus", "c")
        assert warmer.asked[-1] == ("replan", gib(25.4) - GIB)
        assert app.clipboard == "moewatch warm --pid 48213"
        await pilot.press("d")
        assert warmer.asked[-1] == "save plan"
        warmer.tell(WarmSaid(text="The plan is saved: plan.json"))
        await pilot.pause()
        assert "The plan is saved: plan.json" in lines_of(app).text
        for event in STORY["done"][1:]:
            warmer.tell(event)
        await pilot.pause(0.7)
        await pilot.press("h")
        assert warmer.asked[-1] == "save"
        warmer.tell(WarmSaid(text="The hot set is saved: 20261128.hotset; the next plan uses it."))
        await pilot.pause()
        assert "The hot set is saved" in lines_of(app).text


async def test_quitting_asks_while_it_reads_and_the_warmer_is_closed() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await started(pilot, feed, warmer)
        await pilot.press("z", "q")
        assert isinstance(app.screen, Question)
        assert "The warm-up would be stopped" in app.screen._lines.text
        await pilot.press("escape")
        await tell(pilot, feed, FrameReady(frame=later(ROOMY, 1)))
    assert warmer.asked[-1] == "close"


async def test_refused_and_failed_only_lead_back() -> None:
    app, feed, warmer = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, FrameReady(frame=design_frame()))
        await pilot.press("w")
        warmer.tell(STORY["refused"][0])
        await pilot.pause(0.7)
        text = lines_of(app).text
        assert "1  Close firefox: it took 6.2 GiB at 12:28." in text
        await pilot.press("c", "right", "enter")
        assert app.clipboard == "llama-server -m gpt-oss-120b-00001-of-00002.gguf -c 8192"
        assert app._on_dashboard
        await pilot.press("w")
        warmer.tell(WarmFailed(text="Another warm-up of this model is running (PID 7); wait for it or end it."))
        await pilot.pause()
        assert app._warm is not None
        assert app._warm.stage is Stage.FAILED
        assert "Another warm-up" in lines_of(app).text
    assert "start" not in warmer.asked
