"""Scores the verdict on labelled recordings, in this process: the bars that a verdict must meet.

Grace: for GRACE_S after a label begins any state is accepted, except `thrashing` while loading (not judged when the server's
phase is taken away). The bars:

1. no `thrashing` outside thrashing labels, after the grace;
2. every thrashing label of 15 s or more is called within DETECT_S (or one turnover of the cache), and then for KEEP of its samples;
3. MATCH of the samples of all other labels, after the grace, get one of the label's states;
4. where a label says what reading means there, READING of its samples with more than 1 MB/s of reads get that state
   (only with all readings);
5. a recording cut in the middle gives the same states up to the cut: no looking ahead;
6. at most one change of state in any 5 s but for label boundaries (a bar at more than 5 % of the samples).

    python -m tests.support.score [--every N] [--without server,pressure,...] TRACE...
"""

import argparse
import gzip
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moewatch import engine
from moewatch.domain.frame import State
from moewatch.domain.sample import Header, ResidencyReading, Sample, ServerReading
from moewatch.trace.reader import read_trace

GRACE_S, DETECT_S, KEEP, MATCH, READING = 6.0, 12.0, 0.90, 0.85, 0.60
SUMS = ("arrived_first_bytes", "arrived_again_bytes", "departed_bytes")
READS_BYTES_PER_S = 1e6


class Label(Struct, frozen=True):
    """What was done to the server, and what that must be called."""

    start_ns: int
    end_ns: int
    truth: str
    note: str = ""
    reading: str | None = None

    @property
    def truths(self) -> list[str]:
        """The honest states."""
        return self.truth.split("|")


class _Labels(Struct):
    labels: list[Label] = field(default_factory=list)


class Score(Struct):
    """What came out of all recordings."""

    missed: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    right: int = 0
    total: int = 0
    flaps: int = 0
    count: int = 0

    @property
    def match(self) -> float:
        """The share of calm samples that got an honest state."""
        return self.right / self.total if self.total else 1.0

    def bars(self) -> list[str]:
        """All missed bars, those over all recordings included."""
        bars = list(self.missed)
        if self.match < MATCH:
            bars.append(f"states match {self.match:.3f} of the calm samples, wanted {MATCH}")
        if self.flaps > 0.05 * self.count:
            bars.append(f"{self.flaps} state changes within 5 s of another")
        return bars


def _no_cachestat(s: Sample) -> Sample:
    if s.residency is None:
        return s
    return replace(
        s, residency=replace(s.residency, evicted_bytes=None, recently_evicted_bytes=None, backend="mincore")
    )


def _no_io(s: Sample) -> Sample:
    return replace(s, process=replace(s.process, read_bytes_total=None)) if s.process else s


STRIP: dict[str, Callable[[Sample], Sample]] = {
    "server": lambda s: replace(s, server=ServerReading()),
    "pressure": lambda s: replace(s, pressure=None),
    "cgroup": lambda s: replace(s, cgroup=None),
    "cachestat": _no_cachestat,
    "io": _no_io,
    "devices": lambda s: replace(s, devices=None),
    "denied": lambda s: replace(_no_io(s), residency=None),  # another user's process
}


def load(path: Path) -> tuple[Header, list[Sample], list[Label]]:
    """A labelled recording."""
    header, samples = read_trace(path)
    with gzip.open(path) as f:
        labels = msgspec.json.decode(f.readline(), type=_Labels).labels
    return header, list(samples), labels


def thinned(samples: Iterable[Sample], every: int = 1, strips: Sequence[str] = ()) -> list[Sample]:
    """Every n-th Sample, with readings taken away; totals stay totals, differences are added up."""
    held = dict.fromkeys(SUMS, 0)
    kept = []
    for i, sample in enumerate(samples):
        scan = sample.residency
        for key in SUMS if scan else ():
            held[key] += getattr(scan, key) or 0
        if i % every:
            continue
        if scan:
            sample = replace(sample, residency=_summed(scan, held))  # noqa: PLW2901 - the same instant, thinned
            held = dict.fromkeys(SUMS, 0)
        for name in strips:
            sample = STRIP[name](sample)  # noqa: PLW2901 - the same instant, stripped
        kept.append(sample)
    return kept


def _summed(scan: ResidencyReading, held: dict[str, int]) -> ResidencyReading:
    return replace(scan, **held)


def states_of(header: Header, samples: Iterable[Sample]) -> list[tuple[int, State]]:
    """(mono_ns, state) of every Frame."""
    state = engine.start(header)
    states = []
    for sample in samples:
        state, frame = engine.step(state, sample)
        states.append((frame.mono_ns, frame.verdict.state))
    return states


def score(paths: Iterable[Path], every: int = 1, strips: Sequence[str] = (), *, ahead: bool = True) -> Score:
    """Score all recordings; `ahead` also looks for looking ahead (bar 5)."""
    result = Score()
    for path in paths:
        header, whole, labels = load(path)
        samples = thinned(whole, every, strips)
        header = replace(header, interval_ns=header.interval_ns * every)
        states = states_of(header, samples)
        name = path.name.split(".")[0]
        if ahead:
            cut = states_of(header, samples[: int(len(samples) * 0.6)])
            wrong = sum(a != b for a, b in zip(cut, states, strict=False))
            if wrong or not cut:
                result.missed.append(f"{name}: {wrong} of {len(cut)} states change when the future is cut off")
        changes = [
            t
            for (_, s0), (t, s1) in itertools.pairwise(states)
            if s0 != s1 and all(abs(t - x.start_ns) > 8e9 for x in labels)
        ]
        result.flaps += sum(t1 - t0 < 5e9 for t0, t1 in itertools.pairwise(changes))
        result.count += len(states)
        for label in labels:
            _score_label(result, name, label, states=states, whole=whole, strips=strips)
    return result


def _score_label(
    result: Score,
    name: str,
    label: Label,
    *,
    states: list[tuple[int, State]],
    whole: list[Sample],
    strips: Sequence[str],
) -> None:
    inside = [(t, s) for t, s in states if label.start_ns <= t < label.end_ns]
    late = [(t, s) for t, s in inside if t >= label.start_ns + GRACE_S * 1e9]
    seconds = (label.end_ns - label.start_ns) / 1e9
    shares = " ".join(f"{k}:{100 * n // max(1, len(inside))}%" for k, n in Counter(s for _, s in inside).most_common())
    row = f"{name:12s} {label.note:24s} {seconds:5.1f} s  {label.truth:28s} {shares}"
    if label.truths == ["thrashing"]:
        first = next(((t - label.start_ns) / 1e9 for t, s in inside if s == "thrashing"), None)
        row += " | never called" if first is None else f" | called after {first:.1f} s"
        if seconds >= 15:
            allowed = _allowed_s(whole, label)
            after = [s for t, s in inside if t >= label.start_ns + allowed * 1e9]
            kept = sum(s == "thrashing" for s in after) / max(1, len(after))
            row += f" of {allowed:.1f}, kept {kept:.2f}"
            if first is None or first > allowed or kept < KEEP:
                result.missed.append(f"{name} {label.note}: thrashing called after {first} s, kept {kept:.2f}")
        result.rows.append(row)
        return
    judged = late
    if label.truths == ["loading"]:
        judged = [] if {"server", "denied"} & set(strips) else inside
    wrong = sum(s == "thrashing" for _, s in judged)
    if wrong:
        result.missed.append(f"{name} {label.note}: false thrashing in {wrong} of {len(judged)} samples")
    if label.truths != ["loading"] or "server" not in strips:
        result.right += sum(s in label.truths for _, s in late)
        result.total += len(late)
    busy = _busy_times(whole)
    reading = [s for t, s in late if t in busy]
    if label.reading and len(reading) >= 5:
        share = sum(s == label.reading for s in reading) / len(reading)
        row += f" | {label.reading} in {100 * share:.0f} % of {len(reading)} reading samples"
        if share < READING and not strips:
            result.missed.append(f"{name} {label.note}: {label.reading} in {share:.2f} of the reading samples")
    result.rows.append(row)


def _read_total(sample: Sample) -> int:
    return (sample.process.read_bytes_total if sample.process else None) or 0


def _busy_times(samples: list[Sample]) -> set[int]:
    """Times at which the process read more than 1 MB/s over the last 2 s."""
    out, j = set(), 0
    for i, sample in enumerate(samples):
        while samples[j].mono_ns < sample.mono_ns - 2_000_000_000:
            j += 1
        span_s = (sample.mono_ns - samples[j].mono_ns) / 1e9
        if i > j and (_read_total(sample) - _read_total(samples[j])) / span_s > READS_BYTES_PER_S:
            out.add(sample.mono_ns)
    return out


def _allowed_s(samples: list[Sample], label: Label) -> float:
    """DETECT_S, or one turnover of the cache (resident bytes / read rate over the label) where that is longer."""
    inside = [s for s in samples if label.start_ns <= s.mono_ns < label.end_ns]
    cached = [s.residency.resident_bytes for s in inside if s.residency and s.residency.resident_bytes is not None]
    read = _read_total(inside[-1]) - _read_total(inside[0])
    rate = read / ((inside[-1].mono_ns - inside[0].mono_ns) / 1e9)
    return max(DETECT_S, 1 + sum(cached) / len(cached) / max(rate, 1)) if cached else DETECT_S


def main() -> int:
    """Print a row per label and the missed bars; 1 when there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--without", default="")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("trace", nargs="+", type=Path)
    options = parser.parse_args()
    result = score(options.trace, options.every, [x for x in options.without.split(",") if x])
    bars = result.bars()
    for row in result.rows if not options.quiet else ():
        print(row)
    print(
        f"every {options.every} without {options.without or '-'}: calm states right {result.match:.3f} of {result.total};"
        f" quick changes {result.flaps}; missed bars {len(bars)}"
    )
    for bar in bars:
        print("MISSED", bar)
    return 1 if bars else 0


if __name__ == "__main__":
    sys.exit(main())
