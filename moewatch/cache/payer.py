"""Who pays for pages that are read in: a page is charged to the memory group of the process that reads it first (memcg)."""

import os
from typing import NamedTuple

from moewatch.linux.cgroup import CgroupPaths, locate
from moewatch.linux.root import KernelRoot


class Payer(NamedTuple):
    """The two groups, and whether the server's may be joined."""

    own: CgroupPaths | None  # this terminal's
    theirs: CgroupPaths | None  # the server's
    join: tuple[str, ...]  # what a process writes to in order to join the server's; empty: it need not, or may not
    words: str


def find_payer(root: KernelRoot, server_pid: int | None) -> Payer:
    """What is charged to whom when a process of this user reads for that server (None: for none)."""
    own = locate(root, os.getpid())
    theirs = locate(root, server_pid) if server_pid is not None else None
    own_name = own.name_of(own.directories[0]) if own is not None else "no memory group"
    if theirs is None:
        return Payer(own, None, (), f"this terminal: {own_name} (matters only with a memory limit)")
    name = theirs.name_of(theirs.directories[0])
    if own is not None and own.directories[0] == theirs.directories[0]:
        return Payer(own, theirs, (), f"this terminal's memory group, which is the server's too: {name}")
    procs = f"{theirs.directories[0]}/cgroup.procs"
    if os.access(procs, os.W_OK):
        return Payer(own, theirs, (procs,), f"the server's memory group: {name}")
    words = f"this user may not join the server's group {name}; matters only with a memory limit"
    return Payer(own, theirs, (), f"this terminal: {own_name} ({words})")
