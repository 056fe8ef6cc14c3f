"""Limits in time, and what ends a call."""

import asyncio

import pytest
from tests.router.raw_client import (
    WAIT_S,
    Sink,
    each_loop,
    engine,
    soon,
    until,
)
from tests.router.wire.engine_side import OK, get, hang, replies, stream

from headway.router.openai.stream import StreamTap
from headway.router.wire.engines.pool import (
    FirstByteTimeout,
    IdleTimeout,
    Timeouts,
    TooLarge,
    TotalTimeout,
    UpstreamDied,
)
from headway.router.wire.failures import ClientGone
from headway.router.wire.http1 import chunk

# Time.

INF = float("inf")


@each_loop
@pytest.mark.parametrize(
    ("data", "timeouts", "error"),
    [
        (b"", Timeouts(30, 0.1, INF, INF), FirstByteTimeout),
        (OK, Timeouts(30, 0.1, INF, INF), FirstByteTimeout),
        (stream(end=b""), Timeouts(30, 0.1, INF, INF), FirstByteTimeout),
        (stream(b"a", end=b""), Timeouts(30, 30, 0.1, INF), IdleTimeout),
        (stream(b"a", end=b""), Timeouts(30, 30, 30, 1.5), TotalTimeout),
        (b"", Timeouts(30, 30, 30, 0.1), TotalTimeout),
    ],
)
def test_each_limit_in_time_has_its_error_and_ends_the_call(run, data, timeouts, error):
    async def main():
        async def script(wire, request):
            wire.send(data)
            await asyncio.wait_for(wire.reader.read(1), WAIT_S)  # returns at the disconnect
            return "close"

        async with engine(script) as (stub, pool):
            sink = Sink()
            with pytest.raises(error):
                await (await get(pool, timeouts)).pump(sink)
            assert b"".join(sink.pieces) == (b"a" if b"a\r\n" in data else b"")
            assert (pool.idle, pool.busy) == (0, 0)
            await soon(asyncio.gather(*stub.tasks))

    run(main)


@each_loop
def test_a_steady_trickle_is_not_idle(run):
    async def main():
        async def script(wire, request):
            wire.send(stream(end=b""))
            for _ in range(10):
                await asyncio.sleep(0.25)
                wire.send(chunk(b"a"))
            wire.send(b"0\r\n\r\n")

        async with engine(script) as (_, pool):
            assert await (await get(pool, Timeouts(30, 30, 2.0, 60))).read(100) == b"a" * 10

    run(main)


# Endings.


@each_loop
@pytest.mark.parametrize("where", ["before the head", "before the body", "in the body"])
@pytest.mark.parametrize("how", ["leave", "cancel", "abort"])
def test_the_engine_sees_a_disconnect_when_nobody_waits_any_more(run, where, how):
    async def main():
        begun, left = asyncio.Event(), asyncio.Event()
        data = {"before the head": b"", "before the body": stream(end=b"")}

        async def script(wire, request):
            wire.send(data.get(where, stream(b"abc", end=b"")))
            begun.set()
            assert await soon(wire.reader.read(1)) == b""
            left.set()
            return "close"

        async with engine(script) as (_, pool):
            sink = Sink()
            calls = []

            async def app():
                calls.append(await get(pool, client=sink))
                await calls[0].pump(sink)

            task = asyncio.ensure_future(app())
            await soon(begun.wait())
            if where == "in the body":
                await soon(sink.wrote.wait())
            elif where == "before the body":
                await until(lambda: calls)
            if how == "leave":
                sink.leave()
                with pytest.raises(ClientGone):
                    await task
            elif how == "abort" and calls:
                calls[0].abort()
                calls[0].abort()
                with pytest.raises(UpstreamDied):
                    await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await soon(left.wait())
            assert (pool.idle, pool.busy) == (0, 0)

    run(main)


@each_loop
def test_a_client_that_has_left_already_costs_the_engine_nothing(run):
    async def main():
        async with engine(hang) as (stub, pool):
            sink = Sink()
            sink.is_gone = True
            with pytest.raises(ClientGone):
                await get(pool, client=sink)
            assert stub.requests == []

    run(main)


@each_loop
def test_an_answer_beyond_the_limit_is_not_collected(run):
    async def main():
        async def script(wire, request):
            wire.send(stream(end=b""))
            while True:
                wire.send(chunk(b"x" * 65536))
                await wire.writer.drain()

        async with engine(script) as (_, pool):
            with pytest.raises(TooLarge):
                await (await get(pool)).read(1_000_000)
            call = await get(pool)
            await until(lambda: call._paused)  # nobody reads yet: the engine is held back
            with pytest.raises(TooLarge):
                await call.read(100)

    run(main)


@each_loop
def test_a_failing_tap_ends_the_call(run):
    async def main():
        class Failing(StreamTap):
            def feed(self, data, now_s):
                raise RuntimeError("tap")

        async with engine(replies(stream(b"abc", end=b""))) as (_, pool):
            with pytest.raises(RuntimeError, match="tap"):
                await (await get(pool)).pump(Sink(), Failing())

    run(main)


@each_loop
@pytest.mark.parametrize("end", [b"", None], ids=["unfinished", "complete"])
def test_what_is_raised_on_the_first_piece_ends_the_call(run, end):
    async def main():
        def begin(first):
            assert first == b"abc"
            raise RuntimeError("not this")

        more = {} if end is None else {"end": end}
        async with engine(replies(stream(b"abc", **more))) as (_, pool):
            call = await get(pool)
            # All of it is here before anyone asks.
            await until(lambda: call.streaming and call.over is (end is None))
            sink = Sink()
            with pytest.raises(RuntimeError, match="not this"):
                await call.pump(sink, None, begin)
            assert not sink.pieces

    run(main)


@each_loop
def test_what_may_be_written_first_is_said_by_who_sees_it(run):
    """While that is nothing it is asked again; the tap sees what the client gets."""

    async def main():
        held = b""

        def begin(data):
            nonlocal held
            held += data
            return held if len(held) > 4 else b""

        async with engine(replies(stream(b"ab", b"cd", b"ef", b"gh"))) as (_, pool):
            sink, tap = Sink(), StreamTap()
            await (await get(pool)).pump(sink, tap, begin)
            assert b"".join(sink.pieces) == b"abcdefgh"
            assert len(sink.pieces[0]) > 4

    run(main)


@each_loop
def test_the_tap_sees_what_the_client_gets(run):
    async def main():
        async with engine(replies(stream(b"abc", b"def"))) as (_, pool):
            seen, sink = [], Sink()

            class Seeing(StreamTap):
                def feed(self, data, now_s):
                    seen.append(data)
                    super().feed(data, now_s)

            await (await get(pool)).pump(sink, Seeing())
            assert seen == sink.pieces
            assert b"".join(seen) == b"abcdef"

    run(main)
