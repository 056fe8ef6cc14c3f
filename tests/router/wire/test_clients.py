"""What a client meets: answers, limits, and being noticed when it leaves."""

import asyncio
import json
import socket

import pytest
from tests.router.certificates import contexts
from tests.router.raw_client import Wire, each_loop, no_more_files, served, soon, until

from headway.router.wire import listener
from headway.router.wire.server import BodyTooLarge, ClientGone

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
BIG = 4 << 20


def post(body, *more):
    fields = b"".join(field + b"\r\n" for field in more)
    return b"POST /x HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (
        fields,
        len(body),
        body,
    )


def chunked(*parts):
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body


async def echo(request):
    body = await request.body(BIG)
    query = b"?" + request.query if request.query else b""
    request.respond(200, [], request.path.encode() + query + b"|" + body)


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
            await asyncio.sleep(0.05)
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
            await asyncio.sleep(0.1)
            assert wire.writer.transport.get_write_buffer_size() > 0  # it can't get rid of it all
            go.set()
            assert (await wire.answer()).body == b"%d" % total
            assert largest < 2 << 20
            wire.close()

    run(main)


@each_loop
@pytest.mark.parametrize("data", [b"", b"GET / HT", GET[:-2], b"POST"])
def test_a_head_must_arrive_in_time(run, data):
    async def main():
        async with served(echo, head_timeout_s=0.2) as server:
            wire = await Wire.open(server.port)
            dripping = asyncio.ensure_future(drip(wire, data))
            wire.send(data)
            answer = await wire.answer()
            assert answer.status == (408 if data else 0)
            dripping.cancel()
            wire.close()

    async def drip(wire, data):
        while data == GET[:-2]:
            await asyncio.sleep(0.02)
            wire.send(b"A")

    run(main)


@each_loop
@pytest.mark.parametrize("dripping", [False, True])
def test_a_body_must_keep_coming(run, dripping):
    async def main():
        async with served(echo, body_timeout_s=0.3) as server:
            wire = await Wire.open(server.port)
            wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
            drops = asyncio.ensure_future(drip(wire))
            answer = await wire.answer()
            assert answer.status == 408
            assert json.loads(answer.body)["error"]["message"]
            drops.cancel()
            wire.close()

    async def drip(wire):
        while dripping:
            wire.send(b"x")
            await asyncio.sleep(0.05)

    run(main)


@each_loop
def test_a_connection_at_rest_is_closed_after_a_while(run):
    async def main():
        async with served(echo, keep_alive_s=0.2) as server:
            wire = await Wire.open(server.port)
            wire.send(GET)
            assert (await wire.answer()).status == 200
            assert await wire.rest() == b""
            wire.close()

    run(main)


@each_loop
def test_connections_beyond_the_limit_are_refused(run):
    async def main():
        async with served(echo, max_connections=2) as server:
            wires = [await Wire.open(server.port) for _ in range(3)]
            assert (await wires[2].answer()).status == 503
            wires[0].send(GET)
            assert (await wires[0].answer()).status == 200
            for wire in wires:
                wire.close()

    run(main)


@each_loop
def test_what_is_refused_is_bounded_too(run, monkeypatch, caplog):
    """One more than may be told so is closed without a word."""
    monkeypatch.setattr(listener, "REFUSED_AT_ONCE", 1)

    async def main():
        async with served(echo, max_connections=2) as server:
            wires = [await Wire.open(server.port) for _ in range(3)]
            assert (await wires[2].answer()).status == 503
            assert await (await Wire.open(server.port)).rest() == b""
            for wire in wires:
                wire.close()

    run(main)
    assert caplog.text.count("2 connections are open") == 1


@each_loop
def test_a_connection_counts_before_its_handshake(run, tmp_path):
    server_tls, client_tls = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls, max_connections=2) as server:
            silent = [await Wire.open(server.port) for _ in range(2)]
            await until(lambda: server.connections == 2)
            refused = await Wire.open(server.port, ssl=client_tls)
            assert (await refused.answer()).status == 503
            refused.close()
            silent[0].close()
            await until(lambda: server.connections == 1)
            wire = await Wire.open(server.port, ssl=client_tls)
            wire.send(GET)
            assert (await wire.answer()).status == 200
            wire.close()
            silent[1].close()

    run(main)


@each_loop
@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "begun"])
def test_a_handshake_must_be_done_in_time(run, data, tmp_path):
    server_tls, _ = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls, head_timeout_s=0.2) as server:
            wire = await Wire.open(server.port)
            wire.send(data)
            await until(lambda: server.connections)
            assert await wire.rest() == b""
            await until(lambda: not server.connections)
            wire.close()

    run(main)


@each_loop
def test_no_handshake_outlives_the_server(run, tmp_path):
    server_tls, _ = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls) as server:
            wire = await Wire.open(server.port)
            await until(lambda: server.connections)
        assert await wire.rest() == b""
        wire.close()

    run(main)


@each_loop
def test_without_files_clients_wait_and_are_served_later(run, monkeypatch, caplog):
    """None is closed, and it is said once."""
    monkeypatch.setattr(listener, "_PAUSE_S", 0.05)

    async def main():
        async with served(echo) as server:
            loop = asyncio.get_running_loop()
            clients = [socket.socket() for _ in range(30)]
            with no_more_files():
                for client in clients:
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", server.port))
                await until(lambda: "accept: Too many open files" in caplog.text)
                await asyncio.sleep(0.2)
                assert not server.connections
            for client in clients:
                await loop.sock_sendall(client, GET)
            for client in clients:
                assert (await soon(loop.sock_recv(client, 100))).startswith(b"HTTP/1.1 200")
                client.close()
            await until(lambda: not server.connections)

    run(main)
    assert caplog.text.count("accept:") == 1


LEAVING = ["close", "half_close", "reset"]
WHERE = ["in the body", "waiting", "streaming", "reading is paused", "body is held"]
# A client's end is behind what it still has to send of a body that is held; a reset isn't.
DEPARTURES = [
    (where, how) for where in WHERE for how in LEAVING if how == "reset" or where != "body is held"
]


class Abandoned:
    """An application whose client leaves it."""

    def __init__(self, where):
        self.where = where
        self.ready, self.left = asyncio.Event(), asyncio.Event()
        self.called = []

    async def __call__(self, request):
        request.on_gone(lambda: self.called.append("first"))
        request.on_gone(lambda: self.called.append("removed"))()
        await self.get_there(request)
        gone = asyncio.Event()
        request.on_gone(gone.set)
        await gone.wait()
        assert request.is_gone
        request.on_gone(lambda: self.called.append("late"))
        if not request.started:
            request.start(200, [])
        request.write(b"y")
        request.finish()
        with pytest.raises(ClientGone):
            await request.body(1 << 30)
        self.left.set()

    async def get_there(self, request):
        if self.where == "streaming":
            request.start(200, [])
            request.write(b"x")
        elif self.where == "body is held":
            async for _ in request.stream_body():
                break
        self.ready.set()
        if self.where == "in the body":
            with pytest.raises(ClientGone):
                await request.body(1 << 30)


@each_loop
@pytest.mark.parametrize(("where", "how"), DEPARTURES)
def test_a_client_that_leaves_is_noticed_at_once(run, where, how):
    upload = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000000\r\n\r\nabc"
    sent = {
        "in the body": upload,
        "body is held": upload + b"x" * 20_000_000,
        "reading is paused": GET + post(b"x" * 100_000),
    }

    async def main():
        app = Abandoned(where)
        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(sent.get(where, GET))
            await soon(app.ready.wait())
            if where in {"reading is paused", "body is held"}:
                await asyncio.sleep(0.1)
            getattr(wire, how)()
            await soon(app.left.wait())
            assert app.called == ["first", "late"]
            wire.close()

    run(main)


@each_loop
def test_a_client_that_leaves_between_requests_owes_nothing(run):
    async def main():
        async with served(echo) as server:
            for how in LEAVING:
                wire = await Wire.open(server.port)
                wire.send(GET)
                assert (await wire.answer()).status == 200
                getattr(wire, how)()
                await until(lambda: not server.connections)
                wire.close()

    run(main)


@pytest.mark.parametrize("secret", [False, True], ids=["plain", "tls"])
@each_loop
def test_a_slow_reader_is_held_back_and_a_stalled_one_cut(run, secret, tmp_path):
    server_tls, client_tls = contexts(tmp_path) if secret else (None, None)

    async def main():
        result = asyncio.get_running_loop().create_future()

        async def app(request):
            request.start(200, [])
            resumed = asyncio.Event()
            request.on_flow(resumed.set)
            written = 0
            request.on_gone(lambda: result.set_result(written))
            while not request.is_gone and written < 1 << 30:
                if request.writable:
                    request.write(b"x" * 65536)
                    written += 65536
                    await asyncio.sleep(0)
                else:
                    resumed.clear()
                    await asyncio.wait(
                        {asyncio.ensure_future(resumed.wait()), gone}, return_when="FIRST_COMPLETED"
                    )

        async with served(app, server_tls, write_stall_s=0.3) as server:
            gone = asyncio.ensure_future(asyncio.shield(result))
            wire = await Wire.open(server.port, limit=1024, ssl=client_tls)
            wire.send(GET)
            head = await wire.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            for _ in range(200):  # reads some, slowly: that alone is no reason to be cut
                assert await soon(wire.reader.readexactly(20_000))
            assert await soon(gone) < 64 << 20
            wire.close()

    run(main)


@pytest.mark.parametrize("stays", [False, True], ids=["close", "keep-alive"])
@pytest.mark.parametrize("secret", [False, True], ids=["plain", "tls"])
@each_loop
def test_an_unread_answer_does_not_hold_its_connection_for_ever(run, secret, stays, tmp_path):
    server_tls, client_tls = contexts(tmp_path) if secret else (None, None)

    async def main():
        async def app(request):
            request.respond(200, [], b"x" * (32 << 20))

        async with served(app, server_tls, write_stall_s=0.2) as server:
            wire = await Wire.open(server.port, limit=1024, ssl=client_tls)
            wire.send(GET if stays else post(b"", b"Connection: close"))
            await wire.until(b"\r\n\r\n")
            await until(lambda: not server.connections)
            wire.close()

    run(main)


@each_loop
def test_closing_lets_answers_end_and_cuts_those_that_take_too_long(run):
    async def main():
        go, began = asyncio.Event(), asyncio.Semaphore(0)
        cancelled = []

        async def app(request):
            request.start(200, [])
            request.write(b"a")
            began.release()
            try:
                await (go.wait() if request.path == "/x" else asyncio.Future())
            except asyncio.CancelledError:
                cancelled.append(request.path)
                raise
            request.write(b"b")
            request.finish()

        async with served(app) as server:
            quick, slow, idle = [await Wire.open(server.port) for _ in range(3)]
            quick.send(GET)
            slow.send(GET.replace(b"/x", b"/slow"))
            await began.acquire()
            await began.acquire()
            closing = asyncio.ensure_future(server.close(0.3))
            assert await idle.rest() == b""
            with pytest.raises(ConnectionRefusedError):
                await Wire.open(server.port)
            go.set()
            assert (await quick.rest()).endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
            assert (await slow.rest()).endswith(b"1\r\na\r\n")
            await closing
            assert cancelled == ["/slow"]
            for wire in (quick, slow, idle):
                wire.close()

    run(main)


@each_loop
def test_a_fixed_length_is_kept_and_fields_of_framing_are_ours(run):
    async def main():
        async def app(request):
            fields = [(b"content-length", b"99"), (b"transfer-encoding", b"gzip"), (b"a", b"b")]
            request.start(200, fields, length=4)
            request.write(b"ab")
            request.write(b"cd")
            request.finish()
            request.finish()

        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(GET + GET)
            for _ in range(2):
                answer = await wire.answer()
                assert (answer.body, answer.field(b"content-length")) == (b"abcd", b"4")
                assert answer.field(b"transfer-encoding") is None
                assert answer.field(b"a") == b"b"
            wire.close()

    run(main)
