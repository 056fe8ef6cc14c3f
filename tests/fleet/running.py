"""A supervisor process as tests see it, with what its fake engines have written down."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.testing.ports import held_port

from headway import processes
from headway.fleet.errors import FleetError
from headway.fleet.operate.control_socket import ask

WAIT_S = 60.0
SCRIPT = Path(__file__).with_name("fleet_process.py")


def eventually(condition, what="", wait_s=WAIT_S, again_s=0.05):
    """The condition's value, once it is true."""
    deadline = time.monotonic() + wait_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {wait_s} s: {what or condition}"
        time.sleep(again_s)


def lives(pid):
    return processes.parent_of(pid) is not None


class Fleet:
    """`home` is for one fleet. pools: as fleet_process has them; more: the rest of its spec.

    said: its lines. `clean` at the end.
    """

    def __init__(self, home, pools=None, **more):
        self.home = home
        self.spec = {"pools": pools or {"all": ["both", 1]}, **more}
        self.spec.setdefault("router", {})
        self._port = held_port()
        given = {"port": self._port.number, "admin_port": 0}
        self.spec["router"] = given | self.spec["router"]
        self.process = None
        self.said = []
        self._reader = None

    def behave(self, engine, **how):
        """How it behaves from now on, as engine_process has it."""
        new = self.home / f"{engine}.new"
        new.write_text(json.dumps(how))
        new.replace(self.home / f"{engine}.json")

    def describe(self, **changes):
        self.spec |= changes
        (self.home / "spec").write_text(json.dumps(self.spec))

    def start(self):
        self.describe()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.home), str(self.home / "spec")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(self.home / "state")},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def heard(self, text):
        """It says so, sooner or later."""
        eventually(lambda: any(text in line for line in self.said), f"{text!r}; {self.said}")

    @property
    def pid(self):
        return self.process.pid

    def ask(self, do, wait_s=WAIT_S, **more):
        return ask("test", {"do": do, **more}, wait_s)

    def status(self):
        with contextlib.suppress(FleetError):
            return self.ask("status")
        return None

    def engine(self, name):
        found = self.status()
        every = {each["name"]: each for each in found["engines"]} if found else {}
        return every.get(name)

    def states(self):
        """Of the engines, in their order."""
        found = self.status()
        return tuple(each["state"] for each in found["engines"]) if found else ()

    def until(self, name, state):
        def there():
            found = self.engine(name)
            return found if found and found["state"] == state else None

        return eventually(there, f"{name} {state}; said {self.said}")

    def until_serving(self):
        def there():
            found = self.status()
            return found if found and found["serving"] and self.all_ready(found) else None

        return eventually(there, f"serving; said {self.said}")

    @staticmethod
    def all_ready(found):
        return all(each["state"] == "ready" for each in found["engines"])

    def pids(self, engine=None, role=None):
        """Of the fake engines' processes that live."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.home / "pids").read_text().splitlines()]
            return [
                int(pid)
                for pid, name, kind in lines
                if engine in {None, name} and role in {None, kind} and lives(int(pid))
            ]
        return []

    def parts(self):
        """Everything below the supervisor, and itself."""
        return {self.pid, *processes.descendants(self.pid), *self.pids()}

    def guard(self, engine):
        return self.engine(engine)["pid"]

    def post(self, timeout_s=WAIT_S):
        """A completion through the router: its status and which engine answered."""
        body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.spec['router']['port']}/v1/completions",
            body,
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.loads(answer.read())["choices"][0]["text"]
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get("retry-after")
        except (OSError, ValueError) as error:
            return 0, repr(error)

    def routed(self, name):
        """What the router knows of an engine."""
        return self._routed()[name]

    def busy(self):
        """The engines that the router waits for, each with how many requests, in one look."""
        requests = {name: each["work"]["requests"] for name, each in self._routed().items()}
        return {name: count for name, count in requests.items() if count}

    def _routed(self):
        """What the router knows of each engine, at one moment."""
        found = self.status()
        with urllib.request.urlopen(f"{found['admin']}/state", timeout=WAIT_S) as answer:
            state = json.loads(answer.read())
        every = {each["id"]: each for pool in state["pools"] for each in pool["engines"]}
        names = {each["router_id"]: each["name"] for each in found["engines"]}
        return {name: every[id_] for id_, name in names.items() if id_ in every}

    def ended(self, wait_s=WAIT_S):
        """The exit status of the supervisor, when it has ended."""
        status = self.process.wait(wait_s)
        self._reader.join(wait_s)
        return status

    def left(self, parts):
        """Of these and of the engines' processes, those that live."""
        return [pid for pid in {*parts, *self.pids()} if lives(pid)]

    def nothing_left(self, parts):
        """All of them end, though nobody waits for that."""
        eventually(lambda: not self.left(parts), f"all ended of {sorted(parts)}")

    def clean(self):
        """End whatever a failed test left."""
        self.release()
        parts = self.parts() if self.process else set()
        if self.process:
            self.process.kill()
            self.process.wait()
        processes.tell([pid for pid in parts | set(self.pids()) if lives(pid)], signal.SIGKILL)

    def release(self):
        """Let go of its port."""
        self._port.release()


class Traffic:
    """Requests, one after the other in each of some threads, until the end of the block."""

    def __init__(self, fleet, clients=4, pause_s=0.02):
        self.answers = []
        self._fleet = fleet
        self._pause_s = pause_s
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]

    def _send(self):
        while not self._over.is_set():
            start_s = time.monotonic()
            self.answers.append((start_s, *self._fleet.post()))
            time.sleep(self._pause_s)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def failures(self):
        return [(status, said) for _, status, said in self.answers if status != 200]
