"""Starts engines for a benchmark, each on a core of its own, and always stops them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headway.bench.engines.processes import free_ports, tree
from headway.bench.load.exchange import Target
from headway.bench.report.document import ProgressLines
from headway.core.errors import HeadwayError
from headway.fleet.net.http_sync import HttpServer

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
_HEALTH_S: Final = 5.0
LOG_TAIL_LINES: Final = 25


class EngineError(HeadwayError):
    """An engine that didn't start or can't be pinned; holds the end of its log."""


@dataclass(frozen=True, slots=True)
class ArmEngine:
    """One engine of a benchmark.

    name: the arm it stands for.
    policy: of `headway serve`; `vllm` is stock vLLM.
    flags: further flags of `headway serve` or vLLM.
    model: path or hub name; None for the bundled model.
    kvcache_gib: size of its KV cache.
    """

    name: str
    policy: str
    flags: tuple[str, ...] = ()
    model: str | None = None
    kvcache_gib: int = 2


def serve_command(spec: ArmEngine, port: int) -> list[str]:
    """The command that serves `spec`."""
    model = [] if spec.model is None else [spec.model]
    return [
        sys.executable,
        *("-m", "headway", "serve", *model),
        *("--policy", spec.policy, "--port", str(port), *spec.flags),
    ]


def engine_environment(core: int, kvcache_gib: int) -> dict[str, str]:
    """This process's environment, with one core and a KV cache for the engine."""
    return {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(kvcache_gib),
    }


class BenchEngine:
    """A running engine, from `with` to its end.

    core: where all its processes run; `move` changes it.
    log: file with everything it printed; kept where the block ends with an error.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        port: int,
        core: int,
        progress: ProgressLines,
    ) -> None:
        self.name = name
        self.core = core
        self.target = Target(HOST, port)
        self.log = Path(tempfile.mkdtemp(prefix="headway-bench-")) / f"{name}.log"
        self._command = list(command)
        self._environment = dict(environment)
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(cls, spec: ArmEngine, core: int, progress: ProgressLines) -> Self:
        """The engine that `spec` describes, not yet started."""
        (port,) = free_ports(1)
        return cls(
            spec.name,
            serve_command(spec, port),
            engine_environment(core, spec.kvcache_gib),
            port=port,
            core=core,
            progress=progress,
        )

    def __enter__(self) -> Self:
        """Start it and wait until it answers. Raises EngineError if it never does."""
        self._progress.line(f"starting {self.name} on core {self.core} (log: {self.log})")
        with self.log.open("wb") as log, bound_to(self.core):
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                process_group=0,
            )
        try:
            self._wait_healthy(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if kind is None:
            shutil.rmtree(self.log.parent, ignore_errors=True)

    def stop(self) -> None:
        """Ask it to end, then make it, with all it started. Does nothing if it ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._progress.line(f"{self.name} did not stop in {STOP_TIMEOUT_S:g} s; killing it")
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def move(self, core: int) -> None:
        """Move it to another core, while it runs. Raises EngineError if it isn't running."""
        if self._process is None:
            raise EngineError(f"{self.name} is not running")
        for thread in _threads(tree(self._process.pid)):
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, {core})
        self.core = core

    def _wait_healthy(self, process: subprocess.Popen[bytes]) -> None:
        start_s = time.monotonic()
        while (passed_s := time.monotonic() - start_s) < START_TIMEOUT_S:
            if process.poll() is not None:
                raise EngineError(f"{self.name} ended with {process.returncode}:\n{self._tail()}")
            if self._healthy():
                self._progress.line(f"{self.name} is up after {passed_s:.0f} s")
                return
            self._progress.tick(f"{self.name} is starting: {passed_s:.0f} s")
            time.sleep(0.5)
        raise EngineError(f"{self.name} not up after {START_TIMEOUT_S:g} s:\n{self._tail()}")

    def _healthy(self) -> bool:
        server = HttpServer(f"http://{self.target.host}:{self.target.port}")
        answer = server.get("/health", _HEALTH_S)
        return answer is not None and answer.status == 200

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


@contextmanager
def bound_to(core: int) -> Iterator[None]:
    """Processes started in the block, and theirs, run on one core.

    All of an engine's: vLLM's engine core waits for its worker by yielding the CPU in a loop.
    Beside the worker of another engine it would take half of that one's time, and Linux lets it
    wait there for up to a second afterwards.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def started(*engines: BenchEngine) -> Iterator[None]:
    """Engines that start at the same time, and all stop in the end. Raises EngineError."""
    with ExitStack() as stack, ThreadPoolExecutor(len(engines)) as threads:
        starts = [threads.submit(stack.enter_context, each) for each in engines]
        for start in starts:
            start.result()
        yield


def swap(one: BenchEngine, other: BenchEngine) -> None:
    """Exchange the cores of two engines, so that differences of cores cancel."""
    mine, theirs = one.core, other.core
    one.move(theirs)
    other.move(mine)


def _threads(processes: Sequence[int]) -> list[int]:
    return [
        int(task.name) for pid in processes for task in Path(f"/proc/{pid}/task").glob("[0-9]*")
    ]
