"""What stays in the scrollback after quitting: the last banner, the worst minute, the commands."""

import math

from moewatch.tui import viewmodel
from moewatch.tui.history import WorstMinute
from moewatch.tui.rows import wrap
from moewatch.tui.viewmodel import View

TEXT_WIDTH = 79


def closing_words(view: View, worst: WorstMinute | None, again: str | None) -> str:
    """Lines of at most 79 columns, "" when nothing was seen; `again` is the command that shows the same once more."""
    said = viewmodel.banner_text(view) if view.frame else []
    lines = [part for line in said for part in wrap(line, TEXT_WIDTH, 9)]
    if worst is not None and worst.again_mb_per_s >= 1:
        rate = "" if math.isnan(worst.tokens_per_s) else f", {worst.tokens_per_s:.1f} tokens/s"
        at = viewmodel.clock(worst.wall_ns, view.zone, seconds=False)
        lines.append(f"worst minute: {worst.again_mb_per_s:,.0f} MB/s read AGAIN{rate}, at {at}")
    if view.frame is not None and view.position is None:
        pid = view.frame.target.pid
        lines.append(f"watch again: {again or f'moewatch --pid {pid}'}")
        if again is None:
            lines.append(f"record it:   moewatch record -o moewatch.jsonl.gz --pid {pid}")
    return "\n".join(view.glyphs.plain(line) for line in lines)
