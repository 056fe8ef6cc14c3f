"""Real engines for the tests: started on a free port with a tiny model, always stopped."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.engine import processes
from headway.models import tiny

READY_S = 120.0
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


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return tiny.ensure()


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Callable[..., contextlib.AbstractContextManager[Engine]]:
    """`with engine(policy, *flags) as running:` -- a ready engine with the tiny model.

    Afterwards none of its processes is left; a test fails that leaves some behind.
    """

    def start(policy: str, *flags: str) -> contextlib.AbstractContextManager[Engine]:
        return _running(tiny_model, policy, flags)

    return start


@contextlib.contextmanager
def _running(model: Path, policy: str, flags: tuple[str, ...]) -> Iterator[Engine]:
    # A short path: vLLM puts Unix sockets there, whose names are limited to 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="hw-"))
    log = scratch / "log"
    port = free_port()
    command = [sys.executable, "-m", "headway", "serve", str(model), "--policy", policy]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-num-batched-tokens", "512", "--served-model-name", "tiny", *flags]
    with log.open("wb") as sink:
        launcher = subprocess.Popen(
            command,
            stdout=sink,
            stderr=sink,
            env=_environment(scratch),
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
