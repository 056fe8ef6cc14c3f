"""HTTP/1.1 heads, strictly.

llhttp (through httptools) parses. It already refuses conflicting or repeated lengths, folded
lines, bare CR or LF, control characters in names and values, and malformed chunks. What it lets
through and a router must not, so that no server behind it can read a message differently, is
refused here: versions other than 1.0 and 1.1 (and no version at all), other protocols' request
lines, repeated spaces in the request line, transfer codings beside `chunked`, `chunked` in
HTTP/1.0, a missing, repeated or malformed Host, fragments, and unbounded heads (unbounded chunk
framing: chunked.py). A protocol switch is not offered; the request is served as if
it had not been asked for (RFC 9110, 7.8).
"""

import re
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import httptools

from headway.core.errors import HeadwayError

Headers = list[tuple[bytes, bytes]]
JSON_TYPE: Final[tuple[bytes, bytes]] = (b"content-type", b"application/json")
"""Fields in order; names are lower-case, values carry no white space at their ends."""

HEAD_BYTES: Final = 65_536
HEAD_FIELDS: Final = 128
METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_FRAMING: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length"})
_REQUEST_LINE: Final = re.compile(rb"[A-Z]+ [!-\"$-~]+ HTTP/1\.[01]\r\n")
_ABSOLUTE: Final = re.compile(rb"https?://[^/?]+", re.IGNORECASE)
_HOST: Final = re.compile(
    rb"(?:[A-Za-z0-9._~%!$&'()*+;=-]+|\[[0-9A-Fa-f:.%A-Za-z]+\])(?::\d{0,5})?"
)


class BadRequest(HeadwayError):  # noqa: N818 - as in RFC 9110
    """A request that can't be accepted. status: the answer it deserves."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead(NamedTuple):
    """A valid request head.

    path: as sent, undecoded, without the query. query: without the question mark.
    length: of the body in bytes; None if it comes in chunks.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    http10: bool
    keep_alive: bool
    length: int | None
    expects_continue: bool


class Parser(Protocol):
    """What is used of llhttp's parser of requests."""

    def feed_data(self, data: bytes) -> None: ...
    def get_method(self) -> bytes: ...
    def get_http_version(self) -> str: ...


class HeadReader:
    """Reads one request head from bytes split anywhere."""

    __slots__ = ("_done", "_headers", "_max_bytes", "_max_headers", "_parser", "_raw", "_url")

    def __init__(self, max_bytes: int, max_headers: int) -> None:
        self._max_bytes = max_bytes
        self._max_headers = max_headers
        self._parser: Parser | None = None
        self._raw = b""
        self._url = b""
        self._headers: Headers = []
        self._done = False

    @property
    def started(self) -> bool:
        """Whether anything but blank lines has come."""
        return bool(self._raw)

    def feed(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and what follows it, or None while it is incomplete.

        Raises BadRequest as soon as the bytes so far can't become a valid head.
        """
        raw = self._raw + data
        parser = self._parser
        if parser is None:
            while raw.startswith(b"\r\n"):  # blank lines between requests (RFC 9112, 2.2)
                raw = raw[2:]
            if not raw or raw == b"\r":
                self._raw = raw
                return None
            data = raw
            self._raw = b""
            parser = self._parser = httptools.HttpRequestParser(self)
        end = raw.find(b"\r\n\r\n", max(0, len(self._raw) - 3)) + 4
        if (end if end > 3 else len(raw)) > self._max_bytes:
            raise BadRequest(431, f"the request head is larger than {self._max_bytes} bytes")
        if end < 4:
            self._parse(parser, data)
            if self._done:
                raise BadRequest(400, "the request head is malformed")
            self._raw = raw
            return None
        self._parse(parser, data[: len(data) - (len(raw) - end)])
        if not self._done:
            raise BadRequest(400, "the request head is malformed")
        self._parser = None  # it refers back here: no cycle is left
        return self._head(parser, raw), raw[end:]

    def _parse(self, parser: Parser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # not taken up; the head is complete
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadRequest):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            if not self._done:  # llhttp also judges the body's framing; _length() words that
                raise BadRequest(400, f"malformed request: {error}") from None

    def on_url(self, url: bytes) -> None:
        """A callback of llhttp, for each piece."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A callback of llhttp."""
        if len(self._headers) == self._max_headers:
            raise BadRequest(431, f"more than {self._max_headers} header fields")
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """A callback of llhttp."""
        self._done = True

    def _head(self, parser: Parser, raw: bytes) -> RequestHead:
        if _REQUEST_LINE.match(raw) is None:
            raise BadRequest(400, "the request line is malformed, or not HTTP/1.0 or HTTP/1.1")
        method = parser.get_method()
        if method not in METHODS:
            raise BadRequest(501, f"method {method.decode('latin-1')} isn't supported")
        http10 = parser.get_http_version() == "1.0"
        path, query = _target(self._url)
        fields = _Fields(self._headers)
        fields.check_host(http10=http10)
        return RequestHead(
            method=method.decode("ascii"),
            path=path,
            query=query,
            headers=self._headers,
            http10=http10,
            keep_alive=b"keep-alive" in fields.connection
            if http10
            else b"close" not in fields.connection,
            length=fields.length(http10=http10),
            expects_continue=fields.expects_continue(http10=http10),
        )


def _target(url: bytes) -> tuple[str, bytes]:
    if not url.startswith(b"/"):
        absolute = _ABSOLUTE.match(url)
        if absolute is None:
            raise BadRequest(400, "the request target must be a path")
        url = url[absolute.end() :]  # the authority decides nothing here
        if not url.startswith(b"/"):
            url = b"/" + url
    path, _, query = url.partition(b"?")
    return path.decode("ascii"), query


class _Fields:
    """The fields of a request that say where it ends and what the connection does next."""

    __slots__ = ("_codings", "_expect", "_hosts", "_lengths", "connection")

    def __init__(self, headers: Headers) -> None:
        self._hosts: list[bytes] = []
        self._lengths: list[bytes] = []
        self._codings: list[bytes] = []
        self._expect: list[bytes] = []
        self.connection: list[bytes] = []
        for name, value in headers:
            if name == b"host":
                self._hosts.append(value)
            elif name == b"content-length":
                self._lengths.append(value)
            elif name == b"transfer-encoding":
                self._codings.append(value.lower())
            elif name == b"expect":
                self._expect.append(value.lower())
            elif name == b"connection":
                self.connection += tokens(value)

    def check_host(self, *, http10: bool) -> None:
        hosts = self._hosts
        if len(hosts) > 1 or (not hosts and not http10):
            raise BadRequest(400, "a request needs exactly one Host field")
        if hosts and _HOST.fullmatch(hosts[0]) is None:
            raise BadRequest(400, "the Host field is malformed")

    def length(self, *, http10: bool) -> int | None:
        if self._codings:
            if self._lengths:
                raise BadRequest(400, "Content-Length and Transfer-Encoding exclude each other")
            if http10:
                raise BadRequest(400, "HTTP/1.0 has no Transfer-Encoding")
            if self._codings != [b"chunked"]:
                raise BadRequest(501, "the only transfer coding supported is chunked, once")
            return None
        if len(self._lengths) > 1:
            raise BadRequest(400, "more than one Content-Length")
        return content_length(self._lengths[0]) if self._lengths else 0

    def expects_continue(self, *, http10: bool) -> bool:
        if not self._expect or http10:
            return False
        if self._expect != [b"100-continue"]:
            raise BadRequest(417, "the only expectation supported is 100-continue")
        return True


def content_length(value: bytes) -> int:
    """A Content-Length: decimal digits alone. Raises BadRequest(400)."""
    if not value.isdigit() or len(value) > 18:
        raise BadRequest(400, "Content-Length must be a decimal number")
    return int(value)


def tokens(value: bytes) -> list[bytes]:
    """A comma-separated list of tokens, lower-case."""
    return [token for part in value.lower().split(b",") if (token := part.strip(b" \t"))]


def hop_by_hop(headers: Headers) -> set[bytes]:
    """Names of the fields that belong to this connection and must not be passed on."""
    names = set(HOP_BY_HOP)
    for name, value in headers:
        if name == b"connection":
            names.update(tokens(value))
    return names


def head_bytes(start: bytes, headers: Headers, framing: bytes) -> bytes:
    """A head: start line, fields but for those that frame the message, then `framing`.

    framing: whole lines. Raises ValueError for a line break or NUL inside a field.
    """
    lines = [b"%b: %b\r\n" % field for field in headers if field[0] not in _FRAMING]
    head = b"%b%b%b\r\n" % (start, b"".join(lines), framing)
    breaks = len(lines) + start.count(b"\n") + framing.count(b"\n") + 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise ValueError("a header field contains a line break or NUL")
    return head


_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def chunk(data: bytes) -> bytes:
    """Data as one chunk. It must not be empty: that would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def date_line() -> bytes:
    """The Date field as a line."""
    return _date_line(int(time.time()))


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()
