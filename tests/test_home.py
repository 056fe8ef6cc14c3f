"""A user without a name and without HOME, as some containers have it."""

import os

import pytest

from headway import cli
from headway.core.errors import HeadwayError
from headway.home import expanded, home


@pytest.fixture
def nameless(monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)


def test_it_is_said_what_to_set(nameless):
    with pytest.raises(HeadwayError, match="user 54321 has no home directory; set HOME"):
        home()


@pytest.mark.parametrize("path", ["~/models/a", "~nobody-of-that-name/a"])
def test_a_path_of_a_user_without_one_is_to_be_written_in_full(nameless, path):
    with pytest.raises(HeadwayError, match=f"{path}: .*write the path in full"):
        expanded(path)


@pytest.mark.parametrize("line", ["status", "down", "logs a-0", "drain a-0", "scale a=1"])
def test_a_command_says_so_in_one_line(nameless, capfd, line):
    assert cli.main(line.split()) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "set HOME" in said


@pytest.mark.parametrize("path", ["~/a", "~nobody-of-that-name/a"])
def test_a_model_that_isnt_there_is_named_with_its_cure(nameless, capfd, path):
    assert cli.main(["init", "--model", path]) == 2
    assert "write the path in full" in capfd.readouterr().err
