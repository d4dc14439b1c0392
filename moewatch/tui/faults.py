"""A screen that dies leaves one sentence, to be said by who ran it, instead of pages with all local variables."""

import io

from rich.console import Console, RenderableType
from rich.traceback import Traceback
from textual.app import App


class FaultTellingApp(App[None]):
    """An App whose end by a fault of its own, or of Textual's, can be asked for: `fault`, None after a good end."""

    fault: str | None = None

    def hush(self) -> None:
        """A fault is told in one sentence by who runs this (`fault`), not in pages with all local variables."""
        self.error_console = Console(file=io.StringIO())

    def panic(self, *renderables: RenderableType) -> None:
        """Textual's thread for keys died."""
        for shown in renderables:
            if isinstance(shown, Traceback) and shown.trace.stacks:
                self.fault = f"{shown.trace.stacks[0].exc_type}: {shown.trace.stacks[0].exc_value}"
        super().panic(*renderables)

    def _handle_exception(self, error: Exception) -> None:
        """Any other fault."""
        self.fault = self.fault or f"{type(error).__name__}: {error}"
        super()._handle_exception(error)
