"""Processes of a fleet on this machine, each a tree below a guard (`headway.engine.start.guard`).

Whatever is killed, nothing is left: a guard ends its tree when the supervisor's end of their pipe
closes, and what a killed guard leaves behind becomes the supervisor's child, which ends it before
the engine counts as gone.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from headway import processes
from headway.engine.start.command import EngineCommand

FORCE_GRACE_S: Final = 15.0
"""Beyond the drain time: what an engine may take to end its processes before force is used."""
SCRATCH_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Metrics of all processes of an engine meet there; only so do the scheduler's come out."""
LOG_BYTES: Final = 64 << 20
_FORCE_AGAIN_S: Final = 0.2
_FORCE_PATIENCE_S: Final = 12.0
"""A guard that is told to use force needs at most this long."""
_STRAY_GRACE_S: Final = 4.0
_POLL_S: Final = 0.05


class EngineProcess(Protocol):
    """One run of an engine, wherever it runs."""

    @property
    def pid(self) -> int | None:
        """Of its outermost process, None where there is none on this machine."""

    async def start(self, command: EngineCommand, log: Path) -> None:
        """Run it; called once. What it says goes to `log`; the log that was there is kept as
        `<name>.1`. Raises OSError where that can't be.
        """

    async def wait(self) -> int:
        """Its exit status, once nothing of it is left. 128 + its number for a signal."""

    async def part_ended(self) -> bool:
        """Wait until one of the processes that it has now ends; whether it is over without it."""

    def stop(self, *, force: bool) -> None:
        """End it, gracefully or at once. May be called at any time, again, and with more force."""


class Family:
    """The guards this process has started. Everything else below it is a stray."""

    def __init__(self) -> None:
        processes.become_subreaper()
        self._guards: set[int] = set()

    def add(self, guard: int) -> None:
        """A guard has been started."""
        self._guards.add(guard)

    def remove(self, guard: int) -> None:
        """It has been reaped."""
        self._guards.discard(guard)

    async def end_strays(self) -> None:
        """End what killed guards have left: SIGTERM, then SIGKILL. Resource trackers go last, as
        they remove the shared memory of others, and leave on their own.
        """
        start_s = time.monotonic()
        told: dict[int, int] = {}
        while strays := self._strays():
            late_s = time.monotonic() - start_s - _STRAY_GRACE_S
            signum = signal.SIGKILL if late_s > 0 else signal.SIGTERM
            new = {pid for pid in strays if told.get(pid) != signum}
            if 0 < late_s < 1:
                new = {pid for pid in new if not processes.is_tracker(pid)}
            processes.tell(new, signum)
            told |= dict.fromkeys(new, signum)
            await asyncio.sleep(_POLL_S)
            _reap(told)
            if late_s > _STRAY_GRACE_S:
                return  # the kernel doesn't let go of them
        _reap(told)

    def _strays(self) -> set[int]:
        strays = processes.descendants(os.getpid())
        for guard in self._guards:
            strays -= {guard, *processes.descendants(guard)}
        return strays


class LocalEngine:
    """An `EngineProcess` that is a process tree here.

    lock: descriptor that the guard holds open until its end, to tell that something still runs.
    scratch: the folder for its scratch folders.
    metrics: whether its processes share metrics.
    """

    def __init__(
        self, family: Family, scratch: Path, *, metrics: bool = True, lock: int | None = None
    ) -> None:
        self._family = family
        self._folder = scratch
        self._metrics = metrics
        self._lock = lock
        self._scratch = ""
        self._alive: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._stop: bool | None = None
        self._forcing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._guard.pid if self._guard else None

    async def start(self, command: EngineCommand, log: Path) -> None:
        self._scratch = tempfile.mkdtemp(prefix="engine-", dir=self._folder)
        env = dict(command.env)
        if self._metrics:
            env[SCRATCH_VARIABLE] = self._scratch
        alive_read, self._alive = os.pipe()
        try:
            with anew(log) as out:
                self._guard = self._spawn(command, env, alive_read, out.fileno())
        except OSError:
            self._clean()
            raise
        finally:
            os.close(alive_read)
        self._family.add(self._guard.pid)
        if self._stop is not None:
            self.stop(force=self._stop)

    def _spawn(
        self, command: EngineCommand, env: Mapping[str, str], alive: int, out: int
    ) -> subprocess.Popen[bytes]:
        grace_s = str(command.drain_s + FORCE_GRACE_S)
        guard = [
            sys.executable,
            "-m",
            "headway.engine.start.guard",
            str(alive),
            grace_s,
            self._scratch,
        ]
        with _bound_to(command.cores):
            return subprocess.Popen(
                [*guard, *command.argv],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[alive] if self._lock is None else [alive, self._lock],
                # Ctrl-C reaches the supervisor alone, which stops the rest in order.
                start_new_session=True,
            )

    async def wait(self) -> int:
        guard = self._running()
        await any_ends([guard.pid])
        # Its tree has ended with it, unless something ended the guard itself.
        status = guard.wait()
        self._family.remove(guard.pid)
        if self._forcing:
            self._forcing.cancel()
        if status < 0:
            await self._family.end_strays()
        self._clean()
        return status if status >= 0 else 128 - status

    async def part_ended(self) -> bool:
        guard = self._running()
        parts = processes.descendants(guard.pid)
        servers = {pid for pid in parts if processes.parent_of(pid) == guard.pid}
        if not servers:
            return True
        ended = await any_ends([guard.pid, *parts])
        return not ended.isdisjoint({guard.pid, *servers})

    def stop(self, *, force: bool) -> None:
        if self._guard is None:
            self._stop = force or bool(self._stop)
            return
        self._guard.send_signal(signal.SIGTERM)
        if force and self._forcing is None:
            self._forcing = asyncio.get_running_loop().create_task(self._force(self._guard))

    async def _force(self, guard: subprocess.Popen[bytes]) -> None:
        """A guard uses force at the second signal; signals that come too fast are one."""
        start_s = time.monotonic()
        while time.monotonic() - start_s < _FORCE_PATIENCE_S:
            await asyncio.sleep(_FORCE_AGAIN_S)
            guard.send_signal(signal.SIGTERM)
        guard.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._guard is None:
            raise RuntimeError("the engine hasn't been started")
        return self._guard

    def server(self) -> int | None:
        """The pid of the process that the guard started, None where there is none (yet)."""
        guard = self.pid
        below = processes.descendants(guard) if guard else set()
        return next((pid for pid in below if processes.parent_of(pid) == guard), None)

    def _clean(self) -> None:
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextlib.contextmanager
def _bound_to(cores: Iterable[int] | None) -> Iterator[None]:
    """Processes that are started in the block, and theirs, run on these cores; None: on any."""
    allowed = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


async def any_ends(pids: Iterable[int]) -> set[int]:
    """Wait until one of these processes has ended; those that have. Any process may be asked of."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    ended: set[int] = set()

    def on_end(pid: int, fd: int) -> None:
        loop.remove_reader(fd)
        ended.add(pid)
        woken.set()

    with contextlib.ExitStack() as open_fds:
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                ended.add(pid)
                continue
            open_fds.callback(os.close, fd)
            loop.add_reader(fd, on_end, pid, fd)
            open_fds.callback(loop.remove_reader, fd)
        if not ended:
            await woken.wait()
    return ended


def anew(log: Path) -> BinaryIO:
    """The log, empty; what was in it is kept beside it."""
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_name(f"{log.name}.1"))
    return log.open("ab")


def trim(log: Path) -> None:
    """Start a log anew that has grown too large; what was in it is kept beside it.

    Its writer goes on: it appends. What it writes meanwhile may be lost.
    """
    if log.stat().st_size > LOG_BYTES:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
