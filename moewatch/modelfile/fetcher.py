"""Asks web servers for parts of files (HTTP Range) and for small texts, and trusts none of them.

RFC 9110 section 14 (ranges) and 15.4 (redirects). The other side is not trusted: replies are cut at what was asked for,
compressed replies are refused, redirects are counted, and everything has an end in time. The access token of the hub goes
to the hub's own origin (scheme, host and port) and nowhere else, whoever redirects to whom.
"""

import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import quote, unquote

from moewatch.clock import Clock
from moewatch.errors import ForbiddenError, MoewatchError, ParseError, UnusableFileError, UsageError
from moewatch.modelfile.header import MAX_FILE_BYTES
from moewatch.modelfile.source import printable
from moewatch.units import MS, S, format_size

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 8  # browsers allow 20; download hosts use 1 or 2
ATTEMPTS = 3
PAUSE_NS = 300 * MS  # before the second attempt, doubled before the third
CONNECT_S, SILENCE_S = 10.0, 20.0
PATIENCE_NS = 120 * S  # for all requests of one shard: 16 MiB at 1 Mbit/s
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_LIST = re.compile(r"/api/models/([^/]+/[^/]+)/tree/")


class _RetryableError(Exception):
    """Worth another attempt; `words` say what happened."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


class Part(NamedTuple):
    """What one request brought: bytes, the file's size, and the URL that really answered."""

    content: bytes
    size_bytes: int
    url: str


class Fetcher:
    """Asks web servers for ranges of files and for small texts; one for all threads."""

    def __init__(self, clock: Clock, *, token: str | None = None, token_origin: str = "") -> None:
        """`token` is sent to `token_origin` (the hub's address) alone; "" for no host at all."""
        import httpx  # noqa: PLC0415 - 70 ms and 20 MiB, only where a network is asked

        token = token.strip() if token else None  # a file's line feed comes along with $(cat FILE) of some shells
        if token and not (token.isascii() and token.isprintable()):
            raise UsageError("HF_TOKEN has characters that no token has; set it anew, or unset it.")
        self._httpx = httpx
        self._clock = clock
        self._token = token
        self._token_origin = _origin(httpx.URL(token_origin)) if token and token_origin else None
        self._clients: dict[str, httpx.Client] = {}
        self._lock = threading.Lock()
        self.fetched_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, scheme: str) -> "httpx.Client":
        """One for each scheme: reading the machine's certificates takes 60 ms, which plain http has no use for."""
        with self._lock:
            if scheme not in self._clients:
                self._clients[scheme] = self._new_client(scheme)
            return self._clients[scheme]

    def _new_client(self, scheme: str) -> "httpx.Client":
        """What it takes from the environment may be of no use (a proxy of another kind, certificates that are not there)."""
        # without certificates nothing can be verified: an https request through this one fails, it is never let pass
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            return self._httpx.Client(
                verify=True if scheme == "https" else bare,
                timeout=self._httpx.Timeout(SILENCE_S, connect=CONNECT_S),
                follow_redirects=False,  # followed by hand: each hop decides anew who may see the token
                headers={"User-Agent": "moewatch", "Accept-Encoding": "identity"},
            )
        except OSError:  # ssl.SSLError as well
            raise UsageError(
                "The certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read; correct or unset it."
            ) from None
        except (ImportError, ValueError, self._httpx.InvalidURL):
            raise UsageError(
                "The proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) is no http:// or https:// address; "
                "correct or unset it."
            ) from None

    def part(self, url: str, offset: int, length: int, deadline_ns: int) -> Part:
        """Up to `length` bytes of a file from `offset`; raises MoewatchError with one sentence."""
        got, size, at = b"", None, url
        for attempt in range(ATTEMPTS):
            try:
                more = self._part_once(at, offset + len(got), length - len(got), deadline_ns)
                if size is not None and more.size_bytes != size:
                    raise UnusableFileError(f"{shown_name(url)} changed while it was read; try again.")
                got, size, at = got + more.content, more.size_bytes, more.url
                if len(got) >= min(length, size - offset):
                    return Part(got, size, at)
                words = "the reply was cut off"
            except _RetryableError as error:
                words, at = error.words, url
            if attempt + 1 < ATTEMPTS:
                self._pause(attempt, deadline_ns, url)
        raise UnusableFileError(f"{shown_name(url)} cannot be read: {words}, {ATTEMPTS} times; try again later.")

    def text(self, url: str, limit_bytes: int) -> tuple[bytes, str]:
        """A small text, whole, and its `Link: rel=next` (or ""); raises MoewatchError with one sentence."""
        deadline_ns = self._clock.mono_ns() + PATIENCE_NS
        for attempt in range(ATTEMPTS):
            try:
                with self._answer(url, {}, deadline_ns) as reply:
                    if reply.status_code != 200:  # noqa: PLR2004 - OK
                        raise self._refusal(reply, url)
                    content = self._body(reply, limit_bytes + 1, deadline_ns, url)
                    if len(content) > limit_bytes:
                        raise ParseError(
                            f"{shown_name(url)} is longer than {format_size(limit_bytes)}, so it is no list."
                        )
                    return content, str(reply.links.get("next", {}).get("url", ""))
            except _RetryableError as error:
                words = error.words
            if attempt + 1 < ATTEMPTS:
                self._pause(attempt, deadline_ns, url)
        raise UnusableFileError(f"{shown_name(url)} cannot be read: {words}, {ATTEMPTS} times; try again later.")

    def _pause(self, attempt: int, deadline_ns: int, url: str) -> None:
        wake_ns = self._clock.mono_ns() + (PAUSE_NS << attempt)
        if wake_ns > deadline_ns:
            raise self._too_slow(url)
        self._clock.sleep_until(wake_ns)

    def _part_once(self, url: str, offset: int, length: int, deadline_ns: int) -> Part:
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
        with self._answer(url, wanted, deadline_ns) as reply:
            if reply.status_code != 206:  # noqa: PLR2004 - Partial Content
                raise self._refusal(reply, url)
            if reply.headers.get("content-encoding", "identity").lower() != "identity":
                raise UnusableFileError(
                    f"The server of {shown_name(url)} compresses parts of files; download the file."
                )
            said = _RANGE.fullmatch(reply.headers.get("content-range", "").strip())
            if said is None:
                raise UnusableFileError(
                    f"The server of {shown_name(url)} does not say which part it sends, so it cannot be trusted; download the file."
                )
            first, last, size = (int(number) for number in said.groups())
            if size > MAX_FILE_BYTES:
                raise ParseError(
                    f"The server of {shown_name(url)} says that it has more than 1 PiB; check the address."
                )
            if first != offset or not first <= last < size or last >= offset + length:
                raise UnusableFileError(
                    f"The server of {shown_name(url)} sends another part than the one asked for; download the file."
                )
            content = self._body(reply, last - first + 1, deadline_ns, url)
            return Part(content, size, str(reply.url))

    def _answer(self, url: str, headers: Mapping[str, str], deadline_ns: int) -> "_Reply":
        """The reply at the end of all redirects."""
        at = self._url(url)
        for _ in range(MAX_REDIRECTS + 1):
            client = self._client(at.scheme)
            request = client.build_request("GET", at, headers=dict(headers))
            if self._token is not None and _origin(at) == self._token_origin:
                request.headers["Authorization"] = f"Bearer {self._token}"
            if self._clock.mono_ns() > deadline_ns:
                raise self._too_slow(url)
            try:
                reply = client.send(request, stream=True)
            except self._httpx.HTTPError as error:
                raise _RetryableError(_transport_words(error)) from None
            except (self._httpx.InvalidURL, ValueError):
                # a host that has no name (UnicodeError), or a reply that sends us to such an address, which httpx looks at
                raise UnusableFileError(f"{shown_name(url)} leads to no web address; check the address.") from None
            if reply.status_code not in _REDIRECTS:
                if reply.status_code in _RETRIED:
                    reply.close()
                    raise _RetryableError(f"the server answers {reply.status_code}")
                return _Reply(reply)
            location = reply.headers.get("location", "")
            reply.close()
            at = self._follow(at, location, url)
        raise UnusableFileError(f"{shown_name(url)} is redirected more than {MAX_REDIRECTS} times; check the address.")

    def _follow(self, at: "httpx.URL", location: str, url: str) -> "httpx.URL":
        try:
            found = at.join(location)
        except (self._httpx.InvalidURL, ValueError):
            found = self._httpx.URL("")
        if found.scheme not in ("http", "https") or not found.host:
            raise UnusableFileError(f"{shown_name(url)} is redirected to no web address; check the address.")
        if at.scheme == "https" and found.scheme == "http":
            raise UnusableFileError(f"{shown_name(url)} is redirected from https to http, which is not followed.")
        return found

    def _url(self, url: str) -> "httpx.URL":
        try:
            found = self._httpx.URL(url)
        except (self._httpx.InvalidURL, ValueError):
            found = self._httpx.URL("")
        if found.scheme not in ("http", "https") or not found.host:
            raise UnusableFileError(f"{printable(url)} is no web address; write http:// or https://.")
        return found

    def _body(self, reply: "httpx.Response", limit_bytes: int, deadline_ns: int, url: str) -> bytes:
        """What of the body came, at most `limit_bytes`; a connection that ends early leaves less."""
        parts: list[bytes] = []
        size = 0
        try:
            for part in reply.iter_raw():
                parts.append(part)
                size += len(part)
                if size >= limit_bytes:
                    break
                if self._clock.mono_ns() > deadline_ns:
                    raise self._too_slow(url)
        except self._httpx.HTTPError as error:
            if not size:
                raise _RetryableError(_transport_words(error)) from None
        self.fetched_bytes += size
        return b"".join(parts)[:limit_bytes]

    def _refusal(self, reply: "httpx.Response", url: str) -> MoewatchError:
        """The sentence for a reply that is no part of a file."""
        name, status = shown_name(url), reply.status_code
        if status in (401, 403):
            return ForbiddenError(
                f"The server does not give {name} to you ({status}): accept the model's terms there and set HF_TOKEN, or check the address."
            )
        if status in (404, 410):
            return UnusableFileError(f"The server has no {name} ({status}); check the address.")
        if status == 416:  # noqa: PLR2004 - Range Not Satisfiable
            return UnusableFileError(f"{name} is empty or shorter than its header; check the address.")
        if status != 200:  # noqa: PLR2004 - OK
            return UnusableFileError(f"The server answers {status} for {name}; check the address, or try again later.")
        start = next(iter(self._sniff(reply)), b"").lstrip().lower()
        is_page = reply.headers.get("content-type", "").lower().startswith("text/html")
        if is_page or start.startswith((b"<!doctype", b"<html", b"<?xml")):
            return UnusableFileError(
                f"{name} is a web page and no model; copy the address of the download, which ends in .gguf."
            )
        return UnusableFileError(
            f"The server of {name} sends files only whole (no ranges), so its header cannot be read alone; download the file."
        )

    def _sniff(self, reply: "httpx.Response") -> Iterator[bytes]:
        """As it comes: waiting for a certain length would be endless where it drips."""
        try:
            yield from reply.iter_raw()
        except self._httpx.HTTPError:
            return

    def _too_slow(self, url: str) -> UnusableFileError:
        return UnusableFileError(
            f"{shown_name(url)} took more than {PATIENCE_NS // S} s for its header; try again, or download the file."
        )


class _Reply:
    """A streamed reply, closed when the `with` block ends: what was not read is not fetched."""

    def __init__(self, reply: "httpx.Response") -> None:
        self._reply = reply

    def __enter__(self) -> "httpx.Response":
        return self._reply

    def __exit__(self, *_: object) -> None:
        self._reply.close()


def _origin(url: "httpx.URL") -> tuple[str, str, int | None]:
    ports = {"http": 80, "https": 443}
    return url.scheme, url.host, url.port or ports.get(url.scheme)


def _transport_words(error: Exception) -> str:
    kind = type(error).__name__
    if "Timeout" in kind:
        return "the server did not answer in time"
    if "Connect" in kind:
        return "no connection to the server"
    return "the connection broke"


def shown_name(url: str) -> str:
    """The file's name, or the repository's whose files are listed, for sentences; the query may hold a signature."""
    if listed := _LIST.search(path_of(url)):
        return printable(unquote(listed[1]))
    return printable(unquote(path_of(url).rpartition("/")[2])) or printable(path_of(url))


def file_name_of(url: str) -> str:
    """The name of the file that an address points at."""
    return unquote(path_of(url).rpartition("/")[2])


def path_of(url: str) -> str:
    """The address without query and fragment."""
    return url.partition("#")[0].partition("?")[0]


def with_file_name(url: str, name: str) -> str:
    """The same address with another file name; the query stays."""
    path = path_of(url)
    return path.rpartition("/")[0] + "/" + quote(name) + url[len(path) :]
