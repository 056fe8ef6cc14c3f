"""Back-pressure between client and engine, and bodies that are sent as they come."""

import asyncio
import socket

import pytest
from tests.router.raw_client import (
    PATIENT,
    Sink,
    Wire,
    each_loop,
    engine,
    served,
    soon,
)
from tests.router.wire.engine_side import OK, get, hang, replies, stream, whole

from headway.router.wire.engines.pool import (
    IdleTimeout,
    Timeouts,
    UpstreamPool,
)
from headway.router.wire.http1 import chunk

# Back-pressure.


@each_loop
def test_a_slow_client_holds_the_engine_back_and_loses_nothing(run):
    async def main():
        sent = 0
        total = 48 << 20

        async def script(wire, request):
            nonlocal sent
            wire.send(OK + b"Content-Length: %d\r\n\r\n" % total)
            while sent < total:
                wire.send(b"%08d" % (sent // 65536) * 8192)
                sent += 65536
                await wire.writer.drain()

        async with engine(script) as (_, pool):
            sink = Sink(writable=False)
            # Held back by the client, the body may take longer than the engine's idle limit.
            pump = asyncio.ensure_future((await get(pool, Timeouts(30, 30, 1.5, 60))).pump(sink))
            await soon(sink.wrote.wait())
            await asyncio.sleep(2.0)
            held = sent
            assert held < 32 << 20
            assert sum(map(len, sink.pieces)) < 2 << 20
            assert not pump.done()
            sink.set_writable(True)
            await soon(pump)
            body = b"".join(sink.pieces)
            assert body == b"".join(b"%08d" % i * 8192 for i in range(total // 65536))
            assert pool.idle == 1

    run(main)


@each_loop
def test_a_call_that_ends_while_held_back_leaves_its_connection_alone(run):
    async def main():
        async with engine(replies(whole(b"a" * 100), stream(b"b" * 100))) as (stub, pool):
            sink = Sink(writable=False)
            await (await get(pool)).pump(sink)
            call = await get(pool)
            sink.set_writable(True)
            assert await call.read(100) == b"b" * 100
            assert stub.connections == 1

    run(main)


@each_loop
def test_through_the_router_memory_stays_bounded_for_a_client_that_does_not_read(run):
    async def main():
        sent = 0
        total = 64 << 20

        async def script(wire, request):
            nonlocal sent
            wire.send(stream(end=b""))
            while sent < total:
                wire.send(chunk(b"x" * 65536))
                sent += 65536
                await wire.writer.drain()
            wire.send(b"0\r\n\r\n")

        async with engine(script) as (_, pool):
            ended = asyncio.Event()

            async def app(request):
                call = await get(pool, client=request)
                request.start(call.status, call.headers)
                await call.pump(request)
                request.finish()
                ended.set()

            async with served(app) as server:
                wire = await Wire.open(server.port, limit=65536)
                wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await wire.until(b"\r\n\r\n")
                last = -1
                while sent != last:  # until nobody moves any more
                    last = sent
                    await asyncio.sleep(0.3)
                assert sent < total
                answer = b""
                while not answer.endswith(b"0\r\n\r\n"):
                    answer = answer[-16:] + await soon(wire.reader.read(1 << 20))
                await soon(ended.wait())
                wire.close()

    run(main)


# Bodies that are sent as they come.


async def parts_of(*parts, wait=None, error=None):
    for part in parts:
        yield part
    if wait is not None:
        await wait.wait()
    if error is not None:
        raise error


@each_loop
def test_a_body_is_sent_as_it_comes(run):
    async def main():
        async def script(wire, request):
            if b"chunked" in request[0]:
                assert await wire.until(b"0\r\n\r\n") == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
            wire.send(whole(request[1]))

        async with engine(script) as (_, pool):
            body = parts_of(b"ab", b"", b"c")
            call = await pool.send("POST", b"/", b"", body, PATIENT)
            assert await call.read(10) == b""
            body = parts_of(b"ab", b"c")
            call = await pool.send("POST", b"/", b"", body, PATIENT, length=3)
            assert await call.read(10) == b"abc"
            assert pool.idle == 1

    run(main)


@each_loop
@pytest.mark.parametrize("parts", [[b"abcd"], [b"a"], [b"ab", b"cd"]])
def test_a_body_of_another_length_than_said_is_an_error(run, parts):
    async def main():
        async with engine(hang) as (_, pool):
            with pytest.raises(ValueError, match="Content-Length"):
                await pool.send("POST", b"/", b"", parts_of(*parts), PATIENT, length=3)

    run(main)


@each_loop
def test_an_answer_before_the_bodys_end_is_delivered_and_the_connection_closed(run):
    async def main():
        async def script(wire, request):
            wire.send(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
            await soon(wire.reader.read(-1))
            return "close"

        async with engine(script) as (_, pool):
            body = parts_of(b"ab", wait=asyncio.Event())
            call = await pool.send("POST", b"/", b"", body, PATIENT)
            assert (call.status, await call.read(10)) == (413, b"no")
            assert (pool.idle, pool.busy) == (0, 0)

    run(main)


@each_loop
def test_an_error_in_the_body_is_the_senders_and_ends_the_call(run):
    async def main():
        async with engine(hang) as (_, pool):
            body = parts_of(b"ab", error=RuntimeError("mine"))
            with pytest.raises(RuntimeError, match="mine"):
                await pool.send("POST", b"/", b"", body, PATIENT)
            assert pool.busy == 0

    run(main)


@each_loop
def test_an_engine_that_stops_taking_the_body_is_given_up(run):
    async def main():
        async def endless():
            while True:
                yield b"x" * 262_144

        deaf = socket.create_server(("127.0.0.1", 0))  # the kernel accepts; nobody reads
        pool = UpstreamPool("127.0.0.1", deaf.getsockname()[1])
        with pytest.raises(IdleTimeout):
            await pool.send("POST", b"/", b"", endless(), Timeouts(30, 30, 0.3, 60))
        assert pool.busy == 0
        pool.close()
        deaf.close()

    run(main)


@each_loop
def test_an_upload_passes_through_the_router_with_both_sides_held_to_the_slower(run):
    async def main():
        total = 24 << 20

        async def script(wire, request):
            wire.send(whole(b"%d" % len(request[1])))

        async with engine(script) as (_, pool):

            async def app(request):
                body = request.stream_body()
                call = await pool.send(
                    "POST", b"/", b"", body, PATIENT, length=total, client=request
                )
                request.respond(call.status, [], await call.read(100))

            async with served(app) as server:
                wire = await Wire.open(server.port)
                wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % total)
                wire.send(b"x" * total)
                assert (await wire.answer()).body == b"%d" % total
                wire.close()

    run(main)
