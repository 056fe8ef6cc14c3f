"""Raw sockets on both sides of the router, and transports that only remember."""

import asyncio
import contextlib
import os
import resource
import socket
import struct
from itertools import pairwise

import httptools
import pytest
import uvloop

from headway.router.wire.engines.pool import Timeouts, UpstreamPool
from headway.router.wire.http1 import chunk
from headway.router.wire.server import ClientLimits, serve

WAIT_S = 60.0
"""No test waits longer for anything."""
PATIENT = Timeouts(connect_s=5.0, first_byte_s=20.0, idle_s=20.0, total_s=60.0)


def _run_with(runner):
    def run(main):
        async def bounded():
            async with asyncio.timeout(110):
                return await main()

        return runner(bounded())

    return run


each_loop = pytest.mark.parametrize(
    "run", [_run_with(asyncio.run), _run_with(uvloop.run)], ids=["asyncio", "uvloop"]
)


def soon(awaitable):
    """Bounds a wait."""
    return asyncio.wait_for(awaitable, WAIT_S)


async def until(condition):
    """Waits for something that tells nobody when it happens."""
    end_s = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < end_s
        await asyncio.sleep(0.001)


@contextlib.contextmanager
def no_more_files():
    """This process can open none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Answer:
    """A response as llhttp reads it, the bytes after it included."""

    def __init__(self):
        self.status = 0
        self.headers = []
        self.body = b""
        self.pieces = []
        self.complete = self.head_complete = False

    def field(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def on_header(self, name, value):
        if not self.head_complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self):
        self.head_complete = True

    def on_body(self, data):
        self.pieces.append(data)
        self.body += data

    def on_message_complete(self):
        self.complete = True


class Wire:
    """One raw connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port, **options):
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    @property
    def socket(self):
        return self.writer.get_extra_info("socket")

    def send(self, data):
        self.writer.write(data)

    async def until(self, marker):
        return await soon(self.reader.readuntil(marker))

    async def answer(self, *, bodiless=False):
        """Reads one response by its framing, byte by byte: what follows stays unread."""
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            data = await soon(self.reader.read(1))
            if not data:
                break
            parser.feed_data(data)
            if answer.head_complete and not answer.status:
                answer.status = parser.get_status_code()
                if bodiless:
                    break
        return answer

    async def rest(self):
        """Everything up to the connection's end, however it ends."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while part := await soon(self.reader.read(65536)):
                data += part
        return data

    def half_close(self):
        self.writer.write_eof()

    def close(self):
        self.writer.close()

    def reset(self):
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def served(app, ssl=None, **limits):
    """A server for clients. It must end with no connection and no request left."""
    server = await serve(app, "127.0.0.1", 0, ClientLimits(**limits), ssl)
    try:
        yield server
    finally:
        await server.close(0.5)
        assert server.connections == server.requests == 0


class Engine:
    """A scripted engine: `script(wire, request)` for each request, whose bytes it has read."""

    def __init__(self, script):
        self.script = script
        self.connections = 0
        self.requests = []
        self.left = asyncio.Event()
        self.tasks = set()
        self.wires = []

    async def serve(self, reader, writer):
        self.connections += 1
        wire = Wire(reader, writer)
        self.wires.append(wire)
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body = await reader.readexactly(length)
                self.requests.append((head, body))
                if await self.script(wire, (head, body)) == "close":
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.left.set()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def engine(script, **options):
    """A scripted engine and a pool of connections to it. Nothing may be left in use."""
    stub = Engine(script)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = UpstreamPool("127.0.0.1", port, **options)
    try:
        yield stub, pool
        assert pool.busy == 0
    finally:
        pool.close()
        server.close()
        for task in stub.tasks:
            task.cancel()
        await asyncio.gather(*stub.tasks, return_exceptions=True)


class Transport(asyncio.Transport):
    """Remembers what is written; drains when told."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.closed = self.aborted = False
        self.reading = True
        self.held = 0

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written.append(data)

    def get_write_buffer_size(self):
        return self.held

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def can_write_eof(self):
        return True

    def write_eof(self):
        pass

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True


class Sink:
    """A client's end of a pump, without a client."""

    def __init__(self, *, writable=True):
        self.writable = writable
        self.is_gone = False
        self.pieces = []
        self.wrote = asyncio.Event()
        self._gone = []
        self._flow = None

    def write(self, data):
        self.pieces.append(data)
        self.wrote.set()

    def write_chunk(self, framed):
        data = framed[framed.index(b"\r\n") + 2 : -2]
        assert framed == chunk(data)
        self.write(data)

    write_passing = write_chunk

    def on_gone(self, callback):
        if self.is_gone:
            callback()
        self._gone.append(callback)
        return lambda: self._gone.remove(callback)

    def on_flow(self, callback):
        self._flow = callback

    def leave(self):
        self.is_gone = True
        for callback in list(self._gone):
            callback()

    def set_writable(self, writable):
        self.writable = writable
        if self._flow:
            self._flow()


def pieces(data, cuts):
    """The data cut at these positions."""
    edges = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if b > a]
