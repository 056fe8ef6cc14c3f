"""A client that leaves, or doesn't read, and the end of the server."""

import asyncio

import pytest
from tests.router.certificates import contexts
from tests.router.raw_client import Wire, each_loop, served, soon, until
from tests.router.wire.client_side import GET, echo, held_back, post

from headway.router.wire.server import ClientGone

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
    }

    async def main():
        app = Abandoned(where)
        async with served(app) as server:
            wire = await Wire.open(server.port)
            wire.send(sent.get(where, GET))
            await soon(app.ready.wait())
            if where == "reading is paused":
                wire.send(post(b"x" * 100_000))  # more than is kept while an answer is owed
            if where in {"reading is paused", "body is held"}:
                await until(lambda: held_back(server))
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

        async with served(app, server_tls, write_stall_s=1.5) as server:
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
            closing = asyncio.ensure_future(server.close(2.0))
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
