"""Real engines for the tests: started on a free port with a tiny model, always stopped."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.testing.ports import held_port

from headway import processes
from headway.models import tiny

_held = []
READY_S = 300.0
GONE_S = 30.0
SHARED_MEMORY = r"/dev/shm/\S+"  # noqa: S108 -- looked for, not used


@dataclass(frozen=True)
class Engine:
    """A running `headway serve`.

    launcher: the process itself; `pids()` holds it and all below it.
    seen, shared: processes and shared memory that must not outlive it, noted by `look()`.
    scratch: the temporary directory of all of its processes.
    log: what they have written.
    """

    url: str
    model: str
    launcher: subprocess.Popen
    scratch: Path
    log: Path
    seen: set[int] = field(default_factory=set)
    shared: set[Path] = field(default_factory=set)

    def look(self) -> None:
        """Note the processes of the engine and the shared memory they use."""
        for pid in self.pids():
            self.seen.add(pid)
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                self.shared.update(Path(name) for name in re.findall(SHARED_MEMORY, maps))

    def leaves_nothing(self, within_s: float = GONE_S) -> bool:
        """Whether all that `look` has noted, and the scratch files, are gone soon."""
        deadline = time.monotonic() + within_s
        while any(self.left_over()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def left_over(self) -> tuple[list[int], list[Path]]:
        """Processes and files that are still there."""
        files = [*self.scratch.glob("headway-engine-*"), *filter(Path.exists, self.shared)]
        return [pid for pid in self.seen if processes.parent_of(pid) is not None], files

    def pids(self) -> dict[int, str]:
        """Live processes of the engine with their command lines."""
        found = {}
        for pid in {self.launcher.pid, *processes.descendants(self.launcher.pid)}:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:
                    found[pid] = line
        return found

    def pid_of(self, part: str) -> int:
        """The one process whose command line holds `part`."""
        (pid,) = [pid for pid, line in self.pids().items() if part in line]
        return pid

    def wait(self) -> int:
        """The launcher's exit status."""
        return self.launcher.wait(timeout=GONE_S)


@dataclass(frozen=True)
class Router:
    """A running `headway route`: where clients connect, and its admin port."""

    url: str
    admin: str

    def state(self) -> dict[str, Any]:
        """What /state says."""
        with urllib.request.urlopen(self.admin + "/state", timeout=5) as answer:
            return json.load(answer)

    def works(self) -> list[dict[str, int]]:
        """The router's own work, by engine."""
        return [e["work"] for pool in self.state()["pools"] for e in pool["engines"]]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        return metric(self.url, name, **labels)


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric of /metrics over all series with these labels."""
    with urllib.request.urlopen(url + "/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith((name + "{", name + " "))]
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(w in line for w in wanted))


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return tiny.ensure()


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Callable[..., contextlib.AbstractContextManager[Engine]]:
    """`with engine(policy, *flags, port=…, core=…, model=…, **env) as running:` -- ready.

    model: a directory; None is the tiny model. core: where all its processes run; None for any.
    Afterwards none of its processes is left; a test fails that leaves some behind.
    """

    def start(
        policy: str,
        *flags: str,
        port: int | None = None,
        core: int | None = None,
        model: Path | None = None,
        **env: str,
    ) -> contextlib.AbstractContextManager[Engine]:
        return _running(model or tiny_model, policy, flags, port or free_port(), core, env)

    return start


@contextlib.contextmanager
def _running(
    model: Path,
    policy: str,
    flags: tuple[str, ...],
    port: int,
    core: int | None,
    env: dict[str, str],
) -> Iterator[Engine]:
    # A short path: vLLM puts Unix sockets there, whose names are limited to 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="hw-"))
    log = scratch / "log"
    command = [sys.executable, "-m", "headway", "serve", str(model), "--policy", policy]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-num-batched-tokens", "512", "--served-model-name", "tiny", *flags]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    with log.open("wb") as sink:
        launcher = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            env=_environment(scratch) | env,
            # A test run that is killed takes its engines along.
            preexec_fn=processes.die_with_parent,  # noqa: PLW1509 -- no thread forks here
        )
    running = Engine(f"http://127.0.0.1:{port}", "tiny", launcher, scratch, log)
    try:
        _wait_ready(running)
        running.look()
        yield running
    except BaseException:
        sys.stderr.write(log.read_text(errors="replace")[-6000:])
        raise
    finally:
        try:
            running.look()
        finally:
            _stop(running)
            running.leaves_nothing()
            left = running.left_over()
            processes.tell(left[0], signal.SIGKILL)
            shutil.rmtree(scratch, ignore_errors=True)
    assert not any(left), f"left behind: {left}"


def _environment(scratch: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TMPDIR": str(scratch),
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def _wait_ready(running: Engine) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert running.launcher.poll() is None, "the engine ended while it was starting"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(running.url + "/health", timeout=2).close()
            return
        time.sleep(0.2)
    pytest.fail(f"the engine wasn't ready after {READY_S:.0f} s")


def _stop(running: Engine) -> None:
    if running.launcher.poll() is None:
        running.launcher.terminate()
        try:
            running.wait()
        except subprocess.TimeoutExpired:
            running.launcher.kill()
            running.wait()


@pytest.fixture
def router() -> Callable[..., contextlib.AbstractContextManager[Router]]:
    """`with router(*flags) as running:` -- `headway route`, ready for requests; always stopped."""
    return _routing


@contextlib.contextmanager
def _routing(*flags: str) -> Iterator[Router]:
    ports = free_port(), free_port()
    command = [sys.executable, "-m", "headway", "route", "--port", str(ports[0])]
    command += ["--admin-port", str(ports[1]), *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            preexec_fn=processes.die_with_parent,  # noqa: PLW1509 -- no thread forks here
        )
        running = Router(*(f"http://127.0.0.1:{port}" for port in ports))
        try:
            _wait_routing(running, process)
            yield running
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-6000:])
            raise
        finally:
            process.terminate()
            try:
                assert process.wait(timeout=GONE_S) == 0
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _wait_routing(running: Router, process: subprocess.Popen) -> None:
    """Until every engine is ready."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the router ended while it was starting"
        with contextlib.suppress(OSError):
            if all(e["ready"] for pool in running.state()["pools"] for e in pool["engines"]):
                return
        time.sleep(0.1)
    pytest.fail(f"not every engine was ready after {READY_S:.0f} s: {running.state()}")


def free_port() -> int:
    """Nobody else gets it as long as the tests run."""
    _held.append(held_port())
    return _held[-1].number
