"""What every command ends with, as `headway --help` and docs/scripts.md say."""

import asyncio
import re
import sys
import threading
from pathlib import Path

import pytest

from headway import cli
from headway.core.errors import EXIT_STATUSES, SettingError
from headway.fleet.errors import FleetError, NotFoundError
from headway.fleet.operate import control_socket
from headway.fleet.operate.state_dir import Home

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scripts.md"
WAIT_S = 60.0
REFUSALS = {
    "unknown": NotFoundError("no engine or pool 'unknown'; there are: a"),
    "busy": FleetError("a restart of a is under way; wait until it has ended"),
}


async def handle(request):
    """A supervisor of the engine and pool `a`, whose file is wrong."""
    if request["do"] == "reload":
        raise SettingError("router.prot", "unknown; did you mean port?")
    name = request.get("engine") or request.get("pool")
    if name in REFUSALS:
        raise REFUSALS[name]
    return {"added": [], "leaving": [], "restarted": [name]}


@pytest.fixture
def _running():
    """The supervisor's socket is served, and there is a log of the router."""
    home = Home("default")
    home.make()
    (home.path / "lock").touch()
    home.log("router").write_text("ready\n")
    ready, loop = threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve():
        async with control_socket.served(home.socket, handle):
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(WAIT_S)
    yield
    loop.call_soon_threadsafe(end.set)
    thread.join(WAIT_S)
    loop.close()


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    """A folder with a file that is wrong, and no fleet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(cli, "say", lambda text: sys.stderr.write(f"headway: {text}\n"))
    (tmp_path / "wrong.toml").write_text("[router]\nprot = 1\n")
    (tmp_path / "fine.toml").write_text(
        '[router]\nport = 0\nadmin_port = 0\n[[pool]]\nname = "a"\nengines = ["http://h:1"]\n'
    )


def ended(line):
    try:
        return cli.main(line.split())
    except SystemExit as end:
        return end.code


WITHOUT_A_FLEET = {
    "--help": 0,
    "status --help": 0,
    "--version": 0,
    "": 2,
    "nonsense": 2,
    "status --nonsense": 2,
    "status --name a/b": 2,
    "status": 3,
    "down": 3,
    "drain a": 3,
    "undrain a": 3,
    "scale a=1": 3,
    "scale a": 2,
    "restart a": 3,
    "reload": 3,
    "logs router": 4,
    "logs router -n x": 2,
    "route --check --config fine.toml": 0,
    "route --check --config wrong.toml": 2,
    "route --check --config none.toml": 2,
    "route --check": 2,
    "up wrong.toml --dry-run": 2,
    "up none.toml": 2,
    "up --dry-run fine.toml": 0,
    "render kubernetes fine.toml": 0,
    "render kubernetes wrong.toml": 2,
    "render kubernetes none.toml": 2,
    "doctor none.toml": 2,
    "init --strategy x": 2,
    "init --model ./none": 2,
    "init wrong.toml": 1,
    "init none/headway.toml": 1,
    "init": 0,
    "serve --policy x": 2,
    "completion bash": 0,
    "completion cmd": 2,
}
WITH_A_FLEET = {
    "drain a": 0,
    "undrain a": 0,
    "scale a=1": 0,
    "restart a": 0,
    "logs router": 0,
    "down": 0,
    "drain unknown": 4,
    "undrain unknown": 4,
    "scale unknown=1": 4,
    "restart unknown": 4,
    "logs unknown": 4,
    "scale busy=1": 1,
    "restart busy": 1,
    "reload": 2,
    "status --name other": 3,
}


@pytest.mark.process
@pytest.mark.parametrize(("line", "status"), WITHOUT_A_FLEET.items())
def test_without_a_fleet(line, status):
    assert ended(line) == status


@pytest.mark.usefixtures("_running")
@pytest.mark.parametrize(("line", "status"), WITH_A_FLEET.items())
def test_with_a_fleet(line, status):
    assert ended(line) == status


@pytest.mark.parametrize(("worst", "status"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_the_doctor_fails_where_it_finds_an_error(monkeypatch, worst, status):
    from headway.core.reports import Finding
    from headway.fleet.doctor import doctor

    monkeypatch.setattr(doctor, "findings", lambda _path, _name: [[Finding(worst, "x", "y")]])
    assert ended("doctor") == status
    assert ended("doctor --json") == status


def test_whoever_interrupts_gets_130(monkeypatch):
    from headway.fleet.operate import commands

    def interrupted(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "status", interrupted)
    assert ended("status") == 130


def test_help_and_page_tell_them_all(capsys):
    assert ended("--help") == 0
    told = re.findall(
        r"^  (\d+) +(.+)$", capsys.readouterr().out.partition("exit status:")[2], re.MULTILINE
    )
    assert dict(told) == {str(status): meaning for status, meaning in EXIT_STATUSES.items()}
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == dict(told)
