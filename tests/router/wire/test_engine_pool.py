"""Which connection a request goes out on, and when once more."""

import asyncio

import pytest
from tests.router.raw_client import (
    PATIENT,
    each_loop,
    engine,
    until,
)
from tests.router.wire.engine_side import OK, get, hang, replies, stream, taken, whole

from headway.router.wire.engines.pool import (
    ConnectFailed,
    UpstreamDied,
    UpstreamPool,
)


async def post(pool, body=b"hello", timeouts=PATIENT, **options):
    return await pool.send("POST", b"/x", b"", body, timeouts, **options)


# The pool.


@each_loop
def test_a_connection_is_used_again(run):
    async def main():
        script = replies(whole(b"one", b"X-A:  b "), stream(b"t", b"wo"), b"HTTP/1.1 304 N\r\n\r\n")
        async with engine(script) as (stub, pool):
            for expected in (b"one", b"two", b"", b""):
                call = await post(pool)
                assert await call.read(100) == expected
                assert call.on_reused == (expected != b"one")
                assert (pool.idle, pool.busy) == (1, 0)
            assert stub.connections == 1
            head, body = stub.requests[0]
            assert head.startswith(b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:")
            assert b"\r\ncontent-length: 5\r\n" in head
            assert body == b"hello"

    run(main)


@each_loop
@pytest.mark.parametrize(
    "answer",
    [whole(b"a", b"Connection: close"), b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na"],
)
def test_a_connection_the_engine_will_close_is_not(run, answer):
    async def main():
        async with engine(replies(answer)) as (stub, pool):
            for _ in range(2):
                assert await (await get(pool)).read(100) == b"a"
                assert pool.idle == 0
            assert stub.connections == 2

    run(main)


@each_loop
def test_head_has_no_body_whatever_length_it_tells(run):
    async def main():
        script = replies(OK + b"Content-Length: 500\r\n\r\n")
        async with engine(script) as (_, pool):
            call = await pool.send("HEAD", b"/", b"", b"", PATIENT)
            assert (call.headers, call.length) == ((), 500)
            assert await call.read(10) == b""

    run(main)


@each_loop
def test_connections_at_rest_are_few_and_young_and_open(run):
    async def main():
        gate = asyncio.Event()

        async def script(wire, request):
            await gate.wait()
            wire.send(whole(b"a"))

        async with engine(script, max_idle=2, idle_s=0.0) as (stub, pool):
            calls = [asyncio.ensure_future(get(pool)) for _ in range(4)]
            await until(lambda: len(stub.requests) == 4)
            gate.set()
            for call in calls:
                await (await call).read(10)
            assert pool.idle == 2
            assert not (await get(pool)).on_reused  # both were too old
            assert pool.idle == 1
            for wire in stub.wires:
                wire.close()
            await until(lambda: not pool.idle)

    run(main)


@each_loop
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_request_that_met_the_engines_close_goes_out_once_more(run, how):
    async def main():
        script = replies(whole(b"one"), (b"", how), whole(b"two"))
        async with engine(script) as (stub, pool):
            assert await (await post(pool)).read(100) == b"one"
            call = await post(pool)
            assert await call.read(100) == b"two"
            assert not call.on_reused
            assert [body for _, body in stub.requests] == [b"hello"] * 3
            assert stub.connections == 2

    run(main)


@each_loop
@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 2", OK + b"A: b\r\nContent-Length: 3\r\n\r\nx"],
)
def test_a_request_does_not_go_out_again_when_told_or_when_something_came(run, answer):
    async def main():
        script = replies(whole(b"one"), (answer, "reset" if not answer else "close"), whole(b"two"))
        async with engine(script) as (stub, pool):
            assert await (await post(pool)).read(100) == b"one"
            with pytest.raises(UpstreamDied) as died:
                await taken(await post(pool, resend=bool(answer)))
            assert died.value.before_head == (b"A:" not in answer)
            assert died.value.sent_on_reused == (not answer)
            assert len(stub.requests) == 2

    run(main)


@each_loop
def test_a_request_on_a_fresh_connection_is_sent_once(run):
    async def main():
        async with engine(replies((b"", "close"))) as (stub, pool):
            with pytest.raises(UpstreamDied) as died:
                await post(pool)
            assert died.value.before_head
            assert not died.value.sent_on_reused
            assert len(stub.requests) == 1

    run(main)


@each_loop
def test_nobody_listening_is_a_failed_connection(run):
    async def main():
        async with engine(hang) as (_, pool):
            port = pool.port
        gone = UpstreamPool("127.0.0.1", port)
        with pytest.raises(ConnectFailed):
            await get(gone)
        nowhere = UpstreamPool("192.0.2.1", 9, connect_timeout_s=0.1)
        with pytest.raises(ConnectFailed):
            await get(nowhere)
        with pytest.raises(ConnectFailed):
            await get(pool)  # closed

    run(main)


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", b"/a b"), ("GET", b"/a\r\n"), ("GET", b"http://b/"), ("GET /", b"/")],
)
@each_loop
def test_a_request_that_would_be_another_is_not_sent(run, method, target):
    async def main():
        async with engine(hang) as (stub, pool):
            with pytest.raises(ValueError, match=r"line"):
                await pool.send(method, target, b"", b"", PATIENT)
            assert stub.connections == 0

    run(main)
