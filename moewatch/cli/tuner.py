"""One run after the other for `moewatch tune`: each server started, watched as the monitor does, measured and ended."""

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from moewatch.analysis.tuning import Candidate, Trial, best_of, finalists
from moewatch.clock import Clock
from moewatch.domain.events import Event, FrameReady
from moewatch.domain.frame import Frame
from moewatch.errors import MoewatchError
from moewatch.linux.root import KernelRoot
from moewatch.sampler import Sampler
from moewatch.server.argv import redact_argv
from moewatch.server.discovery import find_servers
from moewatch.server.launch import LaunchError, OwnServer
from moewatch.sources.live import LiveSource
from moewatch.units import S, format_rate

INTERVAL_NS = S
# what would move experts behind a candidate's back
HIDDEN_VARIABLES = ("LLAMA_ARG_N_CPU_MOE", "LLAMA_ARG_CPU_MOE", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT")

Say = Callable[[str], None]
Next = Callable[[Sequence[Trial]], Candidate | None]


class Job(Struct, frozen=True, kw_only=True):
    """What is started: the program (and what stands before it), its arguments without those that are tried."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    port: int
    span_ns: int
    prefix: str = ""
    api_key: str | None = None

    def command(self, candidate: Candidate) -> list[str]:
        """The words that start a candidate on our own port."""
        return [*self.program, *candidate.applied(self.arguments), "--host", "127.0.0.1", "--port", str(self.port)]


class _LastFrame:
    """Keeps the newest Frame of the watch."""

    def __init__(self) -> None:
        self.frame: Frame | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self.frame = event.frame


class Tuner:
    """Tries candidates, never two at a time; `trials` grows as they end."""

    def __init__(self, job: Job, clock: Clock, say: Say, environ: Mapping[str, str] = os.environ) -> None:
        self._job = job
        self._clock = clock
        self._say = say
        self._environ = {name: value for name, value in environ.items() if name not in HIDDEN_VARIABLES}
        self.trials: list[Trial] = []

    def search(self, next_candidate: Next) -> None:
        """Until it has no more to try."""
        while (candidate := next_candidate(self.trials)) is not None:
            self.trials.append(self._run(candidate))

    def repeat_finalists(self) -> Trial | None:
        """Measure the best two again, each freshly started; returns the best of all, None when nothing ran."""
        for trial in finalists(self.trials):
            again = self._run(trial.candidate)
            merged = replace(again, tokens_per_s=(*trial.tokens_per_s, *again.tokens_per_s))
            self.trials[self.trials.index(trial)] = merged
        return best_of(self.trials)

    def _run(self, candidate: Candidate) -> Trial:
        job, command = self._job, self._job.command(candidate)
        shown = redact_argv(command)
        self._say(f"{candidate.label}: starting")
        server = OwnServer(
            command, job.port, self._clock, environ=self._environ, prefix=job.prefix, api_key=job.api_key
        )
        last = _LastFrame()
        try:
            server.start()
            server.wait_ready()
            self._say(f"{candidate.label}: generating for {job.span_ns / S:.0f} s")
            sampler = Sampler(lambda: self._open(server), self._clock, last)
            sampler.start()
            try:
                rate = server.measure(job.span_ns)
            finally:
                sampler.stop()
        except LaunchError as error:
            self._say(f"{candidate.label}: {error}")
            return Trial(candidate=candidate, command=shown, failed=str(error))
        finally:
            server.stop()
        self._say(f"{candidate.label}: {format_rate(rate)} tokens/s")
        frame = last.frame
        return Trial(
            candidate=candidate,
            command=shown,
            tokens_per_s=(rate,),
            state=frame.verdict.state.value if frame is not None else None,
            reread_bytes_per_s=frame.rates.reread_bytes_per_s if frame is not None else None,
        )

    def _open(self, server: OwnServer) -> LiveSource:
        """As the monitor watches; part by part of the page cache is left out, it would take CPU from what is measured."""
        found = find_servers(KernelRoot.system(), server.pids())
        return LiveSource.open(found[0], clock=self._clock, interval_ns=INTERVAL_NS, url=server.url, residency=False)


def others_running() -> int:
    """How many servers of other people's starting run now: they take memory and time from what is measured."""
    try:
        return sum(1 for server in find_servers(KernelRoot.system()) if server.model_paths)
    except MoewatchError:
        return 0
