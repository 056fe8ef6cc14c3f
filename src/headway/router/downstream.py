"""The router's clients: a listening server, its connections and their requests."""

import asyncio
import contextlib
import ssl as tls
from typing import Final

from headway.router.client import App, ClientConnection, ClientLimits, Hub
from headway.router.request import (
    BodyMalformed,
    BodyTimeout,
    BodyTooLarge,
    ClientGone,
    ClientRequest,
)

__all__ = [
    "App",
    "BodyMalformed",
    "BodyTimeout",
    "BodyTooLarge",
    "ClientConnection",
    "ClientGone",
    "ClientLimits",
    "ClientRequest",
    "Server",
    "serve",
]

_FLUSH_S: Final = 1.0


class Server:
    """A listening server. hub: its connections. port: where it listens."""

    def __init__(self, hub: Hub, listener: asyncio.Server) -> None:
        self._hub = hub
        self._listener = listener
        self.port = int(listener.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._hub.connections)

    @property
    def requests(self) -> int:
        """How many the application is at work on."""
        return len(self._hub.tasks)

    async def close(self, drain_s: float) -> None:
        """Stops accepting, lets answers in progress end for up to `drain_s`, cuts the rest."""
        hub = self._hub
        self._listener.close()
        hub.draining = True
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
) -> Server:
    """Listens. port: 0 takes a free one. Raises OSError where it can't."""
    loop = asyncio.get_running_loop()
    hub = Hub(app, limits or ClientLimits(), loop)
    listener = await loop.create_server(
        lambda: ClientConnection(hub), host, port, ssl=ssl, backlog=2048, reuse_address=True
    )
    return Server(hub, listener)
