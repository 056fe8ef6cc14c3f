"""One connection of a stub server: HTTP by hand, so that it can fail at any byte."""

import asyncio
import contextlib
import socket
import struct


class Left(Exception):  # noqa: N818 - it isn't an error
    pass


class Die(Exception):  # noqa: N818 - as above
    pass


class Closed(Exception):  # noqa: N818 - as above
    pass


class Link:
    """One connection from the router."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._next = None
        self._at_close = False

    async def request(self):
        first = await self._listening()
        self._next = None
        if not first:
            raise Left
        head = first + await self._reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = dict(f.lower().split(": ", 1) for f in fields if ": " in f)
        body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = line.split(" ")
        return method, target.partition("?")[0], headers, body

    async def raw_request(self):
        """As it came: method, target, fields in order (names in lower case), body; all bytes."""
        first = await self._listening()
        self._next = None
        if not first:
            raise Left
        head = first + await self._reader.readuntil(b"\r\n\r\n")
        line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        fields = [
            (name.lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines)
        ]
        method, target, _ = line.split(b" ")
        return method, target, fields, await self._raw_body(dict(fields))

    async def _raw_body(self, fields):
        if fields.get(b"transfer-encoding") != b"chunked":
            return await self._reader.readexactly(int(fields.get(b"content-length", 0)))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return body

    def _listening(self):
        if self._next is None:
            self._next = asyncio.ensure_future(self._reader.read(1))
        return self._next

    async def hold(self, seconds=None):
        """Wait; raises when the router leaves meanwhile."""
        done, _ = await asyncio.wait([self._listening()], timeout=seconds)
        if done:
            raise Left

    def write(self, data):
        self._writer.write(data)

    def head(self, status, kind, *fields, length=None, at_close=False):
        """at_close: the body ends with the connection."""
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        self._at_close = at_close
        if at_close:
            framing = "connection: close"
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", framing, *fields]
        self.write("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data):
        self.write(data if self._at_close else b"%x\r\n%b\r\n" % (len(data), data))

    def end(self):
        """The body is complete in form."""
        if self._at_close:
            raise Closed
        self.write(b"0\r\n\r\n")

    def answer(self, status, body, *fields, kind="application/json"):
        self.head(status, kind, *fields, length=len(body))
        self.write(body)

    async def drain(self):
        await self._writer.drain()
        await asyncio.sleep(0)

    def reset(self):
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self):
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await self._next
        self._writer.close()
