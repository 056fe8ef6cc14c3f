"""`headway up` and what is asked of the fleet, with a real supervisor, a real router and engines
that only talk."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.testing.ports import held_port

from headway import processes
from headway.fleet.errors import FleetError
from headway.fleet.operate import commands, status
from headway.fleet.operate.control_socket import ask

pytest.importorskip("uvloop")

WAIT_S = 60.0
RUN = Path(__file__).with_name("run_up.py")
FILE = """\
[fleet]
name = "{}"
[router]
port = 0
admin_port = {}
[router.health]
interval_s = 0.2
passes = 1
[[pool]]
name = "all"
replicas = 1
devices = [0, 1]
"""


class Up:
    """A `headway up` in a process of its own."""

    def __init__(self, folder, script="good", name="default"):
        self.folder = folder
        self.admin = held_port()
        (folder / "x.toml").write_text(FILE.format(name, self.admin.number))
        self.heard = folder / "err.txt"
        with self.heard.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, RUN, folder / "x.toml", script], stderr=err, env=dict(os.environ)
            )

    def until_ready(self):
        """Its engine has loaded, which was seen, and it serves; all it has said."""
        self.until("all-0: loading")
        (self.folder / "loaded").touch()
        loaded = self.folder / "engines" / "all-0.json"
        new = loaded.with_suffix(".new")
        new.write_text(json.dumps(json.loads(loaded.read_text()) | {"loads": False}))
        new.replace(loaded)
        return self.until("ready: m on ")

    def until(self, sign):
        """Wait until it says so; all it has said."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            said = self.heard.read_text()
            if re.search(sign, said):
                return said
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {sign!r} in:\n{self.heard.read_text()}")

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        finally:
            self.admin.release()
            left = processes.descendants(self.process.pid)
            self.process.kill()
            self.process.wait()
            assert not left


@pytest.fixture(autouse=True)
def _state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def post(endpoint, path, body):
    address = urlsplit(endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.process
def test_a_fleet_is_started_seen_changed_and_stopped(tmp_path, capsys):
    """In one go: a start takes seconds."""
    told = []
    fleet = Up(tmp_path)
    try:
        said = fleet.until_ready()
        assert "x.toml: unified; 1 engine in all (both)" in said
        endpoint = re.search(r"ready: m on (\S+); try", said)[1]
        for what in ("/v1/chat/completions", "status --watch", "logs all-0 -f"):
            assert what in said

        assert post(endpoint, "/v1/completions", {"model": "m", "prompt": "hi"})[0] == 200

        second = tmp_path / "second"
        second.mkdir()
        beside = Up(second, name="two")
        assert beside.process.wait(WAIT_S) == 1
        beside.admin.release()
        assert "0 is used by the fleet default" in beside.heard.read_text()
        with pytest.raises(FleetError, match="no fleet two runs here; what runs: default"):
            commands.status("two", watch=False, json=False)

        assert commands.status("default", watch=False, json=False) == 0
        shown = capsys.readouterr().out
        assert "fleet default: 1 of 1 engines ready" in shown
        assert re.search(r"all +all-0 +both +ready \d+ s +0 +.* 0 +eager", shown)
        assert "isn't compiled" in shown
        assert commands.status("default", watch=False, json=True) == 0
        read = json.loads(capsys.readouterr().out)
        assert read["fleet"]["engines"][0]["name"] == "all-0"
        assert read["router"]["pools"][0]["engines"][0]["ready"]

        assert commands.drain("default", "all-0", told.append, draining=True) == 0
        assert post(endpoint, "/v1/completions", {"model": "m", "prompt": "hi"})[0] == 503
        assert commands.status("default", watch=False, json=False) == 0
        assert "all-0: drained; headway undrain all-0" in capsys.readouterr().out
        assert commands.drain("default", "all-0", told.append, draining=False) == 0

        assert commands.restart("default", "all", told.append) == 0
        assert told[-1] == "restarted all-0"
        assert commands.logs("default", "all-0", 1, follow=False) == 0
        assert capsys.readouterr().out == "INFO:     Application startup complete.\n"

        assert commands.down("default", told.append, force=False) == 0
        assert told[-1] == "stopped"
        assert fleet.process.wait(WAIT_S) == 0
    finally:
        fleet.end()


@pytest.mark.process
def test_a_fleet_whose_engines_fail_says_why_and_ends(tmp_path):
    fleet = Up(tmp_path, "fails")
    try:
        said = fleet.until("every engine has failed")
        assert "the model leaves no memory for the KV cache" in said
        assert "Traceback" not in said
        assert fleet.process.wait(WAIT_S) == 1
    finally:
        fleet.end()


@pytest.mark.process
def test_goodput_of_the_last_minute_is_there_for_whoever_asks_once(tmp_path):
    fleet = Up(tmp_path)
    try:
        said = fleet.until_ready()
        endpoint = re.search(r"ready: m on (\S+); try", said)[1]
        end_s = time.monotonic() + WAIT_S
        seen = commands._asked("default")
        while time.monotonic() < end_s and not seen.goodput:
            post(endpoint, "/v1/completions", {"model": "m", "prompt": "hi"})
            time.sleep(0.5)
            seen = commands._asked("default")
        assert seen.goodput[""].sent > 0
        assert "goodput" in status.text(seen)
        assert ask("default", {"do": "status"}, WAIT_S)["serving"]
    finally:
        fleet.end()
