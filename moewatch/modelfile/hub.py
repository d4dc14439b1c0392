"""The model hub: `hf:owner/repo[:quantisation]`, its list of files, and the addresses of their downloads.

API: GET /api/models/OWNER/REPO/tree/main?recursive=true gives [{"type", "path", "size"}], further pages by `Link: rel=next`;
a file is at /OWNER/REPO/resolve/main/PATH. HF_ENDPOINT names another host, HF_TOKEN a token (docs of huggingface_hub).
"""

import re
from typing import Any
from urllib.parse import quote, unquote, urljoin

import msgspec
from msgspec import Struct

from moewatch.errors import ParseError, UsageError
from moewatch.modelfile.choices import Choice, group_models
from moewatch.modelfile.fetcher import Fetcher, path_of
from moewatch.modelfile.source import printable
from moewatch.units import MIB

DEFAULT_ENDPOINT = "https://huggingface.co"
SHORT_PREFIX = "hf:"
LIST_LIMIT_BYTES = 8 * MIB  # a page of 1,000 files with their details is 0.4 MB
MAX_PAGES = 10
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_SHORT = re.compile(rf"({_PART})/({_PART})(?::([A-Za-z0-9._-]{{1,40}}))?")


class Repository(Struct, frozen=True, kw_only=True):
    """Where on the hub, and which quantisation was asked for ("": none)."""

    endpoint: str
    owner: str
    name: str
    quantisation: str = ""

    @property
    def label(self) -> str:
        """`owner/name`."""
        return f"{self.owner}/{self.name}"

    def download_url(self, path: str) -> str:
        """The address of a file's download."""
        return f"{self.endpoint}/{self.owner}/{self.name}/resolve/main/{quote(path)}"


def parse_short(text: str, endpoint: str) -> Repository:
    """`hf:owner/repo[:quantisation]`; UsageError says how it is written."""
    found = _SHORT.fullmatch(text.removeprefix(SHORT_PREFIX))
    if found is None:
        raise UsageError(f"{printable(text)} is no repository; write hf:owner/repo or hf:owner/repo:Q4_K_M.")
    return Repository(endpoint=endpoint.rstrip("/"), owner=found[1], name=found[2], quantisation=found[3] or "")


def repository_of(url: str, endpoint: str) -> Repository | None:
    """The repository that a file's address on the hub belongs to; None for any other address."""
    base = endpoint.rstrip("/") + "/"
    parts = path_of(url).removeprefix(base).split("/")
    if not url.startswith(base) or len(parts) < 5 or parts[2] not in ("resolve", "blob"):  # noqa: PLR2004 - owner, repo, kind, revision, path
        return None
    return Repository(endpoint=endpoint.rstrip("/"), owner=unquote(parts[0]), name=unquote(parts[1]))


def download_url(url: str, endpoint: str) -> str:
    """The download's address for the address of the page about a file, which is what people copy."""
    base = endpoint.rstrip("/") + "/"
    if repository_of(url, endpoint) is None:
        return url
    owner, name, _, rest = url.removeprefix(base).split("/", 3)
    return f"{base}{owner}/{name}/resolve/{rest}"


def list_models(fetcher: Fetcher, repository: Repository) -> list[Choice]:
    """The models in a repository; raises MoewatchError with one sentence."""
    url = f"{repository.endpoint}/api/models/{repository.owner}/{repository.name}/tree/main?recursive=true"
    sizes: dict[str, int | None] = {}
    for _ in range(MAX_PAGES):
        content, following = fetcher.text(url, LIST_LIMIT_BYTES)
        try:
            entries: Any = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):  # a list that nests without end
            raise ParseError(f"The list of {repository.label} is no JSON; check the name and HF_ENDPOINT.") from None
        sizes.update(_sizes_in(entries, repository))
        url = urljoin(url, following) if following else ""
        if not url.startswith(repository.endpoint + "/"):
            break
    return group_models(sizes)


def _sizes_in(entries: Any, repository: Repository) -> dict[str, int | None]:
    if not isinstance(entries, list):
        raise ParseError(f"The list of {repository.label} is not as expected; check the name and HF_ENDPOINT.")
    found: dict[str, int | None] = {}
    for entry in entries:
        path = entry.get("path") if isinstance(entry, dict) else None
        if isinstance(path, str) and entry.get("type") == "file":
            size = entry.get("size")
            found[path] = size if isinstance(size, int) and size >= 0 else None
    return found
