"""The supervisor: starts a fleet, keeps it running, does what it is asked, and stops it.

One process, one event loop. Everything below it ends with it, whatever ends it (`local`).
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headway.config import Config
from headway.core.errors import HeadwayError
from headway.core.json_shape import to_json
from headway.core.status import FleetStatus
from headway.fleet.errors import FleetError
from headway.fleet.operate import claims, control_socket
from headway.fleet.operate.state_dir import Home
from headway.fleet.place import placement
from headway.fleet.place.local import Family
from headway.fleet.place.placement import Placement
from headway.fleet.plan.spec import FleetSpec
from headway.fleet.supervise.engines import Making, Member, Members
from headway.fleet.supervise.operations import Operations
from headway.fleet.supervise.router_process import Front, Text
from headway.fleet.supervise.runner import Runner
from headway.fleet.supervise.states import OVER, RUNNING, Go, LifecycleState, Start, Stop

_LEARN_S: Final = 0.5
"""Between two looks at whether the router has seen that an engine is ready."""
_SHOW_S: Final = 1.0

Said = TypeVar("Said")
Say = Callable[[str], None]
Show = Callable[[FleetStatus], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the supervisor is given that knows vLLM, the machine or the file.

    router_text: the router's file for these engines, by pool.
    rescale: the fleet with another number of engines in a pool. Raises HeadwayError.
    read: the fleet as the file describes it now, None without a file. Raises HeadwayError.
    """

    making: Making
    router_text: Text
    rescale: Callable[[FleetSpec, str, int], FleetSpec]
    read: Callable[[], FleetSpec] | None = None


def run(
    spec: FleetSpec, parts: Parts, home: Home, say: Say, show: Show = lambda status: None
) -> int:
    """Run the fleet until it is told to stop; the exit status, 0 after a stop that was asked for.

    say: told what happens, a line at a time. show: given the status at every change, and every
    second.

    SIGINT and SIGTERM stop it gracefully, a second one by force; SIGHUP reads the file again.
    Raises FleetError where it can't start.
    """
    with home.locked(say) as lock:
        home.make()
        devices = {device for engine in spec.engines for device in engine.devices}
        claims.claim(home, devices, cpu=parts.making.machine.cpu)
        making = dataclasses.replace(parts.making, lock=lock)
        parts = dataclasses.replace(parts, making=making)
        return asyncio.run(_run(spec, parts, home, _quietly(say), _quietly(show)))


async def _run(spec: FleetSpec, parts: Parts, home: Home, say: Say, show: Show) -> int:
    family = Family()
    making = parts.making
    placed = placement.choose(spec, making.machine, family, home.scratch, making.lock)
    try:
        return await Supervisor(spec, parts, home, family, placed, say, show).until_stopped()
    finally:
        placed.close()
        await family.end_strays()


def _quietly(tell: Callable[[Said], None]) -> Callable[[Said], None]:
    """As `tell`, and nothing happens where the terminal it tells is gone."""

    def told(said: Said) -> None:
        with contextlib.suppress(OSError):
            tell(said)

    return told


class Supervisor:
    """A fleet that runs. Needs a running event loop. Raises FleetError for ports that are taken."""

    def __init__(
        self,
        spec: FleetSpec,
        parts: Parts,
        home: Home,
        family: Family,
        placed: Placement,
        say: Say,
        show: Show,
    ) -> None:
        self._name = spec.name
        self._home = home
        self._say = say
        self._show = show
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        self._news = asyncio.Event()
        self._failure = ""
        self._states: dict[str, LifecycleState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        making = parts.making
        self._front = Front(
            spec,
            home,
            family,
            text=parts.router_text,
            cause=making.cause,
            lock=making.lock,
            look_s=making.look_s,
            changed=self._front_changed,
        )
        link = self._front.link
        self._members = Members(
            spec, making, home, placed, link, changed=self._member_changed, moved=self._moved
        )
        claim = functools.partial(claims.claim, home, cpu=making.machine.cpu)
        self._operations = Operations(spec, parts, self._members, link, self._write, claim, say)

    # From start to end

    async def until_stopped(self) -> int:
        """Start everything, run until told to stop, stop everything; the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        async with control_socket.served(self._home.socket, self._handle):
            for work in (self._front.link.run(), self._learn(), self._show_often()):
                self._spawn(work)
            try:
                self._start()
                await self._stop_asked.wait()
            except BaseException:
                self.stop(force=True)
                raise
            finally:
                await self._end()
                for task in self._tasks:
                    task.cancel()
        self._say(self._failure or "stopped")
        return 1 if self._failure else 0

    def _start(self) -> None:
        spec = self._operations.spec
        members = [self._members.add(engine) for engine in spec.engines]
        self._write(spec.config)
        self._front.keeper.on(Start())
        for member in members:
            member.keeper.on(Start())

    async def _end(self) -> None:
        """The router first: what it has taken may end while the engines still answer."""
        self._operations.end()
        front, members = self._front.keeper, list(self._members.by_name.values())
        front.on(Stop())
        for member in members:
            if member.keeper.life.state is not LifecycleState.READY:
                member.keeper.on(Stop())
        await self._operations.until(lambda: front.life.state in OVER)
        for member in members:
            member.keeper.on(Stop())
        await self._operations.until(self._members.over)
        self._front.release()
        for member in members:
            member.place.release()

    def stop(self, *, force: bool = False) -> None:
        """Stop the fleet: gracefully the first time, by force if asked for or asked again."""
        if not (force or self._stop_asked.is_set()):
            self._say("stopping; running requests may finish (once more to stop at once)")
            self._stop_asked.set()
            return
        self._say("stopping at once")
        self._stop_asked.set()
        for keeper in (self._front.keeper, *(m.keeper for m in self._members.by_name.values())):
            keeper.on(Stop(force=True))

    def _on_hangup(self) -> None:
        self._spawn(self._reload())

    async def _reload(self) -> None:
        with contextlib.suppress(HeadwayError):  # it has been said
            await self._operations.reload()

    # What happens meanwhile

    def _write(self, config: Config) -> None:
        self._front.write(config, self._members.addresses())

    def _moved(self) -> None:
        self._write(self._operations.spec.config)

    def _front_changed(self) -> None:
        self._changed("router", self._front.keeper)
        if self._front.keeper.life.state is LifecycleState.QUEUED:
            self._front.keeper.on(Go())

    def _member_changed(self, member: Member) -> None:
        self._changed(member.spec.name, member.keeper)

    def _changed(self, name: str, keeper: Runner) -> None:
        state = keeper.life.state
        if self._states.get(name) is not state:
            self._states[name] = state
            self._tell(name, keeper)
        self._operations.wake()
        self._news.set()

    def _tell(self, name: str, keeper: Runner) -> None:
        life = keeper.life
        if life.state is LifecycleState.BACKOFF and life.until_s is not None:
            wait_s = life.until_s - life.since_s
            self._say(f"{name} has ended: {life.reason}; started again in {wait_s:g} s")
        elif life.state is LifecycleState.STOPPING and life.reason:
            self._say(f"{name} is being ended: {life.reason}")
        elif life.state is LifecycleState.READY and life.restarts:
            self._say(f"{name} is ready again")
        elif life.state is LifecycleState.FAILED:
            self._say(f"{name} has failed: {life.reason}; all it said: {keeper.log}")
            self._give_up(name, life.reason)

    def _give_up(self, name: str, why: str) -> None:
        """End the fleet where nothing can be served any more."""
        states = [m.keeper.life.state for m in self._members.by_name.values()]
        elsewhere = any(pool.engines for pool in self._operations.spec.config.pools)
        none_left = not elsewhere and all(state is LifecycleState.FAILED for state in states)
        if (name == "router" or none_left) and not self._stop_asked.is_set():
            what = "the router" if name == "router" else "every engine"
            self._failure = f"{what} has failed, so nothing is served: {why}"
            self._stop_asked.set()

    async def _learn(self) -> None:
        """Ask the router often while it doesn't yet send requests where it may."""
        while True:
            if self._front.keeper.life.state in RUNNING and not self._members.served():
                await self._front.link.refresh()
                self._news.set()
            await asyncio.sleep(_LEARN_S)

    async def _show_often(self) -> None:
        """A task of its own: a fault in what shows the fleet doesn't touch the fleet."""
        while True:
            self._news.clear()
            self._show(self.status())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _SHOW_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What it is asked

    def status(self) -> FleetStatus:
        """What there is to tell of the fleet."""
        now_s = self._loop.time()
        return FleetStatus(
            name=self._name,
            pid=os.getpid(),
            stopping=self._stop_asked.is_set(),
            serving=self._members.served(),
            busy=self._operations.busy,
            waiting=self._operations.waiting,
            endpoint=self._front.endpoint,
            admin=self._front.admin,
            router=self._front.status(now_s),
            engines=tuple(self._members.status(m, now_s) for m in self._members.by_name.values()),
        )

    async def _handle(self, request: Mapping[str, Any]) -> Any:
        """Status and down here, what changes the fleet in `Operations`."""
        if request.get("do") == "status":
            return to_json(self.status())
        if request.get("do") == "down":
            self.stop(force=request.get("force") is True)
            return {"stopping": True}
        if self._stop_asked.is_set():
            raise FleetError(f"the fleet {self._name} is being stopped")
        return await self._operations.handle(request)
