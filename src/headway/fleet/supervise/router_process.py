"""The router's process as the fleet's front: its ports, its file, its life."""

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from headway.config import Config
from headway.core.status import RouterStatus
from headway.engine.start.command import EngineCommand
from headway.fleet.errors import FleetError
from headway.fleet.operate.failure import Cause
from headway.fleet.operate.state_dir import Home
from headway.fleet.place import ports
from headway.fleet.place.local import Family, LocalEngine
from headway.fleet.plan.spec import Address, FleetSpec
from headway.fleet.supervise import router_link
from headway.fleet.supervise.router_link import RouterLink, RouterProbe
from headway.fleet.supervise.runner import Duties, Runner
from headway.fleet.supervise.states import LifecycleLimits, LifecycleState

_ADMIN_HOST: Final = "127.0.0.1"
_STOP_MARGIN_S: Final = 5.0

Text = Callable[[Config, Mapping[str, Sequence[Address]]], str]
"""The router's file for engines at these addresses, by pool."""


async def _at_once() -> None:
    """A router that is told to stop lets its answers end by itself."""


class Front:
    """The router. endpoint: where clients connect. admin: its admin port's URL.

    Its ports are held from here on, so that they stay its own. Raises FleetError where somebody
    else has them. Needs a running event loop.
    """

    def __init__(
        self,
        spec: FleetSpec,
        home: Home,
        family: Family,
        *,
        text: Text,
        cause: Callable[[Path, int], Cause],
        lock: int | None,
        look_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._home = home
        self._drain_s = spec.drain_s
        self._text = text
        self._changed = changed
        self._unread = False
        """Whether the file may have changed since the router has read it."""
        given = spec.config.router
        self._ports = _claimed(given.host, given.port, given.admin_port)
        port, admin_port = (held.number for held in self._ports)
        # A port that is 0 in the file is found here; the file can't change them later.
        self._place = given.host, port, admin_port
        host = f"[{given.host}]" if ":" in given.host else given.host
        self.endpoint = f"{'https' if given.tls else 'http'}://{host}:{port}"
        self.admin = f"http://{_ADMIN_HOST}:{admin_port}"
        self.link = RouterLink(self.admin)
        limits = LifecycleLimits(spec.start_timeout_s, 0.0, spec.drain_s + _STOP_MARGIN_S)
        duties = Duties(
            make=lambda: LocalEngine(family, home.scratch, metrics=False, lock=lock),
            command=self._command,
            probe=lambda: RouterProbe(self.link, spec.hang_s),
            log=home.log("router"),
            cause=cause,
            tell=lambda _: None,
            idle=_at_once,
            launched=self.link.started,
            ended=self.link.ended,
            changed=self._on_change,
        )
        self.keeper = Runner(limits, duties, look_s)

    async def _command(self) -> EngineCommand:
        return router_link.command(self._home.router_file, self.endpoint, os.environ, self._drain_s)

    def write(self, config: Config, addresses: Mapping[str, Sequence[Address]]) -> None:
        """Have the router use these settings and engines."""
        host, port, admin_port = self._place
        fixed = dataclasses.replace(config.router, host=host, port=port, admin_port=admin_port)
        text = self._text(dataclasses.replace(config, router=fixed), addresses)
        self._home.write_router_file(text)
        self._unread = self.keeper.life.state in {LifecycleState.STARTING, LifecycleState.READY}
        self._tell()

    def _tell(self) -> None:
        """Have it read its file again. One that isn't ready yet may not know the signal, and may
        have read the file already.
        """
        engine = self.keeper.engine
        ready = self.keeper.life.state is LifecycleState.READY
        if self._unread and ready and isinstance(engine, LocalEngine):
            self._unread = False
            server = engine.server()
            if server is not None:
                os.kill(server, signal.SIGHUP)

    def _on_change(self) -> None:
        self._tell()
        self._changed()

    def status(self, now_s: float) -> RouterStatus:
        """What there is to tell of it."""
        life = self.keeper.life
        return RouterStatus(
            state=life.state.value,
            reason=life.reason,
            since_s=round(now_s - life.since_s, 1),
            restarts=life.restarts,
            pid=self.keeper.pid,
            log=str(self._home.log("router")),
        )

    def release(self) -> None:
        """Let go of its ports."""
        for held in self._ports:
            held.release()


def _claimed(host: str, port: int, admin_port: int) -> list[ports.Port]:
    """Both ports, or neither. Raises FleetError for one that is taken."""
    held = ports.claim(host, port)
    try:
        return [held, ports.claim(_ADMIN_HOST, admin_port)]
    except FleetError:
        held.release()
        raise
