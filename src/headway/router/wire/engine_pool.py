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
from typing import Final

from headway.router.wire.call import Call, Timeouts
from headway.router.wire.engine_connection import Connection
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


class UpstreamPool:
    """Keep-alive connections to one engine.

    max_idle: kept at rest. idle_s: an older one isn't used again; it must be less than the
    engine's own limit (uvicorn's is 5 s), or a request may meet the engine's close.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        max_idle: int = MAX_IDLE,
        connect_timeout_s: float = 2.0,
        idle_s: float = 4.0,
    ) -> None:
        self.host = host
        self.port = port
        self._ssl = ssl
        self._max_idle = max_idle
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Connection, float] = {}  # when each came to rest; newest last
        self._busy: set[Connection] = set()
        self._closed = False
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
        body: bytes | AsyncIterator[bytes],
        timeouts: Timeouts,
        *,
        length: int | None = None,
        client: Departing | None = None,
        resend: bool = True,
    ) -> Call:
        """Sends a request and returns once the head of its answer is here.

        lines: of the head (`http1.lines`), without Host and what frames the message.
        length: of a body that is an iterator (chunked without one). client: if it leaves, or this
        is cancelled, the call is aborted.
        resend: bytes go out once more on a fresh connection if the engine closed the one that
        was at rest (the error's `sent_on_reused`); False if they mustn't reach it twice.
        Raises ClientGone, UpstreamError (see `failures`), and whatever the iterator raises.
        """
        length = len(body) if isinstance(body, bytes) else length
        head = self._request_head(method, target, lines, length)
        connection = self._take_idle()
        while True:
            connection = connection or await self._connect(timeouts.connect_s, client)
            self._busy.add(connection)
            call = connection.begin(method, timeouts)
            unsubscribe = client.on_gone(call.client_left) if client is not None else None
            try:
                if not call.over:
                    _send(call, connection, head, body, length)
                await call.wait_head()
            except UpstreamDied as error:
                if not (resend and isinstance(body, bytes) and error.sent_on_reused):
                    raise
                connection = None
            except BaseException:
                call.abort()
                raise
            else:
                return call
            finally:
                if unsubscribe is not None:
                    unsubscribe()

    def close(self) -> None:
        """Closes what is at rest; connections in use close when their calls end."""
        self._closed = True
        self.discard_idle()

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

    async def _connect(self, timeout_s: float, client: Departing | None) -> Connection:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ConnectFailed(f"{self.host}:{self.port}: the pool is closed")
        opening = loop.create_connection(
            lambda: Connection(self, loop), self.host, self.port, ssl=self._ssl
        )
        try:
            async with asyncio.timeout(min(timeout_s, self._connect_timeout_s)):
                _, connection = await opening
        except TimeoutError:
            raise ConnectTimeout(f"{self.host}:{self.port}: no connection in time") from None
        except OSError as error:
            failure = NoRoom if error.errno in OUT_OF_ROOM else ConnectFailed
            raise failure(f"{self.host}:{self.port}: {error}") from error
        return connection

    def _request_head(self, method: str, target: bytes, lines: bytes, length: int | None) -> bytes:
        if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
            raise ValueError(f"not a request line: {method} {target!r}")
        framing = b""
        if length is None:
            framing = b"transfer-encoding: chunked\r\n"
        elif length or method not in _BODILESS:
            framing = b"content-length: %d\r\n" % length
        start = b"%b %b HTTP/1.1\r\n" % (method.encode(), target)
        return b"%b%b%b%b\r\n" % (start, self._host_line, lines, framing)


def _send(
    call: Call,
    connection: Connection,
    head: bytes,
    body: bytes | AsyncIterator[bytes],
    length: int | None,
) -> None:
    if not isinstance(body, bytes):
        call.upload(head, body, length)
        return
    if len(body) <= _ONE_WRITE_BYTES:
        connection.write(head + body)
    else:
        connection.write(head)
        connection.write(body)
    call.sent()
