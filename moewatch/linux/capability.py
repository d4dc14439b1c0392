"""What this process may do beyond its user's rights (capabilities(7)); it does not change while the program runs."""

import functools

from moewatch.errors import ParseError

FOWNER, IPC_LOCK = 3, 14  # linux/capability.h
STATUS_BYTES = 1 << 16  # of /proc/self/status; about 1.5 kB on machines of two cores, more with the length of CPU lists


@functools.cache
def has_capability(bit: int) -> bool:
    """Whether it is in the effective set; False where /proc cannot be read."""
    try:
        with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - of this process itself, never of a tree under test
            return parse_capability(file.read(STATUS_BYTES), bit)
    except OSError:
        return False


def parse_capability(status: bytes, bit: int) -> bool:
    """Bit `bit` of CapEff (proc_pid_status(5)): hexadecimal, as in `CapEff: 000001fffeffffff`."""
    for line in status.split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"CapEff":
            try:
                return bool(int(value, 16) >> bit & 1)
            except ValueError:
                raise ParseError("CapEff of /proc/self/status is no number") from None
    return False
