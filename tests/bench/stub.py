"""A stub completion server: streams as vLLM does, or fails in a chosen way."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from tests.testing.engine import Stub
from tests.testing.link import Closed, Link

from headway.bench.load.exchange import Target

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
)


def event(tokens: int) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
    content = {"id": "x", "choices": [{"index": 0, "text": "a\n"}], "usage": usage}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def answer(tokens: int) -> bytes:
    """The bytes of a whole well-formed response."""
    chunks = [chunk(event(n + 1)) for n in range(tokens)]
    return HEAD + b"".join([*chunks, chunk(event(tokens)), chunk(b"data: [DONE]\n\n"), chunk(b"")])


Handler = Callable[["StubEngine", dict, Link], Awaitable[None]]


class StubEngine(Stub):
    """Serves completions with `first_s` to the first token and `gap_s` between tokens.

    handler: answers instead; whatever it has written, the connection ends with it.
    """

    def __init__(self, first_s: float = 0.02, gap_s: float = 0.01, handler: Handler | None = None):
        super().__init__()
        self.first_s = first_s
        self.gap_s = gap_s
        self.bodies: list[dict] = []
        self.disconnects = 0
        self._handler = handler or StubEngine.stream

    async def stream(self, body: dict, link: Link) -> None:
        link.write(HEAD)
        await asyncio.sleep(self.first_s)
        for n in range(body["max_tokens"]):
            if n:
                await asyncio.sleep(self.gap_s)
            link.write(chunk(event(n + 1)))
            await link.drain()
        link.write(chunk(event(body["max_tokens"])) + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def _one(self, link: Link, method: str, path: str, headers: dict, body: bytes) -> None:
        asked = json.loads(body)
        self.bodies.append(asked)
        work = asyncio.create_task(self._handler(self, asked, link))
        gone = asyncio.create_task(link.hold())
        done, _ = await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            self.disconnects += 1
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        raise Closed

    @asynccontextmanager
    async def serving(self):
        await self.start()
        try:
            yield Target("127.0.0.1", self.port)
        finally:
            self.close()
            async with asyncio.timeout(60):  # the clients have left, which it is still to notice
                await asyncio.gather(*self._tasks, return_exceptions=True)
