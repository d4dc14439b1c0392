"""From a file on an overlay to the file below it (Documentation/filesystems/overlayfs.rst of the kernel)."""

import os
from collections.abc import Iterator

from moewatch.linux.mounts import Mount

LOWER_LIMIT = 500  # the kernel takes 500 lower layers at most


def resolve_overlay(mount: Mount, path: str, pid: int | None = None) -> Iterator[str]:
    """Where the file may really lie, upper layer first; only paths that exist and can be reached from here.

    `path` is the file's path below the mount point (in that process's own view when `pid` is given).
    """
    if pid is not None:
        path = path.removeprefix(f"/proc/{pid}/root")
    if not path.startswith(mount.point.rstrip("/") + "/"):
        return
    inside = mount.root.rstrip("/") + path[len(mount.point.rstrip("/")) :]
    upper, lower = mount.option("upperdir"), mount.option("lowerdir")
    layers = ([upper] if upper else []) + (lower.split(":")[:LOWER_LIMIT] if lower else [])
    for layer in layers:
        # relative layers (podman writes them) are relative to a directory nobody else knows
        candidate = layer + inside
        if layer.startswith("/") and os.path.lexists(candidate):
            yield candidate
