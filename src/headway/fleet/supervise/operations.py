"""What operators ask of a running fleet: drain, undrain, scale, rolling restart, reload."""

import asyncio
import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from headway.config import Config, waiting
from headway.core.errors import HeadwayError
from headway.fleet.errors import FleetError, NotFoundError
from headway.fleet.plan.spec import EngineSpec, FleetSpec
from headway.fleet.supervise.engines import Member, Members
from headway.fleet.supervise.router_link import RouterLink
from headway.fleet.supervise.states import Drain, LifecycleState, Restart, Start, Stop, Undrain

_TOLD_S: Final = 5.0
"""How long the router may take to hear of a drain."""
_SERVED_S: Final = 120.0
"""How long the router may take to send requests to an engine that is ready again."""
_SERVED_AGAIN_S: Final = 0.25
_SHOWN: Final = 200
"""Characters of what was asked that an answer repeats."""
_SETTLED: Final = frozenset({LifecycleState.READY, LifecycleState.FAILED, LifecycleState.STOPPED})


class Plans(Protocol):
    """As `supervisor.Parts`."""

    @property
    def rescale(self) -> Callable[[FleetSpec, str, int], FleetSpec]: ...
    @property
    def read(self) -> Callable[[], FleetSpec] | None: ...


class Operations:
    """Each changes the fleet; scaling, restarts and reloads are done one at a time.

    spec: the fleet as it is now. busy: what is being done, "" for nothing.
    write: has the router know the engines of now, with these settings.
    claim: keeps other fleets from these devices. Raises FleetError where one has one of them.
    """

    def __init__(
        self,
        spec: FleetSpec,
        plans: Plans,
        members: Members,
        link: RouterLink,
        write: Callable[[Config], None],
        claim: Callable[[Collection[int]], None],
        say: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.busy = ""
        self._started = spec
        self._file = spec
        """The fleet as the file described it when it was last read."""
        self._plans = plans
        self._members = members
        self._link = link
        self._write = write
        self._claim = claim
        self._say = say
        self._ending = False
        self._news = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()

    async def handle(self, request: Mapping[str, Any]) -> Any:
        """Do one. Raises HeadwayError where it can't be done."""
        match request:
            case {"do": "drain", "engine": str(name)}:
                return await self.drain(name)
            case {"do": "undrain", "engine": str(name)}:
                return self.undrain(name)
            case {"do": "scale", "pool": str(pool), "replicas": int(replicas)} if not (
                isinstance(replicas, bool)
            ):
                return self.scale(pool, replicas)
            case {"do": "restart", "pool": str(pool)}:
                return await self.restart(pool)
            case {"do": "reload"}:
                return await self.reload()
        said = f"the request {repr(dict(request))[:_SHOWN]} is unknown or lacks something"
        raise FleetError(said)

    # Waiting

    def wake(self) -> None:
        """Something has changed."""
        self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """The fleet is being stopped: what is being done is given up."""
        self._ending = True
        self.wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds; it is looked at after every change."""
        while not condition():
            await self._news.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """As `until`. Raises FleetError when the fleet is being stopped."""
        await self.until(lambda: self._ending or condition())
        if self._ending:
            raise FleetError("the fleet is being stopped")

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if self.busy:
            raise FleetError(f"a {self.busy} is under way; wait until it has ended")
        self.busy = what
        try:
            yield
        finally:
            self.busy = ""

    # Draining

    async def drain(self, name: str) -> dict[str, Any]:
        """Send nothing new to an engine. `told`: whether the router has heard yet."""
        member = self._member(name)
        member.keeper.on(Drain())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_S):
                await self._link.until_closed(member.router_id)
        return {"told": self._link.told_closed(member.router_id)}

    def undrain(self, name: str) -> dict[str, Any]:
        """Take a drain back."""
        self._member(name).keeper.on(Undrain())
        return {}

    def _member(self, name: str) -> Member:
        member = self._members.by_name.get(name)
        if member is None:
            known = ", ".join(self._members.by_name)
            raise NotFoundError(f"no engine {name[:_SHOWN]!r} in this fleet; there are: {known}")
        return member

    # Scaling

    def scale(self, pool: str, replicas: int) -> dict[str, Any]:
        """Start engines that are missing, and stop those that are too many once they are drained.

        Returns when that has begun.
        """
        self._pool(pool)
        with self._alone("change of the fleet's size"):
            new = self._plans.rescale(self.spec, pool, replicas)
            before = {engine.name for engine in self.spec.engines}
            self._become(new)
            after = {engine.name for engine in new.engines}
            return {"added": sorted(after - before), "leaving": sorted(before - after)}

    def _pool(self, pool: str) -> list[Member]:
        """Its engines, those that leave left out."""
        names = [engine.name for engine in self.spec.engines if engine.pool == pool]
        if not names:
            known = ", ".join(dict.fromkeys(engine.pool for engine in self.spec.engines))
            raise NotFoundError(f"no pool {pool[:_SHOWN]!r} is started here; there are: {known}")
        return [self._members.by_name[name] for name in names]

    def _become(self, new: FleetSpec) -> None:
        """Have the engines of `new`. Those that stay keep what they run with until a restart."""
        wanted = {engine.name: engine for engine in new.engines}
        running = {engine.name for engine in self.spec.engines}
        back = [name for name in wanted.keys() - running if name in self._members.by_name]
        if back:
            raise FleetError(f"{', '.join(sorted(back))} is still being stopped; try again later")
        added = self._write_down(new, [wanted[name] for name in wanted if name not in running])
        for name in wanted.keys() & running:
            self._members.by_name[name].spec = wanted[name]
        self.spec = new
        gone = [self._members.by_name[name] for name in running - wanted.keys()]
        for member in gone:
            member.keeper.on(Stop())
        for member in added:
            member.keeper.on(Start())
        for member in gone:
            task = asyncio.create_task(self._let_go(member))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _write_down(self, new: FleetSpec, more: Iterable[EngineSpec]) -> list[Member]:
        """Have the devices and places of more engines, and the router know them, or nothing at all.

        Raises FleetError where something of it can't be had or written.
        """
        added: list[Member] = []
        try:
            self._hold(new.engines)
            for engine in more:
                added.append(self._members.add(engine))  # noqa: PERF401  those before one that fails
            self._write(new.config)
        except BaseException:
            for member in added:
                self._members.remove(member)
            with contextlib.suppress(FleetError):
                self._hold(())
            raise
        return added

    def _hold(self, more: Iterable[EngineSpec]) -> None:
        """Have the devices of all engines there are, and of these. Raises FleetError."""
        specs = [*(member.spec for member in self._members.by_name.values()), *more]
        self._claim({device for spec in specs for device in spec.devices})

    async def _let_go(self, member: Member) -> None:
        await self.until(lambda: member.keeper.life.state is LifecycleState.STOPPED)
        if not self._ending:
            self._members.remove(member)
            self.wake()
            try:
                self._write(self.spec.config)
                self._hold(())
            except FleetError as error:  # until the next change the router looks for it in vain
                self._say(f"{member.spec.name} has ended: {error}")

    # Restarting

    async def restart(self, pool: str) -> dict[str, Any]:
        """Restart a pool's engines one after the other, each once the one before it gets requests.

        Raises FleetError where one doesn't come back; those after it are as they were.
        """
        members = self._pool(pool)
        with self._alone(f"restart of {pool}"):
            for member in members:
                member.keeper.on(Restart())
                await self._until(functools.partial(_settled, member))
                life, name = member.keeper.life, member.spec.name
                if life.state is not LifecycleState.READY:
                    why = life.reason or "it was stopped"
                    raise FleetError(f"{name} didn't come back: {why}; the restart of {pool} ends")
                if life.open:
                    await self._until_served(member)
        return {"restarted": [member.spec.name for member in members]}

    async def _until_served(self, member: Member) -> None:
        try:
            async with asyncio.timeout(_SERVED_S):
                while member.keeper.life.open and not self._ending:
                    if await self._link.refresh() and self._link.serves(member.router_id):
                        return
                    await asyncio.sleep(_SERVED_AGAIN_S)
        except TimeoutError:
            raise FleetError(
                f"{member.spec.name} is ready and the router sends nothing there after "
                f"{_SERVED_S:g} s; the restart ends; see headway logs router"
            ) from None

    # The file

    @property
    def waiting(self) -> tuple[str, ...]:
        """What the file says that counts from the fleet's next start."""
        return waiting(self._started.config, self._file.config, fleet=True)

    async def reload(self) -> dict[str, Any]:
        """Read the file again: the router's settings and the pools' sizes count at once.

        What else has changed of an engine counts at its next start, what has of the fleet at the
        fleet's; both are told. Raises HeadwayError where nothing has changed: the file is wrong, or
        the state directory can't be written.
        """
        try:
            if self._plans.read is None:
                raise FleetError("there is no file to read again")
            with self._alone("reload"):
                changed = self._take(self._plans.read())
        except HeadwayError as error:
            self._say(f"reload: everything stays as it is:\n{error}")
            raise
        for pool in changed:
            self._say(f"reload: what is new for {pool} needs headway restart {pool}")
        for each in self.waiting:
            self._say(f"reload: {each}, until headway down and headway up")
        named = changed or self.waiting
        self._say("reload: done, but for what is named above" if named else "reload: done")
        return {"restart": changed, "waiting": list(self.waiting)}

    def _take(self, file: FleetSpec) -> list[str]:
        """Become what the file says; the pools that need a restart."""
        old, new = _sizes(self._file), _sizes(file)
        if old.keys() != new.keys():
            pools = ", ".join(sorted(old.keys() ^ new.keys()))
            raise FleetError(f"to add or remove pools ({pools}) use headway down and headway up")
        spec = dataclasses.replace(self.spec, config=file.config)
        for pool in new:
            if new[pool] != old[pool]:
                spec = self._plans.rescale(spec, pool, new[pool])
        described = {engine.name: engine for engine in file.engines}
        engines = tuple(_described(e, described.get(e.name)) for e in spec.engines)
        running = {engine.name: engine for engine in self.spec.engines}
        changed = [e.pool for e in engines if running.get(e.name, e) != e]
        self._become(dataclasses.replace(spec, engines=engines))
        self._file = file
        return sorted(set(changed))


def _settled(member: Member) -> bool:
    return member.keeper.life.state in _SETTLED


def _sizes(spec: FleetSpec) -> Counter[str]:
    return Counter(engine.pool for engine in spec.engines)


def _described(engine: EngineSpec, file: EngineSpec | None) -> EngineSpec:
    """The engine as the file describes it, on the devices it has."""
    return engine if file is None else dataclasses.replace(file, devices=engine.devices)
