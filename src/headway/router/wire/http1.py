"""HTTP/1.1 heads, strictly.

A request's head is matched against the grammar itself, without anything that the grammar merely
tolerates, so that no server behind the router can read it differently: folded lines, bare CR or
LF, control characters, white space around names or repeated in the request line, versions other
than 1.0 and 1.1 (and no version at all), conflicting or repeated lengths, transfer codings beside
`chunked`, `chunked` in HTTP/1.0, a missing, repeated or malformed Host, fragments, and unbounded
heads are refused. A protocol switch is not offered; the request is served as if it had not been
asked for (RFC 9110, 7.8). Answers and chunked bodies are llhttp's (connection.py, chunked.py).
"""

import re
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import httptools

from headway.core.errors import HeadwayError

Field = tuple[bytes, bytes]
Headers = Sequence[Field]
"""Fields in order; names are lower-case, values carry no white space at their ends."""
JSON_TYPE: Final[Field] = (b"content-type", b"application/json")

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
FRAMING: Final = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length"})
"""Fields that frame a message: whoever sends it adds them."""
_ONCE: Final = {b"host": 400, b"transfer-encoding": 501, b"expect": 417}
"""Fields that may come once, and the answer to a request in which one is repeated."""
# RFC 9112, 3 and 5, without white space where it is optional or tolerated in the request line.
_REQUEST_LINE: Final = rb"([A-Z]+) ([!-\"$-~]+) HTTP/1\.([01])\r\n"
_REQUEST_LINE_BEGUN: Final = re.compile(rb"(?:[A-Z]+(?: (?:[!-\"$-~]+(?: [HTP/.01]{0,8})?)?)?)?\r?")
FIELD_LINES: Final = rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*"
_START: Final = re.compile(_REQUEST_LINE + FIELD_LINES)
_FIELDS: Final = re.compile(FIELD_LINES)
_FIELD: Final = re.compile(rb"([^:\n]+):([^\r]*)\r\n")
_LINE: Final = b"%b: %b\r\n".__mod__
LENGTH_LINE: Final = re.compile(
    rb"\r\ncontent-length:[\t ]*([0-9]{1,18})[\t ]*(?=\r\n)", re.IGNORECASE
)
_SLASHES: Final = re.compile(rb"//+")
"""Base URLs that end in one make two of them."""
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

    path: undecoded, without the query; slashes at its end are left out, several in a row are one.
    query: without the question mark.
    codings: of its content, lower-case, in the order in which they were applied.
    headers: without Content-Length. length: of the body in bytes; None if it comes in chunks.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[Field, ...]
    http10: bool
    keep_alive: bool
    length: int | None
    expects_continue: bool
    codings: tuple[bytes, ...] = ()


class HeadReader:
    """Reads request heads, one after the other, from bytes split anywhere."""

    __slots__ = ("_checked", "_max_bytes", "_max_headers", "_raw")

    def __init__(self, max_bytes: int, max_headers: int) -> None:
        self._max_bytes = max_bytes
        self._max_headers = max_headers
        self._raw = b""
        self._checked = 0  # bytes of whole lines that are valid

    @property
    def started(self) -> bool:
        """Whether anything but blank lines has come."""
        return bool(self._raw)

    def feed(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and what follows it, or None while it is incomplete.

        Raises BadRequest as soon as the bytes so far can't become a valid head.
        """
        raw = self._raw + data if self._raw else data
        while not self._checked and raw.startswith(b"\r\n"):  # blank lines (RFC 9112, 2.2)
            raw = raw[2:]
        end = raw.find(b"\r\n\r\n", max(0, len(self._raw) - 3)) + 4
        if (end if end > 3 else len(raw)) > self._max_bytes:
            raise BadRequest(431, f"the request head is larger than {self._max_bytes} bytes")
        if end > 3:
            self._raw, self._checked = b"", 0
            return self._head(raw[:end]), raw[end:]
        self._raw = raw
        self._check(raw)
        return None

    def _check(self, raw: bytes) -> None:
        """Judge a beginning of a head: its whole lines, and that the last one may become one."""
        begun = raw.rfind(b"\r\n") + 2
        if begun < 2:
            begun, valid = 0, _REQUEST_LINE_BEGUN.fullmatch(raw)
        elif self._checked:
            valid = _FIELDS.fullmatch(raw, self._checked, begun)
        else:
            valid = _START.fullmatch(raw, 0, begun)
        if valid is None or raw.find(b"\n", begun) >= 0:
            raise BadRequest(400, "the request head is malformed")
        self._checked = begun

    def _head(self, raw: bytes) -> RequestHead:
        found = LENGTH_LINE.search(raw)
        if found is None:
            head = _parse(raw)
        else:
            # A client's heads often differ in this line alone, so the others are known already.
            head = _parse(raw[: found.start()] + raw[found.end() :])
            if head.length != 0:
                raise BadRequest(400, "Content-Length goes with no other length or coding")
            head = head._replace(length=int(found[1]))
        if len(head.headers) + (found is not None) > self._max_headers:
            raise BadRequest(431, f"more than {self._max_headers} header fields")
        return head


@lru_cache(maxsize=256)
def _parse(raw: bytes) -> RequestHead:
    """A whole head but for its Content-Length. Raises BadRequest."""
    start = _START.fullmatch(raw, 0, len(raw) - 2)
    if start is None:
        raise BadRequest(400, "the request head is malformed, or not HTTP/1.0 or HTTP/1.1")
    method, url, version = start.groups()
    if method not in METHODS:
        raise BadRequest(501, f"method {method.decode('latin-1')} isn't supported")
    http10 = version == b"0"
    path, query = _target(url)
    headers = fields_of(raw, start.end(3), len(raw) - 2)
    fields = dict(headers)
    if b"content-length" in fields:
        raise BadRequest(400, "Content-Length must be a decimal number, and only one")
    if len(fields) < len(headers):
        _check_repeated([name for name, _ in headers])
    options = tokens(b",".join([value for name, value in headers if name == b"connection"]))
    _check_host(fields.get(b"host"), http10=http10)
    return RequestHead(
        method.decode("ascii"),
        path,
        query,
        headers,
        http10,
        b"keep-alive" in options if http10 else b"close" not in options,
        _length(fields, http10=http10),
        not http10 and _expects_continue(fields.get(b"expect")),
        codings(headers),
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
    if path.endswith(b"/") or b"//" in path:
        path = _SLASHES.sub(b"/", path).rstrip(b"/") or b"/"
    return path.decode("ascii"), query


def _check_repeated(names: list[bytes]) -> None:
    for name, status in _ONCE.items():
        if names.count(name) > 1:
            raise BadRequest(status, f"more than one {name.decode('ascii').title()}")


def _check_host(host: bytes | None, *, http10: bool) -> None:
    if host is None:
        if not http10:
            raise BadRequest(400, "a request needs a Host field")
    elif _HOST.fullmatch(host) is None:
        raise BadRequest(400, "the Host field is malformed")


def _length(fields: dict[bytes, bytes], *, http10: bool) -> int | None:
    """Of the body without a Content-Length: 0, or None if it comes in chunks."""
    coding = fields.get(b"transfer-encoding")
    if coding is None:
        return 0
    if http10:
        raise BadRequest(400, "HTTP/1.0 has no Transfer-Encoding")
    if coding.lower() != b"chunked":
        raise BadRequest(501, "the only transfer coding supported is chunked, once")
    return None


def codings(headers: Headers) -> tuple[bytes, ...]:
    """How a body's content is coded, lower-case, in the order in which that was done."""
    listed = b",".join([value for name, value in headers if name == b"content-encoding"])
    return tuple([coding for coding in tokens(listed) if coding != b"identity"])


def _expects_continue(expected: bytes | None) -> bool:
    if expected is None:
        return False
    if expected.lower() != b"100-continue":
        raise BadRequest(417, "the only expectation supported is 100-continue")
    return True


def tokens(value: bytes) -> list[bytes]:
    """A comma-separated list of tokens, lower-case."""
    return [token for part in value.lower().split(b",") if (token := part.strip(b" \t"))]


def hop_by_hop(headers: Headers) -> frozenset[bytes]:
    """Names of the fields that belong to this connection and must not be passed on."""
    names = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection":
            names = names.union(tokens(value))
    return names


def fields_of(raw: bytes, start: int, end: int) -> tuple[Field, ...]:
    """The fields of lines that match FIELD_LINES."""
    found = _FIELD.findall(raw, start, end)
    return tuple([(name.lower(), value.strip(b" \t")) for name, value in found])


def lines(headers: Iterable[Field], dropped: frozenset[bytes] = FRAMING) -> bytes:
    """Fields as lines, but for those `dropped`.

    Raises ValueError for a line break or NUL in a field.
    """
    kept = [field for field in headers if field[0] not in dropped]
    made = b"".join(map(_LINE, kept))
    breaks = len(kept)
    if made.count(b"\n") != breaks or made.count(b"\r") != breaks or made.find(b"\0") >= 0:
        raise ValueError("a header field contains a line break or NUL")
    return made


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


_FRAMING_SLACK_BYTES: Final = 65_536
"""Bytes of chunk framing and trailers a body may have beyond 16 times its data."""


_STEP_BYTES: Final = 8_192
_STEP_LINES: Final = 2_048


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

    def step(self, data: bytes) -> bytes:
        """How much of these bytes may be fed at once: a few where there is hardly anything but
        line ends, each of which is looked at.
        """
        if len(data) <= _STEP_BYTES or data.count(b"\r\n") <= _STEP_LINES:
            return data
        return data[:_STEP_BYTES]

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
