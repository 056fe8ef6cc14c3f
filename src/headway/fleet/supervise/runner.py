"""Keeps one process as its life says: performs the actions, and brings the events."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.engine.start.command import EngineCommand
from headway.fleet.operate.failure import Cause
from headway.fleet.place.local import EngineProcess, trim
from headway.fleet.supervise.lifecycle import Life
from headway.fleet.supervise.probes import LOOK_S, ProcessProbe
from headway.fleet.supervise.states import (
    Action,
    Event,
    Exited,
    Hung,
    Idle,
    LifecycleLimits,
    LifecycleState,
    Lost,
    Ready,
    Tick,
)

_READY_AGAIN_S: Final = 0.25
_DEAD_AGAIN_S: Final = 0.1
_DEAD_FOR_S: Final = 3.0
"""How long a process in front may take to notice that the one behind it has ended."""
_NOT_STARTED: Final = 127
"""Exit status of what couldn't be started, as shells have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What a keeper needs of its host.

    make: a new run of the process. command: what to run, asked at each start; may take a while,
        and doesn't much longer once the run is told to stop.
    probe: made anew for each run. log: where it writes.
    cause: why the process that wrote a log ended with a status.
    tell: told whether requests may go there, whenever that changes.
    idle: returns once nothing runs there any more.
    launched, ended: called at the start and the end of each process.
    changed: called after every change of its life.
    """

    make: Callable[[], EngineProcess]
    command: Callable[[], Awaitable[EngineCommand]]
    probe: Callable[[], ProcessProbe]
    log: Path
    cause: Callable[[Path, int], Cause]
    tell: Callable[[bool], None]
    idle: Callable[[], Awaitable[None]]
    launched: Callable[[], None] = lambda: None
    ended: Callable[[], None] = lambda: None
    changed: Callable[[], None]


class Runner:
    """One process that is kept running. Needs a running event loop."""

    def __init__(self, limits: LifecycleLimits, duties: Duties, look_s: float = LOOK_S) -> None:
        self.life = Life(limits)
        self._duties = duties
        self._look_s = look_s
        self._loop = asyncio.get_running_loop()
        self._engine: EngineProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the outermost process that runs now."""
        return self._engine.pid if self._engine else None

    @property
    def log(self) -> Path:
        """Where it writes."""
        return self._duties.log

    @property
    def engine(self) -> EngineProcess | None:
        """The run of now."""
        return self._engine

    def on(self, event: Event) -> None:
        """Something has happened, or is wanted."""
        for action in self.life.on(event, self._loop.time()):
            self._do(action)
        self._arm()
        self._duties.changed()

    def _do(self, action: Action) -> None:
        if action is Action.LAUNCH:
            self._engine = self._duties.make()
            self._spawn(self._run(self._engine))
        elif action in {Action.OPEN, Action.CLOSE}:
            self._duties.tell(action is Action.OPEN)
        elif self._engine is not None:
            self._engine.stop(force=action is Action.KILL)

    def _arm(self) -> None:
        """A timer for the next Tick, and a task that waits for Idle where that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.life.until_s is not None:
            self._timer = self._loop.call_at(self.life.until_s, self.on, Tick())
        if self.life.state is LifecycleState.DRAINING:
            if self._draining is None:
                self._draining = self._spawn(self._until_idle())
        elif self._draining is not None:
            self._draining.cancel()
            self._draining = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._loop.call_exception_handler({"message": "in a keeper", "exception": error})

    async def _until_idle(self) -> None:
        await self._duties.idle()
        self._draining = None
        self.on(Idle())

    async def _run(self, engine: EngineProcess) -> None:
        """One process from start to end."""
        self._duties.launched()
        try:
            await engine.start(await self._duties.command(), self._duties.log)
        except (OSError, HeadwayError) as error:
            exited = Exited(_NOT_STARTED, str(error))
        else:
            watch = self._spawn(self._watch(engine))
            status = await engine.wait()
            watch.cancel()
            exited = Exited(status, *self._duties.cause(self._duties.log, status))
        self._engine = None
        self._duties.ended()
        self.on(exited)

    async def _watch(self, engine: EngineProcess) -> None:
        probe = self._duties.probe()
        while True:
            if await probe.ready():
                break
            await asyncio.sleep(_READY_AGAIN_S)
        self.on(Ready())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_if_hung(probe))
            group.create_task(self._notice_ends(engine, probe))

    async def _end_if_hung(self, probe: ProcessProbe) -> None:
        """Probe the process again and again, until it has to be ended."""
        while True:
            await asyncio.sleep(self._look_s)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(trim, self.log)
            why = await probe.trouble(self._loop.time())
            if why is not None:
                self.on(Hung(why))
                return

    async def _notice_ends(self, engine: EngineProcess, probe: ProcessProbe) -> None:
        """A part of the process has ended: say so at once, and whether the rest can go on."""
        while not await engine.part_ended():
            until_s = self._loop.time() + _DEAD_FOR_S
            while self._loop.time() < until_s:
                if await probe.dead():
                    self.on(Hung())
                    return
                await asyncio.sleep(_DEAD_AGAIN_S)
        self.on(Lost())
