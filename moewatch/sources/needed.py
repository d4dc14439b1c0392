"""Which tensors the host's memory must hold: what is on the GPU is found out while watching."""

from collections.abc import Mapping

from moewatch.domain.layout import ModelLayout
from moewatch.linux.maps import read_maps
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.server.discovery import ServerProcess, read_mapped_ranges
from moewatch.server.offload import AbsenceLedger, has_gpu, not_needed


class NeededTensors:
    """Puts together what server/offload.py needs to know: mappings, arguments, and what stayed absent."""

    def __init__(self, layout: ModelLayout, server: ServerProcess, root: KernelRoot) -> None:
        self._layout = layout
        self._server = server
        self._root = root
        self._absence = AbsenceLedger(layout)
        self._gpu = self._uses_gpu()
        self.is_assumed = False

    def look(self, resident_bytes: Mapping[str, int], tokens_total: int | None) -> frozenset[str]:
        """Names of the tensors that need no memory, as far as is known now; costs one read of /proc/PID/maps."""
        self._absence.update(resident_bytes, tokens_total)
        try:
            ranges = read_mapped_ranges(self._root, self._server.pid, self._layout.paths)
        except ReadingError:
            ranges = None
        if not self._gpu:
            self._gpu = self._uses_gpu()  # a server that is loading gets its libraries and devices late
        found = not_needed(
            self._layout,
            self._server.options,
            ranges,
            self._absence.absent,
            gpu=self._gpu,
            needed=self._absence.needed,
        )
        self.is_assumed = found.assumed
        return found.names

    def _uses_gpu(self) -> bool:
        """Another user's mappings cannot be read: without a GPU seen, the arguments say nothing."""
        if self._server.options.is_gpu_disabled:
            return False
        try:
            maps = read_maps(self._root, self._server.pid)
        except ReadingError:
            return False
        visible = self._server.software_gpu
        environ = {"GGML_VK_VISIBLE_DEVICES": visible} if visible else {}
        return has_gpu([mapping.path for mapping in maps], self._server.options, environ)
