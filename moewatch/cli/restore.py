"""`moewatch hotset restore`: a warm-up whose order is a hot set's; plan, progress and proof are those of `moewatch warm`."""

import argparse
from pathlib import PurePath

from moewatch.cache.hotset import Hotset
from moewatch.cache.warmup import Warmup
from moewatch.cli.warm import Command
from moewatch.clock import Clock
from moewatch.domain.warm import What


class Restore(Command):
    """One run of the command."""

    def _find_hot_set(self) -> None:
        """It was given."""


def restore(warmup: Warmup, hotset: Hotset, name: str, options: argparse.Namespace, clock: Clock) -> int:
    """Read the hot set's pages, after what every token needs; returns the exit code."""
    warmup.hot = hotset.file_runs
    warmup.hot_name = PurePath(name).stem
    given = argparse.Namespace(**{**vars(options), "what": What.HOT.value, "rate": None, "watch": False})
    return Restore(warmup, given, clock).run()
