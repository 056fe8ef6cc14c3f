"""The launcher and its guard with stand-ins for vLLM: whoever dies, nobody is left."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.testing.ports import held_port

from headway import processes

pytestmark = pytest.mark.process

WAIT_S = 60.0

LAUNCH = """
import sys
from headway.engine.start import launch
from headway.engine.start.command import EngineCommand
url, *argv = sys.argv[1:]
engine = EngineCommand(argv=tuple(argv), env=dict(__import__("os").environ), url=url or None,
                       served_name="x", settings=None, drain_s=1.0)
launch._FORCE_GRACE_S = 1.0
launch._HEALTH_EVERY_S = 0.0
ready = lambda: print("ready", flush=True)
sys.exit(launch.run(engine, ready, lambda line: print(line, flush=True)))
"""

# A server with an engine core, which has a worker, each in a session of its own as the worst case;
# each writes its pid. {ends} is what the server does.
SERVER = """
import os, subprocess, sys, time, signal
role, home = sys.argv[1], sys.argv[2]
open(f"{{home}}/{{role}}", "w").write(str(os.getpid()))
below = {{"server": "core", "core": "worker"}}.get(role)
if below:
    command = [sys.executable, *sys.orig_argv[1:-2], below, home]
    subprocess.Popen(command, start_new_session=True)
    while not os.path.exists(f"{{home}}/worker"): time.sleep(0.02)
if role == "server":
    {ends}
time.sleep(600)
"""
STAYS = "pass"
GUARD = (sys.executable, "-m", "headway.engine.start.guard")

# As above with two workers. As in vLLM, whoever misses the first process below it ends: the other
# worker is left to others. The server answers 503 once the first worker has ended; where {hangs},
# nobody else notices.
WORKERS = """
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from headway import processes
role, home = sys.argv[1], sys.argv[2]
command = [sys.executable, *sys.orig_argv[1:-2]]
started = [subprocess.Popen([*command, below, home], start_new_session=True)
           for below in {{"server": ["core"], "core": ["worker", "worker2"]}}.get(role, [])]
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        healthy = processes.parent_of(int(open(f"{{home}}/worker").read())) is not None
        self.send_response(200 if healthy else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
if role == "server":
    while not all(os.path.exists(f"{{home}}/{{name}}") for name in ("worker", "worker2")):
        time.sleep(0.02)
    server = HTTPServer(("127.0.0.1", {port}), Health)
    Thread(target=server.serve_forever, daemon=True).start()
with open(f"{{home}}/{{role}}.new", "w") as out:
    out.write(str(os.getpid()))
os.rename(f"{{home}}/{{role}}.new", f"{{home}}/{{role}}")
if started and not {hangs}:
    started[0].wait()
    os._exit(1)
time.sleep(600)
"""

ROLES = {
    SERVER: ("server", "core", "worker"),
    WORKERS: ("server", "core", "worker", "worker2"),
}


class Tree:
    """A launcher with its guard, and a server, a core and workers below."""

    def __init__(self, home, script, url="", roles=("server", "core", "worker")):
        self.home = home
        stand_in = [sys.executable, "-c", script, "server", str(home)]
        self.launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, url, *stand_in],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(home)},
        )
        self.pids = {"launcher": self.launcher.pid}
        for role in roles:
            self.pids[role] = self._pid(role)
        self.pids["guard"] = processes.parent_of(self.pids["server"])

    def _pid(self, role):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            path = self.home / role
            if path.exists() and path.read_text():
                return int(path.read_text())
            time.sleep(0.02)
        pytest.fail(f"{role} never started")

    def until_ready(self):
        """Wait until the launcher says that the server answers."""
        for line in self.launcher.stdout:
            if line == "ready\n":
                return
        pytest.fail("never ready")

    def end(self):
        """Wait for the launcher: its status and what it said."""
        output, _ = self.launcher.communicate(timeout=WAIT_S)
        return self.launcher.returncode, output

    def left(self):
        deadline = time.monotonic() + WAIT_S
        while True:
            alive = {role for role, pid in self.pids.items() if lives(pid)}
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.05)


def lives(pid):
    return processes.parent_of(pid) is not None


@pytest.fixture
def tree(tmp_path):
    made = []

    def make(ends=STAYS, script=SERVER, url="", **more):
        made.append(Tree(tmp_path, script.format(ends=ends, **more), url, ROLES[script]))
        return made[-1]

    yield make
    for one in made:
        processes.tell([pid for pid in one.pids.values() if lives(pid)], signal.SIGKILL)
        one.launcher.communicate()


@pytest.mark.parametrize("victim", ["launcher", "guard", "server"])
def test_killing_any_process_above_the_core_ends_all(tree, victim, tmp_path):
    running = tree()
    os.kill(running.pids[victim], signal.SIGKILL)
    status, said = running.end()
    assert running.left() == set()
    assert not list(tmp_path.glob("headway-engine-*"))
    if victim == "launcher":
        assert status == -signal.SIGKILL
    else:
        assert status > 0
        assert "ended before it was ready" in said


@pytest.mark.parametrize("hangs", [False, True])
def test_killing_a_worker_ends_all_with_the_other_workers(tree, hangs, tmp_path):
    """The core and the server end one after the other, or live on and the server answers 503."""
    with held_port() as port:
        url = f"http://127.0.0.1:{port.number}"
        running = tree(script=WORKERS, port=port.number, hangs=hangs, url=url)
        running.until_ready()
        os.kill(running.pids["worker"], signal.SIGKILL)
        status, said = running.end()
    assert running.left() == set()
    assert status > 0
    assert "the engine ended by itself" in said
    if hangs:
        assert "the engine core has died" in said
    assert not list(tmp_path.glob("headway-engine-*"))


def test_killing_the_launcher_and_the_guard_at_once_ends_the_server(tree):
    """The last line of defence: the kernel tells the server, which stops its own processes."""
    running = tree(ends="signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, 9))")
    os.kill(running.pids["launcher"], signal.SIGSTOP)
    os.kill(running.pids["guard"], signal.SIGKILL)
    os.kill(running.pids["launcher"], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while lives(running.pids["server"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(running.pids["server"])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_that_is_asked_for_ends_all_with_status_0(tree, signum):
    running = tree()
    running.launcher.send_signal(signum)
    status, said = running.end()
    assert running.left() == set()
    assert status == 0
    assert said.endswith("stopped\n")


def test_a_server_that_ignores_the_stop_is_ended_by_force(tree):
    running = tree(ends="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    running.launcher.terminate()
    status, _ = running.end()
    assert running.left() == set()
    assert status == 0


def test_a_second_signal_ends_a_stubborn_server_at_once(tree):
    running = tree(ends="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    running.launcher.terminate()
    time.sleep(0.5)
    running.launcher.terminate()
    running.end()
    assert running.left() == set()


def test_a_server_that_ends_by_itself_takes_its_orphans_along_and_counts_as_a_failure(tree):
    running = tree(ends="time.sleep(0.5); sys.exit(0)")
    status, said = running.end()
    assert running.left() == set()
    assert status == 1
    assert "exit status 0" in said


def test_the_servers_exit_status_is_the_launchers(tree):
    running = tree(ends="time.sleep(0.5); sys.exit(7)")
    status, said = running.end()
    assert (status, running.left()) == (7, set())
    assert "exit status 7" in said


SOCKETS = "VLLM_RPC_BASE_PATH"


def sockets_of(scratch, *flags, **env):
    """Where an engine with these flags is told to have its sockets."""
    scratch.mkdir()
    told, alive = os.pipe()
    tell = f"import os; print(os.environ.get('{SOCKETS}'))"
    said = subprocess.run(
        [*GUARD, str(told), "1.0", str(scratch), sys.executable, "-c", tell, *flags],
        pass_fds=[told],
        env={**{key: os.environ[key] for key in os.environ.keys() - {SOCKETS}}, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    ).stdout.strip()
    for fd in (told, alive):
        os.close(fd)
    assert not scratch.exists()
    return None if said == "None" else Path(said)


@pytest.fixture
def short():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory() as home:
        yield Path(home)


def test_an_engines_sockets_go_with_its_scratch_folder(short):
    assert sockets_of(short / "x", "--model", "ray-7b") == short / "x"


def test_sockets_are_where_vllm_has_them_if_their_paths_would_be_too_long(short):
    assert sockets_of(short / ("x" * 70)) is None


def test_sockets_are_where_the_user_wants_them(short):
    assert sockets_of(short / "x", **{SOCKETS: "/elsewhere"}) == Path("/elsewhere")


@pytest.mark.parametrize(
    "flags",
    [
        ("--distributed-executor-backend", "ray"),
        ("--data-parallel-backend=ray",),
        ("--config", "engine.yaml"),
        ("--config=engine.yaml",),
    ],
)
def test_an_engine_that_ray_may_spread_is_told_of_no_directory_of_this_machine(short, flags):
    assert sockets_of(short / "x", *flags) is None
