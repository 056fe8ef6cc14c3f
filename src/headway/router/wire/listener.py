"""Accepts clients' connections, as many as there is room for.

An accepted connection counts at once, before its TLS handshake. asyncio's servers don't allow
that, nor do they say or wait when the process has no files left: uvloop's cut whoever comes.
"""

import asyncio
import errno
import os
import socket
import ssl as tls
from math import inf
from typing import Final

from headway.router.wire.client_connection import ClientConnection
from headway.router.wire.failures import OUT_OF_ROOM
from headway.router.wire.hub import Hub

REFUSED_AT_ONCE: Final = 64
"""Connections beyond the limit that are told so; more are closed without a word."""
_BACKLOG: Final = 2048
_ACCEPTED_AT_ONCE: Final = 64
"""Before others have their turn."""
_PAUSE_S: Final = 1.0
_SAY_EVERY_S: Final = 60.0
_ABSENT: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""Errors of an address that this machine doesn't have, such as ::1 where IPv6 is off."""
_ALL: Final = "::"
"""All addresses, IPv4 too."""


class Listener:
    """Listens at one address, which may be several sockets. port: that of the first."""

    def __init__(
        self, hub: Hub, sockets: list[socket.socket], ssl: tls.SSLContext | None = None
    ) -> None:
        self._hub = hub
        self._sockets = sockets
        self._ssl = ssl
        self._opening: dict[ClientConnection, asyncio.Task[None]] = {}
        self._resuming: asyncio.TimerHandle | None = None
        self._said_s: dict[str, float] = {}
        self.port = int(sockets[0].getsockname()[1])
        self._resume()

    async def close(self) -> None:
        """Accepts no more; connections whose handshake isn't done are cut."""
        self._pause()
        if self._resuming is not None:
            self._resuming.cancel()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        await asyncio.sleep(0)  # a task that has begun cleans up when it is cancelled
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    def _resume(self) -> None:
        self._resuming = None
        for listening in self._sockets:
            self._hub.loop.add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        for listening in self._sockets:
            self._hub.loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_ROOM:
                    self._wait(error)
                    return
                continue  # that client has left already
            self._take(accepted)

    def _wait(self, error: OSError) -> None:
        """There is no room: whoever comes waits in the kernel's queue."""
        self._pause()
        if self._resuming is None:
            self._resuming = self._hub.loop.call_later(_PAUSE_S, self._resume)
        self._say(f"accept: {os.strerror(error.errno or 0)}; new connections wait")

    def _take(self, accepted: socket.socket) -> None:
        hub = self._hub
        most = hub.limits.max_connections
        if hub.open >= most:
            self._say(f"{most} connections are open, as many as may be; others are refused")
            if hub.open >= most + REFUSED_AT_ONCE:
                accepted.close()
                return
        accepted.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Also of a client that lives and reads nothing: its window is closed for so long.
            stall_ms = round(hub.limits.write_stall_s * 1000)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        connection = ClientConnection(hub)
        hub.opening.add(connection)
        self._opening[connection] = hub.loop.create_task(self._open(connection, accepted))

    async def _open(self, connection: ClientConnection, accepted: socket.socket) -> None:
        hub = self._hub
        limit_s = hub.limits.head_timeout_s if self._ssl is not None else None
        try:
            await hub.loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._ssl, ssl_handshake_timeout=limit_s
            )
        except OSError:  # no handshake, or none in time
            pass
        finally:
            hub.opening.discard(connection)
            del self._opening[connection]

    def _say(self, what: str) -> None:
        now_s = self._hub.loop.time()
        if now_s - self._said_s.get(what, -inf) >= _SAY_EVERY_S:
            self._said_s[what] = now_s
            self._hub.say(what)


async def listen(hub: Hub, host: str, port: int, ssl: tls.SSLContext | None = None) -> Listener:
    """Listens at every address of `host` that this machine has; `::` is all of both families.

    port: 0 takes a free one. Raises OSError, also where the machine has none of the addresses.
    """
    found = await hub.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    absent: list[OSError] = []
    try:
        for family, _, _, _, (address, _, *scope) in dict.fromkeys(found):
            try:
                sockets.append(_listening(family, (address, port, *scope)))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent.append(OSError(error.errno, _why(str(address))))
            else:
                port = int(sockets[0].getsockname()[1])  # one free port for all addresses
        if not sockets:
            raise absent[0]
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    for each in absent:
        hub.say(f"{host}: {each.strerror}")
    return Listener(hub, sockets, ssl)


def _why(address: str) -> str:
    if address == _ALL:
        return "this machine has no IPv6; use 0.0.0.0"
    return f"{address} isn't an address of this machine"


def _listening(family: int, address: tuple[str | int, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != _ALL)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
