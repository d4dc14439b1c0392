"""The signs a screen is drawn with, and the plain set for terminals and fonts without block elements."""

from collections.abc import Mapping
from dataclasses import dataclass

from moewatch.domain.frame import State
from moewatch.domain.labels import ASCII_SYMBOL, SYMBOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """One sign a meaning: what is told apart by colour is told apart by its sign as well."""

    edge: str
    pointer: str
    dash: str
    dot: str  # between parts of a line
    ellipsis: str
    paused: str
    server: str
    model: str
    cache: str
    program: str
    rest: str
    free: str
    dense: str
    experts: str
    table: str
    disk: str
    gpu: str
    again: str
    first: str
    others: str
    trickle: str  # first-time reads of less than half a cell
    resident: str
    trace: str  # a figure drawn as points
    limit: str
    first_answer: str
    ramp: str  # nine levels, empty to full
    states: Mapping[State, str]
    ended: str

    @property
    def is_plain(self) -> bool:
        """No block elements."""
        return self.ramp[-1] == "#"

    def plain(self, text: str) -> str:
        """A sentence in signs this set has."""
        return text.translate(_PLAIN) if self.is_plain else text


# fmt: off
_PLAIN = str.maketrans({
    "–": "-", "—": "-", "…": "~", "·": "|", "▸": ">", "×": "x", "│": "|", "←": "<", "→": ">", "↑": "^", "↓": "v",  # noqa: RUF001 - the design's own signs
    "▌": "|", "▮": "!", "▲": "!", "●": "*", "○": "o", "↗": "/", "↘": "\\", "✕": "x",
})
# fmt: on

BLOCKS = Glyphs(
    edge="▌", pointer="▸", dash="–", dot="·", ellipsis="…", paused="▮▮",  # noqa: RUF001 - the dash of the design
    server="█", model="▓", cache="░", program="▒", rest="=", free=" ",
    dense="█", experts="▓", table="▒", disk="·", gpu="◇",
    again="█", first="░", others="▒", trickle=".", resident="█", trace="•", limit="─", first_answer="▾",
    ramp=" ▁▂▃▄▅▆▇█",
    states=SYMBOL,
    ended="✕",
)  # fmt: skip

ASCII = Glyphs(
    edge="|", pointer=">", dash="-", dot="|", ellipsis="~", paused="!!",
    server="#", model="M", cache=":", program="+", rest="=", free=" ",
    dense="#", experts="M", table="t", disk=".", gpu="G",
    again="#", first=":", others="+", trickle=".", resident="#", trace="o", limit="-", first_answer="v",
    ramp=" ._-=+*##",
    states=ASCII_SYMBOL,
    ended="x",
)  # fmt: skip


def needs_ascii(environ: Mapping[str, str]) -> bool:
    """Whether this terminal cannot be trusted with block elements: no UTF-8 locale (setlocale(3)), or a console font of 512 signs."""
    term = environ.get("TERM", "")
    if term in ("linux", "dumb") or term.startswith("vt"):
        return True
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    return "utf-8" not in locale.lower() and "utf8" not in locale.lower()
