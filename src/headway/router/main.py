"""Runs a router: sockets, signals, reloads."""

import asyncio
import gc
import resource
import signal
import ssl
import sys
from collections.abc import Callable
from typing import Final

import uvloop

from headway import config as settings
from headway.core.errors import HeadwayError
from headway.router import cpu_slice
from headway.router.reload import Reload
from headway.router.serve.admin import Admin
from headway.router.serve.app import App
from headway.router.state.log import Log
from headway.router.state.service import Service
from headway.router.wire.engines.pool import MAX_IDLE
from headway.router.wire.listener import REFUSED_AT_ONCE
from headway.router.wire.server import ClientLimits, RouterServer, serve

ADMIN_HOST: Final = "127.0.0.1"
_ADMIN_LIMITS: Final = ClientLimits(max_connections=16)
FILES_BESIDE: Final = 128 + REFUSED_AT_ONCE
"""Open files beside the connections of clients and to engines; the admin port's among them."""
FILES_PER_NAME: Final = 4
"""While an engine's name is looked up, and its addresses are tried."""
FEWEST_CONNECTIONS: Final = 16

_GC_OBJECTS: Final = 20_000
"""Objects more between two looks for cycles. Requests make none, so there is little to find, and
with thousands of streams a look takes long enough to be seen in other requests' first tokens."""


class ListenError(HeadwayError):
    """An address that can't be listened on."""


def run(
    config: settings.Config,
    read: Callable[[], settings.Config] | None,
    say: Callable[[str], None],
) -> int:
    """Serve until told to stop; the exit status, which is 0.

    read: reads the configuration again; None if it isn't in a file.
    SIGINT and SIGTERM stop: answers in progress may end (router.timeouts.total_s bounds them), a
    second signal cuts them. SIGHUP, and a changed file, reload. Raises HeadwayError if it can't
    start.
    """
    connections = _connections(config, say)
    cpu_slice.shorten()
    log = Log(sys.stdout.buffer)
    try:
        return uvloop.run(_Run(config, read, say, log, connections).until_stopped())
    finally:
        log.close()


class _Run:
    def __init__(
        self,
        config: settings.Config,
        read: Callable[[], settings.Config] | None,
        say: Callable[[str], None],
        log: Callable[[str], None],
        connections: int,
    ) -> None:
        self._router = config.router
        self._connections = connections
        self._say = say
        self._service = Service(config, say=say, log=log)
        self._tls = settings.server_tls(config.router.tls) if config.router.tls else None
        self._reload = Reload(config, read, say, self._service, self._tls)
        self._stop = asyncio.Event()
        self._cutting: asyncio.Task[None] | None = None

    async def until_stopped(self) -> int:
        router, service = self._router, self._service
        loop = asyncio.get_running_loop()
        limits = ClientLimits(max_connections=self._connections, keep_alive_s=router.keep_alive_s)
        server = await self._listen(App(service), router.host, router.port, limits, self._tls)
        admin = None
        if router.admin_port:
            try:
                admin = await self._listen(
                    Admin(service), ADMIN_HOST, router.admin_port, _ADMIN_LIMITS
                )
            except ListenError:
                await server.close(0.0)
                raise
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop, server)
        loop.add_signal_handler(signal.SIGHUP, self._reload.now, "SIGHUP")
        service.start()
        watch = asyncio.create_task(self._reload.watch())
        scheme = "https" if self._tls else "http"
        gc.freeze()  # what is there now stays
        gc.set_threshold(_GC_OBJECTS)
        self._say(f"ready on {scheme}://{_place(router.host, server.port)} ({router.strategy})")
        await self._stop.wait()
        watch.cancel()
        await server.close(service.config.router.timeouts.total_s)
        if admin is not None:
            await admin.close(0.0)
        await service.stop()
        self._say("stopped")
        return 0

    async def _listen(
        self,
        app: App | Admin,
        host: str,
        port: int,
        limits: ClientLimits,
        tls: ssl.SSLContext | None = None,
    ) -> RouterServer:
        try:
            return await serve(app, host, port, limits, tls, self._warn)
        except OSError as error:
            said = error.strerror or str(error)
            reason = said[:1].lower() + said[1:]
            raise ListenError(f"cannot listen on {_place(host, port)}: {reason}") from error

    def _warn(self, what: str) -> None:
        self._say(f"warning: {what}")

    def _on_stop(self, server: RouterServer) -> None:
        if not self._stop.is_set():
            if server.requests:
                self._say(f"stopping; {server.requests} answers may end (once more to cut them)")
            self._stop.set()
        elif self._cutting is None:
            self._say(f"cutting {server.requests} answers")
            self._cutting = asyncio.get_running_loop().create_task(server.close(0.0))


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _connections(config: settings.Config, say: Callable[[str], None]) -> int:
    """How many clients may connect, each of whose requests may need a connection to an engine.

    The limit of open files is raised as far as it is needed and may go.
    """
    most = config.router.max_concurrent
    wanted = max(ClientLimits().max_connections, 2 * most)
    engines = sum(len(pool.engines) for pool in config.pools)
    beside = FILES_BESIDE + (MAX_IDLE + FILES_PER_NAME) * engines
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    files = 2 * wanted + beside
    if soft < files:
        files = files if hard == resource.RLIM_INFINITY else min(hard, files)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    fitting = max(FEWEST_CONNECTIONS, min(wanted, (files - beside) // 2))
    if fitting < most:
        say(
            f"warning: {files} files may be open, so {fitting} clients may connect at once, and "
            f"router.max_concurrent is {most}: raise the limit (ulimit -Hn) or lower the setting"
        )
    return fitting
