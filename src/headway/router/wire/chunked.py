"""Chunked bodies of requests, strictly."""

from typing import Final, Protocol

import httptools

from headway.router.wire.http1 import BadRequest

_FRAMING_SLACK_BYTES: Final = 65_536
"""Bytes of chunk framing and trailers a body may have beyond 16 times its data."""


class Parser(Protocol):
    """What is used of llhttp's parser of requests."""

    def feed_data(self, data: bytes) -> None: ...


class ChunkedReader:
    """Reads one chunked body from bytes split anywhere, and finds its end to the byte."""

    __slots__ = ("_body_bytes", "_parser", "_pieces", "_raw_bytes", "_tail", "done")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._tail = b""
        self._raw_bytes = 0
        self._body_bytes = 0
        self.done = False
        self._parser: Parser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """The data in these bytes, and what follows the body (empty before its end).

        Raises BadRequest(400) for malformed chunks.
        """
        parser = self._parser
        if parser is None:
            return b"", data
        # The end is always an empty line, so llhttp is fed up to each of them in turn: that is
        # the only way to learn from it where the body ended.
        raw = self._tail + data
        start = len(self._tail)
        while not self.done and start < len(raw):
            blank = raw.find(b"\r\n\r\n", max(0, start - 3))
            stop = blank + 4 if blank >= 0 else len(raw)
            self._parse(parser, raw[start:stop])
            start = stop
        self._tail = raw[-3:]
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._raw_bytes += len(data)
        self._body_bytes += len(body)
        if self._raw_bytes - 17 * self._body_bytes > _FRAMING_SLACK_BYTES and not self.done:
            raise BadRequest(400, "more chunk framing than data")
        if self.done:
            self._parser = None
        return body, raw[start:] if self.done else b""

    def _parse(self, parser: Parser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadRequest(400, f"malformed chunked body: {error}") from None

    def on_body(self, data: bytes) -> None:
        """A callback of llhttp."""
        self._pieces.append(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A callback of llhttp for trailers: dropped (RFC 9110, 6.5.1)."""

    def on_message_complete(self) -> None:
        """A callback of llhttp."""
        self.done = True
