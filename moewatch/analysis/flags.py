"""What a llama-server's argv says: the last value of an option under any of its names. Pure.

Names and defaults as `llama-server --help` of summer 2026 prints them; an older build may not know the newest.
"""

CONTEXT = ("-c", "--ctx-size")
PARALLEL = ("-np", "--parallel")
THREADS = ("-t", "--threads")
GPU_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
CPU_MOE = ("-cmoe", "--cpu-moe")
N_CPU_MOE = ("-ncmoe", "--n-cpu-moe")
OVERRIDE_TENSOR = ("-ot", "--override-tensor")
CACHE_TYPE_K = ("-ctk", "--cache-type-k")
CACHE_TYPE_V = ("-ctv", "--cache-type-v")
PROMPT_CACHE = ("-cram", "--cache-ram")
NO_KV_OFFLOAD = ("-nkvo", "--no-kv-offload")
NO_REPACK = ("-nr", "--no-repack")
LOAD_MODE = ("-lm", "--load-mode")
OLD_LOAD_FLAGS = ("--no-mmap", "--mlock", "-dio", "--direct-io")
FLASH_ATTENTION = ("-fa", "--flash-attn")
DEVICE = ("-dev", "--device")

DEFAULT_PROMPT_CACHE_MIB = 8192


def value_of(argv: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of the option's last occurrence (`-c 4096` or `--ctx-size=4096`); None when it is not there."""
    found = None
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if word in names and i + 1 < len(argv):
            found = argv[i + 1]
        elif equals and name in names:
            found = value
    return found


def number_of(argv: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    """The same as a whole number; None when it is none."""
    value = value_of(argv, names)
    try:
        return None if value is None else int(value)
    except ValueError:
        return None


def has(argv: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether a switch without a value is there."""
    return any(word in names for word in argv)


def keeps_off_gpu(argv: tuple[str, ...]) -> bool:
    """Whether argv forbids any GPU: then no layer moves there."""
    return number_of(argv, GPU_LAYERS) == 0 or value_of(argv, DEVICE) == "none"


def experts_on_cpu(argv: tuple[str, ...], n_layer: int | None) -> tuple[int, str] | None:
    """How many layers' experts argv keeps on the CPU, and the words that say so; None when it does not."""
    layers = number_of(argv, N_CPU_MOE)
    if layers is not None:
        return layers, f"--n-cpu-moe {layers}"
    if n_layer is None:
        return None
    if has(argv, CPU_MOE):
        return n_layer, "--cpu-moe"
    moved = value_of(argv, OVERRIDE_TENSOR)
    if moved is not None and "exps" in moved and moved.upper().endswith("=CPU"):
        return n_layer, f"-ot {moved}"
    return None
