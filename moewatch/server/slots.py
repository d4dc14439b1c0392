"""What /slots and /metrics say, and tokens counted from it over many requests. No I/O.

Source: llama.cpp `tools/server/README.md` and replies captured from a build of summer 2026 (tests/fixtures/server).
A slot's `n_decoded` grows while a request generates and is 0 again once it has ended; then `n_prompt_tokens`, which
also grows by one per token, has stopped at prompt + generated - 1, so the tail between the last look and the end is
counted all the same (measured: a prompt of 7,129, then 8,191, and /metrics says that 1,063 were generated). A task's
number says nothing of how many there were: each question takes one.
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from moewatch.domain.sample import Phase, ServerReading
from moewatch.errors import ParseError

SLOTS_LIMIT = 1024  # -np; more is no llama-server

_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]  # llama.cpp counts tokens in 32 bits
_METRIC = re.compile(rb"^llamacpp:(\w{1,80})(?:\{[^}\n]{0,400}\})? +([0-9][0-9.eE+]{0,30})\s*$", re.MULTILINE)
SERIES_LIMIT = 256  # a llama-server has 11
_METRIC_LIMIT = 1e15  # above, a double no longer holds every whole number


class _NextToken(Struct):
    n_decoded: _Count = 0


class Slot(Struct):
    """One slot of /slots; an unused one has no task and no next_token."""

    id: int
    n_ctx: _Count = 0
    is_processing: bool = False
    id_task: int | None = None
    n_prompt_tokens: _Count = 0
    n_prompt_tokens_processed: _Count = 0
    n_prompt_tokens_cache: _Count = 0
    next_token: list[_NextToken] | _NextToken | None = None  # an object before 2025-10, then a list

    @property
    def decoded(self) -> int:
        """Tokens generated for the request in work; 0 before the first and after the end."""
        if isinstance(self.next_token, list):
            return max((entry.n_decoded for entry in self.next_token), default=0)
        return self.next_token.n_decoded if self.next_token else 0


_DECODER = msgspec.json.Decoder(list[Slot])


def parse_slots(content: bytes) -> list[Slot]:
    """The slots; ParseError when it is not what /slots answers."""
    try:
        slots = _DECODER.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"/slots makes no sense: {str(error)[:120]}") from None
    if not 0 < len(slots) <= SLOTS_LIMIT or len({slot.id for slot in slots}) != len(slots):
        raise ParseError("/slots makes no sense: no slots, too many, or one twice")
    return slots


def parse_metrics(content: bytes) -> dict[str, int]:
    """Llamacpp's own series by name, rounded down to whole numbers; ParseError when there is none."""
    found: dict[str, int] = {}
    for match in _METRIC.finditer(content):
        name, text = match.groups()
        try:
            value = float(text)
        except ValueError:
            continue
        if value < _METRIC_LIMIT:
            found[name.decode()] = int(value)
        if len(found) > SERIES_LIMIT:
            raise ParseError(f"/metrics makes no sense: it has more than {SERIES_LIMIT} series")
    if not found:
        raise ParseError("/metrics makes no sense: it has no llamacpp series")
    return found


class SlotLedger:
    """Totals since the first look, over slots and requests; counts only what was seen or follows from what was seen.

    A request that begins and ends between two looks is not seen (its prompt and its tokens cannot be told apart), nor
    is the tail of one that was followed by another at once (/metrics would tell, but asking disturbs it, see http.py).
    """

    def __init__(self) -> None:
        self.tokens_total = 0
        self.prompt_tokens_total = 0
        self.first_token_ns: int | None = None
        self._before: dict[int, Slot] | None = None
        self._looked_ns = 0
        self._begun_ns: dict[int, int] = {}  # slot -> when its request began, until its first token

    def update(self, slots: list[Slot], mono_ns: int) -> ServerReading:
        """Count what has come since the last look; `mono_ns` is when the reply arrived."""
        before, self._before = self._before, {slot.id: slot for slot in slots}
        has_new_tokens = False
        if before is not None:
            middle_ns = (self._looked_ns + mono_ns) // 2  # it happened some time since the last look
            for slot in slots:
                previous = before.get(slot.id)
                if previous is not None:
                    tokens = _tokens_between(previous, slot)
                    has_new_tokens |= tokens > 0
                    self.tokens_total += tokens
                    self.prompt_tokens_total += _prompt_between(previous, slot)
                    self._time_first_token(previous, slot, middle_ns)
        self._looked_ns = mono_ns
        active = [slot for slot in slots if slot.is_processing]
        return ServerReading(
            phase=_phase_of(active, has_new_tokens=has_new_tokens),
            tokens_total=self.tokens_total,
            prompt_tokens_total=self.prompt_tokens_total,
            source="slots",
            n_active=len(active),
            first_token_ns=self.first_token_ns,
            context_tokens=sum(slot.n_ctx for slot in slots) or None,
        )

    def _time_first_token(self, previous: Slot, slot: Slot, middle_ns: int) -> None:
        """Between two looks each time; a request whose first token came before it was seen is not timed."""
        if not slot.is_processing:
            self._begun_ns.pop(slot.id, None)
            return
        if _is_new_request(previous, slot):
            self._begun_ns.pop(slot.id, None)
            if slot.decoded == 0:
                self._begun_ns[slot.id] = middle_ns
            else:
                self.first_token_ns = None  # shorter than one look: not measured
        elif slot.decoded and (begun_ns := self._begun_ns.pop(slot.id, None)) is not None:
            self.first_token_ns = middle_ns - begun_ns


def _is_new_request(previous: Slot, slot: Slot) -> bool:
    """Another task, or the same slot at work again; builds that report no task are judged by their count."""
    if slot.id_task is not None and slot.id_task >= 0 and previous.id_task != slot.id_task:
        return True
    return slot.is_processing and (not previous.is_processing or slot.decoded < previous.decoded)


def _tokens_between(previous: Slot, slot: Slot) -> int:
    if _is_new_request(previous, slot):
        return slot.decoded
    if previous.is_processing and not slot.is_processing and slot.decoded < max(1, previous.decoded):
        return _tail(previous, slot)
    return max(0, slot.decoded - previous.decoded)


def _tail(previous: Slot, slot: Slot) -> int:
    """Generated between the last look at work and the end; 0 where it cannot be told.

    Once a token was generated the prompt is whole (before, `n_prompt_tokens` grows by batches), and of the generated
    tokens the slot holds all but the last.
    """
    prompt = previous.n_prompt_tokens_processed + previous.n_prompt_tokens_cache
    if previous.decoded == 0 or prompt == 0:
        return 0
    return max(0, slot.n_prompt_tokens - prompt + 1 - previous.decoded)


def _prompt_between(previous: Slot, slot: Slot) -> int:
    if _is_new_request(previous, slot):
        return slot.n_prompt_tokens_processed
    return max(0, slot.n_prompt_tokens_processed - previous.n_prompt_tokens_processed)


def _phase_of(active: list[Slot], *, has_new_tokens: bool) -> Phase:
    """With several requests a long prompt holds up the others: it is `prompt` until a token comes anywhere."""
    if not active:
        return Phase.IDLE
    if not has_new_tokens and any(slot.decoded == 0 for slot in active):
        return Phase.PROMPT
    return Phase.GENERATE


class MetricsLedger:
    """The fallback without /slots: counters that move only when a request ends."""

    def __init__(self) -> None:
        self._base: dict[str, int] | None = None

    def update(self, metrics: dict[str, int]) -> ServerReading:
        """Totals since the first look; a counter below its base means that the server was started anew."""
        names = ("tokens_predicted_total", "prompt_tokens_total")
        if self._base is None or any(metrics.get(name, 0) < self._base.get(name, 0) for name in names):
            self._base = metrics
        tokens, prompt = (metrics[name] - self._base.get(name, 0) if name in metrics else None for name in names)
        active = metrics.get("requests_processing")
        if active is not None and active > SLOTS_LIMIT:
            active = None
        return ServerReading(
            # whether a request at work is in its prompt is not told
            phase=Phase.IDLE if active == 0 else Phase.UNKNOWN,
            tokens_total=tokens,
            prompt_tokens_total=prompt,
            source="metrics",
            n_active=active,
        )
