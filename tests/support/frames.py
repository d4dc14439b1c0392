"""Frames for tests of what people see: the design's example figures, and a run that warms up, is squeezed and recovers."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from moewatch.domain.events import Event, FrameReady, Started
from moewatch.domain.frame import (
    Advice,
    Cause,
    Evidence,
    ExpertMap,
    Frame,
    Growth,
    Memory,
    Method,
    Note,
    Own,
    Rates,
    Residency,
    Server,
    Severity,
    State,
    Target,
    Verdict,
)
from moewatch.domain.sample import (
    Device,
    Gap,
    GapReason,
    Header,
    Host,
    LoadMode,
    ModelFile,
    ModelSummary,
    Phase,
    TargetIdentity,
)
from moewatch.units import GIB, MB, MIB, S


def wall(text: str) -> int:
    """Nanoseconds of a time of day, UTC, on the day of the design's example."""
    moment = datetime.strptime(f"2026-11-28 {text}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * S


def gib(size: float) -> int:
    return int(size * GIB)


MODEL = ModelSummary(
    files=(ModelFile(name="gpt-oss-120b-00001-of-00002.gguf", size_bytes=gib(59.0)),),
    total_bytes=gib(59.0),
    expert_bytes=gib(56.7),
    dense_bytes=gib(1.7),
    embedding_bytes=gib(0.6),
    architecture="gpt-oss",
    n_layer=36,
    n_expert=128,
    n_expert_used=4,
    name="gpt-oss-120b",
    mxfp4_experts=True,
)
HOST = Host(kernel="6.8", ram_bytes=gib(31.2), cpus_physical=8, cpus_logical=16)
DEVICE = Device(name="nvme0n1", model="Disk", rotational=False, transport="nvme", read_ahead_bytes=128 * 1024)
IDENTITY = TargetIdentity(pid=48213, start_ticks=991, exe="llama-server", load_mode=LoadMode.MMAP)
HEADER = Header(host=HOST, target=IDENTITY, model=MODEL, devices=(DEVICE,), memory_limit_bytes=gib(31.2))
TARGET = Target(
    id=IDENTITY.id,
    pid=48213,
    exe="llama-server",
    files=({"name": MODEL.files[0].name, "size_bytes": MODEL.files[0].size_bytes},),
    model_name="gpt-oss-120b",
    load_mode=LoadMode.MMAP,
    host=HOST,
    devices=(DEVICE,),
)
CURVE = (0.9, 0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.4, 0.35, 0.3, 0.2, 0.2, 0.12, 0.1, 0.1, 0.1, 0.1, 0.1)
BY_LAYER = CURVE + tuple(reversed(CURVE))
ADVICE = (
    Advice(
        id="close_program",
        title="Close firefox: it took 6.2 GiB.",
        command=None,
        reason="Before that, 11 tokens/s.",
        gain="about 11 tokens/s, measured at 12:26",
        restart=False,
    ),
    Advice(
        id="smaller_context",
        title="Use a smaller context: -c 8192 (now 32768).",
        command="llama-server -m gpt-oss-120b-00001-of-00002.gguf -c 8192",
        reason="the KV cache takes room that experts need",
        gain="frees about 0.8 GiB",
        restart=True,
    ),
)


def design_frame(**changes: Any) -> Frame:
    """The 80 x 24 mock-up's moment: 12:31:07, severe thrashing, firefox grew."""
    frame = Frame(
        mono_ns=5_000 * S,
        wall_ns=wall("12:31:07"),
        target=TARGET,
        model=MODEL,
        active_bytes_per_token=3730 * MB,
        rates=Rates(
            window_ns=10 * S,
            majflt_per_s=3180.0,
            process_read_bytes_per_s=1270.0 * MB,
            device_read_bytes_per_s=1278.0 * MB,
            other_read_bytes_per_s=8.0 * MB,
            first_read_bytes_per_s=0.0,
            reread_bytes_per_s=1270.0 * MB,
            departed_bytes_per_s=1266.0 * MB,
            memory_stall_ratio=0.58,
            tokens_per_s=3.1,
            first_token_s=4.2,
            reread_bytes_per_token=410.0 * MB,
            method=Method.LEDGER,
            best_tokens_per_s=11.2,
            best_wall_ns=wall("12:26:00"),
        ),
        residency=Residency(
            resident_ratio=0.336,
            dense_ratio=1.0,
            expert_ratio=0.31,
            by_layer=BY_LAYER,
            age_ns=3 * S,
            backend="cachestat",
            dense_resident_bytes=gib(1.7),
            dense_needed_bytes=gib(1.7),
            expert_resident_bytes=gib(17.6),
            expert_needed_bytes=gib(56.7),
            embedding_resident_bytes=gib(0.5),
        ),
        memory=Memory(
            limit_bytes=gib(31.2),
            limit_scope="host",
            available_bytes=gib(1.3),
            free_bytes=gib(0.2),
            target_anon_bytes=gib(2.1),
            target_rss_bytes=gib(21.9),
            model_resident_bytes=gib(19.8),
            other_cache_bytes=gib(1.1),
            swap_used_bytes=0,
            grew=(
                Growth(
                    pid=7001,
                    name="firefox",
                    bytes=gib(6.2),
                    since_ns=4_820 * S,
                    since_wall_ns=wall("12:28:00"),
                    anon_bytes=gib(6.3),
                ),
            ),
        ),
        server=Server(phase=Phase.GENERATE, tokens_total=4711, source="slots", n_active=1),
        verdict=Verdict(
            state=State.THRASHING,
            severity=Severity.SEVERE,
            since_ns=4_958 * S,
            since_wall_ns=wall("12:30:25"),
            confidence=0.95,
            loss_ratio=0.72,
            loss_method="rate",
            cause=Cause.MEMORY_TAKEN,
            headline="Every token reads 410 MB from disk AGAIN, of the 3,730 MB a token needs.",
            evidence=(
                Evidence(id="reread", value=1270.0 * MB, unit="B/s", threshold=None, text="1,270 MB/s read AGAIN"),
            ),
            notes=(Note.MEMORY_TAKEN,),
            advice=ADVICE,
            headline_short="Every token reads 410 MB AGAIN.",
        ),
        own=Own(cpu_ratio=0.008, rss_bytes=43 * MIB, late_ns=0),
        gaps=(
            Gap(
                field="process.blkio_delay_ns_total", reason=GapReason.UNSUPPORTED, detail="kernel.task_delayacct is 0"
            ),
        ),
    )
    return msgspec.structs.replace(frame, **changes)


def with_parts(frame: Frame, **parts: dict[str, Any]) -> Frame:
    """The frame with fields of its parts replaced: `with_parts(f, rates={"tokens_per_s": None})`."""
    changed = {name: msgspec.structs.replace(getattr(frame, name), **values) for name, values in parts.items()}
    return msgspec.structs.replace(frame, **changed)


def run(seconds: int = 900, squeeze_at: int = 600, step_s: int = 1, recover_at: int | None = None) -> Iterator[Frame]:
    """A frame a second, ending like the design's example: warm at first, squeezed by firefox, then thrashing."""
    start_ns = 5_000 * S - seconds * S
    begin_wall = wall("12:31:07") - seconds * S
    base = design_frame()
    since = (0, begin_wall, State.WARMING)
    for second in range(0, seconds + 1, step_s):
        squeezed = second - squeeze_at
        hurt = max(0.0, min(1.0, (squeezed - 60) / 90)) if squeezed > 0 else 0.0
        if recover_at is not None and second > recover_at:
            hurt *= max(0.0, 1 - (second - recover_at) / 60)
        tokens = 11.0 - 7.9 * hurt + 0.25 * math.sin(second / 7)
        again = 1270.0 * hurt * (1 + 0.03 * math.sin(second / 3))
        first = 420.0 * math.exp(-second / 60) + (70 if 300 < second < 330 else 0)
        state = State.THRASHING if hurt > 0.4 else State.WARMING if second < 120 else State.STEADY
        if state is not since[2]:
            since = (start_ns + second * S, begin_wall + second * S, state)
        resident = 19.8 + 4.5 * (1 - hurt) * min(1.0, second / 100)
        grew = base.memory.grew if squeezed > 0 else ()
        at = {"since_ns": start_ns + squeeze_at * S, "since_wall_ns": begin_wall + squeeze_at * S}
        yield with_parts(
            msgspec.structs.replace(base, mono_ns=start_ns + second * S, wall_ns=begin_wall + second * S),
            rates={
                "tokens_per_s": tokens,
                "reread_bytes_per_s": again * MB,
                "first_read_bytes_per_s": first * MB,
                "other_read_bytes_per_s": (8 + 5 * math.sin(second / 40)) * MB,
                "departed_bytes_per_s": again * 0.997 * MB,
                "majflt_per_s": (again + first) / 0.4,
                "memory_stall_ratio": 0.58 * hurt + 0.01,
                "first_token_s": 4.2 + second // 180,
            },
            memory={
                "model_resident_bytes": gib(resident),
                "grew": tuple(msgspec.structs.replace(g, **at) for g in grew),
                "free_bytes": gib(0.2 if squeezed > 0 else 2.0),
            },
            residency={
                "expert_resident_bytes": gib(resident - 2.2),
                "by_layer": tuple(min(1.0, v + 0.2 * (1 - hurt)) for v in BY_LAYER),
            },
            verdict={
                "state": state,
                "severity": Severity.SEVERE if hurt > 0.6 else Severity.MODERATE if hurt > 0.4 else None,
                "since_ns": since[0],
                "since_wall_ns": since[1],
                "loss_ratio": max(0.0, 1 - tokens / 11.2),
                "headline": base.verdict.headline.replace("410", f"{again / tokens:,.0f}")
                if state is State.THRASHING
                else "Nothing is read from disk."
                if state is State.STEADY
                else f"{second * 0.01 + 3.1:.1f} GiB read for the first time, less each minute. Too early to say if it will fit.",
                "advice": ADVICE if state is State.THRASHING else (),
            },
            own={"cpu_ratio": 0.008, "rss_bytes": 43 * MIB},
        )


def events(frames: Iterator[Frame]) -> Iterator[Event]:
    """The frames as a feed tells them."""
    yield Started(header=HEADER, wall_ns=wall("12:16:07"))
    for frame in frames:
        yield FrameReady(frame=frame)


def expert_map(n_layer: int = 36, n_expert: int = 128, *, size: int = int(12.6 * MIB), **changes: Any) -> ExpertMap:
    """A map with warm ends and a cold middle; every seventh cold expert is read AGAIN, the 42nd of layer 17 most."""
    resident, again, left = bytearray(), [], bytearray()
    for layer in range(n_layer):
        warm = abs(2 * layer / max(1, n_layer - 1) - 1)
        for expert in range(n_expert):
            dice = (layer * 7919 + expert * 104729 + layer * expert * 31) % 97 / 97
            share = 255 if dice < 0.2 + 0.6 * warm else 90 if dice < 0.3 + 0.6 * warm else 0
            resident.append(share)
            churns = share < 255 and (layer * 13 + expert * 5) % 7 == 0
            again.append(size * (1 + expert % 4) if churns else 0)
            left.append(12 if churns else 255)
    if n_layer > 17 and n_expert > 42:
        at = 17 * n_expert + 42
        resident[at], again[at], left[at] = 155, 74 * MB, 5
    seen = {"seen_ns": 4_996 * S, "seen_wall_ns": wall("12:31:03")}
    each = {"bytes_per_expert": (size,) * n_layer, "again_window_ns": 60 * S}
    made = {"resident": bytes(resident), "again_bytes": tuple(again), "left_s": bytes(left)}
    return ExpertMap(**{"n_layer": n_layer, "n_expert": n_expert, **each, **made, **seen, **changes})
