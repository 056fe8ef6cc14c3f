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
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple

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
_JUDGED: Final = _FRAMING - {b"keep-alive"} | {b"host", b"expect"}
# RFC 9112, 3 and 5, without white space where it is optional or tolerated in the request line.
_REQUEST_LINE: Final = rb"([A-Z]+) ([!-\"$-~]+) HTTP/1\.([01])\r\n"
_REQUEST_LINE_BEGUN: Final = re.compile(rb"(?:[A-Z]+(?: (?:[!-\"$-~]+(?: [HTP/.01]{0,8})?)?)?)?\r?")
_FIELD_LINES: Final = rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*"
_START: Final = re.compile(_REQUEST_LINE + _FIELD_LINES)
_FIELDS: Final = re.compile(_FIELD_LINES)
_FIELD: Final = re.compile(rb"([^:\n]+):([^\r]*)\r\n")
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


class HeadReader:
    """Reads one request head from bytes split anywhere."""

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
            return self._head(raw, end), raw[end:]
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

    def _head(self, raw: bytes, end: int) -> RequestHead:
        start = _START.fullmatch(raw, 0, end - 2)
        if start is None:
            raise BadRequest(400, "the request head is malformed, or not HTTP/1.0 or HTTP/1.1")
        method, url, version = start.groups()
        if method not in METHODS:
            raise BadRequest(501, f"method {method.decode('latin-1')} isn't supported")
        http10 = version == b"0"
        path, query = _target(url)
        headers = [
            (name.lower(), value.strip(b" \t"))
            for name, value in _FIELD.findall(raw, start.end(3), end - 2)
        ]
        if len(headers) > self._max_headers:
            raise BadRequest(431, f"more than {self._max_headers} header fields")
        fields = _Fields([field for field in headers if field[0] in _JUDGED])
        fields.check_host(http10=http10)
        return RequestHead(
            method=method.decode("ascii"),
            path=path,
            query=query,
            headers=headers,
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


def hop_by_hop(headers: Headers) -> frozenset[bytes]:
    """Names of the fields that belong to this connection and must not be passed on."""
    names = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection":
            names = names.union(tokens(value))
    return names


def head_bytes(
    start: bytes, headers: Headers, framing: bytes, dropped: frozenset[bytes] = _FRAMING
) -> bytes:
    """A head: start line, fields but for those that frame the message, then `framing`.

    framing: whole lines. dropped: names of the fields left out. Raises ValueError for a line
    break or NUL inside a field.
    """
    lines = [b": ".join(field) for field in headers if field[0] not in dropped]
    head = b"%b%b\r\n" % (start, b"\r\n".join((*lines, framing)))
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
