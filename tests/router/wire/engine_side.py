"""Engines on the other side of a connection pool, scripted byte for byte."""

import asyncio

from tests.router.raw_client import (
    PATIENT,
)

from headway.router.wire.http1 import chunk

OK = b"HTTP/1.1 200 OK\r\n"


def whole(body, *more):
    fields = b"".join(field + b"\r\n" for field in more)
    return OK + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


def stream(*parts, end=b"0\r\n\r\n"):
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, parts)) + end


def replies(*answers):
    """A script that gives these answers in turn, again from the last; "close" closes after."""
    left = list(answers)

    async def script(wire, request):
        answer = left.pop(0) if len(left) > 1 else left[0]
        data, close = answer if isinstance(answer, tuple) else (answer, "")
        wire.send(data)
        await wire.writer.drain()
        if close == "reset":
            wire.reset()
        return close and "close"

    return script


async def get(pool, timeouts=PATIENT, **options):
    return await pool.send("GET", b"/x", b"", b"", timeouts, **options)


async def hang(wire, request):
    await asyncio.Future()


async def taken(call):
    await call.wait_head()
    return await call.read(1 << 20)
