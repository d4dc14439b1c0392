"""The progress bar on a terminal (rich), on stderr."""

from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from moewatch.domain.warm import WarmProgress
from moewatch.units import MB, format_duration, format_size


def with_bar(run: Iterator[WarmProgress]) -> Iterator[WarmProgress]:
    """Pass the progress on and draw it; the bar stays where it ended."""
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False), auto_refresh=False) as bar:
        task = bar.add_task("starts", total=None)
        for progress in run:
            bar.update(
                task,
                total=progress.planned_bytes,
                completed=progress.read_bytes,
                description=describe(progress),
                refresh=True,
            )
            yield progress


def describe(progress: WarmProgress) -> str:
    """`8.4 GiB of 18.3 GiB, 1,290 MB/s, about 8 s left`, and what a person should know meanwhile."""
    parts = [f"{format_size(progress.read_bytes)} of {format_size(progress.planned_bytes)}"]
    if progress.bytes_per_s:
        parts.append(f"{progress.bytes_per_s / MB:,.0f} MB/s")
    if progress.eta_ns is not None and progress.read_bytes < progress.planned_bytes:
        parts.append(f"about {format_duration(progress.eta_ns)} left")
    if progress.gone_bytes:
        parts.append(f"{format_size(progress.gone_bytes)} gone again")
    if progress.is_server_busy:
        parts.append("a request is in work: at 1/4")
    return ", ".join(parts)
