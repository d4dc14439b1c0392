"""Finding llama-server and its kin, and the model each one really has open (/proc/PID/maps; argv only as a fallback)."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from moewatch.domain.sample import GapReason, LoadMode
from moewatch.errors import ForbiddenError, TargetEndedError, TargetError
from moewatch.linux.maps import Mapping, read_maps
from moewatch.linux.pid import Stat, parse_status, read_argv, read_exe, read_stat, read_uid, user_name
from moewatch.linux.root import KernelRoot, ReadingError
from moewatch.server.argv import DEFAULT_PORT, Options, parse_options
from moewatch.server.loadmode import judge_load_mode
from moewatch.server.modelpaths import Model, choose_model, find_models, inode_of, model_from_argv

# names of programs that serve GGUF files; llama-swap starts llama-server children, ollama starts itself as `runner`
_SERVERS = re.compile(
    r"llama-(?:server|cli|swap|box)|llama_cpp|koboldcpp|ollama|llamafile|lmstudio|local-ai", re.IGNORECASE
)
# for programs of any other name that map a GGUF (a script with llama-cpp-python): models are larger than this, and
# reading the maps of one process costs 0.25 ms
SEARCH_RSS_BYTES = 64 << 20
SEARCH_LIMIT = 400  # processes whose maps are read in that search: 0.1 s
ENVIRON_LIMIT_BYTES = 1 << 20
UNKNOWN_WORDS = "Its model is not known yet: nothing is mapped, and -m names no file that can be opened here"
T = TypeVar("T")
_OWN_COMMANDS = frozenset({"pin", "warm", "hotset"})  # of moewatch itself: they map or read the same file


class ServerProcess(Struct, frozen=True, kw_only=True):
    """A process that serves a GGUF model, and what could be learnt of it.

    `model_paths` can be opened by this process (through /proc/PID when the file is deleted or in a container);
    empty when none can, and `detail` says why. `argv` holds secrets: show it only through `redact_argv`.
    """

    pid: int
    start_ticks: int
    exe: str
    argv: tuple[str, ...] = ()
    uid: int | None = None
    parent: int = 0
    rss_bytes: int = 0
    model_paths: tuple[Path, ...] = ()
    model_remark: str = ""  # what is odd about its file: deleted, replaced
    model_name: str = ""  # base name of the first shard, as the server knows it
    mapped_bytes: int | None = None  # of the model; None when maps cannot be read
    load_mode: LoadMode = LoadMode.UNKNOWN
    host: str | None = None
    port: int = DEFAULT_PORT
    may_sleep: bool = False
    is_hidden: bool = False  # another user's: much of it cannot be read
    options: Options = Options()
    software_gpu: str | None = None  # GGML_VK_VISIBLE_DEVICES of its environment
    detail: str = ""


def find_servers(root: KernelRoot, pids: Sequence[int] | None = None) -> list[ServerProcess]:
    """Those of `pids` (or of all processes) that serve a model: the ones that map a GGUF first, the largest first.

    In router mode the parent maps nothing and each child has one model. With no pids given, or an empty list (an empty
    `$(pgrep llama-server)`), looks for servers; an empty result means that there is none yet. Raises TargetError or
    ForbiddenError only when pids were given and none of them is of use.
    """
    if not pids:
        return _in_order(_inspect_all(root, _search_by_name(root))) or _in_order(_inspect_all(root, _search_all(root)))
    unique = list(dict.fromkeys(pids))
    found: list[ServerProcess] = []
    errors: list[TargetError | ForbiddenError] = []
    for pid in unique:
        try:
            found.append(inspect_pid(root, pid))
        except (TargetError, ForbiddenError) as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return _in_order(found)


def inspect_pid(root: KernelRoot, pid: int) -> ServerProcess:
    """One process as a server.

    Raises:
        TargetError: there is no such process, or it serves no GGUF; the sentence says what it is.
        ForbiddenError: it is another user's and not even its command line names a model. As long as something can be
            read the answer is a ServerProcess with `is_hidden` and a `detail` instead.
    """
    try:
        stat = read_stat(root, pid)
    except TargetEndedError:
        if root.is_system and _exists(pid):
            raise ForbiddenError(
                f"/proc hides process {pid} from this user (hidepid); run: sudo moewatch --pid {pid}"
            ) from None
        raise TargetError(
            f"No process {pid}. It has ended or never was; list servers with: pgrep -a llama-server"
        ) from None
    except ReadingError as error:
        raise TargetError(f"Process {pid} cannot be looked at: {error.detail}") from None
    try:
        return _inspect(root, pid, stat)
    except TargetEndedError:
        raise TargetError(f"Process {pid} ended while it was looked at") from None


def _exists(pid: int) -> bool:
    """Whether there is such a process though /proc shows none (proc(5), hidepid=2)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False  # one of ours: it ended between the two looks, or is a thread


def _inspect(root: KernelRoot, pid: int, stat: Stat) -> ServerProcess:
    exe = read_exe(root, pid)
    argv: tuple[str, ...] = _or_default(lambda: read_argv(root, pid), ())
    uid = _or_default(lambda: read_uid(root, pid), None)
    environ = _read_environ(root, pid)
    options = parse_options(argv, environ)
    hidden: ReadingError | None = None
    maps: list[Mapping] | None = None
    try:
        maps = read_maps(root, pid)
    except ReadingError as error:
        hidden = error if error.reason is GapReason.DENIED else None
        if error.reason in (GapReason.ABSENT, GapReason.VANISHED):
            raise TargetEndedError(f"Process {pid} has ended") from None
    models = find_models(root, pid, maps or [], options)
    model = choose_model(models, options) or model_from_argv(root, pid, options)
    _refuse_stranger(root, stat, (exe, argv, uid), options, model=model, hidden=hidden)
    remarks = [model.remark if model else UNKNOWN_WORDS]
    if hidden:
        remarks.append(_hidden_words(pid, uid))
    if others := [other for other in models if other is not model]:
        names = ", ".join(f"{other.name} ({other.role(options)})" for other in others)
        remarks.append(f"It also maps {names}")
    mapped_bytes = None if maps is None else (model.mapped_bytes if model else 0)
    status: dict[bytes, int] = _or_default(lambda: root.parse(f"/proc/{pid}/status", parse_status), {})
    return ServerProcess(
        pid=pid,
        start_ticks=stat.start_ticks,
        exe=exe,
        argv=argv,
        uid=uid,
        parent=stat.parent,
        rss_bytes=stat.rss_pages * root.page_bytes,
        model_paths=model.paths if model else (),
        model_remark=model.remark if model else "",
        model_name=model.name if model else "",
        mapped_bytes=mapped_bytes,
        load_mode=judge_load_mode(
            mapped_bytes=mapped_bytes,
            locked_bytes=status.get(b"VmLck", 0),
            anon_bytes=status.get(b"RssAnon", 0),
            model_bytes=model.size_bytes() if model else None,
            options=options,
        ),
        host=options.host,
        port=DEFAULT_PORT if options.port is None else options.port,
        may_sleep=options.may_sleep,
        is_hidden=hidden is not None,
        options=options,
        software_gpu=environ.get("GGML_VK_VISIBLE_DEVICES"),
        detail=". ".join(remark for remark in remarks if remark),
    )


def read_mapped_ranges(root: KernelRoot, pid: int, paths: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """Per index into `paths` (the layout's, as opened here) the file offsets [start, end) that the process maps.

    ReadingError when maps cannot be read.
    """
    index: dict[int | str, int] = {}
    for position, path in enumerate(paths):
        index[path.rpartition("/")[2]] = position
        if (inode := inode_of(path)) is not None:
            index[inode] = position
    ranges: dict[int, list[tuple[int, int]]] = {position: [] for position in range(len(paths))}
    for mapping in read_maps(root, pid):
        # by inode, since a link or a digest may stand in maps; by name where a file system shows another inode there
        position = index.get(mapping.inode, index.get(mapping.path.rpartition("/")[2], -1))
        if position >= 0 and mapping.path.startswith("/"):
            ranges[position].append((mapping.offset, mapping.offset + mapping.length))
    return ranges


def _refuse_stranger(
    root: KernelRoot,
    stat: Stat,
    program: tuple[str, Sequence[str], int | None],  # exe, argv, uid
    options: Options,
    *,
    model: Model | None,
    hidden: ReadingError | None,
) -> None:
    """Raise for what cannot be watched as a server at all."""
    exe, argv, uid = program
    is_server = _is_server(exe, stat.comm, argv)
    if model and (model.mapped_bytes or is_server or hidden):
        return
    if is_server and options.names_model:
        return  # loading, or a file that cannot be found from here
    if hidden:
        raise ForbiddenError(f"{_hidden_words(stat.pid, uid)}. Its command line ({exe}) names no model either")
    if is_server and not argv:
        raise TargetError(f"PID {stat.pid} is {exe} and only just being started; ask again in a moment")
    if is_server:
        children = [pid for pid in root.pids() if _parent_of(root, pid) == stat.pid]
        which = f": --pid {' '.join(map(str, children))}" if children else ", and it has none yet: load one first"
        raise TargetError(f"PID {stat.pid} is {exe} without a model of its own; watch the child that has one{which}")
    raise TargetError(
        f"PID {stat.pid} is {exe} and maps no GGUF; give the pid of the llama-server (pgrep -a llama-server), "
        "or no --pid to have it found"
    )


def _hidden_words(pid: int, uid: int | None) -> str:
    owner = "another user" if uid is None else user_name(uid)
    if os.geteuid() in (0, uid):
        return f"PID {pid} is closed even to {owner if uid else 'root'} here: disk reads and memory shares are hidden. Run moewatch outside of this container"
    remedy = f"sudo -u {_quoted(owner)} moewatch" if uid else "sudo moewatch"
    return f"PID {pid} belongs to {owner}: disk reads and memory shares are hidden. For all of it: {remedy} --pid {pid}"


def _quoted(user: str) -> str:
    return f"'{user}'" if user.startswith("#") else user


def _is_server(exe: str, comm: str, argv: Sequence[str]) -> bool:
    program = argv[0].rpartition("/")[2] if argv else ""
    return any(_SERVERS.search(name) for name in (exe, comm, program))


def _search_by_name(root: KernelRoot) -> list[int]:
    """Processes called like a server, or with a .gguf among their words."""
    found = []
    for pid in root.pids():
        try:
            stat = read_stat(root, pid)
            argv = read_argv(root, pid)
        except (ReadingError, TargetEndedError):
            continue
        # a shell or an editor may have a .gguf among its words too: inspect_pid wants it mapped then
        if not _is_own(argv) and (_is_server("", stat.comm, argv) or any(word.endswith(".gguf") for word in argv)):
            found.append(pid)
    return found


def _search_all(root: KernelRoot) -> list[int]:
    """Processes of any name that are large enough to have a model mapped, the largest first."""
    sizes: list[tuple[int, int]] = []
    for pid in root.pids():
        try:
            stat = read_stat(root, pid)
            if stat.rss_pages * root.page_bytes >= SEARCH_RSS_BYTES and not _is_own(read_argv(root, pid)):
                sizes.append((stat.rss_pages, pid))
        except (ReadingError, TargetEndedError):
            continue
    return [pid for _, pid in sorted(sizes, reverse=True)[:SEARCH_LIMIT] if pid != os.getpid()]


def _is_own(argv: Sequence[str]) -> bool:
    """Moewatch itself, where it holds or reads the model: its mapping is not the server's."""
    return any("moewatch" in word for word in argv[:4]) and not _OWN_COMMANDS.isdisjoint(argv[:5])


def _inspect_all(root: KernelRoot, pids: Iterable[int]) -> list[ServerProcess]:
    found = []
    for pid in pids:
        if pid == os.getpid():
            continue
        try:
            found.append(inspect_pid(root, pid))
        except (TargetError, ForbiddenError):
            continue
    return found


def _in_order(servers: list[ServerProcess]) -> list[ServerProcess]:
    """Servers by name before scripts, those that map a model before those that only name one, the largest first.

    Where a server maps its model, those that map nothing are left out.
    """

    def is_named(server: ServerProcess) -> bool:
        return _is_server(server.exe, "", server.argv)

    in_order = sorted(
        servers,
        key=lambda server: (
            not is_named(server),
            not server.mapped_bytes,
            not server.model_name,
            -server.rss_bytes,
            server.pid,
        ),
    )
    if in_order and in_order[0].mapped_bytes:
        return [server for server in in_order if server.mapped_bytes]
    return in_order


def _parent_of(root: KernelRoot, pid: int) -> int | None:
    try:
        return read_stat(root, pid).parent
    except (ReadingError, TargetEndedError):
        return None


def _read_environ(root: KernelRoot, pid: int) -> dict[str, str]:
    """LLAMA_ARG_* and the like, which set a container's server up; nothing else of it is kept. Same user only."""
    try:
        content = root.read(f"/proc/{pid}/environ", ENVIRON_LIMIT_BYTES)
    except ReadingError:
        return {}
    pairs = (part.partition(b"=") for part in content.split(b"\0"))
    return {
        os.fsdecode(name): os.fsdecode(value)
        for name, _, value in pairs
        if name.startswith((b"LLAMA_", b"GGML_VK_VISIBLE_DEVICES"))
    }


def _or_default(read: Callable[[], T], default: T) -> T:
    try:
        return read()
    except ReadingError:
        return default
