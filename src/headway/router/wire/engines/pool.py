"""Connections to one engine: kept alive, used by one call at a time.

`UpstreamPool.send` returns when the answer's head has come; the body then goes wherever the
caller says: `Call.read` collects it, `Call.pump` moves it to a client without a task switch on
the way. Every call ends by its body's end, an error, or `Call.abort`; but for the first, its
connection is closed, which tells the engine to stop.
"""

import asyncio
import re
import ssl as tls
from collections.abc import AsyncIterator
from math import inf
from time import monotonic
from typing import Final

from aiohappyeyeballs import start_connection

from headway.core.status import AddressStatus
from headway.router.wire.engines.call import Call, Timeouts
from headway.router.wire.engines.connection import Connection
from headway.router.wire.engines.names import Address, Names, at, text
from headway.router.wire.failures import (
    OUT_OF_ROOM,
    BadUpstream,
    ConnectFailed,
    ConnectTimeout,
    CutShort,
    FirstByteTimeout,
    IdleTimeout,
    NoRoom,
    TooLarge,
    TotalTimeout,
    UpstreamDied,
    UpstreamError,
)
from headway.router.wire.interfaces import Departing, Sink
from headway.router.wire.pieces import Body, Pieces

__all__ = [
    "BadUpstream",
    "Call",
    "ConnectFailed",
    "ConnectTimeout",
    "CutShort",
    "Departing",
    "FirstByteTimeout",
    "IdleTimeout",
    "NoRoom",
    "Sink",
    "Timeouts",
    "TooLarge",
    "TotalTimeout",
    "UpstreamDied",
    "UpstreamError",
    "UpstreamPool",
]

MAX_IDLE: Final = 64
_METHOD: Final = re.compile(r"[A-Z]+")
_TARGET: Final = re.compile(rb"/[!-~]*")
_ONE_WRITE_BYTES: Final = 65_536
"""Of a body that is joined to its head."""
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_NEXT_ADDRESS_S: Final = 0.25
"""After so long another address is tried beside one that says nothing (RFC 8305, 5)."""


class UpstreamPool:
    """Keep-alive connections to one engine.

    max_idle: kept at rest. idle_s: an older one isn't used again; it must be less than the
    engine's own limit (uvicorn's is 5 s), or a request may meet the engine's close.
    names: where `host` is. The address that was used last is tried first, then the others;
    connections to one that the name no longer has end with what they carry.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        max_idle: int = MAX_IDLE,
        connect_timeout_s: float = 2.0,
        idle_s: float = 4.0,
        names: Names | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._ssl: tls.SSLContext | None = None
        self._max_idle = max_idle
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Connection, float] = {}  # when each came to rest; newest last
        self._busy: set[Connection] = set()
        self._closed = False
        self._name = (names or Names()).follow(host, self._leave_old_addresses)
        self._address: str | None = None  # of the latest connection
        self._leaver = _Leaver(self)
        literal = f"[{host}]" if ":" in host else host
        self._host_line = f"host: {literal}:{port}\r\n".encode()

    @property
    def idle(self) -> int:
        """Connections at rest."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Connections in use."""
        return len(self._busy)

    def last_byte_s(self) -> float:
        """When a good answer under way last brought a part of its body; -inf: none has."""
        calls = [each.call for each in self._busy if each.call is not None]
        return max((c.last_byte_s for c in calls if c.streaming and c.status < 400), default=-inf)

    async def send(
        self,
        method: str,
        target: bytes,
        lines: bytes,
        body: Body | AsyncIterator[bytes],
        timeouts: Timeouts,
        *,
        length: int | None = None,
        client: Departing | None = None,
        resend: bool = True,
    ) -> Call:
        """Sends a request; returns once the head of its answer is here.

        lines: of the head (`http1.lines`), without Host and what frames the message.
        length: of a body that is an iterator (chunked without one).
        client: if it leaves meanwhile, or the caller is cancelled, the call is aborted.
        resend: a connection that was used before may die because the engine closed it just then.
        If nothing of an answer came, a request whose body is no iterator goes out once more on a
        fresh one. False: it must not reach the engine twice; see `UpstreamError.sent_on_reused`.

        Raises UpstreamError (UpstreamDied with before_head), ClientGone, what the iterator raises.
        """
        head = self._request_head(method, target, lines, body, length)
        connection = self._take_idle()
        while True:
            if connection is None:
                connection = await self._connect(timeouts.connect_s)
            self._busy.add(connection)
            call = connection.begin(method, timeouts)
            unsubscribe = client.on_gone(call.client_left) if client is not None else _nothing
            try:
                _send(call, connection, head, body, length)
                await call.wait_head()
            except UpstreamDied as error:
                if not (resend and isinstance(body, Body) and error.sent_on_reused):
                    raise
                connection = None
            except BaseException:
                call.abort()
                raise
            else:
                return call
            finally:
                unsubscribe()

    def speak(self, context: tls.SSLContext) -> None:
        """Connections are opened with TLS from now on, as `context` says."""
        self._ssl = context
        self.discard_idle()

    def close(self) -> None:
        """Closes what is at rest; connections in use close when their calls end."""
        self._closed = True
        self._name.leave(self._leave_old_addresses)
        self.discard_idle()

    def address(self) -> AddressStatus:
        """Where connections go."""
        name = self._name
        ago_s = monotonic() - name.found_s
        return AddressStatus(
            used=self._address,
            known=tuple([text(address) for address in name.addresses]),
            looked_up_s_ago=round(ago_s, 1) if ago_s < inf else None,
            failure=name.failure,
        )

    # What connections tell the pool.

    def rest(self, connection: Connection) -> None:
        """The connection's call ended well; it may be used again."""
        self._busy.discard(connection)
        if self._closed or len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle[connection] = connection.loop.time()

    def forget(self, connection: Connection) -> None:
        """The connection is of no more use."""
        self._busy.discard(connection)
        self._idle.pop(connection, None)

    def discard_idle(self) -> None:
        """Those at rest are of no more use."""
        idle, self._idle = self._idle, {}
        for connection in idle:
            connection.close()

    def _take_idle(self) -> Connection | None:
        if not self._idle:
            return None
        connection, since_s = self._idle.popitem()
        if connection.loop.time() - since_s < self._idle_s and connection.open:
            return connection
        connection.close()
        self.discard_idle()  # the others have rested longer still
        return None

    async def _connect(self, timeout_s: float) -> Connection:
        if self._closed:
            raise ConnectFailed(f"{self.host}:{self.port}: the pool is closed")
        try:
            limit_s = min(timeout_s, self._connect_timeout_s)
            async with asyncio.timeout(limit_s):
                connection = await self._open(await self._name.known(), limit_s)
        except TimeoutError:
            self._name.look_up()  # it may have moved
            raise ConnectTimeout(f"{self.host}:{self.port}: no connection in time") from None
        except (OSError, RuntimeError) as error:  # uvloop raises both
            number = error.errno if isinstance(error, OSError) else None
            if number in OUT_OF_ROOM:
                raise NoRoom(f"{self.host}:{self.port}: {error}") from error
            self._name.look_up()
            raise ConnectFailed(f"{self.host}:{self.port}: {error}") from error
        return connection

    async def _open(self, addresses: tuple[Address, ...], limit_s: float) -> Connection:
        """A connection to the first address that takes one, all of them being tried in time."""
        loop = asyncio.get_running_loop()
        in_order = sorted(addresses, key=lambda each: text(each) != self._address)
        delay_s = min(_NEXT_ADDRESS_S, limit_s / (2 * len(addresses)))
        sock = await start_connection(
            [at(each, self.port) for each in in_order], happy_eyeballs_delay=delay_s
        )
        try:
            address = str(sock.getpeername()[0])
            _, connection = await loop.create_connection(
                lambda: Connection(self, loop, address),
                sock=sock,
                ssl=self._ssl,
                server_hostname=self.host if self._ssl else None,
            )
        except BaseException:
            sock.close()
            raise
        self._address = address
        return connection

    def _leave_old_addresses(self) -> None:
        """The name was looked up: connections to addresses that it no longer has are to end."""
        known = {text(address) for address in self._name.addresses}
        for connection in [*self._idle, *self._busy]:
            if connection.address not in known:
                connection.keeper = self._leaver
        for connection in [each for each in self._idle if each.keeper is self._leaver]:
            self.forget(connection)
            connection.close()

    def _request_head(
        self,
        method: str,
        target: bytes,
        lines: bytes,
        body: Body | AsyncIterator[bytes],
        length: int | None,
    ) -> bytes:
        if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
            raise ValueError(f"not a request line: {method} {target!r}")
        if isinstance(body, Body):
            length = len(body)
        framing = b""
        if length is None:
            framing = b"transfer-encoding: chunked\r\n"
        elif length or method not in _BODILESS:
            framing = b"content-length: %d\r\n" % length
        start = b"%b %b HTTP/1.1\r\n" % (method.encode(), target)
        return b"%b%b%b%b\r\n" % (start, self._host_line, lines, framing)


class _Leaver:
    """Keeps a connection of the pool until its call is over, and no longer."""

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self.forget = pool.forget
        self.discard_idle = pool.discard_idle

    def rest(self, connection: Connection) -> None:
        """The call ended well."""
        self._pool.forget(connection)
        connection.close()


def _nothing() -> None:
    """Nobody was told."""


def _send(
    call: Call,
    connection: Connection,
    head: bytes,
    body: Body | AsyncIterator[bytes],
    length: int | None,
) -> None:
    if call.over:
        return  # the client has left
    if not isinstance(body, bytes):
        call.upload(head, body, len(body) if isinstance(body, Pieces) else length)
        return
    if len(body) <= _ONE_WRITE_BYTES:
        connection.write(head + body)
    else:
        connection.write(head)
        connection.write(body)
    call.sent()
