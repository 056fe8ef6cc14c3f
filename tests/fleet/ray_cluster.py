"""A Ray cluster whose nodes are all on this machine, each with a loopback address of its own."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
from tests.testing.ports import held_port

from headway import processes

from .running import WAIT_S, eventually, lives

ASIDE = Path(__file__).resolve().parents[2] / ".venv" / "ray"
"""Where `make test` puts Ray: beside vLLM, each engine of every other test would import it."""
HEAD = "127.0.0.2"
OTHER = "127.0.0.3"
WITH_GPU = "127.0.0.4"
_SETTINGS = (
    # A node's death is noticed in seconds, as nobody listens there any more; a slow one isn't dead.
    '{"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, '
    '"health_check_timeout_ms": 30000, "health_check_failure_threshold": 3}'
)
_OBJECT_STORE_BYTES = 80_000_000
_UNTIL_UP = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
while sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[2]):
    time.sleep(0.1)
while ray.available_resources().get("CPU", 0) < int(sys.argv[3]):
    time.sleep(0.1)
time.sleep(1.0)  # whoever places learns of them last
"""
_HOLD = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
@ray.remote(num_cpus=1, resources={f"node:{sys.argv[2]}": 0.01})
class Holder:
    def holds(self):
        return True
holder = Holder.remote()
ray.get(holder.holds.remote())
print("held", flush=True)
sys.stdin.read()
"""


def installed():
    return ASIDE.is_dir() or importlib.util.find_spec("ray") is not None


@contextlib.contextmanager
def at_hand():
    """Processes started in the block find Ray."""
    with pytest.MonkeyPatch.context() as patch:
        if ASIDE.is_dir():
            patch.setenv("PYTHONPATH", str(ASIDE), prepend=os.pathsep)
        yield


@contextlib.contextmanager
def two_nodes():
    """A cluster of a head with two cores and another node with one."""
    with at_hand():
        made = Cluster(cpus=2)
        try:
            made.add(OTHER, cpus=1)
            made.until_up()
            yield made
        finally:
            made.end()


class Node:
    """One raylet, with what it needs and starts. `end` as if the machine lost its power."""

    def __init__(self, host, folder, *args):
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                *(f"--node-ip-address={host}", "--disable-usage-stats"),
                "--include-log-monitor=false",
                f"--object-store-memory={_OBJECT_STORE_BYTES}",
                *args,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )

    def parts(self):
        return {self.process.pid, *processes.descendants(self.process.pid)}

    def end(self, also=()):
        pids = self.parts() | set(also)
        # Nothing is to notice that something else has ended.
        processes.tell(pids, signal.SIGSTOP)
        processes.tell(pids, signal.SIGKILL)
        self.process.wait()
        eventually(lambda: not any(lives(pid) for pid in pids), "the node's end")


class Cluster:
    """A head and whatever nodes are added. address: of the cluster."""

    def __init__(self, cpus):
        # Sockets are there, whose paths must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self._port = held_port(HEAD)
        self.address = f"{HEAD}:{self._port.number}"
        self._nodes = {}
        self._cpus = {}
        self._start(
            HEAD,
            cpus,
            "--head",
            f"--port={self._port.number}",
            "--include-dashboard=false",
            "--no-monitor",
            f"--temp-dir={self._folder}",
            f"--system-config={_SETTINGS}",
        )

    def _start(self, host, cpus, *args):
        self._cpus[host] = cpus
        self._nodes[host] = Node(host, self._folder, f"--num-cpus={cpus}", *args)

    def add(self, host, cpus, gpus=0):
        """A node, once those that are there are up; a node gives up soon without a head.

        gpus: that it tells of; nobody looks for them.
        """
        self.until_up()
        self._start(host, cpus, f"--num-gpus={gpus}", f"--address={self.address}")

    def until_up(self):
        """All its nodes know one another, and it has forgotten those that have ended.

        Until it has, whoever joins may be sent to one of those and fail.
        """
        wants = (self.address, str(len(self._nodes)), str(sum(self._cpus.values())))
        wait = (sys.executable, "-c", _UNTIL_UP, *wants)
        tried = partial(subprocess.run, wait, check=False, timeout=4 * WAIT_S)
        eventually(lambda: tried().returncode == 0, "the cluster")

    @contextlib.contextmanager
    def one_core_less(self, host):
        """Nobody else gets one of that node's cores, until the block ends or calls what it gets."""
        holder = subprocess.Popen(
            (sys.executable, "-c", _HOLD, self.address, host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with holder:
            try:
                assert holder.stdout.readline() == "held\n"
                yield holder.stdin.close
                holder.stdin.close()
                holder.wait(WAIT_S)
            finally:
                holder.kill()

    def kill(self, host, also=()):
        del self._cpus[host]
        self._nodes.pop(host).end(also)

    def end(self):
        for host in reversed(list(self._nodes)):
            self.kill(host)
        self._port.release()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
