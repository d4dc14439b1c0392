"""What coverage-guided fuzzing (tests/fuzz/header.py, 1.4 million runs without a finding) kept as interesting."""

import zipfile
from pathlib import Path

import pytest

from moewatch.domain.layout import ModelLayout
from moewatch.errors import UnusableFileError
from moewatch.modelfile.layout import read_layout

CORPUS = Path(__file__).parents[2] / "fixtures" / "gguf_fuzz.zip"


def test_each_gives_a_layout_or_one_sentence(tmp_path: Path) -> None:
    path, refused = tmp_path / "model.gguf", 0
    with zipfile.ZipFile(CORPUS) as corpus:
        names = corpus.namelist()
        for name in names:
            path.write_bytes(corpus.read(name))
            try:
                assert isinstance(read_layout(path), ModelLayout)
            except UnusableFileError as error:
                refused += 1
                if "\n" in str(error):
                    pytest.fail(f"{name}: more than one sentence: {error}")
    assert len(names) > 50
    assert refused > 50
