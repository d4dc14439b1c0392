"""The home directory of whoever runs this."""

import pwd
from pathlib import Path

import pytest

from moewatch.home import home_directory


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setenv("HOME", "/home/someone")
    assert home_directory() == Path("/home/someone")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert home_directory() == Path("/")
