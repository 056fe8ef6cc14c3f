"""One request of a client, as the application sees it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from headway.core.admission import ByteCeiling
from headway.router.wire.errors import BodiesFull, BodyError, BodyTooLarge
from headway.router.wire.failures import ClientGone
from headway.router.wire.http1 import Headers, RequestHead, chunk, date_line, status_line
from headway.router.wire.http1 import lines as lines_of
from headway.router.wire.interfaces import ClientLink
from headway.router.wire.pieces import Body, append, gathered

HOLD_BYTES: Final = 262_144
"""Body bytes kept for a reader that isn't asking, and answer bytes kept for a slow client."""

VARIES: Final = b"vary: origin"
"""Said of an answer of which a page's origin decides who may read it."""


class ClientRequest:
    """A request and the means to answer it.

    method, path (undecoded, without query), query, headers (names lower-case; without
    Content-Length), codings (of its body's content), peer (address).
    length: of the body in bytes; None if it comes in chunks.
    created_s: monotonic time at which the head was complete.
    started, finished: how far the answer is.
    is_gone: the client closed or reset the connection (its half too) before the answer ended.
    writable: False while the client reads too slowly; write() still takes data.
    cross_origin: lines of every answer's head that say which web pages may read it.

    Everything is called on the event loop's thread. All that writes is a no-op once the client
    is gone.
    """

    __slots__ = (
        "_ceiling",
        "_chunked",
        "_close_delimited",
        "_complete",
        "_counted_bytes",
        "_expects",
        "_failure",
        "_flow_call",
        "_gone_calls",
        "_held",
        "_left",
        "_link",
        "_mute",
        "_parts",
        "_size",
        "_waiter",
        "_wake_above",
        "codings",
        "created_s",
        "cross_origin",
        "finished",
        "headers",
        "hold_bytes",
        "http10",
        "is_gone",
        "length",
        "method",
        "path",
        "peer",
        "query",
        "started",
        "writable",
    )

    def __init__(self, link: ClientLink, head: RequestHead, peer: str) -> None:
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.codings = head.codings
        self.http10 = head.http10
        self.peer = peer
        self.created_s = time.monotonic()
        self.started = self.finished = self.is_gone = False
        self.writable = True
        self.hold_bytes = HOLD_BYTES
        self.cross_origin = b""
        self._link = link
        self.length = head.length
        self._expects = head.expects_continue
        self._complete = head.length == 0
        self._failure: BodyError | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._ceiling: ByteCeiling | None = None
        self._counted_bytes = 0  # by that ceiling
        self._wake_above = -1
        self._waiter: asyncio.Future[None] | None = None
        self._gone_calls: list[Callable[[], object]] = []
        self._flow_call: Callable[[], None] | None = None
        self._mute = self._chunked = self._close_delimited = False
        self._left = 0
        self._held = b""

    async def body(self, limit: int, ceiling: ByteCeiling | None = None) -> Body:
        """The whole body.

        ceiling: counts the body, from its first byte until the answer begins: who asks for it
        must need it no longer than that.

        Raises BodyTooLarge, BodiesFull (both before reading where the length is declared),
        BodyTimeout, BodyMalformed, ClientGone.
        """
        if self.length is not None:
            if self.length > limit:
                raise BodyTooLarge(limit)
            if ceiling is not None and not ceiling.fits(self.length):
                raise BodiesFull
        self._count_by(ceiling)
        if not self._complete:
            self._ask(limit)
        while not self._complete and self._size <= limit:
            await self._more(limit)
        self._check_sound()
        if self._size > limit:
            raise BodyTooLarge(limit)
        return gathered(self._taken())

    async def stream_body(self, ceiling: ByteCeiling | None = None) -> AsyncIterator[bytes]:
        """The body as it comes. The client is held back while the caller is busy.

        ceiling: counts what has come and isn't taken.

        Raises BodiesFull, BodyTimeout, BodyMalformed, ClientGone.
        """
        self._count_by(ceiling)
        self._ask(HOLD_BYTES)
        while True:
            if self._parts:
                parts = self._taken()
                self._uncount()
                self._link.want_body()
                for part in parts:
                    yield part
            elif self._complete:
                self._check_sound()
                return
            else:
                await self._more(0)

    def hold(self, size: int) -> None:
        """Counts what is made of the body as the body is counted. Raises BodiesFull."""
        self._count(size)
        self._check_sound()

    def start(
        self,
        status: int,
        headers: Headers = (),
        *,
        length: int | None = None,
        lines: bytes = b"",
    ) -> None:
        """Begins the answer; its head leaves with the first bytes of its body, or at `flush`.

        headers: without those that frame the message; they are left out. lines: more of them,
        as `http1.lines` writes them. length: of the body; None if unknown (chunks, or the
        connection's end for HTTP/1.0).

        Raises ValueError for a line break or NUL in one of `headers`.
        """
        if self.started:
            raise RuntimeError("the answer has begun already")
        self.started = True
        if self._complete:
            self._uncount()
        bodiless = status < 200 or status in {204, 304}
        self._mute = bodiless or self.method == "HEAD"
        if self.is_gone:
            return
        framing = b""
        if length is not None:
            self._left = length
            framing = b"" if bodiless else b"content-length: %d\r\n" % length
        elif not self._mute:
            self._close_delimited = self.http10
            self._chunked = not self.http10
            framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        if self._close_delimited or not self._link.stays():
            framing += b"connection: close\r\n"
        elif self.http10:
            framing += b"connection: keep-alive\r\n"
        if headers or self.cross_origin:
            lines = self._merged(headers, lines)
        if b"\r\ndate: " not in lines and not lines.startswith(b"date: "):
            framing += date_line()
        self._held = b"%b%b%b\r\n" % (status_line(status), lines, framing)

    def _merged(self, headers: Headers, lines: bytes) -> bytes:
        lines = lines_of(headers) + lines
        if not self.cross_origin:
            return lines
        kept = [each for each in lines.split(b"\r\n") if each.lower() != VARIES]
        return b"\r\n".join(kept) + self.cross_origin

    def flush(self) -> None:
        """Sends the head if nothing of the body has come yet."""
        head, self._held = self._held, b""
        if head and not self.is_gone:
            self._link.send(head)

    def write(self, data: bytes) -> None:
        """Sends a piece of the body, framed as one chunk where the answer is chunked.

        Raises ValueError for more than the length start() declared.
        """
        if self._mute or not data or self.is_gone or self.finished:
            return
        if self._chunked:
            self._send(chunk(data))
            return
        if not self._close_delimited:
            if len(data) > self._left:
                raise ValueError(f"{len(data)} bytes where {self._left} are left of the length")
            self._left -= len(data)
        self._send(data)

    @property
    def write_chunk(self) -> Callable[[bytes], object] | None:
        """Takes what `write` makes of a piece until the answer's end; None if that is no chunk."""
        plain = self._chunked and not (self._held or self._mute or self.finished or self.is_gone)
        return self._link.sender if plain else None

    write_passing = write_chunk

    def _send(self, data: bytes) -> None:
        head = self._held
        if head:
            self._held = b""
            data = head + data
        self._link.send(data)

    def finish(self) -> None:
        """Ends the answer. One shorter than its declared length is cut instead."""
        self._uncount()
        if self.finished or self.is_gone:
            self.finished = True
            return
        if self._left and not self._mute:
            self.abort()
            return
        self.finished = True
        if self._chunked:
            self._send(b"0\r\n\r\n")
        self.flush()
        self._link.answered()

    def respond(self, status: int, headers: Headers, body: bytes, *, lines: bytes = b"") -> None:
        """A whole answer; see `start`."""
        self.start(status, headers, length=len(body), lines=lines)
        if not self._mute:
            self._held += body
        self._left = 0
        self.finish()

    def abort(self) -> None:
        """Cuts the connection, so that a truncated answer looks truncated."""
        self.flush()
        self.finished = True
        self._uncount()
        self._link.cut()

    def on_gone(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back once when the client leaves, at once if it has left.

        Returns a function that unsubscribes.
        """
        if self.is_gone:
            callback()
            return lambda: None
        calls = self._gone_calls
        calls.append(callback)
        return lambda: calls.remove(callback) if callback in calls else None

    def on_flow(self, callback: Callable[[], None] | None) -> None:
        """Calls back each time `writable` has changed. One callback at a time."""
        self._flow_call = callback

    # What the connection tells the request.

    @property
    def complete(self) -> bool:
        """Whether the whole body has come."""
        return self._complete

    @property
    def held_bytes(self) -> int:
        """Body bytes nobody has taken yet."""
        return self._size

    def add_body(self, data: bytes) -> None:
        """More of the body."""
        if self._failure is not None:
            return
        append(self._parts, data)
        self._size += len(data)
        self._count(len(data))
        if self._size > self._wake_above:
            self._wake()

    def end_body(self) -> None:
        """The body is complete."""
        self._complete = True
        self._wake()

    def fail_body(self, failure: BodyError) -> None:
        """The body will never be complete."""
        self._failure = failure
        self._drop()
        self._wake()

    def set_writable(self, *, writable: bool) -> None:
        """The transport's buffer filled or drained."""
        self.writable = writable
        if self._flow_call is not None:
            self._flow_call()

    def leave(self) -> None:
        """The client left."""
        self.is_gone = True
        self._drop()
        calls, self._gone_calls = self._gone_calls, []
        for call in calls:
            call()
        self._wake()

    def _ask(self, hold_bytes: int) -> None:
        self.hold_bytes = max(hold_bytes, HOLD_BYTES)
        if self._expects and not self._complete and not self._size and not self.started:
            self._link.send_continue()
        self._expects = False
        self._link.want_body()

    async def _more(self, wake_above: int) -> None:
        self._check_sound()
        self._wake_above = wake_above
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._check_present()

    def _check_sound(self) -> None:
        self._check_present()
        if self._failure is not None:
            raise self._failure

    def _check_present(self) -> None:
        if self.is_gone:
            raise ClientGone("the client left")

    def _count_by(self, ceiling: ByteCeiling | None) -> None:
        self._ceiling = ceiling
        self._count(self._size)

    def _count(self, size: int) -> None:
        ceiling = self._ceiling
        if ceiling is None:
            return
        if ceiling.take(size):
            self._counted_bytes += size
        else:
            self.fail_body(BodiesFull())

    def _drop(self) -> None:
        """Nobody will take what has come."""
        self._parts.clear()
        self._size = 0
        self._uncount()

    def _uncount(self) -> None:
        if self._ceiling is not None:
            self._ceiling.give(self._counted_bytes)
            self._counted_bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        self._size = 0
        return parts
