"""The router's clients: a listening server, its connections and their requests."""

import asyncio
import contextlib
import logging
import ssl as tls
from collections.abc import Callable
from typing import Final

from headway.router.wire.client_connection import ClientConnection
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.errors import BodyMalformed, BodyTimeout, BodyTooLarge
from headway.router.wire.failures import ClientGone
from headway.router.wire.hub import App, ClientLimits, Hub
from headway.router.wire.listener import Listener, listen

__all__ = [
    "App",
    "BodyMalformed",
    "BodyTimeout",
    "BodyTooLarge",
    "ClientConnection",
    "ClientGone",
    "ClientLimits",
    "ClientRequest",
    "RouterServer",
    "serve",
]

_log = logging.getLogger("headway.router")
_FLUSH_S: Final = 1.0


class RouterServer:
    """A listening server. hub: its connections. port: where it listens."""

    def __init__(self, hub: Hub, listener: Listener) -> None:
        self._hub = hub
        self._listener = listener
        self.port = listener.port

    @property
    def connections(self) -> int:
        """How many are open, or being opened."""
        return self._hub.open

    @property
    def requests(self) -> int:
        """How many the application is at work on."""
        return len(self._hub.tasks)

    async def close(self, drain_s: float) -> None:
        """Stops accepting, lets answers in progress end for up to `drain_s`, cuts the rest."""
        hub = self._hub
        hub.draining = True
        await self._listener.close()
        for connection in list(hub.connections):
            connection.drain()
        if hub.tasks:
            await asyncio.wait(hub.tasks.values(), timeout=drain_s)
        cut = dict(hub.tasks)
        for task in cut.values():
            task.cancel()
        if cut:
            await asyncio.wait(cut.values())
        for request in cut:
            hub.tasks.pop(request, None)  # one cut before its first step doesn't leave by itself
        for connection in list(hub.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):  # what is written may still go out
            async with asyncio.timeout(min(drain_s, _FLUSH_S)):
                await hub.empty.wait()
        for connection in list(hub.connections):
            connection.cut()
        await hub.empty.wait()


async def serve(
    app: App,
    host: str,
    port: int,
    limits: ClientLimits | None = None,
    ssl: tls.SSLContext | None = None,
    say: Callable[[str], object] = _log.warning,
) -> RouterServer:
    """Listens. port: 0 takes a free one. say: told of what is refused. Raises OSError."""
    hub = Hub(app, limits or ClientLimits(), asyncio.get_running_loop(), say)
    return RouterServer(hub, await listen(hub, host, port, ssl))
