"""Headers of models that are not downloaded: Range requests only, few of them, all shards at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from moewatch.clock import Clock
from moewatch.errors import ParseError, UnusableFileError
from moewatch.modelfile.fetcher import PATIENCE_NS, Fetcher, file_name_of, shown_name, with_file_name
from moewatch.modelfile.header import read_header
from moewatch.modelfile.shards import MAX_SHARDS, SHARD_NAME, Shard, check_shards, sibling_names
from moewatch.units import MIB

MAX_FETCH_BYTES = 16 * MIB  # of one shard; the largest header known (gemma's 262k tokens with merges) is 15 MiB
# Sizes of a shard's requests, one after the other. A vocabulary of 150k takes 6 to 9.5 MB: two or three requests. Shards
# after the first have a header of 20 to 100 KB: one.
FIRST_SHARD_BYTES = (MIB, 7 * MIB, 3 * MIB, 5 * MIB)
OTHER_SHARD_BYTES = (256 << 10, MIB, 6 * MIB)
MAX_LISTED_SHARDS = 512  # to be asked for across a network; the most in the wild are about 200
THREADS = 6  # shards at a time; each holds one chunk of at most 7 MiB

Progress = Callable[[int, int], None]  # shards done, shards


class RemoteSource:
    """A ByteSource over Range requests: few, in growing sizes, MAX_FETCH_BYTES at most."""

    def __init__(self, fetcher: Fetcher, url: str, clock: Clock) -> None:
        self.name = shown_name(url)
        self.url = url
        self._fetcher = fetcher
        self._deadline_ns = clock.mono_ns() + PATIENCE_NS
        said = SHARD_NAME.fullmatch(file_name_of(url))
        is_later = said is not None and int(said[2]) > 1
        self._sizes = iter(OTHER_SHARD_BYTES if is_later else FIRST_SHARD_BYTES)
        self._fetched_bytes = 0
        first = fetcher.part(url, 0, next(self._sizes), self._deadline_ns)
        self._chunk, self._chunk_at = first.content, 0
        self._answered_by = first.url
        self.size_bytes = first.size_bytes
        self.chunk_bytes = len(first.content)
        self._fetched_bytes = len(first.content)

    def read(self, offset: int, length: int) -> bytes:
        """The bytes asked for; out of the last chunk when it has them."""
        within = offset - self._chunk_at
        if not 0 <= within <= within + length <= len(self._chunk):
            self._fetch(offset, length)
            within = 0
        # the walk asks for `chunk_bytes` at a time: what comes next may be more
        self.chunk_bytes = min(next(self._sizes, MIB), max(1, MAX_FETCH_BYTES - self._fetched_bytes))
        return self._chunk[within : within + length]

    def _fetch(self, offset: int, length: int) -> None:
        if self._fetched_bytes + length > MAX_FETCH_BYTES:
            raise ParseError(
                f"{self.name} has a header of more than {MAX_FETCH_BYTES // MIB} MiB, which is not fetched; download the file."
            )
        self._chunk = b""  # before the next one comes: memory holds one
        part = self._fetcher.part(self._answered_by, offset, length, self._deadline_ns)
        if part.size_bytes != self.size_bytes:
            raise UnusableFileError(f"{self.name} changed while it was read; try again.")
        self._chunk, self._chunk_at = part.content, offset
        self._fetched_bytes += len(part.content)


def read_remote_shard(fetcher: Fetcher, url: str, clock: Clock) -> Shard:
    """The header of one file on a web server; raises MoewatchError with one sentence."""
    source = RemoteSource(fetcher, url, clock)
    shard = Shard(name=source.name, path=url, size_bytes=source.size_bytes, mtime_ns=0, header=read_header(source))
    if shard.count > MAX_SHARDS or shard.number >= shard.count:
        raise ParseError(f"{shard.name} claims to be shard {shard.number + 1} of {shard.count}, so it is damaged.")
    return shard


def read_remote_shards(
    fetcher: Fetcher, url: str, clock: Clock, progress: Progress = lambda _done, _all: None
) -> tuple[Shard, ...]:
    """All shards of the model that `url` is one of, complete and in order; several are asked for at a time."""
    given = read_remote_shard(fetcher, url, clock)
    progress(1, given.count)
    if given.count == 1:
        check_shards((given,))
        return (given,)
    name = file_name_of(url)
    if not SHARD_NAME.fullmatch(name):
        raise UnusableFileError(
            f"{given.name} is shard {given.number + 1} of {given.count}, but its name does not say so, so the others cannot be found."
        )
    if given.count > MAX_LISTED_SHARDS:
        raise ParseError(f"{given.name} claims to be one of {given.count} shards, so it is damaged.")
    urls = [with_file_name(url, sibling) for sibling in sibling_names(name, given.count)]
    found: dict[int, Shard] = {given.number: given}
    wanted = [number for number in range(given.count) if number != given.number]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="header")
    try:
        for number, shard in zip(
            wanted, pool.map(lambda n: read_remote_shard(fetcher, urls[n], clock), wanted), strict=True
        ):
            found[number] = shard
            progress(len(found), given.count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    shards = tuple(found[number] for number in range(given.count))
    check_shards(shards)
    return shards
