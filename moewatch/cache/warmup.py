"""Puts together what warming one model needs: who serves it, what is in memory, what fits, and who pays."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from moewatch.cache.budget import read_room
from moewatch.cache.guard import GONE_FLOOR_BYTES, Guard
from moewatch.cache.payer import find_payer
from moewatch.cache.plan import class_runs, make_plan
from moewatch.cache.residency import ShardCache, levels
from moewatch.cache.run import Warming
from moewatch.cache.runs import Run, normalise, whole_pages
from moewatch.cache.speed import measure_speed
from moewatch.clock import Clock
from moewatch.domain.layout import ModelLayout
from moewatch.domain.sample import Phase
from moewatch.domain.warm import FileRun, Levels, Plan, Room, Step, What
from moewatch.errors import MoewatchError, TargetEndedError, TargetError, UnusableFileError
from moewatch.linux.blockdev import disks_of
from moewatch.linux.cgroup import tightest_limit
from moewatch.linux.maps import read_maps
from moewatch.linux.pagecache import PageCache, SystemPageCache
from moewatch.linux.pid import read_start_ticks
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.linux.shards import Shard, close_shards, open_shards
from moewatch.modelfile.layout import read_layout
from moewatch.server.discovery import ServerProcess, find_servers, read_mapped_ranges
from moewatch.server.http import ServerPoll, local_host
from moewatch.server.modelpaths import inode_of
from moewatch.server.offload import has_gpu, not_needed

AT_WORK = (Phase.PROMPT, Phase.GENERATE)


class Preparation(Struct, frozen=True, kw_only=True):
    """What would be done, and what speaks against it."""

    plan: Plan
    room: Room
    before: Levels
    phase: Phase
    charged_to: str  # in words: which memory group pays for the pages
    has_server: bool = True
    is_limited: bool = True  # a memory limit holds for the server or this terminal: who pays matters
    hot_name: str = ""
    refusal: tuple[str, ...] = ()  # sentences; empty: nothing speaks against it
    disk_bytes_per_s: float | None = None


class Warmup:
    """One model, its files open. Use it as a context manager."""

    def __init__(
        self,
        layout: ModelLayout,
        server: ServerProcess | None,
        *,
        clock: Clock,
        root: KernelRoot,
        page_cache: PageCache | None = None,
        asks_server: bool = True,
    ) -> None:
        self.layout = layout
        self.server = server
        self.hot: Sequence[FileRun] | None = None  # the hot set of plans and levels that are given none
        self.hot_name = ""
        self._clock = clock
        self._root = root
        self._shards: list[Shard] = []
        self._poll: ServerPoll | None = None
        try:
            self._shards = open_shards(layout)
            self.cache = ShardCache(page_cache or SystemPageCache(), self._shards)
            _check_sizes(self._shards)
        except ReadingError as error:
            raise UnusableFileError(f"{error.detail}.") from None
        except MoewatchError:
            close_shards(self._shards)
            raise
        self.not_needed = _on_gpu(layout, server, root) if server is not None else frozenset()
        self._payer = find_payer(root, server.pid if server is not None else None)
        self.charged_to = self._payer.words
        if server is not None and asks_server:
            self._poll = ServerPoll(
                local_host(server.host),
                server.port,
                clock,
                server.options.api_key,
                prefix=server.options.api_prefix,
                may_sleep=server.may_sleep,
            )
            self._poll.wants(busy=True)  # one question; warming is a reason to be awake
            self._poll.poll_once()
            self._poll.start()

    @classmethod
    def open(
        cls, *, clock: Clock, model: Path | None = None, pids: Sequence[int] | None = None, asks_server: bool = True
    ) -> Self:
        """Of a file, of a server, or of the one server there is.

        Raises:
            TargetError: there is no such server, and no file was named.
            UnusableFileError: the model cannot be used.
            ForbiddenError: what is in memory cannot be known to this user.
        """
        root = KernelRoot.system()
        if model is not None:
            layout = read_layout(model)
            candidates = find_servers(root, pids)
            server = next((each for each in candidates if serves(each, layout)), None)
            if pids and server is None:
                raise TargetError(f"PID {pids[0]} does not serve {model.name}.")
        else:
            candidates = find_servers(root, pids)
            if not candidates:
                raise TargetError("There is no llama-server; name the model's file: moewatch warm MODEL.gguf")
            server = candidates[0]
            if not server.model_paths:
                raise TargetError(f"The model of PID {server.pid} cannot be opened: {server.detail}.")
            layout = read_layout(server.model_paths[0], known=server.model_paths, name=server.model_name)
            if server.load_mode.is_mapped is False:
                raise MoewatchError(
                    f"PID {server.pid} copied the model into its own memory (load mode {server.load_mode}): "
                    "the file's cache is of no use to it, so there is nothing to warm."
                )
        return cls(layout, server, clock=clock, root=root, asks_server=asks_server)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the questions to the server, close the files."""
        if self._poll is not None:
            self._poll.stop()
        close_shards(self._shards)

    def phase(self) -> Phase:
        """What the server says it is doing."""
        return self._poll.latest()[0].phase if self._poll is not None else Phase.UNKNOWN

    def resident_bytes(self) -> int:
        """How much of the model is in memory now."""
        return self.cache.total()

    def is_busy(self) -> bool | None:
        """Whether a request is in work; None when unknown."""
        phase = self.phase()
        return None if phase is Phase.UNKNOWN else phase in AT_WORK

    def has_ended(self) -> bool:
        """Whether the server is gone."""
        if self.server is None:
            return False
        try:
            return read_start_ticks(self._root, self.server.pid) != self.server.start_ticks
        except (ReadingError, TargetEndedError):
            return True

    def prepare(
        self,
        what: What = What.AUTO,
        *,
        budget_bytes: int | None = None,
        hot: Sequence[FileRun] | None = None,
        with_speed: bool = True,
    ) -> Preparation:
        """Look at what is there and plan; reads nothing into memory."""
        hot = self.hot if hot is None else hot
        resident = self.cache.resident()
        before = self._levels(resident, hot)
        room = self._room(before.resident_bytes)
        phase = self.phase()
        plan = make_plan(
            self.layout,
            resident,
            room.budget_bytes if budget_bytes is None else budget_bytes,
            what,
            hot=hot,
            not_needed=self.not_needed,
            page_bytes=self.cache.page_bytes,
            may_displace=phase not in AT_WORK,
        )
        return Preparation(
            plan=plan,
            room=room,
            before=before,
            phase=phase,
            charged_to=self.charged_to,
            has_server=self.server is not None,
            is_limited=self._is_limited(),
            hot_name=self.hot_name,
            refusal=_refusal(plan, phase),
            disk_bytes_per_s=measure_speed(self.layout, plan.ranges, self._clock) if with_speed else None,
        )

    def start(self, preparation: Preparation, *, rate_bytes_per_s: int | None = None) -> Warming:
        """The run of that plan; iterate over its `run()`."""
        guard = Guard(preparation.plan, self.cache, self._clock, read_room=self._room, room=preparation.room)
        return Warming(
            preparation.plan,
            self.layout.paths,
            [file.name for file in self.layout.files],
            guard,
            self._clock,
            server=self if self.server is not None else None,
            rate_bytes_per_s=rate_bytes_per_s,
            read_ahead_bytes=self._read_ahead_bytes(),
            cgroup_procs=self._payer.join,
        )

    def levels(self, hot: Sequence[FileRun] | None = None) -> Levels:
        """What is in memory now."""
        return self._levels(self.cache.resident(), self.hot if hot is None else hot)

    def _levels(self, resident: list[list[Run]], hot: Sequence[FileRun] | None) -> Levels:
        classes = class_runs(self.layout, self.not_needed, self.cache.page_bytes)
        return levels(resident, classes, self._hot_runs(hot) if hot is not None else None)

    def _hot_runs(self, hot: Sequence[FileRun]) -> list[list[Run]]:
        page = self.cache.page_bytes
        return [
            normalise(
                whole_pages(run.offset, run.offset + run.length, page, file.size_bytes)
                for run in hot
                if run.file_index == index
            )
            for index, file in enumerate(self.layout.files)
        ]

    def _room(self, resident_bytes: int) -> Room:
        return read_room(self._root, self._payer.theirs if self._payer.join else self._payer.own, resident_bytes)

    def _is_limited(self) -> bool:
        groups = (self._payer.own, self._payer.theirs)
        return any(group is not None and tightest_limit(self._root, group)[0] is not None for group in groups)

    def _read_ahead_bytes(self) -> int | None:
        """Of the slowest to stop; None when one is not known."""
        try:
            devices = disks_of(self._root, self.layout.paths[0]).devices
        except ReadingError:
            return None
        windows = [device.read_ahead_bytes for device in devices]
        return max((each for each in windows if each is not None), default=None) if None not in windows else None


def serves(server: ServerProcess, layout: ModelLayout) -> bool:
    """Whether that server has one of these files as its model, mapped."""
    inodes = {inode_of(path) for path in layout.paths} - {None}
    return server.load_mode.is_mapped is not False and any(inode_of(str(path)) in inodes for path in server.model_paths)


def _check_sizes(shards: Sequence[Shard]) -> None:
    for shard in shards:
        if (size := os.fstat(shard.fd).st_size) < shard.size_bytes:
            raise UnusableFileError(f"{shard.name} is {shard.size_bytes - size} bytes short; fetch it again.")


def _on_gpu(layout: ModelLayout, server: ServerProcess, root: KernelRoot) -> frozenset[str]:
    """As far as mappings and arguments say; what merely stayed absent is known only to who watched."""
    try:
        ranges = read_mapped_ranges(root, server.pid, layout.paths)
        paths = [mapping.path for mapping in read_maps(root, server.pid)]
    except ReadingError:
        return frozenset()
    environ = {"GGML_VK_VISIBLE_DEVICES": server.software_gpu} if server.software_gpu else {}
    return not_needed(layout, server.options, ranges, gpu=has_gpu(paths, server.options, environ)).names


def _refusal(plan: Plan, phase: Phase) -> tuple[str, ...]:
    """Why not to start now."""
    if phase is Phase.LOADING:
        return (
            "The server is still loading the model and reads it by itself.",
            "Wait until it is ready, then warm what is missing.",
        )
    missing = sum(each.size_bytes - each.resident_bytes for each in plan.steps if each.step is not Step.REST)
    if phase not in AT_WORK or plan.planned_bytes >= min(missing, GONE_FLOOR_BYTES):
        return ()
    return (
        "Memory is full of parts the server is using: each GiB read would push out another that it needs for the next token.",
    )
