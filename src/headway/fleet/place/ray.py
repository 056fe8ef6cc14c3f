"""Engines on the nodes of a Ray cluster. The only module that imports Ray.

An engine has an actor, which owns its devices as long as the fleet wants the engine and starts an
agent (`agent`) on its node, which runs it. The actor belongs to the supervisor's Ray job and ends
with that, however the supervisor ends; the agent sees its pipes close and ends the engine.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util import get_node_ip_address, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from headway.engine.start.command import EngineCommand
from headway.fleet.errors import FleetError
from headway.fleet.place import ports
from headway.fleet.place.local import EngineProcess, anew
from headway.fleet.place.placement import HOST, Place
from headway.fleet.place.ray_actor import Actor
from headway.fleet.place.ray_agent import LOST
from headway.fleet.place.ray_nodes import carried, too_small
from headway.fleet.plan.engine_command import threads
from headway.fleet.plan.spec import Address, EngineSpec, Machine

_ROOM_S: Final = 60.0
"""How long an engine waits for a node with room before that counts as a failed start."""
_KNOCK_S: Final = 5.0
_AGAIN_S: Final = 0.5
_CALLS: Final = 4
"""Of an actor at a time: one waits for news."""
_KEEPS_GPUS: Final = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""An actor without GPUs of its own doesn't hide its node's."""


class RayPlacement:
    """`Placement` on a Ray cluster. address: of the cluster. Raises FleetError without one.

    Devices are resources there: GPUs, or CPU cores where vLLM is the CPU build.
    """

    def __init__(self, address: str, machine: Machine) -> None:
        self._cpu = machine.cpu
        if address == "auto":
            address = os.environ.get("RAY_ADDRESS") or address
        try:
            _knock(address)
            ray.init(
                address=address,
                namespace="headway",
                log_to_driver=False,
                configure_logging=False,
            )
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise FleetError(
                f"no Ray cluster at {address!r}: {error}; this machine must be one of its nodes "
                "(ray start --address=HEAD:PORT --num-cpus=0)"
            ) from error

    def place(self, name: str) -> Place:
        return RayPlace(name, cpu=self._cpu)

    def may_start(
        self, engine: EngineSpec, starting: Collection[EngineSpec], every: Collection[EngineSpec]
    ) -> bool:
        return True  # no two have the same device, and Ray makes them wait for room

    def close(self) -> None:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray takes minutes to find that nobody listens. Raises OSError, or ValueError for a client."""
    if "://" in address:
        raise ValueError("that is for clients; give HOST:PORT of its head")
    host, has_port, port = address.rpartition(":")
    if has_port:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


class RayPlace:
    """`Place` on some node. Needs a running event loop.

    Until it has one its address is a port here on which nobody listens.
    """

    def __init__(self, name: str, *, cpu: bool) -> None:
        self._name = name
        self._cpu = cpu
        self._held = ports.reserve(HOST)
        number = self._held.number
        self.address = Address(host=HOST, port=number, side_port=number)
        self.actor: Any = None
        self._group: Any = None
        self._needs: dict[str, int] = {}
        self._spread = False
        self._given_up = asyncio.Event()

    def engine(self) -> EngineProcess:
        self._given_up.clear()
        return RayEngine(self)

    def give_up(self) -> None:
        """End `land`."""
        self._given_up.set()

    async def land(self, spec: EngineSpec) -> None:
        ranks = spec.tensor_parallel_size * spec.pipeline_parallel_size
        needs = {"CPU": ranks * threads(spec)} if self._cpu else {"GPU": ranks}
        if spec.emulation:
            needs = {"CPU": 1}
        if self.actor is not None and needs == self._needs:
            with contextlib.suppress(RayActorError):
                await self._settle()
                return
        self.leave()
        self._needs = needs
        try:
            largest = None if "CPU" in needs else too_small(spec, ray.nodes())
            self._spread = largest is not None
            if largest is None:
                self._ask_for_room()
            else:
                self._join(largest)
            await self._settle()
        except RayError as error:
            self.leave()
            raise FleetError(f"its actor has failed: {error}") from error
        except FleetError:
            self.leave()
            raise

    def _ask_for_room(self) -> None:
        # A bundle is on one node as a whole, and so is what is packed strictly.
        self._group = placement_group([self._needs], strategy="STRICT_PACK")
        self.actor = self._actor(
            num_cpus=self._needs.get("CPU", 0),
            num_gpus=self._needs.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, 0),
        )

    def _join(self, node: str) -> None:
        """Run on this node, without GPUs of its own: vLLM asks Ray for them."""
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        self.actor = self._actor(
            num_cpus=0, num_gpus=0, scheduling_strategy=strategy, runtime_env=_KEEPS_GPUS
        )

    def _actor(self, **options: Any) -> Any:
        made = ray.remote(Actor).options(max_concurrency=_CALLS, **options)
        return made.remote(get_node_ip_address)

    async def _settle(self) -> None:
        """Take the address of the actor, once it is there."""
        asked = asyncio.ensure_future(self.actor.address.remote())
        given_up = asyncio.ensure_future(self._given_up.wait())
        try:
            await asyncio.wait(
                {asked, given_up}, timeout=_ROOM_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not asked.done():
                wanted = ", ".join(f"{count} {kind}" for kind, count in self._needs.items())
                raise FleetError(f"no node of the Ray cluster has {wanted} free; see ray status")
            host, port, side_port = asked.result()
        finally:
            asked.cancel()
            given_up.cancel()
        self.address = Address(host=host, port=port, side_port=side_port, spread=self._spread)

    def leave(self) -> None:
        """Give the node's devices back. What still runs there ends."""
        if self.actor is not None:
            ray.kill(self.actor)
            self.actor = None
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def release(self) -> None:
        self.leave()
        self._held.release()


class RayEngine:
    """`EngineProcess` on the node where its place has landed."""

    def __init__(self, place: RayPlace) -> None:
        self._place = place
        self._actor: Any = None
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._part = asyncio.Event()
        self._gone = False
        """Whether it is over, or about to be."""
        self._stop: bool | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None

    async def start(self, command: EngineCommand, log: Path) -> None:
        anew(log).close()
        request = {
            "do": "start",
            "argv": command.argv,
            "env": carried(command.env, os.environ),
            "drain_s": command.drain_s,
        }
        self._actor = self._place.actor
        self._actor.do.remote(request)
        if self._stop is not None:
            self.stop(force=self._stop)
        self._following = asyncio.get_running_loop().create_task(self._follow(log))
        await self._started

    async def wait(self) -> int:
        return await asyncio.shield(self._over)

    async def part_ended(self) -> bool:
        self._part.clear()
        if not self._gone:
            self._actor.do.remote({"do": "watch"})
            await self._part.wait()
        return self._gone

    def stop(self, *, force: bool) -> None:
        again = force and self._stop is True
        self._stop = force or bool(self._stop)
        if self._actor is None:
            self._place.give_up()
        elif again:
            self._lose()
        else:
            self._actor.do.remote({"do": "stop", "force": force})

    def _lose(self) -> None:
        """Nothing can be known of it any more; Ray ends what there is."""
        self._place.leave()
        self._end(LOST)

    def _end(self, status: int) -> None:
        self._gone = True
        if not self._over.done():
            self._over.set_result(status)
        if not self._started.done():
            self._started.set_result(None)
        self._part.set()

    async def _follow(self, log: Path) -> None:
        """Hear what the agent tells, until the end."""
        where = self._place.address.host
        while not self._over.done():
            try:
                event, said = await self._actor.news.remote()
            except ActorUnavailableError:
                # Its node may have died, which Ray finds out later. Whoever asks the engine itself
                # may know by now, and then wants it ended by force.
                if self._stop:
                    break
                self._part.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            except RayError:
                break
            _append(log, said)
            self._take(event)
        if not self._over.done():
            _append(log, f"headway: nothing is heard from its node any more, {where}\n".encode())
            self._lose()

    def _take(self, event: Mapping[str, Any]) -> None:
        if "started" in event and not self._started.done():
            self._started.set_result(None)
        elif "failed" in event and not self._started.done():
            self._over.set_result(LOST)
            self._started.set_exception(OSError(event["failed"]))
        elif "part" in event:
            self._gone |= event["part"]
            self._part.set()
        elif "exited" in event:
            self._end(event["exited"])


def _append(log: Path, said: bytes) -> None:
    if said:
        with contextlib.suppress(OSError), log.open("ab") as file:
            file.write(said)
