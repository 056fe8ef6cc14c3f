"""The state directory: one supervisor a name, nothing of the last run in the way."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.errors import SettingError
from headway.fleet.errors import FleetError
from headway.fleet.operate import state_dir as homes
from headway.fleet.operate.state_dir import Home


@pytest.fixture
def home(tmp_path):
    return Home("one", {"XDG_STATE_HOME": str(tmp_path)})


def test_it_is_where_state_belongs_and_its_owners_alone(home, tmp_path):
    home.make()
    assert home.path == tmp_path / "headway" / "one"
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    home.write_router_file("key = 1")
    assert home.router_file.read_text() == "key = 1"
    assert stat.S_IMODE(home.router_file.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("given", ["", "relative/path"])
def test_without_a_usable_setting_it_is_below_the_users_home(given, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"XDG_STATE_HOME": given} if given else {}
    assert Home("a", environ).path == tmp_path / ".local" / "state" / "headway" / "a"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "é"])
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(SettingError, match="can't name a fleet; use up to 64 letters"):
        Home(name)


def test_what_an_earlier_run_left_is_gone_and_its_logs_are_not(home):
    home.make()
    (home.scratch / "engine-x").mkdir()
    home.socket.touch()
    home.log("all-0").write_text("words")
    home.make()
    assert list(home.scratch.iterdir()) == []
    assert not home.socket.exists()
    assert home.log("all-0").read_text() == "words"


def test_a_second_supervisor_is_refused_and_told_by_whom(home, monkeypatch):
    monkeypatch.setattr(homes, "_LEAVING_S", 0.1)
    with (
        home.locked(print),
        pytest.raises(FleetError, match=rf"one runs already \(process {os.getpid()}\)"),
        home.locked(print),
    ):
        pass
    with home.locked(print):
        pass


@pytest.mark.process
def test_what_is_left_of_a_killed_one_is_waited_for(home):
    """A guard keeps the lock's file open, and its supervisor is gone."""
    home.path.mkdir(parents=True)
    fd = os.open(home.path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    os.write(fd, str(ended.pid).encode())
    said = []

    def say(line):
        said.append(line)
        os.close(fd)  # the guard ends

    with home.locked(say):
        assert said == ["waiting for the last run of the fleet one to end"]


def test_what_never_ends_is_named(home, monkeypatch):
    monkeypatch.setattr(homes, "_ENDING_S", 0.2)
    home.path.mkdir(parents=True)
    with (home.path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(FleetError, match=r"still runs; see who has .*lock open"),
            home.locked(print),
        ):
            pass


@pytest.mark.parametrize("used", [Home.make, lambda home: home.locked(print).__enter__()])
def test_a_directory_that_cannot_be_is_one_line_with_what_to_set(used, tmp_path):
    (tmp_path / "file").touch()
    home = Home("one", {"XDG_STATE_HOME": str(tmp_path / "file")})
    with pytest.raises(FleetError, match="can't be used: Not a directory; set XDG_STATE_HOME"):
        used(home)


@pytest.mark.parametrize("step", ["touch", "write_text", "replace"])
def test_a_file_that_can_not_be_written_is_as_it_was(tmp_path, monkeypatch, step):
    """On a full disk, wherever it shows."""
    home = Home("f", {"XDG_STATE_HOME": str(tmp_path)})
    home.make()
    home.write_router_file("before")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, full)
        with pytest.raises(FleetError, match="can't be used: No space left on device"):
            home.write_router_file("after")
    assert home.router_file.read_text() == "before"
    assert sorted(each.name for each in home.path.iterdir()) == ["logs", "router.toml", "scratch"]
    home.write_router_file("after")
    assert home.router_file.read_text() == "after"
