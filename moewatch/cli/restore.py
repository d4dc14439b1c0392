"""`moewatch hotset restore`: a warm-up whose order is a hot set's; plan, progress and proof are those of `moewatch warm`."""

import argparse
from collections.abc import Sequence

from moewatch.cache.hotset import Hotset
from moewatch.cache.lock import only_one
from moewatch.cache.warmup import Warmup
from moewatch.cli.warm import Command
from moewatch.clock import Clock
from moewatch.domain.warm import FileRun, Levels, What
from moewatch.errors import ExitCode


class HotWarmup(Warmup):
    """A warm-up that always says how much of one hot set is there."""

    hot: tuple[FileRun, ...] = ()

    def levels(self, hot: Sequence[FileRun] | None = None) -> Levels:
        """What is in memory now."""
        return super().levels(self.hot if hot is None else hot)


class Restore(Command):
    """One run of the command."""

    def __init__(self, warmup: HotWarmup, options: argparse.Namespace, clock: Clock) -> None:
        super().__init__(warmup, options, clock)
        self._hot = warmup.hot

    def run(self) -> int:
        """Returns the exit code."""
        with only_one(self._warmup.layout):
            preparation = self._warmup.prepare(What.HOT, budget_bytes=self._options.budget, hot=self._hot)
            if self._options.dry_run:
                self._show_plan(preparation)
                return int(ExitCode.OK)
            if preparation.refusal:
                return self._refuse(preparation)
            if not self._as_json:
                self._show_plan(preparation)
            return self._carry_out(preparation)


def restore(warmup: HotWarmup, hotset: Hotset, options: argparse.Namespace, clock: Clock) -> int:
    """Read the hot set's pages, after what every token needs; returns the exit code."""
    warmup.hot = hotset.file_runs
    given = argparse.Namespace(**{**vars(options), "rate": None, "watch": False})
    return Restore(warmup, given, clock).run()
