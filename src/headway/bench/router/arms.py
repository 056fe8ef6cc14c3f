"""What is measured: nothing in between, headway, vllm-router; whole requests and two legs."""

import contextlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.bench.engines.processes import free_ports, running, tree
from headway.home import home

DIRECT: Final = "direct"
HEADWAY: Final = "headway"
RUST: Final = "vllm-router"
RUST_PLAIN: Final = "vllm-router round_robin"
ARMS: Final = (DIRECT, HEADWAY, RUST, RUST_PLAIN)
UNIFIED: Final = "unified"
DISAGGREGATED: Final = "disaggregated"
MODES_BY_ARM: Final = {
    DIRECT: (UNIFIED,),
    HEADWAY: (UNIFIED, DISAGGREGATED),
    RUST: (UNIFIED, DISAGGREGATED),
    RUST_PLAIN: (UNIFIED,),
}

VERSION: Final = "0.1.17"
"""Of vllm-router."""
START_S: Final = 60.0
INSTALL_S: Final = 600.0
_POLL_S: Final = 0.1
_BODY: Final = b'{"model":"stub","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'


class ArmError(Exception):
    """An arm that can't be measured, and why."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Ports of the stub engines."""

    whole: tuple[int, ...]
    prefill: int
    decode: int

    @property
    def ports(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.whole, self.prefill, self.decode)


@dataclass(frozen=True, slots=True)
class RouterArm:
    """A router that answers. pids: its processes; none for `direct`."""

    arm: str
    mode: str
    port: int
    pids: tuple[int, ...]

    @property
    def name(self) -> str:
        """For tables."""
        return self.arm if self.mode == UNIFIED else f"{self.arm} {self.mode}"


def url(port: int) -> str:
    """Of a server on this machine."""
    return f"http://127.0.0.1:{port}"


def headway_command(mode: str, engines: Engines, port: int) -> list[str]:
    """Headway as a user starts it, but for the admin port."""
    if mode == UNIFIED:
        named = [part for engine in engines.whole for part in ("--engine", url(engine))]
    else:
        named = ["--prefill", url(engines.prefill), "--decode", url(engines.decode)]
    start = [sys.executable, "-m", "headway", "route", *named]
    return [*start, "--port", str(port), "--admin-port", "0"]


def rust_command(
    program: Path, arm: str, mode: str, engines: Engines, port: int, metrics_port: int
) -> list[str]:
    """vllm-router with its own defaults, but that it looks for its engines sooner.

    Its default policy, `cache_aware`, weighs load and prefixes as headway does, and for that has
    an engine render each prompt first. `RUST_PLAIN` is the policy that does least.
    """
    if mode == UNIFIED:
        named = ["--worker-urls", *map(url, engines.whole)]
    else:
        legs = ("--prefill", url(engines.prefill), "--decode", url(engines.decode))
        named = ["--vllm-pd-disaggregation", *legs]
    policy = ["--policy", "round_robin"] if arm == RUST_PLAIN else []
    start = [str(program), *named, *policy, "--host", "127.0.0.1", "--port", str(port)]
    more = ("--worker-startup-check-interval", "1", "--prometheus-port", str(metrics_port))
    return [*start, *more]


def install_rust() -> Path:
    """vllm-router in an environment of its own, in the user's cache; its program.

    Raises ArmError if it can't be installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
    folder = cache / "headway" / "bench" / f"{RUST}-{VERSION}-py{sys.version_info[1]}"
    complete = folder / ".complete"
    program = folder / "bin" / RUST
    if complete.exists():
        return program
    shutil.rmtree(folder, ignore_errors=True)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q")
    steps = (
        (sys.executable, "-m", "venv", str(folder)),
        (*pip, "--disable-pip-version-check", f"{RUST}=={VERSION}"),
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        complete.touch()
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = getattr(error, "stderr", None) or str(error)
        raise ArmError(f"{RUST} {VERSION} can't be installed: {said.strip()[-300:]}") from error
    return program


@contextlib.contextmanager
def serving(
    arm: str, mode: str, command: Sequence[str], port: int, core: int | None
) -> Iterator[RouterArm]:
    """A router that answers, until the block's end. Raises ArmError if it doesn't start."""
    with (
        tempfile.TemporaryFile("w+") as log,
        running(command, core=core, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        deadline_s = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                log.seek(0)
                said = log.read()[-400:].strip()
                raise ArmError(f"{arm} ({mode}) doesn't answer: {said or 'it says nothing'}")
            time.sleep(_POLL_S)
        log.truncate(0)
        yield RouterArm(arm, mode, port, tuple(tree(process.pid)))


def answers(port: int) -> bool:
    """Whether a completion comes back."""
    try:
        return ask(port, "POST", "/v1/chat/completions", _BODY)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def fetch(port: int, path: str) -> str:
    """The body of a GET."""
    return ask(port, "GET", path)[1].decode()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one request."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as server:
        server.request(method, path, body, {"content-type": "application/json"})
        answer = server.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def stub_engines(core: int | None) -> Iterator[tuple[Engines, int]]:
    """The stub engines and their pid."""
    first, second, prefill, decode = free_ports(4)
    engines = Engines((first, second), prefill, decode)
    command = [sys.executable, "-m", "headway.bench.router.stub", *map(str, engines.ports)]
    pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(command, core=core, **pipes) as process:
        said = process.stdout.readline() if process.stdout else ""
        if said.strip() != "ready":
            raise ArmError("the stub engines don't start")
        yield engines, process.pid
