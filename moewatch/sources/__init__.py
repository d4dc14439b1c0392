"""Where Samples come from: a live server or a recording, behind one seam."""

from typing import Protocol

from moewatch.domain.sample import Header, Sample


class Source(Protocol):
    """A stream of Samples of one target; live and replay pass the same conformance tests."""

    @property
    def header(self) -> Header:
        """Of whom the Samples speak."""
        ...

    @property
    def patience_ns(self) -> int:
        """How long one may sleep before asking `due_ns` again (a replay can be paused or moved meanwhile)."""
        ...

    @property
    def stays(self) -> bool:
        """Whether it can go on after its end: a replay on a screen can be moved back."""
        ...

    def due_ns(self) -> int | None:
        """Monotonic time at which the next Sample is due; None when there will be none."""
        ...

    def read(self) -> Sample:
        """The next Sample; a failed reading is a Gap in it.

        Raises:
            TargetEndedError: the process ended, or its pid belongs to another one now.
        """
        ...

    def took_jump(self) -> bool:
        """Whether the stream was moved since last asked, so that what was derived must start again."""
        ...

    def close(self) -> None:
        """Release files and threads."""
        ...
