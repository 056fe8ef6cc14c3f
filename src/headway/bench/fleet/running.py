"""A running `headway up`, watched and hurt from outside."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from headway import processes
from headway.bench.fleet.traffic import fetch
from headway.core.errors import HeadwayError

READY_S: Final = 300.0
GONE_S: Final = 60.0
LOOK_S: Final = 0.005
"""Between two looks at the router's state."""
_READY: Final = re.compile(r"ready: (\S+) on (\S+); try")
HEADWAY: Final = (sys.executable, "-m", "headway")


class FleetRunError(HeadwayError):
    """A fleet that didn't do what the measurement needs; holds the end of what it said."""


class Running:
    """A fleet, from `running` to its end.

    seen: all processes of it that were ever looked at. url, model: once it is ready.
    """

    def __init__(self, command: Sequence[str], folder: Path, cwd: Path) -> None:
        self.heard = folder / "heard"
        self.seen: set[int] = set()
        self.url = self.model = ""
        self._env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self.start_s = time.monotonic()
        with self.heard.open("wb") as sink:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=self._env, cwd=cwd
            )

    def until_ready(self) -> None:
        """Wait until it says what to try."""
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            found = _READY.search(self.heard.read_text(errors="replace"))
            if found:
                self.model, self.url = found[1], found[2]
                self.look()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise FleetRunError(f"it didn't become ready:\n{self.heard.read_text()[-2000:]}")

    def until_whole(self) -> None:
        """Wait until all its engines are ready (again)."""
        end_s = time.monotonic() + READY_S
        while any(engine["state"] != "ready" for engine in self.engines()):
            if time.monotonic() > end_s or self.process.poll() is not None:
                raise FleetRunError(f"it isn't whole:\n{self.heard.read_text()[-2000:]}")
            self.look()
            time.sleep(0.5)

    def look(self) -> None:
        """Note its processes."""
        self.seen |= processes.descendants(self.process.pid) | {self.process.pid}

    def says(self, *words: str) -> str:
        """What another `headway` command tells of it."""
        done = subprocess.run(
            [*HEADWAY, *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        if done.returncode:
            raise FleetRunError(f"headway {' '.join(words)}: {done.stderr[-1000:]}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """`headway status --json`, the fleet's part."""
        found: dict[str, Any] = json.loads(self.says("status", "--json"))["fleet"]
        return found

    def engines(self) -> list[dict[str, Any]]:
        """The engines' part of that."""
        found: list[dict[str, Any]] = self.status()["engines"]
        return found

    def parts(self, engine: dict[str, Any]) -> dict[str, int]:
        """Pids of an engine's processes: its guard, API server, engine core, worker."""
        guard = int(engine["pid"])
        found = {"guard": guard}
        for pid in sorted(processes.descendants(guard)):
            line = _command_line(pid)
            for name, sign in (
                ("worker", "VLLM::Worker"),
                ("engine core", "VLLM::EngineCore"),
                ("API server", "api_server"),
            ):
                if sign in line:
                    found.setdefault(name, pid)
                    break
        return found

    def end(self) -> int:
        """Stop it; how many of its processes are left afterwards."""
        self.look()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GONE_S)
        return self.left()

    def left(self) -> int:
        """How many of its processes outlive its end by GONE_S; they are killed then."""
        end_s = time.monotonic() + GONE_S
        while left := [pid for pid in self.seen if processes.parent_of(pid) is not None]:
            if time.monotonic() > end_s:
                processes.tell(left, signal.SIGKILL)
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        self.process.wait()
        return len(left)


@contextlib.contextmanager
def running(command: Sequence[str], cwd: Path | None = None) -> Iterator[Running]:
    """A fleet with a state directory of its own. Nothing of it outlives the block.

    The directory has a short name, as paths of sockets must be short.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        fleet = Running(command, folder, cwd or folder)
        try:
            yield fleet
        finally:
            fleet.end()


class Around:
    """Watches, within `with`, when the router stops sending requests to an engine.

    out_s: monotonic, None if it didn't.
    """

    def __init__(self, admin: str, url: str) -> None:
        self.out_s: float | None = None
        self._admin = admin
        self._place = url.rpartition("//")[2]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set() and self.out_s is None:
            engine = _router_state(self._admin).get(self._place)
            if engine is None or not engine["ready"]:
                self.out_s = time.monotonic()
            self._over.wait(LOOK_S)


def _router_state(admin: str) -> dict[str, dict[str, Any]]:
    """What the router knows of its engines, by `host:port`."""
    state = json.loads(fetch(admin, "/state")[1])
    return {
        each["id"].rpartition("/")[2]: each for pool in state["pools"] for each in pool["engines"]
    }


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
