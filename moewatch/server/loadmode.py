"""How the weights are really in memory: judged by what is mapped and locked; the command line only breaks ties."""

from moewatch.domain.sample import LoadMode
from moewatch.server.argv import Options

# mlock locks the whole mapping, or stops at RLIMIT_MEMLOCK (8 MiB by default); measured with mmap+mlock: VmLck 37,088
# kB of a mapping of 37,088 kB
LOCKED_SHARE = 0.5
# an unmapped model is anonymous memory of its own size (measured: RssAnon 121,688 kB with a model of 37,088 kB, most
# of the rest is the KV cache); before it is loaded there is next to nothing
LOADED_SHARE = 0.5


def judge_load_mode(
    *, mapped_bytes: int | None, locked_bytes: int, anon_bytes: int, model_bytes: int | None, options: Options
) -> LoadMode:
    """The mode in force; unknown while maps cannot be read (`mapped_bytes` None) or nothing is loaded yet.

    Measured with a build of summer 2026: `-lm none`, `-lm dio`, `--mlock` and `--no-mmap --mlock` map nothing, the last
    two lock anonymous memory; `-lm mmap+mlock` maps and locks; without a word it maps.
    """
    if mapped_bytes is None:
        return LoadMode.UNKNOWN
    if mapped_bytes:
        return LoadMode.MMAP_MLOCK if locked_bytes >= LOCKED_SHARE * mapped_bytes else LoadMode.MMAP
    if locked_bytes:
        return LoadMode.MLOCK
    if model_bytes is None or anon_bytes < LOADED_SHARE * model_bytes:
        return LoadMode.UNKNOWN  # it may map the file in a moment
    return LoadMode.DIO if options.load_mode is LoadMode.DIO else LoadMode.NONE
