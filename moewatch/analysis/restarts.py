"""Advice that needs a restart of the server: its flags, its file, its disk. Pure.

Flags as `llama-server --help` of summer 2026 names them. Each function yields its advice, or nothing where it cannot work.
"""

from collections.abc import Iterator

from moewatch.analysis import flags
from moewatch.analysis.notes import READAHEAD_LARGE_BYTES
from moewatch.analysis.quantisations import smaller
from moewatch.analysis.situation import Situation
from moewatch.analysis.words import about_seconds, per_second, size
from moewatch.domain.frame import Advice, Note
from moewatch.domain.sample import LoadMode
from moewatch.units import KIB, MIB

# Below this what the server holds itself is its program and buffers (42-106 MB in all recordings); nothing to gain
WORTH_BYTES = 512 * MIB
MIN_CONTEXT = 4096  # a chat template and one answer; smaller contexts break more than they free
SMALL_CONTEXT = 8192
SMALL_PROMPT_CACHE_MIB = 512
# Read-ahead (measured with memory for half of the experts, MB re-read per token and tokens/s): 32 KiB 9 and 26; 128 KiB 13 and 18-30;
# 512 KiB 39 and 16; 4 MiB 530 and 1.2. None at all: 4 KiB requests 236 MB/s, 128 KiB 1,222 (llama.cpp#28223)
READAHEAD_GOOD_BYTES = 128 * KIB
READAHEAD_SMALL_BYTES = 64 * KIB
OWN_READAHEAD = ("btrfs", "zfs", "nfs", "nfs4", "9p", "fuse", "virtiofs", "cifs", "ceph")  # not the disk's value counts
SECTOR_BYTES = 512
SLOW_DISK_TRANSPORTS = ("usb", "mmc")
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs")


def no_repack(now: Situation) -> Iterator[Advice]:
    """The second copy of the weights that CPU_REPACK makes."""
    held = now.memory.target_anon_bytes
    if Note.REPACK_DUPLICATE not in now.notes or held is None or flags.has(_argv(now), flags.NO_REPACK):
        return
    yield Advice(
        id="no_repack",
        title="Restart with --no-repack (now on).",
        command="--no-repack",
        reason=f"The server holds a second, rearranged copy of the weights: {size(held)} besides the file.{_restart_time(now)}",
        gain=f"up to {size(held)} of room{of_missing(now, held)}; computing may be a little slower",
        restart=True,
    )


def load_mode(now: Situation) -> Iterator[Advice]:
    """A copy that is larger than memory swaps; a locked one starves the rest. A mapped file does neither."""
    mode, total = now.load_mode, now.needed_bytes
    limit = now.memory.limit_bytes
    too_large = total is not None and limit is not None and total > limit
    if mode not in (LoadMode.NONE, LoadMode.MLOCK, LoadMode.DIO, LoadMode.MMAP_MLOCK):
        return
    if not too_large and Note.SWAP_IN_USE not in now.notes:
        return
    old = [flag for flag in flags.OLD_LOAD_FLAGS if flag in _argv(now)]
    instead = f"-lm mmap (now {mode})" if not old else f"-lm mmap and without {' '.join(old)}"
    what = "locks the model in memory" if "mlock" in mode else "copies the model into its own memory"
    yield Advice(
        id="load_mode",
        title=f"Restart with {instead}.",
        command="-lm mmap",
        reason=f"In this mode the server {what}; what does not fit goes to swap or starves everything else.{_restart_time(now)}",
        gain="parts that are not in use need no memory and no swap (how llama.cpp maps files)",
        restart=True,
    )


def read_ahead(now: Situation) -> Iterator[Advice]:
    """A disk that is set to read far ahead, or hardly at all."""
    if (now.header.file_system or "").lower().startswith(OWN_READAHEAD):
        return
    for device in now.header.devices:
        ahead = device.read_ahead_bytes
        if ahead is None or READAHEAD_SMALL_BYTES <= ahead < READAHEAD_LARGE_BYTES:
            continue
        large = ahead >= READAHEAD_LARGE_BYTES
        yield Advice(
            id=f"read_ahead_{device.name}",
            title=f"Set the read-ahead of {device.name} to 128 KiB (now {ahead // KIB:,}), then restart.",
            command=f"sudo blockdev --setra {READAHEAD_GOOD_BYTES // SECTOR_BYTES} /dev/{device.name}",
            reason=(
                "Each small read of an expert drags in far more than is used, which pushes out what is."
                if large
                else "The disk is asked for tiny pieces; each costs about as much as a large one."
            )
            + " A running server keeps the old value until it opens its files anew.",
            gain=(
                "with memory for half of the experts, 128 instead of 512 KiB read a third per token (measured in the lab)"
                if large
                else "up to 5 times the speed of the disk (measured in llama.cpp#28223: 236 against 1,222 MB/s)"
            ),
            restart=True,
        )


def more_on_gpu(now: Situation) -> Iterator[Advice]:
    """Experts that argv keeps on the CPU although there is a GPU."""
    model, argv = now.header.model, _argv(now)
    if model is None or not model.n_layer or not model.expert_bytes or flags.keeps_off_gpu(argv):
        return
    if not now.residency.not_needed_bytes and flags.number_of(argv, flags.GPU_LAYERS) is None:
        return  # no sign of a GPU
    on_cpu = flags.experts_on_cpu(argv, model.n_layer)
    if on_cpu is None or on_cpu[0] <= 0:
        return
    layers, said = on_cpu
    each = model.expert_bytes // model.n_layer
    fewer = max(0, min(layers, model.n_layer) - max(1, -(-(now.working_set.short_bytes or 0) // each)))
    moved = (min(layers, model.n_layer) - fewer) * each
    yield Advice(
        id="n_cpu_moe",
        title=f"If the GPU has room, restart with --n-cpu-moe {fewer} (now {said}).",
        command=f"--n-cpu-moe {fewer}",
        reason=f"The experts of one layer are {size(each)}; those on the GPU need no RAM.{_restart_time(now)}",
        gain=f"{size(moved)} less to hold in RAM (size of the experts in the file); needs as much on the GPU",
        restart=True,
    )


def prompt_cache(now: Situation) -> Iterator[Advice]:
    """Old prompts that the server keeps in RAM (8 GiB by default)."""
    held = now.memory.target_anon_bytes
    if held is None or held < 2 * WORTH_BYTES or now.is_mapped is not True or Note.REPACK_DUPLICATE in now.notes:
        return
    said = flags.number_of(_argv(now), flags.PROMPT_CACHE)
    mib = flags.DEFAULT_PROMPT_CACHE_MIB if said is None else said
    if 0 <= mib <= SMALL_PROMPT_CACHE_MIB:
        return
    bound = held if mib < 0 else min(held, (mib - SMALL_PROMPT_CACHE_MIB) * MIB)
    shown = "no limit" if mib < 0 else f"{mib:,}, the default" if said is None else f"{mib:,}"
    yield Advice(
        id="prompt_cache",
        title=f"Restart with --cache-ram {SMALL_PROMPT_CACHE_MIB} (now {shown}).",
        command=f"--cache-ram {SMALL_PROMPT_CACHE_MIB}",
        reason=f"The server keeps old prompts in memory; it holds {size(held)} besides the model.{_restart_time(now)}",
        gain=f"at most {size(bound)} of room{of_missing(now, bound)}; going back to an old chat takes longer",
        restart=True,
    )


def context(now: Situation) -> Iterator[Advice]:
    """The memory for the conversation."""
    held, argv = now.memory.target_anon_bytes, _argv(now)
    if held is None or held < WORTH_BYTES or now.is_mapped is not True or not _kv_in_ram(now):
        return
    tokens = flags.number_of(argv, flags.CONTEXT) or now.context_tokens
    if tokens is not None and tokens <= MIN_CONTEXT:
        return
    wanted = SMALL_CONTEXT if tokens is None or tokens > 2 * SMALL_CONTEXT else max(MIN_CONTEXT, tokens // 2)
    shown = "the model's own maximum" if tokens is None else str(tokens)
    most = "a part of it" if tokens is None else f"at most {size(held * (1 - wanted / tokens))}"
    yield Advice(
        id="context",
        title=f"Restart with -c {wanted} (now {shown}).",
        command=f"-c {wanted}",
        reason=f"The memory for the conversation is set aside in full; the server holds {size(held)} besides the model.{_restart_time(now)}",
        gain=f"frees {most} (its size grows with -c; held: measured)",
        restart=True,
    )


def kv_type(now: Situation) -> Iterator[Advice]:
    """Half of the bits for the conversation."""
    held, argv = now.memory.target_anon_bytes, _argv(now)
    if held is None or held < WORTH_BYTES or now.is_mapped is not True or not _kv_in_ram(now):
        return
    kinds = [flags.value_of(argv, names) or "f16" for names in (flags.CACHE_TYPE_K, flags.CACHE_TYPE_V)]
    if (
        not any(kind in ("f16", "bf16", "f32") for kind in kinds)
        or flags.value_of(argv, flags.FLASH_ATTENTION) == "off"
    ):
        return
    yield Advice(
        id="kv_type",
        title=f"Restart with -ctk q8_0 -ctv q8_0 (now {' and '.join(dict.fromkeys(kinds))}).",
        command="-ctk q8_0 -ctv q8_0",
        reason=f"It stores the conversation in half of the space; the server holds {size(held)} besides the model.{_restart_time(now)}",
        gain=f"frees at most {size(held * 0.47)} (8.5 instead of 16 bits a value; held: measured)",
        restart=True,
    )


def smaller_quantisation(now: Situation) -> Iterator[Advice]:
    """A smaller file of the same model, where there can be one."""
    model = now.header.model
    if model is None:
        return
    room = now.working_set.fits_bytes
    # what is on the GPU needs no room here
    away = now.residency.not_needed_bytes or 0
    found = smaller(model, None if room is None else room + away)
    if found is None:
        return
    name, about = found
    fits = room is not None and about <= room + away
    yield Advice(
        id="quantisation",
        title=f"Use a {name} file of this model: about {size(about)} (now {model.quantisation}, {size(model.total_bytes)}).",
        command=None,
        reason=f"There is room for {size(room)} of the model."
        if room is not None
        else "The model is larger than its room.",
        gain=(
            "all of it would fit in memory (size by bits per weight)"
            if fits
            else f"each token needs {100 - round(100 * about / model.total_bytes)} % fewer bytes; still more than fits"
        ),
        restart=True,
    )


def threads(now: Situation) -> Iterator[Advice]:
    """More threads than cores."""
    cores, logical = now.header.host.cpus_physical, now.header.host.cpus_logical
    threads = flags.number_of(_argv(now), flags.THREADS)
    if not cores or threads is None or threads <= cores:
        return
    yield Advice(
        id="threads",
        title=f"Restart with -t {cores} (now {threads}).",
        command=f"-t {cores}",
        reason=(
            f"This machine has {cores} cores"
            + (f" that show as {logical}" if logical and logical > cores else "")
            + "; more threads than cores wait for each other."
        ),
        gain="compare tokens/s before and after (not measured here)",
        restart=True,
    )


def faster_disk(now: Situation) -> Iterator[Advice]:
    """A spinning, USB or network disk under the model."""
    slow = next((d for d in now.header.devices if d.rotational or d.transport in SLOW_DISK_TRANSPORTS), None)
    kind = (now.header.file_system or "").lower()
    if slow is None and kind not in NETWORK_FILE_SYSTEMS:
        return
    where = f"{slow.name} ({slow.transport or 'spinning disk'})" if slow else f"a network or shared folder ({kind})"
    rate = now.disk_bytes_per_s
    yield Advice(
        id="faster_disk",
        title=f"Move the model off {where} to an SSD inside the machine.",
        command=None,
        reason="What does not fit in memory is read from there, again and again.",
        gain=f"now at most {per_second(rate)} (measured); an NVMe disk reads thousands" if rate else "not measured",
        restart=True,
    )


def of_missing(now: Situation, freed: float) -> str:
    """How far so many bytes go towards what is missing; empty when that is not known."""
    short = now.working_set.short_bytes
    if not short:
        return ""
    return (
        f" of the {size(short)} or more that are missing" if freed < short else f"; {size(short)} or more are missing"
    )


def _argv(now: Situation) -> tuple[str, ...]:
    return now.header.target.argv


def _kv_in_ram(now: Situation) -> bool:
    """Whether the memory of the conversation is in RAM: not when layers are on a GPU, unless argv keeps it here."""
    argv = _argv(now)
    if flags.has(argv, flags.NO_KV_OFFLOAD) or flags.keeps_off_gpu(argv):
        return True
    layers = flags.value_of(argv, flags.GPU_LAYERS)
    return not now.residency.not_needed_bytes and layers is None


def _restart_time(now: Situation) -> str:
    wait = about_seconds(now.total_bytes, now.disk_bytes_per_s) if now.total_bytes else None
    return "" if wait is None else f" A restart reads the model anew: {wait}."
