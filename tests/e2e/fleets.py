"""Fleets of real engines for the tests: `headway up`, traffic through it, and its end."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import openai

from headway import processes
from headway.bench.load.stream import ERROR_EVENT

from .conftest import free_port

READY_S = 240.0
GONE_S = 60.0
UNIFIED = """
[[pool]]
name = "all"
replicas = 2
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""
FLAGS = '"--dtype", "float32", "--enforce-eager", "--served-model-name", "tiny"'


class Fleet:
    """A running `headway up`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.heard = folder / "heard"
        self.seen: set[int] = set()
        # Not in `folder`, whose path may be too long for sockets.
        self.state = Path(tempfile.mkdtemp(prefix="fleet-"))
        self._sockets = _sockets()
        self._env = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        with self.heard.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway", "up", *words],
                stdout=sink,
                stderr=sink,
                env=self._env,
                cwd=folder,
                # A test run that is killed takes its fleet along.
                preexec_fn=processes.die_with_parent,  # noqa: PLW1509 -- no thread forks here
            )

    def until(self, sign: str, limit_s: float = READY_S) -> str:
        """Wait until it says so; the first group of `sign`."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            found = re.search(sign, self.heard.read_text(errors="replace"))
            self.look()
            if found:
                return found[found.re.groups]
            assert self.process.poll() is None, "it ended"
            time.sleep(0.2)
        raise AssertionError(f"it never said {sign}")

    def look(self) -> None:
        """Note its processes."""
        self.seen |= processes.descendants(self.process.pid)

    def says(self, *words: str) -> str:
        """What `headway` tells of it."""
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout

    def status(self) -> dict:
        """What its supervisor tells."""
        return json.loads(self.says("status", "--json"))["fleet"]

    def engines(self) -> list[dict]:
        """What its supervisor tells of its engines."""
        return self.status()["engines"]

    def states(self) -> dict[str, str]:
        """The engines' states by name."""
        return {engine["name"]: engine["state"] for engine in self.engines()}

    def part(self, words: str, engine_port: int) -> int:
        """A process of the engine at this port: its guard, its server, or one below that."""
        tree = processes.descendants(self.process.pid)
        servers = [pid for pid in tree if f"--port {engine_port} " in command_line(pid)]
        (guard,) = [pid for pid in servers if "headway.engine.start.guard" in command_line(pid)]
        if words == "guard":
            return guard
        below = processes.descendants(guard)
        found = sorted(pid for pid in below if words in command_line(pid))
        return found[0]

    def end(self) -> None:
        """Stop it; nothing of it may be left."""
        self.look()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(GONE_S) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.gone()

    def gone(self) -> None:
        """Nothing of it is left, soon."""
        end_s = time.monotonic() + GONE_S
        try:
            while left := [pid for pid in self.seen if processes.parent_of(pid) is not None]:
                if time.monotonic() > end_s:
                    processes.tell(left, signal.SIGKILL)
                    raise AssertionError(f"left behind: {left}")
                time.sleep(0.1)
            assert _sockets() <= self._sockets
        finally:
            shutil.rmtree(self.state, ignore_errors=True)


def _sockets() -> set[Path]:
    """Those that lie about in the directory for temporary files."""
    return {each for each in Path(tempfile.gettempdir()).iterdir() if each.is_socket()}


def command_line(pid: int) -> str:
    """Its words, a space after each; empty once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() + " "
    return ""


def cores_below(pid: int) -> set[int]:
    """Every core that a thread of the processes below may run on."""
    found: set[int] = set()
    for each in processes.descendants(pid):
        for thread in Path(f"/proc/{each}/task").iterdir():
            found |= os.sched_getaffinity(int(thread.name))
    return found


@contextlib.contextmanager
def fleet(folder: Path, *words: str):
    running = Fleet(folder, *words)
    try:
        yield running
    except BaseException:
        sys.stderr.write(running.heard.read_text(errors="replace")[-4000:])
        for log in running.state.rglob("*.log"):
            text = log.read_text(errors="replace")
            lines = text.splitlines()
            unserved = [line for line in lines if re.search(r'"status":[45]|broke_off', line)]
            sys.stderr.write("\n".join(["", f"== {log.name}", *unserved[-20:], text[-3000:]]))
        raise
    finally:
        running.end()


def written(folder: Path, strategy: str, pools: str, model: Path) -> str:
    """A file for this strategy, on free ports."""
    head = f'[router]\nport = {free_port()}\nadmin_port = {free_port()}\nstrategy = "{strategy}"\n'
    quick = "[router.health]\ninterval_s = 0.5\npasses = 1\n"
    path = folder / "headway.toml"
    path.write_text(head + quick + pools.format(model=model, flags=FLAGS))
    return str(path)


def complete(url: str, prompt, *, model: str = "tiny"):
    """A completion of token ids, four tokens long; the answer and its route."""
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)
    with client:
        raw = client.completions.with_raw_response.create(
            model=model, prompt=prompt, max_tokens=4, temperature=0
        )
        return raw.parse(), raw.headers["x-headway-route"]


def ids(count: int) -> list[int]:
    return [1000 + n % 997 for n in range(count)]


class Traffic:
    """Short streamed requests, one after the other on several threads, until it is told to stop.

    unanswered: those that failed before their first byte, and how. cut: those that failed after
    it.
    """

    def __init__(self, url: str, threads: int = 3) -> None:
        self._url = url
        self._stop = threading.Event()
        self.answered, self.cut, self.unanswered = 0, [], []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def goes_on(self) -> None:
        """One more is answered than have been by now."""
        before, end_s = self.answered, time.monotonic() + READY_S
        while self.answered == before:
            assert time.monotonic() < end_s, "nothing is answered any more"
            time.sleep(0.1)

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        body = {"model": "tiny", "prompt": ids(40), "max_tokens": 30, "stream": True}
        request = urllib.request.Request(
            self._url + "/v1/completions",
            json.dumps(body | {"ignore_eos": True}).encode(),
            {"content-type": "application/json"},
        )
        while not self._stop.is_set():
            got = b""
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    got = answer.read(1)
                    whole = got + answer.read()
                if whole.startswith(ERROR_EVENT):
                    self.unanswered.append(whole)
                elif ERROR_EVENT in whole or b"[DONE]" not in whole:
                    self.cut.append(whole[-400:])
                else:
                    self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                if got:
                    self.cut.append(repr(error))
                else:
                    self.unanswered.append(repr(error))


def wait_ready(running: Fleet) -> None:
    """Until all engines are ready and the router sends requests to each."""
    end_s = time.monotonic() + READY_S
    time.sleep(1)
    while not _all_serve(status := running.status()):
        assert time.monotonic() < end_s, status
        running.look()
        time.sleep(1)


def _all_serve(status: dict) -> bool:
    return status["serving"] and all(each["state"] == "ready" for each in status["engines"])
