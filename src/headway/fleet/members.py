"""The engines of a fleet: each with its ports, its life, and whoever keeps it."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headway.engine.command import EngineCommand
from headway.fleet import order, ports
from headway.fleet.events import OVER, Go, Limits, State
from headway.fleet.home import Home
from headway.fleet.keeper import Duties, Keeper
from headway.fleet.local import FORCE_GRACE_S, Family, LocalEngine
from headway.fleet.model import Address, EngineSpec, FleetSpec, Machine
from headway.fleet.router import RouterLink
from headway.fleet.watch import LOOK_S, EngineProbe

HOST: Final = "127.0.0.1"
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
    cause: Callable[[Path, int], str]
    lock: int | None = None
    look_s: float = LOOK_S


class Member:
    """One engine. spec: what its next start will use. router_id: the router's name for it."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._ports = (ports.reserve(HOST), ports.reserve(HOST))
        port, side_port = (held.number for held in self._ports)
        self.address = Address(host=HOST, port=port, side_port=side_port)
        self.router_id = f"{spec.pool}/{HOST}:{port}"
        self.keeper: Keeper

    def release(self) -> None:
        """Let go of its ports."""
        for held in self._ports:
            held.release()


class Members:
    """All engines that the fleet has started and not yet let go. Needs a running event loop.

    changed: called after every change of an engine's life.
    """

    def __init__(
        self,
        spec: FleetSpec,
        making: Making,
        home: Home,
        family: Family,
        link: RouterLink,
        changed: Callable[[Member], None],
    ) -> None:
        self.by_name: dict[str, Member] = {}
        self._spec = spec
        self._making = making
        self._home = home
        self._family = family
        self._link = link
        self._changed = changed

    def add(self, spec: EngineSpec) -> Member:
        """An engine, on ports of its own; it waits for Start."""
        member = self.by_name[spec.name] = Member(spec)
        limits = Limits(
            start_s=self._spec.start_timeout_s,
            drain_s=self._spec.drain_s,
            stop_s=_STOP_S + FORCE_GRACE_S,
        )
        member.keeper = Keeper(limits, self._duties(member), self._making.look_s)
        self._link.set_open(member.router_id, is_open=False)
        return member

    def _duties(self, member: Member) -> Duties:
        making, home, link = self._making, self._home, self._link
        return Duties(
            make=lambda: LocalEngine(self._family, home.scratch, lock=making.lock),
            command=lambda: making.command(member.spec, member.address),
            probe=lambda: EngineProbe(
                member.address.url,
                self._spec.hang_s,
                functools.partial(link.requests, member.router_id),
            ),
            log=home.log(member.spec.name),
            cause=making.cause,
            tell=lambda is_open: link.set_open(member.router_id, is_open=is_open),
            idle=lambda: self._idle(member),
            changed=lambda: self._on_change(member),
        )

    def _on_change(self, member: Member) -> None:
        self._changed(member)
        self.start_queued()

    def start_queued(self) -> None:
        """Start what waits for room and has it now."""
        for member in list(self.by_name.values()):
            if member.keeper.life.state is State.QUEUED and self._has_room(member):
                member.keeper.on(Go())

    def _has_room(self, member: Member) -> bool:
        starting = [m.spec for m in self.by_name.values() if m.keeper.life.state is State.STARTING]
        every = [m.spec for m in self.by_name.values() if m.keeper.life.state not in OVER]
        return order.may_start(member.spec, starting, every, self._making.machine)

    def remove(self, member: Member) -> None:
        """It has stopped and won't be started again."""
        del self.by_name[member.spec.name]
        self._link.forget(member.router_id)
        member.release()

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

    def status(self, member: Member, now_s: float) -> Mapping[str, Any]:
        """What there is to tell of an engine. since_s: how long it has been in its state."""
        life, spec = member.keeper.life, member.spec
        held = life.held and life.state is State.READY
        return {
            "name": spec.name,
            "pool": spec.pool,
            "role": spec.role,
            "model": spec.model,
            "state": "draining" if held else life.state.value,
            "reason": f"drained; headway undrain {spec.name}" if held else life.reason,
            "since_s": round(now_s - life.since_s, 1),
            "restarts": life.restarts,
            "held": life.held,
            "url": member.address.url,
            "side_port": member.address.side_port,
            "router_id": member.router_id,
            "devices": list(spec.devices),
            "pid": member.keeper.pid,
            "log": str(self._home.log(spec.name)),
        }
