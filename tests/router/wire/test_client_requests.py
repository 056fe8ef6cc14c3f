"""What a client sends and gets: requests, bodies, answers."""

import asyncio
import json

import pytest
from tests.router.raw_client import Wire, each_loop, served, soon, until
from tests.router.wire.client_side import BIG, GET, echo, held_back, post

from headway.router.wire.server import BodyTooLarge


def chunked(*parts):
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body


@each_loop
def test_a_connection_serves_one_request_after_the_other(run):
    async def main():
        async with served(echo) as server:
            wire = await Wire.open(server.port)
            for data, expected in (
                (GET, b"/x|"),
                (post(b"hello"), b"/x|hello"),
                (chunked(b"a", b"bc") + b"0\r\n\r\n", b"/x|abc"),
                (GET.replace(b"/x", b"/%20y?a=b"), b"/%20y?a=b|"),
            ):
                wire.send(data)
                answer = await wire.answer()
                assert (answer.status, answer.body) == (200, expected)
                assert answer.field(b"connection") is None
                assert answer.field(b"date")
            wire.close()

    run(main)


@each_loop
@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_pipelined_requests_are_answered_in_order_one_at_a_time(run, step):
    async def main():
        at_work = 0

        async def app(request):
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            body = await request.body(BIG)
            await asyncio.sleep(0)
            at_work -= 1
            request.respond(200, [], request.path.encode() + body)

        data = b"".join(
            GET.replace(b"/x", b"/%d" % i)
            + post(b"p%d" % i)
            + chunked(b"c", b"%d" % i)
            + b"0\r\n\r\n"
            for i in range(5)
        )
        async with served(app) as server:
            wire = await Wire.open(server.port)
            for i in range(0, len(data), step):
                wire.send(data[i : i + step])
                await asyncio.sleep(0)
            bodies = [(await wire.answer()).body for _ in range(15)]
            expected = [(b"/%d" % i, b"/xp%d" % i, b"/xc%d" % i) for i in range(5)]
            assert bodies == [body for group in expected for body in group]
            wire.close()

    run(main)


@each_loop
def test_more_pipelined_than_fits_is_held_back_and_served(run):
    async def main():
        go = asyncio.Event()

        async def app(request):
            await go.wait()
            request.respond(200, [], b"%d" % len(await request.body(BIG)))

        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(GET + post(b"a" * 3_000_000) + GET)
            await until(lambda: held_back(server))
            go.set()
            assert [(await wire.answer()).body for _ in range(3)] == [b"0", b"3000000", b"0"]
            wire.close()

    run(main)


@each_loop
def test_a_streamed_answer_has_one_chunk_for_each_write_and_ends_well(run):
    async def main():
        async def app(request):
            request.start(200, [(b"content-type", b"text/event-stream")])
            for part in (b"data: 1\n\n", b"", b"data: 2\n\n"):
                request.write(part)
            request.finish()

        async with served(app) as server:
            wire = await Wire.open(server.port)
            for _ in range(2):
                wire.send(GET)
                data = await wire.until(b"0\r\n\r\n")
                head, _, body = data.partition(b"\r\n\r\n")
                assert b"transfer-encoding: chunked" in head
                assert body == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
            wire.close()

    run(main)


@each_loop
@pytest.mark.parametrize("how", ["raise", "abort", "return", "short", "long"])
def test_a_truncated_answer_looks_truncated(run, how, caplog):
    async def main():
        async def app(request):
            request.start(200, [], length=10 if how in {"short", "long"} else None)
            request.write(b"hello")
            if how == "raise":
                raise RuntimeError("boom")
            if how == "abort":
                request.abort()
            if how == "short":
                request.finish()
            if how == "long":
                request.write(b"hello!")

        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(GET)
            answer = await wire.answer()
            assert not answer.complete
            wire.close()

    run(main)


@each_loop
def test_a_failing_application_is_a_500_and_the_connection_lives(run, caplog):
    async def main():
        async def app(request):
            if request.path == "/bad":
                raise RuntimeError("boom")
            if request.path == "/nothing":
                return
            request.respond(204, [], b"")

        async with served(app) as server:
            wire = await Wire.open(server.port)
            for path in (b"/bad", b"/nothing"):
                wire.send(GET.replace(b"/x", path))
                answer = await wire.answer()
                assert answer.status == 500
                assert json.loads(answer.body)["error"]["message"]
            wire.send(GET)
            answer = await wire.answer()
            assert answer.status == 204
            assert answer.field(b"content-length") is answer.field(b"transfer-encoding") is None
            wire.close()

    run(main)
    assert "boom" in caplog.text


@each_loop
def test_head_has_the_length_and_no_body(run):
    async def main():
        async with served(echo) as server:
            wire = await Wire.open(server.port)
            wire.send(GET.replace(b"GET", b"HEAD"))
            answer = await wire.answer(bodiless=True)
            assert (answer.status, answer.field(b"content-length")) == (200, b"3")
            wire.send(GET)
            assert (await wire.answer()).body == b"/x|"
            wire.close()

    run(main)


@each_loop
def test_http10_gets_no_chunks_and_keeps_alive_only_when_it_asks(run):
    async def main():
        async def app(request):
            if request.path == "/stream":
                request.start(200, [])
                request.write(b"ab")
                request.write(b"c")
                request.finish()
            else:
                request.respond(200, [], b"abc")

        async with served(app) as server:
            for start in (b"GET /stream", b"GET /whole"):
                wire = await Wire.open(server.port)
                wire.send(start + b" HTTP/1.0\r\n\r\n")
                data = await wire.rest()
                assert data.endswith(b"\r\n\r\nabc")
                assert b"connection: close" in data
                assert b"chunked" not in data
                wire.close()
            wire = await Wire.open(server.port)
            for _ in range(2):
                wire.send(b"GET /whole HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                answer = await wire.answer()
                assert (answer.body, answer.field(b"connection")) == (b"abc", b"keep-alive")
            wire.close()

    run(main)


@each_loop
def test_close_is_honoured(run):
    async def main():
        async with served(echo) as server:
            wire = await Wire.open(server.port)
            wire.send(post(b"hello", b"Connection: close") + GET)
            data = await wire.rest()
            assert data.endswith(b"/x|hello")
            assert data.count(b"HTTP/1.1 200") == 1
            assert b"connection: close" in data
            wire.close()

    run(main)


@each_loop
def test_the_body_is_asked_for_only_when_it_is_wanted(run):
    async def main():
        async def app(request):
            if request.path == "/no":
                request.respond(401, [], b"no")
            else:
                await echo(request)

        head = b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        async with served(app) as server:
            wire = await Wire.open(server.port)
            for _ in range(2):
                wire.send(head)
                assert await wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                wire.send(b"hello")
                assert (await wire.answer()).body == b"/x|hello"
            # One that doesn't wait is not asked.
            wire.send(head + b"hello")
            assert (await wire.answer()).body == b"/x|hello"
            wire.send(head.replace(b"/x", b"/no"))
            data = await wire.rest()
            assert data.startswith(b"HTTP/1.1 401")
            assert b"connection: close" in data
            wire.close()

    run(main)


@each_loop
@pytest.mark.parametrize("start", ["declared", "chunked"])
def test_a_body_beyond_the_limit_is_a_clean_413_while_the_client_still_sends(run, start):
    async def main():
        async def app(request):
            with pytest.raises(BodyTooLarge) as refused:
                await request.body(100_000)
            raise refused.value

        async with served(app) as server:
            wire = await Wire.open(server.port)
            if start == "declared":
                wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (8 * BIG))
            else:
                wire.send(chunked())
            part = b"x" * 65536
            for _ in range(8 * BIG // len(part)):
                wire.send(part if start == "declared" else b"10000\r\n" + part + b"\r\n")
                await soon(wire.writer.drain())
            answer = await wire.answer()
            assert answer.status == 413
            assert "100000 bytes" in json.loads(answer.body)["error"]["message"]
            assert await wire.rest() == b""
            wire.close()

    run(main)


@each_loop
@pytest.mark.parametrize("started", [False, True])
def test_a_malformed_chunk_is_a_400_and_the_end_of_the_connection(run, started):
    async def main():
        async def app(request):
            if started:
                request.start(200, [])
            await request.body(BIG)

        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(chunked(b"a") + b"zz\r\n" + GET)
            data = await wire.rest()
            assert data.count(b"HTTP/1.1") == 1
            assert data.startswith(b"HTTP/1.1 200" if started else b"HTTP/1.1 400")
            assert not data.endswith(b"0\r\n\r\n")
            wire.close()

    run(main)


@each_loop
def test_a_malformed_request_behind_a_good_one_waits_its_turn(run):
    async def main():
        async with served(echo) as server:
            wire = await Wire.open(server.port)
            wire.send(post(b"one") + b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + GET)
            assert (await wire.answer()).body == b"/x|one"
            answer = await wire.answer()
            assert answer.status == 400
            assert answer.field(b"content-type") == b"application/json"
            assert answer.field(b"connection") == b"close"
            assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
            assert await wire.rest() == b""
            wire.close()

    run(main)


@each_loop
def test_heads_beyond_the_limits_are_a_431(run):
    async def main():
        async with served(echo, max_head_bytes=2000, max_headers=20) as server:
            for data in (GET[:-2] + b"A: " + b"x" * 5000, GET[:-2] + b"A: b\r\n" * 30 + b"\r\n"):
                wire = await Wire.open(server.port)
                wire.send(data)
                assert (await wire.answer()).status == 431
                assert await wire.rest() == b""
                wire.close()

    run(main)


@each_loop
def test_a_body_can_be_streamed_with_the_client_held_back(run):
    async def main():
        total = 24 << 20
        begun, go = asyncio.Event(), asyncio.Event()
        largest = 0

        async def app(request):
            nonlocal largest
            size = 0
            async for part in request.stream_body():
                begun.set()
                await go.wait()
                size += len(part)
                largest = max(largest, len(part))
            request.respond(200, [], b"%d" % size)

        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % total)
            wire.send(b"x" * total)
            await soon(begun.wait())
            await until(lambda: held_back(server))
            assert wire.writer.transport.get_write_buffer_size() > 0  # it can't get rid of it all
            go.set()
            assert (await wire.answer()).body == b"%d" % total
            assert largest < 2 << 20
            wire.close()

    run(main)
