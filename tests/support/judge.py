"""The bars a verdict is held against, over a span in which it is known what was done to the server."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from moewatch.domain.frame import Frame, State
from tests.support.watch import between, share_of, timeline

GRACE_S = 6.0  # after a change any state is accepted, but for thrashing where it must never be
CALLED_WITHIN_S = 12.0  # or one turnover of the cache, where that is longer
KEPT = 0.9
MATCHED = 0.85


@dataclass
class Row:
    """One span that was judged, for the table at the end of a live run."""

    test: str
    span: str
    wanted: str
    seconds: float
    called_after_s: float | None  # thrashing; None where it was not called, or must not be
    shares: dict[State, float]  # of the frames after the grace
    tokens_per_s: float | None
    again_mb_per_s: float | None


ROWS: list[Row] = []


@dataclass
class Span:
    """From when to when something was done."""

    name: str
    start_ns: int
    end_ns: int = 0

    @property
    def settled_ns(self) -> int:
        """Where the grace ends."""
        return self.start_ns + int(GRACE_S * 1e9)


@contextlib.contextmanager
def span(name: str) -> Iterator[Span]:
    """Time what is done in the `with` block."""
    timed = Span(name, time.monotonic_ns())
    yield timed
    timed.end_ns = time.monotonic_ns()


def allowed_ns(work: list[Frame]) -> int:
    """How long thrashing may go uncalled: twelve seconds, or one turnover of the cache."""
    resident = [frame.memory.model_resident_bytes or 0 for frame in work]
    rate = max(1.0, work[-1].rates.process_read_bytes_per_s or 0)
    return int(max(CALLED_WITHIN_S, 1 + sum(resident) / len(resident) / rate) * 1e9)


def assert_thrashing(frames: list[Frame], work: Span) -> None:
    """Called in time, and kept."""
    during = between(frames, work.start_ns, work.end_ns)
    _note(frames, work, State.THRASHING)
    what = _what(frames, work)
    called = next((frame for frame in during if frame.verdict.state is State.THRASHING), None)
    assert called is not None, f"never called: {what}"
    limit_ns = allowed_ns(during)
    late_s, allowed_s = (called.mono_ns - work.start_ns) / 1e9, limit_ns / 1e9
    assert late_s <= allowed_s, f"called after {late_s:.1f} s, allowed are {allowed_s:.1f}: {what}"
    later = between(during, work.start_ns + limit_ns, work.end_ns)
    assert share_of(later, State.THRASHING) >= KEPT, f"not kept: {what}"


def assert_never_thrashing(frames: list[Frame], calm: Span | None = None, *, grace: bool = True) -> None:
    """No such frame after the grace (or at all); without a span, in no frame."""
    during = frames
    if calm is not None:
        during = between(frames, calm.settled_ns if grace else calm.start_ns, calm.end_ns)
    assert share_of(during, State.THRASHING) == 0, f"false alarm: {_what(frames, calm)}"


def assert_mostly(frames: list[Frame], calm: Span, *states: State) -> None:
    """One of these states after the grace, and never thrashing."""
    _note(frames, calm, *states)
    assert_never_thrashing(frames, calm)
    settled = between(frames, calm.settled_ns, calm.end_ns)
    assert share_of(settled, *states) >= MATCHED, _what(frames, calm)


def _note(frames: list[Frame], work: Span, *wanted: State) -> None:
    during = between(frames, work.start_ns, work.end_ns)
    settled = between(frames, work.settled_ns, work.end_ns) or during
    if not settled:
        return
    called = next((f.mono_ns for f in during if f.verdict.state is State.THRASHING), None)
    states = {frame.verdict.state for frame in settled}
    ROWS.append(
        Row(
            test=os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[2].partition(" ")[0],
            span=work.name,
            wanted="|".join(state.value for state in wanted),
            seconds=(work.end_ns - work.start_ns) / 1e9,
            called_after_s=None if called is None else (called - work.start_ns) / 1e9,
            shares={state: share_of(settled, state) for state in sorted(states)},
            tokens_per_s=settled[-1].rates.tokens_per_s,
            again_mb_per_s=None if (again := settled[-1].rates.reread_bytes_per_s) is None else again / 1e6,
        )
    )


def table() -> list[str]:
    """Markdown, a row for each span that was judged."""
    lines = [
        "| round | span | wanted | called after s | states after 6 s | tokens/s | again MB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        states = " ".join(f"{state.value} {100 * share:.0f} %" for state, share in row.shares.items())
        called = "" if row.called_after_s is None else f"{row.called_after_s:.1f}"
        rates = [f"{rate:.1f}" if rate is not None else "" for rate in (row.tokens_per_s, row.again_mb_per_s)]
        lines.append(f"| {row.test} | {row.span} | {row.wanted} | {called} | {states} | {' | '.join(rates)} |")
    return lines


def _what(frames: list[Frame], about: Span | None) -> str:
    zero_ns = about.start_ns if about else frames[0].mono_ns
    length_s = (about.end_ns - about.start_ns) / 1e9 if about else 0.0
    return f"{about.name if about else 'all'} (0 to {length_s:.1f} s): {timeline(frames, zero_ns)}"
