"""Where engines run: on this machine, or on the nodes of a Ray cluster (`ray_placement`)."""

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from headway.fleet.errors import FleetError
from headway.fleet.place import ports, start_order
from headway.fleet.place.local import EngineProcess, Family, LocalEngine
from headway.fleet.plan.spec import Address, EngineSpec, FleetSpec, Machine

HOST: Final = "127.0.0.1"
"""Of everything that runs on this machine."""


class Place(Protocol):
    """Where one engine runs, from when it is wanted until it is let go."""

    @property
    def address(self) -> Address:
        """Where it listens, or would. Only `land` changes it."""

    def engine(self) -> EngineProcess:
        """A new run. The one before it is over."""

    async def land(self, spec: EngineSpec) -> None:
        """Have what the engine needs to start, perhaps at another address. After `engine` and
        before its start; ends soon once that engine is told to stop. Raises FleetError.
        """

    def release(self) -> None:
        """Let go of it; nothing runs there."""


class Placement(Protocol):
    """Gives engines their places."""

    def place(self, name: str) -> Place:
        """For the engine `name`."""

    def may_start(
        self, engine: EngineSpec, starting: Collection[EngineSpec], every: Collection[EngineSpec]
    ) -> bool:
        """Whether `engine` may start while those in `starting` do. every: as `order` has it."""

    def close(self) -> None:
        """Nothing is placed any more."""


def choose(
    spec: FleetSpec, machine: Machine, family: Family, scratch: Path, lock: int | None
) -> Placement:
    """The placement that the fleet asks for. Raises FleetError where it can't be had.

    scratch, lock: as `LocalEngine` has them.
    """
    if spec.placement == "local":
        return LocalPlacement(machine, family, scratch, lock)
    try:
        # Ray is an extra, and slow to load.
        found = importlib.import_module("headway.fleet.place.ray")
    except ImportError as error:
        raise FleetError(
            f'placement = "ray" needs Ray ({error}); pip install "headway[ray]" on every node'
        ) from error
    placement: Placement = found.RayPlacement(spec.config.fleet.ray_address, machine)
    return placement


class LocalPlacement:
    """`Placement` on this machine."""

    def __init__(self, machine: Machine, family: Family, scratch: Path, lock: int | None) -> None:
        self._machine = machine
        self._family = family
        self._scratch = scratch
        self._lock = lock

    def place(self, name: str) -> Place:
        return LocalPlace(self._family, self._scratch, self._lock)

    def may_start(
        self, engine: EngineSpec, starting: Collection[EngineSpec], every: Collection[EngineSpec]
    ) -> bool:
        return start_order.may_start(engine, starting, every, self._machine)

    def close(self) -> None:
        pass


class LocalPlace:
    """`Place` on this machine: two ports, held for life."""

    def __init__(self, family: Family, scratch: Path, lock: int | None) -> None:
        self._family = family
        self._scratch = scratch
        self._lock = lock
        self._ports = (ports.reserve(HOST), ports.reserve(HOST))
        port, side_port = (held.number for held in self._ports)
        self.address = Address(host=HOST, port=port, side_port=side_port)

    def engine(self) -> EngineProcess:
        return LocalEngine(self._family, self._scratch, lock=self._lock)

    async def land(self, spec: EngineSpec) -> None:
        pass

    def release(self) -> None:
        for held in self._ports:
            held.release()
