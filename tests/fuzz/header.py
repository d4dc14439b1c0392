"""Coverage-guided fuzzing of the GGUF header walk (atheris is no dependency: `pip install atheris` in a venv of its own).

Run: python -m tests.fuzz.header CORPUS_DIRECTORY -max_total_time=600. Seeds are written into an empty corpus first. Any input
gives a layout or an UnusableFileError, quickly; everything else is a finding.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["moewatch.modelfile", "moewatch.domain"]):
    from moewatch.errors import UnusableFileError
    from moewatch.modelfile.layout import read_layout

SEEDS = {
    "empty": b"",
    "magic": b"GGUF",
    "no-tensors": b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") * 2,
    "one-key": b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    + (20).to_bytes(8, "little") + b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama",
}  # fmt: skip
_FILE = Path(tempfile.mkdtemp()) / "model.gguf"


def one_input(content: bytes) -> None:
    """Read it as a model."""
    _FILE.write_bytes(content)
    try:
        read_layout(_FILE)
    except UnusableFileError as error:
        if "\n" in str(error):
            raise RuntimeError("more than one sentence") from error


def main() -> None:
    """Seed, then fuzz until the time is over."""
    for argument in sys.argv[1:]:
        if not argument.startswith("-"):
            directory = Path(argument)
            directory.mkdir(parents=True, exist_ok=True)
            for name, seed in SEEDS.items():
                (directory / name).write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
