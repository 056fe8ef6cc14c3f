"""A connection of the load generator: one request at a time, its answer checked and timed."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

import httptools

_MARK: Final = b"data: "
_DONE: Final = b"data: [DONE]"


class EventCounter:
    """Counts events in a body cut anywhere."""

    __slots__ = ("_edge", "done", "events")

    def __init__(self) -> None:
        self.events = 0
        self.done = False
        self._edge = b""

    def feed(self, data: bytes) -> int:
        """How many began in `data`. `[DONE]` is one."""
        edge = self._edge
        seen = edge + data
        self._edge = seen[-len(_DONE) + 1 :]
        found = seen.count(_MARK) - edge.count(_MARK)
        self.events += found
        if not self.done and _DONE in seen:
            self.done = True
        return found


class Client(asyncio.Protocol):
    """One connection, one request at a time. Callbacks: `on_end(failure)` for each request."""

    def __init__(self, on_events: Callable[[int], None]) -> None:
        """on_events: told how many events of a stream came."""
        self._on_events = on_events
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._on_end: Callable[[str | None], None] | None = None
        self._expected = 0
        self._begin_s = 0.0
        self._first_s = 0.0
        self._events = EventCounter()
        self._edge = b""

    @property
    def open(self) -> bool:
        """Whether another request may go out on it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def ttft_s(self) -> float:
        """From the request to the first bytes of the answer's body."""
        return self._first_s - self._begin_s

    def send(self, request: bytes, tokens: int, on_end: Callable[[str | None], None]) -> None:
        """tokens: that the stream must have; 0 for an answer that isn't streamed."""
        self._on_end, self._expected, self._first_s = on_end, tokens, 0.0
        self._events = EventCounter()
        self._begin_s = time.perf_counter()
        if self._transport is None:
            self._end("no connection")
        else:
            self._transport.write(request)

    def close(self) -> None:
        """Nothing more is asked on it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end("connection lost")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"malformed answer: {error}")
            self.close()

    def on_body(self, data: bytes) -> None:
        if not self._first_s:
            self._first_s = time.perf_counter()
        if self._expected:
            self._on_events(self._events.feed(data))

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"status {status}")
        elif self._expected and not self._events.done:
            self._end("no [DONE]")
        elif self._expected and self._events.events != self._expected + 1:
            self._end(f"{self._events.events - 1} tokens of {self._expected}")
        else:
            self._end(None)

    def _end(self, failure: str | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(failure)
