"""One call to an engine: its answer, its limits in time, and how it can fail."""

import asyncio
from collections.abc import AsyncIterable, Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from headway.router.wire.client_request import HOLD_BYTES
from headway.router.wire.failures import (
    ClientGone,
    FirstByteTimeout,
    IdleTimeout,
    TooLarge,
    TotalTimeout,
    UpstreamDied,
)
from headway.router.wire.http1 import Field, chunk, codings
from headway.router.wire.interfaces import Carrier, Sink, Tap
from headway.router.wire.pieces import PIECE_BYTES, Body, append, gathered

if TYPE_CHECKING:
    from headway.router.wire.fast_path import Passing

_TICK_S: Final = 0.002


class Timeouts(NamedTuple):
    """Limits of one call, in seconds; inf for none.

    first_byte_s: from the request's last byte to the first byte of the answer's body.
    idle_s: between bytes of the body after that. total_s: from the start to the end.
    Time in which the client holds the body back counts for the total alone.
    """

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float


class Call:
    """A request on its way and its answer.

    status, headers (without Content-Length), length (which it says, bytes; None where it isn't
    said): valid once `UpstreamPool.send` has returned.
    on_reused: the connection had carried a call before.
    """

    __slots__ = (
        "_begin",
        "_came_s",
        "_complete",
        "_connection",
        "_done",
        "_error",
        "_first_by_s",
        "_head",
        "_loop",
        "_parts",
        "_passing",
        "_paused",
        "_sink",
        "_size",
        "_tap",
        "_timeouts",
        "_total_by_s",
        "_upload",
        "_write_chunk",
        "headers",
        "length",
        "limit_bytes",
        "on_reused",
        "status",
        "streaming",
    )

    def __init__(self, connection: Carrier, timeouts: Timeouts, *, on_reused: bool) -> None:
        self._connection = connection
        self._loop = loop = connection.loop
        self._timeouts = timeouts
        self.on_reused = on_reused
        self.status = 0
        self.headers: tuple[Field, ...] = ()
        self.length: int | None = None
        self._came_s = loop.time()
        self.streaming = False  # bytes of the body have come
        self.limit_bytes = HOLD_BYTES
        self._head: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._complete = False
        self._parts: list[bytes] = []
        self._size = 0
        self._sink: Sink | None = None
        self._tap: Tap | None = None
        self._begin: Callable[[bytes], bytes] | None = None
        self._write_chunk: Callable[[bytes], object] | None = None
        self._passing: Passing | None = None
        self._paused = False
        self._upload: asyncio.Task[None] | None = None
        self._first_by_s = inf
        self._total_by_s = self._came_s + timeouts.total_s

    @property
    def framed(self) -> bool:
        """Whether the answer says where its body ends, so that the connection's end doesn't."""
        return self.length is not None or b"transfer-encoding" in dict(self.headers)

    @property
    def codings(self) -> tuple[bytes, ...]:
        """How the engine has coded its answer, though it is asked not to."""
        return codings(self.headers)

    async def read(self, limit: int) -> Body:
        """The whole body.

        Raises UpstreamDied, FirstByteTimeout, IdleTimeout, TotalTimeout, BadUpstream, TooLarge;
        the call is over then.
        """
        self.limit_bytes = limit
        if self._size > limit:
            self.fail(TooLarge(f"the answer is larger than {limit} bytes"))
        elif self._paused:
            self._resume()
        await self._finished()
        return gathered(self._parts)

    async def pump(
        self, client: Sink, tap: Tap | None = None, begin: Callable[[bytes], bytes] | None = None
    ) -> None:
        """Moves the body to the client as it comes, one write for each read; returns at its end.

        Neither starts nor finishes the client's answer. tap: sees each piece, and when it came,
        before it is written. begin: sees the first pieces before that, and says what may be
        written now: while that is nothing, it is asked again; what it raises ends the call.
        While the client isn't writable the engine is held back.

        Raises UpstreamDied, FirstByteTimeout, IdleTimeout, TotalTimeout, BadUpstream, with all
        that came before written; ClientGone when the client left, the call being aborted by
        then. Cancelling aborts it too.
        """
        unsubscribe = client.on_gone(self.client_left)
        self._sink, self._tap, self._begin = client, tap, begin
        client.on_flow(self._flow)
        try:
            if self._parts and not client.is_gone:
                data = b"".join(self._parts)
                self._parts.clear()
                self._size = 0
                self._deliver(client, data, self._came_s)
            self._flow()
            await self._finished()
            if client.is_gone:
                raise ClientGone("the client left")
        finally:
            unsubscribe()
            client.on_flow(None)
            self._sink = self._tap = self._begin = self._write_chunk = None

    def abort(self) -> None:
        """Ends the call and closes its connection at once. No-op once the call is over."""
        if not self.over:
            self.fail(UpstreamDied("the call was aborted", before_head=not self._head.done()))

    def client_left(self) -> None:
        """Ends the call because nobody waits for its answer."""
        self.fail(ClientGone("the client left"))

    # The pool's side.

    async def wait_head(self) -> None:
        """Returns when status and headers are known; raises what ended the call before."""
        if self._error is None:
            await self._head
        if self._error is not None and not self.status:
            raise self._error

    def sent(self) -> None:
        """The request is out (or in the transport's hands): the wait for the answer begins."""
        self._first_by_s = self._loop.time() + self._timeouts.first_byte_s
        self._arm()

    def upload(self, head: bytes, body: AsyncIterable[bytes], length: int | None) -> None:
        """Sends a body as it comes, beside waiting for the answer. length: None for chunks."""
        self._arm()
        self._upload = self._loop.create_task(self._send_parts(head, body, length))

    @property
    def last_byte_s(self) -> float:
        """When bytes came last (monotonic); before any, when the call began."""
        passing = self._passing
        return self._came_s if passing is None else max(self._came_s, passing.last_s)

    @property
    def over(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._complete or self._error is not None

    # The connection's side.

    def begin_answer(self, status: int, headers: tuple[Field, ...], length: int | None) -> None:
        """The head has come."""
        self.status = status
        self.headers = headers
        self.length = length
        if not self._head.done():
            self._head.set_result(None)

    def add_chunk(self, data: bytes, start: int) -> None:
        """One whole chunk of the body has come, framed by `http1.chunk`. start: of its data."""
        write_chunk, tap = self._write_chunk, self._tap
        if write_chunk is None:
            self.add_body(data[start:-2])
            return
        self._came_s = now_s = monotonic()
        try:
            if tap is not None:
                tap.feed(data[start:-2], now_s)
            write_chunk(data)
        except Exception as error:  # noqa: BLE001 - pump() raises it, whatever it is
            self.fail(error)

    def add_body(self, data: bytes, *, last: bool = False) -> None:
        """More of the body has come. last: `end` follows at once."""
        self._came_s = monotonic()
        if not self.streaming:
            self.streaming = True
            if not last:
                self._arm()
        if self._sink is not None:
            self._deliver(self._sink, data, self._came_s)
            return
        append(self._parts, data)
        self._size += len(data)
        if self._size > self.limit_bytes:
            if self._done is not None:
                self.fail(TooLarge(f"the answer is larger than {self.limit_bytes} bytes"))
            else:
                self._pause()

    def end(self) -> None:
        """The answer is complete."""
        self._complete = True
        self._paused = False  # the connection may be another call's by now
        self._settle()

    def fail(self, error: Exception) -> None:
        """The call ends here; its connection is closed."""
        if self.over:
            return
        self._error = error
        self._connection.drop()
        self._settle()

    @property
    def uploading(self) -> bool:
        """Whether parts of the request are still to be sent."""
        return self._upload is not None and not self._upload.done()

    def _settle(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        if not self._head.done():
            self._head.set_result(None)
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def _finished(self) -> None:
        if not self.over:
            self._done = self._loop.create_future()
            try:
                await self._done
            except asyncio.CancelledError:
                self.abort()
                raise
        if self._error is not None:
            raise self._error

    def _deliver(self, sink: Sink, data: bytes, came_s: float) -> None:
        try:
            if self._begin is not None:
                data = self._begin(data)
                if not data:
                    return
                self._begin = None
            if self._tap is not None:
                self._tap.feed(data, came_s)
            sink.write(data)
            self._write_chunk = sink.write_chunk
            write_passing = sink.write_passing
            if self._tap is not None and write_passing is not None and not self.over:
                self._passing = passing = self._tap.passing
                passing.write = write_passing
                self._connection.passing = passing
        except Exception as error:  # noqa: BLE001 - pump() raises it, whatever it is
            self.fail(error)
            self._error = error  # also of an answer that is complete by now

    def _flow(self) -> None:
        """The client may have more, or may not."""
        if self._sink is not None and self._sink.writable:
            self._resume()
        else:
            self._pause()

    def _pause(self) -> None:
        if not self._paused and not self.over:
            self._paused = True
            self._connection.pause()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._came_s = self._loop.time()
            self._arm()
            self._connection.resume()

    async def _send_parts(
        self, head: bytes, body: AsyncIterable[bytes], length: int | None
    ) -> None:
        connection = self._connection
        limit_s = self._timeouts.idle_s if self._timeouts.idle_s < inf else None
        left = length or 0
        try:
            connection.write(head)
            async for part in body:
                left -= len(part)
                if left < 0 and length is not None:
                    break
                async with asyncio.timeout(limit_s):
                    await connection.room()
                if len(part) >= PIECE_BYTES:
                    await asyncio.sleep(0)  # an engine that keeps up doesn't make this wait
                if part:
                    connection.write(part if length is not None else chunk(part))
            if length is None:
                connection.write(b"0\r\n\r\n")
            elif left:
                self.fail(ValueError("the body is not as long as its Content-Length says"))
                return
            self.sent()
        except TimeoutError:
            self.fail(IdleTimeout("the engine stopped taking the request"))
        except Exception as error:  # noqa: BLE001 - the sender's own, raised where it waits
            self.fail(error)

    # Time: the connection's one timer. It looks at the clock again before anything is done.

    def _due_s(self) -> float:
        if self._paused:
            return self._total_by_s
        if not self.streaming:
            return min(self._first_by_s, self._total_by_s)
        return min(self.last_byte_s + self._timeouts.idle_s, self._total_by_s)

    def _arm(self) -> None:
        due_s = self._due_s()
        if due_s < inf and not self.over:
            self._connection.wake_at(due_s)

    def check_time(self) -> None:
        """A limit may have passed; called by the connection."""
        now_s = self._loop.time() + _TICK_S
        if self._due_s() > now_s:
            self._arm()
        elif self._total_by_s <= now_s:
            self.fail(TotalTimeout(f"unfinished after {self._timeouts.total_s:g} s"))
        elif self.streaming:
            self.fail(IdleTimeout(f"nothing came for {self._timeouts.idle_s:g} s"))
        else:
            self.fail(FirstByteTimeout(f"no answer for {self._timeouts.first_byte_s:g} s"))
