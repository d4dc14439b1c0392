"""/proc/vmstat: the whole machine's paging counters, in pages and events (mm/vmstat.c of the kernel)."""

from moewatch.domain.sample import VmReading
from moewatch.linux.root import KernelRoot, parse_keyed

# One counter in new kernels, the sum of several in others; whoever reclaims counts
_SCANNERS = (b"kswapd", b"direct", b"khugepaged", b"proactive")
_KEYS = (
    b"pgmajfault",
    b"workingset_refault_file",
    b"workingset_refault",
    b"workingset_activate_file",
    b"workingset_activate",
    b"pswpin",
    b"pswpout",
    *(b"pgscan_" + who for who in _SCANNERS),
    *(b"pgsteal_" + who for who in _SCANNERS),
)
_WANTED = dict.fromkeys(_KEYS, 1)


def parse_vm(content: bytes) -> VmReading:
    """What is wanted of it; a counter that this kernel lacks is None."""
    found = parse_keyed(content, _WANTED)

    def total(prefix: bytes) -> int | None:
        parts = [found[prefix + who] for who in _SCANNERS if prefix + who in found]
        return sum(parts) if parts else None

    return VmReading(
        pgmajfault_total=found.get(b"pgmajfault"),
        # before Linux 5.9 the counters had no _file and spoke of files only
        workingset_refault_file_total=found.get(b"workingset_refault_file", found.get(b"workingset_refault")),
        workingset_activate_file_total=found.get(b"workingset_activate_file", found.get(b"workingset_activate")),
        pgscan_total=total(b"pgscan_"),
        pgsteal_total=total(b"pgsteal_"),
        pswpin_total=found.get(b"pswpin"),
        pswpout_total=found.get(b"pswpout"),
    )


def read_vm(root: KernelRoot) -> VmReading:
    """The machine's counters now (50 us)."""
    return root.parse("/proc/vmstat", parse_vm)
