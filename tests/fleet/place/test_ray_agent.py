"""The agent runs an engine for whoever holds its pipes, and nothing outlives them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fleet.running import eventually, lives

from headway import processes
from headway.fleet.place.ray_actor import Actor

pytestmark = pytest.mark.process

TALKS = "import sys, time; print('hello', flush=True); time.sleep(600)"


def start(code, **more):
    command = ["/another/python", "-c", code]
    return {"do": "start", "argv": command, "env": {}, "drain_s": 1.0} | more


@pytest.fixture
def agent(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.fleet.place.ray_agent", "127.0.0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with process.stdin, process.stdout:
        yield process


def ask(agent, request):
    agent.stdin.write(json.dumps(request) + "\n")
    agent.stdin.flush()


def hear(agent, name):
    """What it tells under that name, whatever else it tells before."""
    while name not in (event := json.loads(agent.stdout.readline())):
        pass
    return event[name]


def test_it_leaves_its_parent_and_holds_two_ports(agent):
    first = json.loads(agent.stdout.readline())
    assert agent.wait(30) == 0
    assert first["port"] != first["side_port"]
    agent.stdin.close()
    assert agent.stdout.read() == ""
    eventually(lambda: not Path(first["log"]).parent.exists())


def test_an_engine_runs_writes_its_log_and_stops(agent):
    log = hear(agent, "log")
    ask(agent, start(TALKS))
    guard = hear(agent, "started")
    eventually(lambda: Path(log).read_text() == "hello\n")
    ask(agent, {"do": "stop", "force": False})
    assert hear(agent, "exited") == 128 + signal.SIGTERM
    assert not lives(guard)
    ask(agent, start("raise SystemExit(3)"))
    assert hear(agent, "exited") == 3


def test_the_environment_comes_on_top_and_threads_are_not_rays(agent):
    log = hear(agent, "log")
    code = (
        "import os as o; print(*map(o.environ.get, ('A', 'OMP_NUM_THREADS')), 'PATH' in o.environ)"
    )
    ask(agent, start(code, env={"A": "1"}))
    assert hear(agent, "exited") == 0
    assert Path(log).read_text() == "1 None True\n"


def test_what_cannot_start_is_told_and_the_next_may(agent):
    log = Path(hear(agent, "log"))
    log.mkdir()
    (log / "x").touch()
    log.with_name("log.1").mkdir()
    (log.with_name("log.1") / "x").touch()
    ask(agent, start(TALKS))
    assert "not empty" in hear(agent, "failed").lower()
    (log / "x").unlink()
    log.rmdir()
    ask(agent, start("raise SystemExit(4)"))
    assert hear(agent, "exited") == 4


@pytest.mark.parametrize("how", ["closed", "told", "killed"])
def test_nothing_outlives_it(agent, how):
    ask(agent, start(TALKS))
    guard = hear(agent, "started")
    own = processes.parent_of(guard)
    parts = eventually(lambda: processes.descendants(guard))
    if how == "closed":
        agent.stdin.close()
    else:
        os.kill(own, signal.SIGTERM if how == "told" else signal.SIGKILL)
    eventually(lambda: not any(lives(pid) for pid in (own, guard, *parts)))


def test_an_actor_brings_news_with_all_that_was_written():
    actor = Actor(lambda: "127.0.0.1")
    host, port, side_port = actor.address()
    assert (host, port != side_port) == ("127.0.0.1", True)
    actor.do(start("print('x' * 3_000_000); raise SystemExit(3)"))
    said, event = b"", {}
    until = time.monotonic() + 60
    while "exited" not in event and time.monotonic() < until:
        event, more = actor.news()
        said += more
    assert event == {"exited": 3}
    assert said == b"x" * 3_000_000 + b"\n"
