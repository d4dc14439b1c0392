"""The map of experts: what its cells say, how it is sampled down, what the cursor tells, which rows are sent."""

import re
from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.domain.events import Event, FrameReady, Position
from moewatch.domain.experts import ExpertSlice, FileStrip
from moewatch.domain.frame import Evenness, ExpertMap, Frame, Skew
from moewatch.tui.expertmap import Look, Mode, Picture, lay_out, layer_share, map_columns, map_rows
from moewatch.tui.expertpage import Around, empty_page, file_cells, page, rooms
from moewatch.tui.experts_screen import ExpertsScreen
from moewatch.tui.glyphs import ASCII, BLOCKS
from moewatch.tui.layout import Layout
from moewatch.tui.palette import palette
from moewatch.tui.rows import Role, text_of, width_of
from moewatch.tui.shades import Shade, again, cell, memory
from moewatch.units import MB, MIB, S
from tests.support.frames import design_frame, expert_map
from tests.support.screens import lines_of
from tests.tui.test_app import STARTED, make, tell
from tests.tui.test_screens_text import view_of

SIZE = 10 * MIB
SKEW = Skew(
    evenness=Evenness.SKEWED, resident_share=0.31, use_share=0.8, top_share=0.3, touched_ratio=None,
    text="The 31 % of the experts that are in memory get 80 % of the use: a hot set will help.",
)  # fmt: skip


def small(shares: list[list[int]], again_share: dict[int, float] | None = None, **changes: Any) -> ExpertMap:
    """Shares in percent, a list a layer; `again_share` by cell, times its size."""
    flat = bytes(255 * share // 100 for layer in shares for share in layer)
    amounts = tuple(int((again_share or {}).get(n, 0) * SIZE) for n in range(len(flat)))
    made = {"resident": flat, "again_bytes": amounts, "left_s": bytes([255]) * len(flat)}
    return expert_map(len(shares), len(shares[0]), size=SIZE, **{**made, **changes})


def cells(look: Look, width: int = 80) -> list[str]:
    """The map's rows without the numbers of layers and the shares."""
    shown = look.map
    grid = lay_out(shown, map_columns(shown, width), zoom=look.zoom, expert=look.expert or 0)
    return [text_of(row)[7 : 7 + grid.cells * grid.stretch : grid.stretch] for row in map_rows(look, width, 99)[1:]]


def screen(shown: ExpertMap, width: int, height: int, **changes: Any) -> list[str]:
    frame = changes.pop("frame", design_frame(experts=shown))
    look = Look(map=shown, **{"layer": min(17, shown.n_layer - 1), "expert": min(42, shown.n_expert - 1), **changes})
    return [text_of(row) for row in page(look, Around(frame=frame, zone=UTC), width, height)]


# --- cells -------------------------------------------------------------------------------------------------------


def test_two_layers_a_row_and_again_before_all_else() -> None:
    shown = small([[100, 0, 100, 0, 49, 100], [0, 100, 100, 0, 51, 0]], {5: 0.5})
    assert cells(Look(map=shown)) == ["▀▄█ ▄x"]


def test_an_odd_last_layer_stands_in_the_upper_half() -> None:
    assert cells(Look(map=small([[0], [0], [100]])))[1] == "▀"


def test_read_again_mode_counts_from_half_its_size() -> None:
    shown = small([[100, 0, 0], [0, 0, 0]], {0: 0.49, 1: 0.5, 5: 2.0})
    assert cells(Look(map=shown, mode=Mode.AGAIN)) == [" ▀▄"]


def test_changed_since_the_mark_tells_what_came_from_what_left() -> None:
    mark, now = small([[0, 100, 50], [0, 0, 50]]), small([[100, 0, 50], [0, 0, 74]])
    assert cells(Look(map=now, mark=mark, mode=Mode.CHANGED)) == ["▀- "]
    assert cells(Look(map=now, mark=mark, mode=Mode.CHANGED, glyphs=ASCII)) == ["+-."]


def test_without_a_mark_or_with_another_models_nothing_is_claimed() -> None:
    now = small([[100, 0], [0, 0]])
    for mark in (None, small([[0, 0, 0], [0, 0, 0]])):
        assert cells(Look(map=now, mark=mark, mode=Mode.CHANGED)) == ["  "]


def test_ascii_shows_tenths_and_x() -> None:
    shown = small([[100, 0, 55, 0], [100, 0, 55, 100]], {1: 1.0})
    assert cells(Look(map=shown, glyphs=ASCII)) == ["9x55"]


def test_unknown_is_a_question_mark_and_never_blank() -> None:
    shown = small([[100, 100], [100, 100], [0, 0], [60, 60]], bytes_per_expert=(0, 0, SIZE, SIZE))
    assert cells(Look(map=shown)) == ["??", "▄▄"]
    rows = [text_of(row) for row in map_rows(Look(map=shown), 80, 9)]
    assert rows[1].split()[-2:] == ["–", "–"]  # noqa: RUF001 - the dash of the design
    gpu = small([[100, 100], [0, 0]], not_needed_layers=(0,))
    assert text_of(map_rows(Look(map=gpu), 80, 9)[1]).split()[-2:] == ["GPU", "0"]


def test_a_cell_of_several_experts_is_their_mean_and_says_so() -> None:
    row = [100, 0] * 64
    shown = small([row, [100] * 128])
    assert cells(Look(map=shown)) == ["█" * 64]
    assert "half a cell = 2 experts" in screen(shown, 80, 24)[0]
    assert cells(Look(map=small([[49, 0] * 64, [100] * 128]))) == ["▄" * 64]


def test_shares_of_layers_are_those_of_the_map() -> None:
    shown = small([[100, 0], [100, 100]])
    assert layer_share(shown, 0) == pytest.approx(0.5)
    assert text_of(map_rows(Look(map=shown), 80, 9)[1]).split()[-2:] == ["50", "100"]


@given(st.integers(1, 600), st.integers(1, 300), st.integers(0, 6), st.data())
@settings(max_examples=60)
def test_every_expert_has_exactly_one_cell(n_expert: int, columns: int, zoom: int, data: st.DataObject) -> None:
    expert = data.draw(st.integers(0, n_expert - 1))
    shown = expert_map(1, n_expert)
    grid = lay_out(shown, columns, zoom=zoom, expert=expert)
    assert grid.cells * grid.stretch <= max(columns, 1)
    covered = [e for n in range(grid.cells) for e in range(*grid.span(n, n_expert))]
    assert covered == list(range(grid.first, grid.first + len(covered)))
    assert expert in covered
    assert grid.span(grid.cell_of(expert), n_expert)[0] <= expert < grid.span(grid.cell_of(expert), n_expert)[1]
    if zoom == 0:
        assert len(covered) == n_expert


# --- shades ------------------------------------------------------------------------------------------------------


def test_each_half_has_its_shade_and_the_terminals_ground_stays_where_one_is_none() -> None:
    styles = palette(256, no_color=False)
    upper = styles[cell(Shade.MEMORY_4, Shade.NONE).role]
    lower = styles[cell(Shade.NONE, Shade.AGAIN_4).role]
    both = styles[cell(Shade.MEMORY_1, Shade.AGAIN_4).role]
    assert [cell(Shade.MEMORY_4, Shade.NONE).text, cell(Shade.NONE, Shade.AGAIN_4).text] == ["▀", "▄"]
    assert upper.bgcolor is None
    assert lower.bgcolor is None
    assert both.color is not None
    assert both.bgcolor is not None
    assert both.color != both.bgcolor
    assert cell(Shade.MEMORY_2, Shade.MEMORY_2).text == "█"


def test_more_never_has_a_lower_shade_and_all_differs_from_nothing() -> None:
    levels = [memory(share / 100) for share in range(101)]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (Shade.NONE, Shade.MEMORY_4)
    assert [again(times) for times in (0, 0.1, 0.5, 1.0, 2.0)] == [0, 5, 6, 7, 8]


@pytest.mark.parametrize("size", [1 << 28, 1 << 30, 59 << 30])
def test_no_two_lines_of_a_file_begin_at_the_same_figure(size: int) -> None:
    shown = expert_map(4, 8)
    look = Look(map=shown, layer=1, expert=1)
    count = file_cells(look, 120, 50, 1)
    strip = FileStrip(name="a.gguf", size_bytes=size, shares=bytes(count))
    rows = [text_of(row) for row in page(look, Around(frame=design_frame(experts=shown), strips=(strip,)), 120, 50)]
    offsets = [found[1] for row in rows if (found := re.match(r" 1 +([\d.,]+) GiB ", row))]
    assert len(offsets) > 3
    assert len(set(offsets)) == len(offsets)


def test_when_an_expert_left_is_said_in_full_where_there_is_room() -> None:
    shown = expert_map(4, 8, left_s=bytes([15]) * 32)
    lines = {width: screen(shown, width, 24, layer=0, expert=0)[22] for width in (80, 120)}
    assert re.search(r"· last left memory \d\d:\d\d:\d\d", lines[120])
    assert re.search(r"· left \d\d:\d\d:\d\d", lines[80])


# --- the page ----------------------------------------------------------------------------------------------------

DESIGN_80 = {
    0: " 36 layers x 128 experts, 12.6 MiB each · half a cell = 2 experts   seen 4 s ago",
    1: "layer  0       16      32   ▾  48      64      80      96      112      % in RAM",
    20: " ▀ upper layer ▄ lower █ both: half or more in memory  x read AGAIN <60 s",
    21: " What is in memory; not what the router chose.",
    22: " L17 e042 ▸ 61 % of 12.6 MiB · again at least 74 MB in 60 s, 5.6 × its size",  # noqa: RUF001 - the design's sign
    23: " ←↑↓→  1 in memory  2 read again  3 changed  m mark  +/- zoom  Esc back",
}


def test_the_designs_example_reads_as_designed() -> None:
    rows = screen(expert_map(), 80, 24)
    assert {n: rows[n].rstrip() for n in DESIGN_80} == DESIGN_80
    assert [row[:6] for row in rows[2:20]] == [f" {n:02} {n + 1:02}" for n in range(0, 36, 2)]


def test_few_layers_leave_room_for_the_experts_read_again_most() -> None:
    rows = screen(expert_map(24, 32), 80, 24)
    at = next(n for n, row in enumerate(rows) if "read again most, 60 s, at least" in row)
    figures = rows[at + 1].split()
    assert figures[2:4] == ["53", "4.0"]
    assert float(figures[2]) * MB / (12.6 * MIB) == pytest.approx(float(figures[3]), rel=0.01)
    layer, expert = int(figures[0]), int(figures[1])
    shown = expert_map(24, 32)
    assert shown.again_bytes[layer * 32 + expert] == max(shown.again_bytes)


def test_the_skew_stands_on_the_page() -> None:
    shown = expert_map()
    rows = screen(shown, 120, 40, frame=design_frame(experts=shown, skew=SKEW))
    assert any(SKEW.text in row for row in rows)


def test_in_a_narrow_terminal_the_skew_takes_more_lines() -> None:
    shown = expert_map(8, 32)
    rows = screen(shown, 40, 20, frame=design_frame(experts=shown, skew=SKEW))
    assert SKEW.text in " ".join(row.strip() for row in rows)


def test_the_files_by_offset_and_one_expert_page_by_page() -> None:
    shown = expert_map(24, 32)
    part = ExpertSlice(
        tensor="blk.17.ffn_up_exps.weight", file="a.gguf", offset=3 << 30, length=4 * MIB,
        pages=((0, 512, True), (512, 512, False)),
    )  # fmt: skip
    look = Look(map=shown, layer=17, expert=3)
    frame = design_frame(experts=shown)
    rows = [text_of(row) for row in page(look, Around(frame=frame, parts=(part,)), 200, 60)]
    assert not any("page by page" in row for row in rows)  # without files there is no room kept for it
    strip = FileStrip(name="a.gguf", size_bytes=59 << 30, shares=bytes([255, 0]) * 92)
    around = Around(frame=frame, parts=(part,), strips=(strip,))
    rows = [text_of(row) for row in page(look, around, 200, 60)]
    at = next(n for n, row in enumerate(rows) if "L17 e03 page by page, in a.gguf" in row)
    assert "ffn_up_exps" in rows[at + 1]
    assert "4.0 MiB at 3.000 GiB" in rows[at + 1]
    strip_text = rows[at + 1][46:].strip()
    assert abs(strip_text.count("█") - strip_text.count("·")) <= 1
    offset = next(n for n, row in enumerate(rows) if "the files by offset, one sign = 328.3 MiB, a.gguf" in row)
    assert rows[offset + 1].startswith(" 1     0.0 GiB █·█·")


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@pytest.mark.parametrize(("n_layer", "n_expert"), [(24, 8), (24, 512), (92, 160), (1, 1), (36, 128)])
def test_every_size_is_filled_exactly(n_layer: int, n_expert: int, glyphs: Any) -> None:
    shown = expert_map(n_layer, n_expert)
    frame = design_frame(experts=shown)
    for width, height in ((1, 1), (19, 4), (30, 5), (40, 20), (79, 9), (80, 24), (120, 40), (200, 60)):
        for mode in Mode:
            for has_shades in (False, True):
                look = Look(map=shown, mode=mode, layer=0, expert=0, glyphs=glyphs, has_shades=has_shades, mark=shown)
                rows = page(look, Around(frame=frame), width, height)
                assert len(rows) == height
                assert {width_of(row) for row in rows} == {width}
                if glyphs is ASCII:
                    assert all(text_of(row).isascii() for row in rows)
    for width, height in ((1, 1), (80, 24)):
        assert {width_of(row) for row in empty_page(frame, width, height)} == {width}


def test_the_map_scrolls_when_it_is_higher_than_the_screen() -> None:
    shown = expert_map(92, 128)
    rows, _ = rooms(Look(map=shown), 24)
    assert rows == 18
    assert screen(shown, 80, 24, top=28)[2].startswith(" 56 57")


def test_a_map_that_does_not_change_is_as_old_as_the_scan() -> None:
    shown = expert_map(again_window_ns=2 * S, again_bytes=(0,) * (36 * 128))
    frame = msgspec.structs.replace(design_frame(experts=shown), mono_ns=shown.seen_ns + 43 * S)
    around = Around(frame=frame, zone=UTC)
    rows = [text_of(row) for row in page(Look(map=shown, now_ns=frame.mono_ns, layer=0, expert=0), around, 80, 30)]
    assert rows[0].endswith("seen 3 s ago")
    assert any("Nothing was seen read AGAIN in 45 s." in row for row in rows)
    old = msgspec.structs.replace(frame, residency=msgspec.structs.replace(frame.residency, age_ns=None))
    rows = [text_of(row) for row in page(Look(map=shown, layer=0, expert=0), Around(frame=old), 80, 30)]
    assert rows[0].endswith("seen 43 s ago")


# --- on the dashboard --------------------------------------------------------------------------------------------


def test_the_dashboard_shows_the_map_only_where_the_plots_keep_their_room() -> None:
    view = view_of(design_frame(experts=expert_map()))
    large = [text_of(row) for row in Layout().rows(view, 200, 60, ())]
    assert sum(bool(re.match(r" \d\d \d\d ", row)) for row in large) == 18
    assert not any(row.startswith(" layers 0") for row in large)
    medium = [text_of(row) for row in Layout().rows(view, 120, 40, ())]
    assert not any(re.match(r" \d\d \d\d ", row) for row in medium)
    assert any(row.startswith(" layers 0") for row in medium)


def test_the_dashboards_map_is_made_once_a_map() -> None:
    layout = Layout()
    frame = design_frame(experts=expert_map())
    first = layout._experts(view_of(frame), 200)
    assert layout._experts(view_of(msgspec.structs.replace(frame, wall_ns=1)), 200) is first
    assert layout._experts(view_of(design_frame(experts=expert_map())), 200) is not first


def test_a_picture_is_made_anew_for_whatever_changes_it() -> None:
    picture, shown = Picture(), expert_map()
    look = Look(map=shown, layer=1, expert=1)
    first = picture.rows(look, 80, 19)
    assert picture.rows(Look(map=shown, layer=1, expert=1), 80, 19) is first
    for other in (
        Look(map=expert_map(), layer=1, expert=1),
        Look(map=shown, layer=2, expert=1),
        Look(map=shown, layer=1, expert=1, mode=Mode.AGAIN),
        Look(map=shown, layer=1, expert=1, mark=shown),
        Look(map=shown, layer=1, expert=1, glyphs=ASCII),
    ):
        assert picture.rows(look, 80, 19) == first
        assert picture.rows(other, 80, 19) == map_rows(other, 80, 19)
    assert len(picture.rows(look, 80, 9)) == 9


# --- the screen --------------------------------------------------------------------------------------------------


def with_map(shown: ExpertMap | None, seconds: int = 0) -> Event:
    frame: Frame = design_frame(experts=shown)
    return FrameReady(
        frame=msgspec.structs.replace(frame, mono_ns=frame.mono_ns + seconds * S, wall_ns=frame.wall_ns + seconds * S)
    )


async def test_e_opens_it_arrows_move_and_the_feed_is_asked_for_the_expert() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(expert_map()))
        await pilot.press("e", *["down"] * 17, *["right"] * 42)
        await pilot.pause(0.2)
        assert isinstance(app.screen, ExpertsScreen)
        assert "L17 e042 ▸ 61 % of 12.6 MiB" in app.screen._lines.text
        assert ("slices", 17, 42) in feed.asked
        await pilot.press("escape")
        assert app._on_dashboard
        await pilot.press("e")  # the cursor is where it was
        assert "L17 e042" in app.screen._lines.text


async def test_page_down_goes_beyond_the_height_and_stops_at_the_end() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(expert_map(92, 128)))
        await pilot.press("e", "pagedown")
        assert isinstance(app.screen, ExpertsScreen)
        assert app.screen._lines.row_texts[2].startswith(" 36 37")
        await pilot.press(*["pagedown"] * 5, "end")
        assert "L91 e127" in app.screen._lines.text
        assert app.screen._lines.row_texts[19].startswith(" 90 91")


async def test_modes_mark_and_what_changed_since() -> None:
    app, feed = make(no_color=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(small([[0, 100], [0, 0]])))
        await pilot.press("e", "3")
        assert isinstance(app.screen, ExpertsScreen)
        assert "No mark yet: m marks" in app.screen._lines.text
        await pilot.press("m", "3")
        await tell(pilot, feed, with_map(small([[100, 0], [0, 0]]), 5))
        assert "Since the mark at 12:31:07: 10.0 MiB came into memory, 10.0 MiB left it." in app.screen._lines.text
        await pilot.press("2")
        assert "its size read AGAIN in 60 s" in app.screen._lines.text


async def test_only_changed_rows_are_sent() -> None:
    app, feed = make(no_color=True)
    async with app.run_test(size=(80, 24)) as pilot:
        shown = expert_map()
        await tell(pilot, feed, STARTED, with_map(shown))
        await pilot.press("e")
        await pilot.pause(0.2)
        assert isinstance(app.screen, ExpertsScreen)
        sent = app.screen._lines.rows_sent
        resident = bytearray(shown.resident)
        resident[20 * 128 : 20 * 128 + 40] = bytes([255]) * 40
        await tell(pilot, feed, with_map(expert_map(resident=bytes(resident)), 0))
        assert app.screen._lines.rows_sent - sent == 1
        await tell(pilot, feed, with_map(expert_map(resident=bytes(resident)), 1))
        assert app.screen._lines.rows_sent - sent == 2  # how long ago it was seen


async def test_a_recording_without_a_map_says_so() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        position = Position(name="a.jsonl", elapsed_ns=S, total_ns=9 * S, speed=1.0)
        await tell(pilot, feed, STARTED, position, with_map(None))
        await pilot.press("e")
        assert "This recording holds no map of experts up to here." in lines_of(app).text


async def test_no_map_says_why() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(None))
        await pilot.press("e")
        assert "No map of experts: not seen yet." in lines_of(app).text
        await pilot.press("down", "pagedown", "end", "m", "3", "plus")
        await tell(pilot, feed, with_map(expert_map(2, 2)))
        assert isinstance(app.screen, ExpertsScreen)
        assert "2 layers x 2 experts" in app.screen._lines.text


async def test_zoom_shows_fewer_experts_a_cell_around_the_cursor() -> None:
    app, feed = make()
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(expert_map(24, 512)))
        await pilot.press("e", "end", "plus")
        assert isinstance(app.screen, ExpertsScreen)
        assert "half a cell = 4 experts" in app.screen._lines.row_texts[0]
        assert "256" in app.screen._lines.row_texts[1]
        await pilot.press("plus", "plus", "plus")
        assert "half a cell = 1 expert " in app.screen._lines.row_texts[0]


async def test_colour_cells_are_drawn_as_wide_as_the_screen() -> None:
    app, feed = make(no_color=False)
    app._has_shades = True
    async with app.run_test(size=(80, 24)) as pilot:
        await tell(pilot, feed, STARTED, with_map(expert_map()))
        await pilot.press("e")
        await pilot.pause()
        lines = lines_of(app)
        for y, text in enumerate(lines.row_texts):
            assert lines.render_line(y).text == text


def test_roles_beyond_the_named_ones_are_shades() -> None:
    assert len(palette(256, no_color=False)) == len(Role) + len(Shade) ** 2
