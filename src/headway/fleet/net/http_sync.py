"""HTTP requests of an examination: bounded in time and size, on a connection each."""

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_LIMIT_BYTES: Final = 8 << 20
_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer. headers: names in lower case. at_s: Unix time halfway between asking and it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    at_s: float

    def json(self) -> Any:
        """The body as JSON; None where it isn't."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Whom to ask. key: sent as a bearer token. verify: of TLS, whether its name must be right.
    context: of TLS, where not the machine's authorities count.
    """

    url: str
    key: str | None = None
    verify: bool = True
    context: ssl.SSLContext | None = None

    def get(self, path: str, timeout_s: float) -> HttpAnswer | None:
        """The answer to a GET; None where there is none in time."""
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> HttpAnswer | None:
        """The answer to a POST of JSON; None where there is none in time."""
        return self._ask("POST", path, json.dumps(body).encode(), timeout_s)

    def _ask(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> HttpAnswer | None:
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        asked_s = time.time()
        deadline_s = time.monotonic() + timeout_s
        connection = self._connection(timeout_s)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            at_s = (asked_s + time.time()) / 2
            received = _read(response, deadline_s)
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        named = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, named, received, at_s)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        address = urlsplit(self.url)
        host = address.hostname or ""
        if address.scheme != "https":
            return http.client.HTTPConnection(host, address.port, timeout=timeout_s)
        context = self.context or ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, address.port, timeout=timeout_s, context=context)


def _read(response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    """The body. Raises OSError or HTTPException where it doesn't come in time or is too large."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_PIECE_BYTES):
        parts.append(part)
        size += len(part)
        if size > _LIMIT_BYTES or time.monotonic() > deadline_s:
            raise TimeoutError("the answer is too long")
    return b"".join(parts)
