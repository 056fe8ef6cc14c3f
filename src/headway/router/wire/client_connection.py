"""A connection of a client: requests in, answers out.

One `ClientConnection` serves its requests one after the other; a pipelined request starts when
the answer before it is complete. Reading goes on while an answer is owed, so that a client that
leaves is noticed at once. Where reading must pause, the kernel is asked twice a second.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from math import inf
from typing import Final, cast

from headway.router.wire.client_request import HOLD_BYTES, ClientRequest
from headway.router.wire.errors import BodyError, BodyMalformed, BodyTimeout, error_body
from headway.router.wire.failures import ClientGone
from headway.router.wire.http1 import (
    JSON_TYPE,
    BadRequest,
    ChunkedReader,
    Headers,
    HeadReader,
    RequestHead,
)
from headway.router.wire.hub import Hub
from headway.router.wire.pieces import FULL_READ_BYTES

_log = logging.getLogger("headway.router")
_BACKLOG_BYTES: Final = 65_536
"""Pipelined bytes kept while an answer is owed."""
_LINGER_S: Final = 2.0
"""How long a connection is read on after an error, and quietly at that, before it is closed:
a close with unread bytes would reset it and the client might never see the answer."""
_LINGER_TOTAL_S: Final = 15.0
_LOOK_S: Final = 0.5
_MIN_BODY_BYTES_PER_S: Final = 16_384
"""A body that comes more slowly uses up its timeout: what it holds is held from others."""
_TICK_S: Final = 0.002
_ESTABLISHED: Final = 1


class ClientConnection(asyncio.Protocol):
    """One connection of a client. It is the `Link` of its requests."""

    __slots__ = (
        "_backlog",
        "_chunks",
        "_closing",
        "_deadline_s",
        "_expected",
        "_full",
        "_head",
        "_hub",
        "_keep",
        "_later",
        "_linger_until_s",
        "_lingering",
        "_look_s",
        "_loop",
        "_peer",
        "_reading",
        "_request",
        "_timer",
        "_timer_s",
        "_transport",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._loop = hub.loop
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._head = HeadReader(hub.limits.max_head_bytes, hub.limits.max_headers)
        self._request: ClientRequest | None = None  # while its answer is owed
        self._chunks: ChunkedReader | None = None
        self._expected = 0  # bytes of the body still to come
        self._backlog = b""
        self._later = b""  # bytes that have come and are read in a moment
        self._keep = True  # as far as the request in progress says
        self._reading = True
        self._lingering = self._closing = self._full = False
        self._deadline_s = self._look_s = self._linger_until_s = inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = link = cast("asyncio.Transport", transport)
        peer = link.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        link.set_write_buffer_limits(high=HOLD_BYTES, low=HOLD_BYTES // 4)
        self._hub.opening.discard(self)
        self._hub.connections.add(self)
        self._hub.empty.clear()
        if self._hub.draining or self._hub.open > self._hub.limits.max_connections:
            self._refuse(503, "the router has too many connections")
            return
        self._set_deadline(self._hub.limits.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._deadline_s = min(self._loop.time() + _LINGER_S, self._linger_until_s)
        elif self._request is not None and self._request.complete:
            self._backlog += data
            if len(self._backlog) > _BACKLOG_BYTES:
                self._pause()
        elif not self._closing:
            self._advance(data)

    def eof_received(self) -> None:
        # Nothing is returned: the transport sends what it holds and closes.
        self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self._transport = None
        self._deadline_s = self._look_s = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hub.connections.discard(self)
        if not self._hub.connections:
            self._hub.empty.set()

    def pause_writing(self) -> None:
        self._full = True
        if self._request is not None:
            self._request.set_writable(writable=False)

    def resume_writing(self) -> None:
        self._full = False
        if self._request is not None:
            self._request.set_writable(writable=True)

    # The request's side.

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def sender(self) -> Callable[[bytes], object] | None:
        return self._transport.write if self._transport is not None else None

    def send_continue(self) -> None:
        self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def want_body(self) -> None:
        request = self._request
        if request is not None and not request.complete and not self._reading:
            self._resume()
            self._set_deadline(self._hub.limits.body_timeout_s)

    def stays(self) -> bool:
        request = self._request
        complete = request is not None and request.complete
        self._keep = self._keep and complete and not self._hub.draining
        return self._keep

    def answered(self) -> None:
        request, self._request = self._request, None
        if self._transport is None or request is None:
            return
        if not request.complete:
            self._linger()
        elif not self._keep:
            self.close()
        else:
            self._set_deadline(self._hub.limits.keep_alive_s)
            data, self._backlog = self._backlog, b""
            self._resume()
            if data:
                self._advance(data)

    def cut(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    # The server's side.

    def drain(self) -> None:
        """Closes now if nothing is owed, else after the answer in progress."""
        self._keep = False
        if self._request is None and not self._lingering:
            self.close()

    def close(self) -> None:
        """Closes when what is written has been sent."""
        self._closing = True
        self._deadline_s = inf
        if self._transport is not None:
            self._transport.close()

    def _advance(self, data: bytes) -> None:
        """Takes bytes in as far as they belong to a request that may be read now."""
        try:
            while data:
                if self._request is None:
                    data = self._read_head(data)
                elif self._request.complete:
                    self._backlog = data
                    return
                else:
                    step = data if self._chunks is None else self._chunks.step(data)
                    rest = self._read_body(self._request, step)
                    if len(step) < len(data):
                        self._later = rest + data[len(step) :]
                        self._pause()
                        self._loop.call_soon(self._go_on)  # others have their turn before
                        return
                    data = rest
        except BadRequest as error:
            request = self._request
            if request is None:
                self._refuse(error.status, error.message)
            else:
                self._keep = False
                self._deadline_s = inf
                self._chunks, self._expected = None, 0
                self._closing = True  # where the next request begins is unknown
                request.fail_body(BodyMalformed(error.message))

    def _go_on(self) -> None:
        data, self._later = self._later, b""
        self._resume()
        self.data_received(data)

    def _read_head(self, data: bytes) -> bytes:
        waiting = not self._head.started
        read = self._head.feed(data)
        if read is None:
            if waiting and self._head.started:
                self._set_deadline(self._hub.limits.head_timeout_s)
            return b""
        head, rest = read
        self._begin(head)
        return rest

    def _begin(self, head: RequestHead) -> None:
        self._keep = head.keep_alive
        self._chunks = ChunkedReader() if head.length is None else None
        self._expected = head.length or 0
        self._request = request = ClientRequest(self, head, self._peer)
        request.writable = not self._full
        if request.complete:
            self._deadline_s = inf
        else:
            self._set_deadline(self._hub.limits.body_timeout_s)
        self._hub.tasks[request] = self._loop.create_task(self._answer(request))

    def _read_body(self, request: ClientRequest, data: bytes) -> bytes:
        if self._chunks is not None:
            body, rest = self._chunks.feed(data)
            ended = self._chunks.done
        else:
            body, rest = data[: self._expected], data[self._expected :]
            self._expected -= len(body)
            ended = not self._expected
        if body:
            request.add_body(body)
        if ended:
            self._chunks = None
            self._deadline_s = inf
            request.end_body()
            return rest
        limit_s = self._hub.limits.body_timeout_s
        self._deadline_s = min(
            self._loop.time() + limit_s, self._deadline_s + len(data) / _MIN_BODY_BYTES_PER_S
        )
        if request.held_bytes > request.hold_bytes:
            self._pause()
            self._deadline_s = inf  # it is we who make it wait
        elif len(data) >= FULL_READ_BYTES:
            self._pause()
            self._loop.call_soon(self._go_on)  # others have their turn before more is read
        return rest

    async def _answer(self, request: ClientRequest) -> None:
        try:
            await self._hub.app(request)
        except ClientGone:
            pass
        except BodyError as error:
            self._fail(request, error.status, error.message, error.headers)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
            _log.exception("the application failed")
            self._fail(request, 500, "internal error")
        finally:
            self._hub.tasks.pop(request, None)
            if not request.finished and not request.is_gone:
                self._fail(request, 500, "the request was given up")

    def _fail(
        self, request: ClientRequest, status: int, message: str, headers: Headers = ()
    ) -> None:
        if request.started:
            request.abort()
        else:
            request.respond(status, [JSON_TYPE, *headers], error_body(status, message))

    def _refuse(self, status: int, message: str) -> None:
        """Answers what is no request, and closes."""
        body = error_body(status, message)
        head = RequestHead(
            "GET", "/", b"", (), http10=False, keep_alive=False, length=0, expects_continue=False
        )
        self._keep = False
        self._request = request = ClientRequest(self, head, self._peer)
        request.start(status, [JSON_TYPE], length=len(body))
        request.write(body)
        request.finished = True
        self._request = None
        self._linger()

    def _linger(self) -> None:
        self._lingering = self._closing = True
        self._backlog, self._chunks = b"", None
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume()
        self._linger_until_s = self._loop.time() + _LINGER_TOTAL_S
        self._set_deadline(_LINGER_S)

    def _lost(self) -> None:
        """Nothing more will come from the client."""
        request, self._request = self._request, None
        self._closing = True
        self._deadline_s = inf
        if request is not None and not request.finished:
            if self._transport is not None:
                self._transport.abort()
            request.leave()

    def _pause(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
            self._look_s = self._loop.time() + _LOOK_S
            self._arm(self._look_s)

    def _resume(self) -> None:
        transport = self._transport
        if not (self._reading or self._later or transport is None or transport.is_closing()):
            self._reading = True
            self._look_s = inf
            transport.resume_reading()

    # Time: one timer, set again only when something is due before it.

    def _set_deadline(self, after_s: float) -> None:
        self._deadline_s = self._loop.time() + after_s
        self._arm(self._deadline_s)

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            if self._timer_s <= at_s:
                return
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._loop.time() + _TICK_S
        if self._look_s <= now_s:
            self._look_s = now_s + _LOOK_S
            if self._peer_left():
                self.cut()
        if self._deadline_s <= now_s:
            self._deadline_s = inf
            self._expire()
        due_s = min(self._deadline_s, self._look_s)
        if due_s < inf and self._transport is not None:
            self._arm(due_s)

    def _expire(self) -> None:
        if self._request is not None:
            self._keep = False
            self._request.fail_body(BodyTimeout())
        elif self._lingering:
            self.cut()
        elif self._head.started:
            self._refuse(408, "the request head did not arrive in time")
        else:
            self.close()

    def _peer_left(self) -> bool:
        """Whether the kernel knows that the peer closed, which a paused transport doesn't tell."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED)
        except OSError:
            return False
