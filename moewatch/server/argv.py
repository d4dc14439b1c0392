"""What matters out of llama-server's command line: llama.cpp `common/arg.cpp`, checked against `llama-server --help`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moewatch.domain.sample import LoadMode

ALL_LAYERS = 1 << 30  # `-ngl all`: more than any model has
DEFAULT_PORT = 8080
PATTERN_LIMIT = 512  # characters of one -ot pattern; the longest seen in use has about 200

# what --cpu-moe and --n-cpu-moe stand for (common/common.h, llm_ffn_exps_block_regex)
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_REDACTED = "***"
_SECRET = re.compile(r"key|token|secret|password", re.IGNORECASE)
_SECRET_ALIASES = frozenset({"-hft", "--mcp-servers-json"})  # a token, and JSON whose headers may hold one
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class Options(Struct, frozen=True, kw_only=True):
    """The options that change what is watched or how; None where nothing was said."""

    model: str | None = None
    model_draft: str | None = None
    mmproj: str | None = None
    hf_repo: str | None = None
    host: str | None = None
    port: int | None = None
    api_prefix: str = ""
    api_key: str | None = None
    has_ssl: bool = False
    gpu_layers: int | None = None  # None: not said, or `auto` (then --fit decides)
    devices: str | None = None  # "none" turns every GPU off
    overrides: tuple[tuple[str, str], ...] = ()  # (regular expression on tensor names, buffer type); first match wins
    n_cpu_moe: int | None = None
    is_cpu_moe: bool = False
    context: int | None = None
    parallel: int | None = None
    threads: int | None = None
    load_mode: LoadMode | None = None  # what was asked for, which is not what is in force
    may_sleep: bool = False
    has_metrics: bool = False
    has_slots: bool = True
    has_rpc: bool = False
    is_router: bool = False

    @property
    def is_gpu_disabled(self) -> bool:
        """`--device none` or `-ngl 0`."""
        return self.devices == "none" or self.gpu_layers == 0

    @property
    def names_model(self) -> bool:
        """Whether a model was given at all."""
        return self.model is not None or self.hf_repo is not None


class _Draft:
    """Options while they are being read: later ones win, overrides add up in order."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.overrides: list[tuple[str, str]] = []
        self.mmap: bool | None = None
        self.mlock = self.dio = False


_Action = Callable[[_Draft, str], None]


def _text(field: str) -> _Action:
    def store(draft: _Draft, value: str) -> None:
        draft.values[field] = value

    return store


def _count(field: str) -> _Action:
    def store(draft: _Draft, value: str) -> None:
        if (number := _integer(value)) is not None:
            draft.values[field] = number

    return store


def _store_port(draft: _Draft, value: str) -> None:
    number = _integer(value)
    if number is not None and 0 < number < 1 << 16:
        draft.values["port"] = number


def _store_gpu_layers(draft: _Draft, value: str) -> None:
    number = ALL_LAYERS if value == "all" else _integer(value)
    # negative numbers meant `all` in some builds and mean `auto` in others: unknown
    draft.values["gpu_layers"] = number if number is not None and number >= 0 else None


def _store_api_key(draft: _Draft, value: str) -> None:
    draft.values["api_key"] = value.split(",", 1)[0]  # several may be given; one is enough


def _store_overrides(draft: _Draft, value: str) -> None:
    for part in value.split(","):
        pattern, equals, buffer = part.partition("=")
        if equals and pattern and len(pattern) <= PATTERN_LIMIT:
            draft.overrides.append((pattern, buffer))


def _store_cpu_moe(draft: _Draft, _: str) -> None:
    draft.values["is_cpu_moe"] = True
    draft.overrides.append((_EXPERTS, "CPU"))


def _store_n_cpu_moe(draft: _Draft, value: str) -> None:
    number = _integer(value)
    if number is not None and number >= 0:
        draft.values["n_cpu_moe"] = number
        if number:
            # one pattern for the first N layers; llama.cpp pushes one of each (blk\.0..., blk\.1...)
            layers = "|".join(str(layer) for layer in range(min(number, 1000)))
            draft.overrides.append((rf"blk\.({layers}){_EXPERTS}", "CPU"))


def _store_load_mode(draft: _Draft, value: str) -> None:
    draft.mmap, draft.mlock, draft.dio = {
        "mmap": (True, False, False),
        "mmap+mlock": (True, True, False),
        "mlock": (False, True, False),
        "none": (False, False, False),
        "dio": (False, False, True),
    }.get(value, (None, False, False))


def _store_mlock(draft: _Draft, _: str) -> None:
    draft.mlock = True


def _store_mmap(draft: _Draft, _: str) -> None:
    draft.mmap = True


def _store_no_mmap(draft: _Draft, _: str) -> None:
    draft.mmap = False


def _store_dio(draft: _Draft, _: str) -> None:
    draft.dio = True


def _store_no_dio(draft: _Draft, _: str) -> None:
    draft.dio = False


def _store_sleep(draft: _Draft, value: str) -> None:
    number = _integer(value)
    draft.values["may_sleep"] = number is not None and number >= 0  # -1 = never


def _flag(field: str, *, to: bool = True) -> _Action:
    def store(draft: _Draft, _: str) -> None:
        draft.values[field] = to

    return store


def _present(field: str) -> _Action:
    """An option with a value of which only the presence counts."""
    return _flag(field)


# option names -> what to do with the value that follows, and the environment variable that stands for it
_WITH_VALUE: dict[str, _Action] = {
    name: action
    for names, action in (
        ("-m --model", _text("model")),
        ("-md --model-draft --spec-draft-model", _text("model_draft")),
        ("-mm --mmproj", _text("mmproj")),
        ("-hf -hfr --hf-repo", _text("hf_repo")),
        ("--host", _text("host")),
        ("--port", _store_port),
        ("--api-prefix", _text("api_prefix")),
        ("--api-key", _store_api_key),
        ("--ssl-cert-file", _present("has_ssl")),
        ("-ngl --gpu-layers --n-gpu-layers", _store_gpu_layers),
        ("-dev --device", _text("devices")),
        ("-ot --override-tensor", _store_overrides),
        ("-ncmoe --n-cpu-moe", _store_n_cpu_moe),
        ("-c --ctx-size", _count("context")),
        ("-np --parallel", _count("parallel")),
        ("-t --threads", _count("threads")),
        ("-lm --load-mode", _store_load_mode),
        ("--sleep-idle-seconds", _store_sleep),
        ("--rpc", _present("has_rpc")),
        ("--models-dir", _present("is_router")),
        ("--models-preset", _present("is_router")),
    )
    for name in names.split()
}
_FLAGS: dict[str, _Action] = {
    name: action
    for names, action in (
        ("-cmoe --cpu-moe", _store_cpu_moe),
        ("--mlock", _store_mlock),
        ("--mmap", _store_mmap),
        ("--no-mmap", _store_no_mmap),
        ("-dio --direct-io", _store_dio),
        ("-ndio --no-direct-io", _store_no_dio),
        ("--metrics", _flag("has_metrics")),
        ("--slots", _flag("has_slots")),
        ("--no-slots", _flag("has_slots", to=False)),
    )
    for name in names.split()
}
# containers are configured this way; the command line wins over it (common/arg.cpp reads it first)
_ENVIRONMENT = {
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_MMPROJ": "--mmproj",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_API_PREFIX": "--api-prefix",
    "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel",
    "LLAMA_ARG_THREADS": "--threads",
    "LLAMA_ARG_LOAD_MODE": "--load-mode",
    "LLAMA_ARG_MLOCK": "--mlock",
    "LLAMA_ARG_RPC": "--rpc",
    "LLAMA_ARG_MODELS_DIR": "--models-dir",
    "LLAMA_ARG_MODELS_PRESET": "--models-preset",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
}
_TRUE = frozenset({"1", "on", "enabled", "true"})  # common/arg.cpp, is_truthy


def parse_options(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Options:
    """Options from a command line (its first word is the program) and, where it may be read, the environment.

    Both `--x v` and `--x=v`; underscores in long names count as hyphens, as in llama.cpp. Never fails: what makes no
    sense counts as not said.
    """
    draft = _Draft()
    for words in (_words_of(environ or {}), iter(argv[1:])):
        for word in words:
            name, value = _split(word)
            if action := _WITH_VALUE.get(name):
                action(draft, next(words, "") if value is None else value)
            elif action := _FLAGS.get(name):
                action(draft, "")
    return Options(**draft.values, overrides=tuple(draft.overrides), load_mode=_asked_mode(draft))


def is_secret(name: str) -> bool:
    """Whether the value of an option or variable of this name must never be stored or shown."""
    return _SECRET.search(name) is not None or name in _SECRET_ALIASES


def redact_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """The same words with every secret replaced by `***`: values of options named key, token, secret or password.

    Also `NAME=value` words of such names, and user:password in URLs.
    """
    redacted: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not (word.startswith("--") and _is_known(word)):
            redacted.append(_REDACTED)
            hide_next = False
            continue
        name, equals, _ = word.partition("=")
        if equals and is_secret(name) and " " not in name:
            redacted.append(f"{name}={_REDACTED}")
            hide_next = False
        else:
            redacted.append(_USERINFO.sub(_REDACTED, word))
            hide_next = not equals and word.startswith("-") and is_secret(word)
    return tuple(redacted)


def _is_known(word: str) -> bool:
    name, _ = _split(word)
    return name in _WITH_VALUE or name in _FLAGS


def _words_of(environ: Mapping[str, str]) -> Iterator[str]:
    for variable, option in _ENVIRONMENT.items():
        value = environ.get(variable)
        if value is None:
            continue
        if option in _FLAGS:
            if value.lower() in _TRUE:
                yield option
        else:
            yield f"{option}={value}"


def _split(word: str) -> tuple[str, str | None]:
    """(`--name`, value or None) of one word."""
    if not word.startswith("--"):
        return word, None
    name, equals, value = word.partition("=")
    return name.replace("_", "-"), value if equals else None


def _integer(text: str) -> int | None:
    """A decimal number; None for anything else (int() alone would take underscores and other scripts' digits)."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else None


def _asked_mode(draft: _Draft) -> LoadMode | None:
    """The old switches and the new one end in the same three decisions; None for `auto` or nothing said."""
    if draft.dio:
        return LoadMode.DIO
    if draft.mlock:
        # --mlock alone no longer maps; only the mode `mmap+mlock` (or an explicit --mmap) does both
        return LoadMode.MMAP_MLOCK if draft.mmap else LoadMode.MLOCK
    if draft.mmap is None:
        return None
    return LoadMode.MMAP if draft.mmap else LoadMode.NONE
