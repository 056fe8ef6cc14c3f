"""A connection to an engine, which carries one call at a time."""

import asyncio
from time import monotonic
from typing import Final, Protocol, cast

import httptools

from headway.router.wire.engines.call import Call, Timeouts
from headway.router.wire.failures import BadUpstream, UpstreamDied, UpstreamError
from headway.router.wire.fast_path import Passing, size_line, whole_answer
from headway.router.wire.http1 import HEAD_BYTES, HEAD_FIELDS, Field

_SILENT_BYTES: Final = 65_536
"""Bytes without body an answer may have in a row: framing, trailers."""
_LINE_END: Final = b"\r\n"


class ConnectionKeeper(Protocol):
    """Who keeps connections."""

    def rest(self, connection: "Connection") -> None:
        """The connection may carry another call."""

    def forget(self, connection: "Connection") -> None:
        """The connection is of no more use."""

    def discard_idle(self) -> None:
        """Those at rest are of no more use."""


class Connection(asyncio.Protocol):
    """A connection to an engine. Its callbacks are llhttp's; `on_body` is a list's append.

    call: which it carries, None at rest. passing: what of its answer passes by the call.
    address: the engine's, without its port. keeper: told when it rests or ends.

    A read that is exactly one chunk, or one plain answer, is passed on and llhttp doesn't see it:
    between two of them it remembers nothing of those before.
    """

    __slots__ = (
        "_between_chunks",
        "_chunk_ended",
        "_complete",
        "_headers",
        "_in_head",
        "_keep",
        "_method",
        "_parser",
        "_parts",
        "_room",
        "_silent_bytes",
        "_timer",
        "_transport",
        "_until_close",
        "_used",
        "address",
        "call",
        "keeper",
        "loop",
        "on_body",
        "passing",
    )

    def __init__(
        self, keeper: ConnectionKeeper, loop: asyncio.AbstractEventLoop, address: str = ""
    ) -> None:
        self.loop = loop
        self.address = address
        self.keeper = keeper
        self._transport: asyncio.Transport | None = None
        self.call: Call | None = None
        self._method = ""
        self._used = False
        self._headers: list[Field] = []
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._in_head = True  # the next bytes belong to a head
        self._complete = self._until_close = self._keep = False
        self._chunk_ended = False  # llhttp has seen no more than the end of a chunk since
        self._between_chunks = False  # the next byte begins a chunk
        self._silent_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.passing: Passing | None = None
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, method: str, timeouts: Timeouts) -> Call:
        """Makes the connection ready for a call."""
        self.call = call = Call(self, timeouts, on_reused=self._used)
        self._method = method
        self._used = True
        self._in_head = True
        self._complete = self._until_close = self._keep = False
        self._chunk_ended = self._between_chunks = False
        self.passing = None
        self._silent_bytes = 0
        return call

    def write(self, data: bytes) -> None:
        """Sends bytes of a request."""
        if self._transport is not None:
            self._transport.write(data)

    async def room(self) -> None:
        """Returns when the transport's buffer has room."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def pause(self) -> None:
        """Stops reading."""
        if self._transport is not None and self.open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        if self._transport is not None and self.open:
            self._transport.resume_reading()

    def wake_at(self, at_s: float) -> None:
        """Calls `check_time` of the call it carries then, or before.

        The timer outlasts a call: for the next one it seldom has to be set again.
        """
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at_s, self._wake_call)

    def _wake_call(self) -> None:
        self._timer = None
        if self.call is not None:
            self.call.check_time()

    @property
    def open(self) -> bool:
        """Whether it can be written to, as far as known."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Closes a connection at rest."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Closes at once; the engine sees a disconnect."""
        self.call = self.passing = None
        self.keeper.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        call = self.call
        if call is None:
            self.drop()  # nobody asked
        elif self._between_chunks:
            size, passing = len(data), self.passing
            line = size_line(size)
            if line is not None and data.startswith(line):
                if (
                    passing is not None
                    and data.endswith(passing.ending)
                    and data.find(b"\n", len(line)) == size - 4
                ):
                    passing.count += 1
                    passing.last_s = monotonic()
                    try:
                        passing.write(data)
                    except Exception as error:  # noqa: BLE001 - pump() raises it, whatever it is
                        call.fail(error)
                    return
                if data.endswith(_LINE_END):
                    call.add_chunk(data, len(line))
                    return
            self._parse(call, data)
        elif not (self._in_head and self._whole(call, data)):
            self._parse(call, data)

    def _whole(self, call: Call, data: bytes) -> bool:
        """Takes a plain answer that is one read; whether it was one."""
        if self._silent_bytes or self._method == "HEAD":
            return False
        answer = whole_answer(data)
        if answer is None:
            return False
        status, headers, body = answer
        self._complete = self._keep = True
        call.begin_answer(status, headers, len(body))
        if body:
            call.add_body(body, last=True)
        self._finish(call, reusable=True)
        return True

    def _parse(self, call: Call, data: bytes) -> None:
        error: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as failure:
            error = failure
        # All but a beginning of the next size line; a whole one is a header to llhttp.
        self._between_chunks = self._chunk_ended and data.endswith(_LINE_END)
        parts = self._parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._silent_bytes = 0
            call.add_body(body, last=self._complete)
        else:
            self._silent_bytes += len(data)
        if self._complete:
            self._finish(call, reusable=error is None)
        elif error is not None:
            call.fail(_bad_answer(error))
        elif self._silent_bytes > (HEAD_BYTES if self._in_head else _SILENT_BYTES):
            call.fail(BadUpstream("the engine's answer has a boundless head or framing"))

    def eof_received(self) -> None:
        self._lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lost(exc)
        self.resume_writing()

    def pause_writing(self) -> None:
        if self._room is None:
            self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    # llhttp's callbacks.

    def on_message_begin(self) -> None:
        if self._complete:
            raise BadUpstream("more than one answer to one request")
        self._headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        if len(headers) == HEAD_FIELDS:
            raise BadUpstream(f"the engine's answer has more than {HEAD_FIELDS} fields")
        headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._parser.get_http_version() not in {"1.1", "1.0"} or not 100 <= status < 600:
            raise BadUpstream("the engine's answer has an unknown version or status")
        if status < 200:
            if status == 101:
                raise BadUpstream("the engine switched protocols")
            return
        self._in_head = False
        headers, self._headers = self._headers, []  # what follows are trailers: dropped
        length: int | None = None
        for name, value in headers:
            if name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise BadUpstream("the engine's answer has an unknown transfer coding")
                self._chunk_ended = True
            elif name == b"content-length":
                length = int(value)
        framed = self._chunk_ended or length is not None
        self._until_close = not framed and status not in {204, 304} and self._method != "HEAD"
        self._keep = self._parser.should_keep_alive()  # known here alone: not after the end
        if self.call is not None:
            rest = [field for field in headers if field[0] != b"content-length"]
            self.call.begin_answer(status, tuple(rest), length)
        if self._method == "HEAD":
            self._complete = True
            raise BadUpstream("a HEAD's answer ends here, whatever length it tells")

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        self._chunk_ended = False
        if not self._in_head:
            self._complete = True

    def _finish(self, call: Call, *, reusable: bool) -> None:
        self.call = self.passing = None
        transport = self._transport
        if (
            transport is not None
            and reusable
            and not call.uploading
            and self._keep
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            transport.resume_reading()
            self.keeper.rest(self)
        else:
            self.drop()
        call.end()

    def _lost(self, exc: Exception | None) -> None:
        call, self.call, self.passing = self.call, None, None
        self.keeper.forget(self)
        if call is None:
            return
        if exc is None and self._until_close and not self._in_head:
            call.end()
            return
        unread = call.on_reused and not call.status and not self._silent_bytes
        if unread:
            self.keeper.discard_idle()  # what ended this one ends them too, or has already
        call.fail(
            UpstreamDied(
                f"the engine closed the connection{f': {exc}' if exc else ''}",
                before_head=not call.status,
                sent_on_reused=unread,
            )
        )


def _bad_answer(error: Exception) -> UpstreamError:
    cause = error.__context__
    if isinstance(cause, UpstreamError):
        return cause  # raised in one of the callbacks
    return BadUpstream(f"malformed answer: {error}")
