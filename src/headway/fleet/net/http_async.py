"""One HTTP request and its answer, for probes: small, and never for longer than asked."""

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_LIMIT_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer."""

    status: int
    body: bytes


async def exchange(
    method: str, url: str, timeout_s: float, content: bytes = b""
) -> HttpReply | None:
    """The answer to a request, with JSON for its body; None where there is none in time.

    Raises ConnectionError where nobody listens.
    """
    address = urlsplit(url)
    target = f"{address.path or '/'}{'?' if address.query else ''}{address.query}"
    lines = (
        f"{method} {target} HTTP/1.1",
        f"Host: {address.netloc}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    )
    sent = "\r\n".join([*lines, "", ""]).encode() + content
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(sent)
                return await _answer(reader)
            finally:
                writer.close()
    except ConnectionRefusedError:
        raise
    except (OSError, TimeoutError, ValueError):
        return None


async def _answer(reader: asyncio.StreamReader) -> HttpReply:
    """The answer, as soon as all of it is there. Raises ValueError where it isn't one."""
    data = b""
    while len(data) < _LIMIT_BYTES:
        part = await reader.read(1 << 16)
        data += part
        reply = _reply(data, ended=not part)
        if reply is not None:
            return reply
        if not part:
            break
    raise ValueError("the answer broke off, or is too long")


def _reply(data: bytes, *, ended: bool) -> HttpReply | None:
    """The parsed answer, None where some of it is missing. ended: nothing more will come."""
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    line, *fields = head.decode("latin-1").lower().split("\r\n")
    version, _, rest = line.partition(" ")
    if not version.startswith("http/1."):
        raise ValueError("not an HTTP answer")
    named = {name: value.strip() for name, _, value in (each.partition(":") for each in fields)}
    whole: bytes | None = body if ended else None
    if named.get("transfer-encoding") == "chunked":
        whole = _joined(body)
    elif "content-length" in named:
        size = int(named["content-length"])
        whole = body[:size] if len(body) >= size else None
    return None if whole is None else HttpReply(int(rest[:3]), whole)


def _joined(data: bytes) -> bytes | None:
    """The chunks' content, None where some of it is missing."""
    parts: list[bytes] = []
    while True:
        size_line, separator, rest = data.partition(b"\r\n")
        if not separator:
            return None
        size = int(size_line.partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        if len(rest) < size + 2:
            return None
        parts.append(rest[:size])
        data = rest[size + 2 :]
