"""A Ray cluster whose nodes are all on this machine, each with a loopback address of its own."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headway.engine import processes

from .running import WAIT_S, eventually, lives

ASIDE = Path(__file__).resolve().parents[2] / ".venv" / "ray"
"""Where `make test` puts Ray: beside vLLM, each engine of every other test would import it."""
HEAD = "127.0.0.2"
OTHER = "127.0.0.3"
WITH_GPU = "127.0.0.4"
_SETTINGS = (
    # A node's death is noticed in seconds.
    '{"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, '
    '"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}'
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


def installed():
    return ASIDE.is_dir() or importlib.util.find_spec("ray") is not None


@contextlib.contextmanager
def at_hand():
    """Processes started in the block find Ray."""
    with pytest.MonkeyPatch.context() as patch:
        if ASIDE.is_dir():
            patch.setenv("PYTHONPATH", str(ASIDE), prepend=os.pathsep)
        yield


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

    def __init__(self, port, cpus):
        # Sockets are there, whose paths must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.address = f"{HEAD}:{port}"
        self._nodes = {}
        self._cpus = cpus
        self._start(
            HEAD,
            f"--num-cpus={cpus}",
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            "--no-monitor",
            f"--temp-dir={self._folder}",
            f"--system-config={_SETTINGS}",
        )

    def _start(self, host, *args):
        self._nodes[host] = Node(host, self._folder, *args)

    def add(self, host, cpus, gpus=0):
        """A node, once those that are there are up; a node gives up soon without a head.

        gpus: that it tells of; nobody looks for them.
        """
        self.until_up()
        self._cpus += cpus
        devices = (f"--num-cpus={cpus}", f"--num-gpus={gpus}")
        self._start(host, *devices, f"--address={self.address}")

    def until_up(self):
        """All its nodes know one another."""
        wants = (self.address, str(len(self._nodes)), str(self._cpus))
        wait = (sys.executable, "-c", _UNTIL_UP, *wants)
        subprocess.run(wait, check=True, timeout=4 * WAIT_S)

    def kill(self, host, also=()):
        self._nodes.pop(host).end(also)

    def end(self):
        for host in reversed(list(self._nodes)):
            self.kill(host)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
