"""The engines of a fleet: each with its place, its life, and whoever keeps it."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.core.status import EngineStatus
from headway.engine.start.command import EngineCommand
from headway.fleet.operate.failure import Cause
from headway.fleet.operate.state_dir import Home
from headway.fleet.place.local import FORCE_GRACE_S
from headway.fleet.place.placement import Place, Placement
from headway.fleet.plan.spec import Address, EngineSpec, FleetSpec, Machine, emulated
from headway.fleet.supervise.probes import LOOK_S, EngineProbe
from headway.fleet.supervise.router_link import RouterLink
from headway.fleet.supervise.runner import Duties, Runner
from headway.fleet.supervise.states import OVER, Go, LifecycleLimits, LifecycleState

_STOP_S: Final = 60.0
"""What a stop may take that its guard should end sooner."""
_IDLE_AGAIN_S: Final = 0.1
_PREFILL_QUIET_S: Final = 2.0
"""A prefill engine's KV is fetched after its own request has ended; one without requests for so
long has none that a decode engine is about to fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What engines are made of.

    command: what to run for an engine at an address.
    cause: why the process that wrote a log ended with a status.
    lock: descriptor that everything that runs keeps open.
    look_s: between two looks at an engine.
    """

    machine: Machine
    command: Callable[[EngineSpec, Address], EngineCommand]
    cause: Callable[[Path, int], Cause]
    lock: int | None = None
    look_s: float = LOOK_S


class Member:
    """One engine. spec: what its next start will use. said: what is to be told though it runs."""

    def __init__(self, spec: EngineSpec, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.keeper: Runner
        self.said = ""

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self.place.address

    @property
    def router_id(self) -> str:
        """The router's name for it."""
        return f"{self.spec.pool}/{self.address.url.removeprefix('http://')}"


class Members:
    """All engines that the fleet has started and not yet let go. Needs a running event loop.

    changed: called after every change of an engine's life.
    moved: called when one has got another address.
    """

    def __init__(
        self,
        spec: FleetSpec,
        making: Making,
        home: Home,
        placement: Placement,
        link: RouterLink,
        changed: Callable[[Member], None],
        moved: Callable[[], None],
    ) -> None:
        self.by_name: dict[str, Member] = {}
        self._spec = spec
        self._making = making
        self._home = home
        self._placement = placement
        self._link = link
        self._changed = changed
        self._moved = moved

    def add(self, spec: EngineSpec) -> Member:
        """An engine, in a place of its own; it waits for Start."""
        member = Member(spec, self._placement.place(spec.name))
        self.by_name[spec.name] = member
        limits = LifecycleLimits(
            start_s=self._spec.start_timeout_s,
            drain_s=self._spec.drain_s,
            stop_s=_STOP_S + FORCE_GRACE_S,
        )
        member.keeper = Runner(limits, self._duties(member), self._making.look_s)
        self._link.set_open(member.router_id, is_open=False)
        return member

    def _duties(self, member: Member) -> Duties:
        making, home, link = self._making, self._home, self._link
        return Duties(
            make=member.place.engine,
            command=lambda: self._command(member),
            probe=lambda: EngineProbe(
                member.address.url,
                self._spec.hang_s,
                functools.partial(link.routed, member.router_id),
                functools.partial(setattr, member, "said"),
            ),
            log=home.log(member.spec.name),
            cause=making.cause,
            tell=lambda is_open: link.set_open(member.router_id, is_open=is_open),
            idle=lambda: self._idle(member),
            changed=lambda: self._on_change(member),
        )

    async def _command(self, member: Member) -> EngineCommand:
        """What to run, once it is known where. The router is told of another address."""
        before = member.router_id
        await member.place.land(member.spec)
        if member.router_id != before:
            self._link.forget(before)
            self._link.set_open(member.router_id, is_open=False)
            self._moved()
        return self._making.command(member.spec, member.address)

    def _on_change(self, member: Member) -> None:
        self._changed(member)
        self.start_queued()

    def start_queued(self) -> None:
        """Start what waits for room and has it now."""
        for member in list(self.by_name.values()):
            if member.keeper.life.state is LifecycleState.QUEUED and self._has_room(member):
                member.keeper.on(Go())

    def _has_room(self, member: Member) -> bool:
        starting = [
            m.spec for m in self.by_name.values() if m.keeper.life.state is LifecycleState.STARTING
        ]
        every = [m.spec for m in self.by_name.values() if m.keeper.life.state not in OVER]
        return self._placement.may_start(member.spec, starting, every)

    def remove(self, member: Member) -> None:
        """It has stopped and won't be started again."""
        del self.by_name[member.spec.name]
        self._link.forget(member.router_id)
        member.place.release()

    async def _idle(self, member: Member) -> None:
        """Returns when the router waits for nothing there, and sends nothing there."""
        link, quiet_s = self._link, 0.0
        enough_s = _PREFILL_QUIET_S if member.spec.role == "prefill" else 0.0
        await link.until_closed(member.router_id)
        while link.up:
            known = await link.refresh()
            if known and link.requests(member.router_id) == 0:
                if quiet_s >= enough_s:
                    return
                quiet_s += _IDLE_AGAIN_S
            else:
                quiet_s = 0.0
            await asyncio.sleep(_IDLE_AGAIN_S)

    def addresses(self) -> dict[str, list[Address]]:
        """Where the engines of each pool listen. One that leaves is there until it has stopped: the
        router knows what runs on it.
        """
        found: dict[str, list[Address]] = {}
        for member in self.by_name.values():
            found.setdefault(member.spec.pool, []).append(member.address)
        return found

    def over(self) -> bool:
        """Whether none runs or will run again by itself."""
        return all(member.keeper.life.state in OVER for member in self.by_name.values())

    def served(self) -> bool:
        """Whether the router sends requests to every engine that may get them, and some may."""
        usable = [m for m in self.by_name.values() if m.keeper.life.open]
        return bool(usable) and all(self._link.serves(m.router_id) for m in usable)

    def status(self, member: Member, now_s: float) -> EngineStatus:
        """What there is to tell of an engine."""
        life, spec = member.keeper.life, member.spec
        held = life.held and life.state is LifecycleState.READY
        return EngineStatus(
            name=spec.name,
            pool=spec.pool,
            role=spec.role,
            model=spec.model,
            state="draining" if held else life.state.value,
            reason=f"drained; headway undrain {spec.name}" if held else life.reason,
            note=member.said,
            since_s=round(now_s - life.since_s, 1),
            restarts=life.restarts,
            held=life.held,
            url=member.address.url,
            side_port=member.address.side_port,
            router_id=member.router_id,
            emulated=emulated(spec),
            devices=tuple(spec.devices),
            pid=member.keeper.pid,
            log=str(self._home.log(spec.name)),
        )
