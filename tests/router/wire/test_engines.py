"""Calls to an engine: bytes, time, endings, and what becomes of the connection."""

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.raw_client import (
    PATIENT,
    WAIT_S,
    Sink,
    Transport,
    Wire,
    each_loop,
    engine,
    pieces,
    served,
    soon,
    until,
)

from headway.router.openai.stream import StreamTap
from headway.router.wire.client_request import ClientGone
from headway.router.wire.engine_connection import Connection
from headway.router.wire.engine_pool import (
    BadUpstream,
    ConnectFailed,
    FirstByteTimeout,
    IdleTimeout,
    Timeouts,
    TooLarge,
    TotalTimeout,
    UpstreamDied,
    UpstreamPool,
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


async def post(pool, body=b"hello", timeouts=PATIENT, **options):
    return await pool.send("POST", b"/x", b"", body, timeouts, **options)


async def hang(wire, request):
    await asyncio.Future()


# Bytes.

BODIES = {
    "chunks": (stream(b"data: \xe2\x82\xac\n\n", b"\r\n\r\n", b"0\r\n\r\n", b"x" * 20), False),
    "chunks with trailers": (stream(b"abc", end=b"0;x=y\r\nA: b\r\n\r\n"), False),
    "length": (whole(b"HTTP/1.1 200 OK\r\n\r\n\0"), False),
    "nothing": (whole(b""), False),
    "until close": (OK + b"\r\nabc\r\n0\r\n\r\n", True),
    "interim": (
        b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Soon\r\nA: b\r\n\r\n" + stream(b"abc"),
        False,
    ),
    "no content": (b"HTTP/1.1 204 No\r\n\r\n", False),
}


class Keeper:
    def __init__(self):
        self.rested = self.forgotten = 0

    def rest(self, connection):
        self.rested += 1

    def forget(self, connection):
        self.forgotten += 1


async def carry(parts, *, eof=False, method="GET", sink=None, tap=None):
    """What a call makes of an answer that arrives in these parts."""
    connection = Connection(keeper := Keeper(), asyncio.get_running_loop())
    connection.connection_made(Transport())
    call = connection.begin(method, PATIENT)
    call.sent()
    sink = sink or Sink()
    pump = asyncio.ensure_future(call.pump(sink, tap))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    if eof:
        connection.eof_received()
    await pump
    return call, b"".join(sink.pieces), keeper, sink


async def taken(call):
    await call.wait_head()
    return await call.read(1 << 20)


@each_loop
@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_the_same_byte_for_byte_however_it_is_split(run, name):
    data, eof = BODIES[name]

    async def main():
        call, body, keeper, _ = await carry([data], eof=eof)
        assert call.status in {200, 204}
        for cuts in [[cut] for cut in range(len(data))] + [range(len(data))]:
            again, same, keeper, _ = await carry(pieces(data, cuts), eof=eof)
            assert (again.status, again.headers, again.length, same) == (
                call.status,
                call.headers,
                call.length,
                body,
            )
            assert (keeper.rested, bool(keeper.forgotten)) == ((0, True) if eof else (1, False))
        return body

    expected = {
        "chunks": "data: €\n\n".encode() + b"\r\n\r\n" + b"0\r\n\r\n" + b"x" * 20,
        "length": b"HTTP/1.1 200 OK\r\n\r\n\0",
        "nothing": b"",
        "until close": b"abc\r\n0\r\n\r\n",
        "no content": b"",
    }
    assert run(main) == expected.get(name, b"abc")


# An answer in one read isn't parsed where it is plain; whatever only looks plain must be.
ODD_ANSWERS = {
    "leading zeros": (whole(b"abc").replace(b"3", b"003"), b"abc", 1),
    "the length of more": (whole(b"abc").replace(b"3", b"2"), b"ab", 0),
    "close": (whole(b"abc", b"connection: Close"), b"abc", 0),
    "keep-alive": (whole(b"abc", b"Connection: keep-alive"), b"abc", 1),
    "a reason like a field": (whole(b"abc").replace(b" OK", b" A: b"), b"abc", 1),
    "no reason": (whole(b"abc").replace(b" OK", b""), b"abc", 1),
    "spaces": (whole(b"abc", b"A:  \t b \t").replace(b": 3", b":3 "), b"abc", 1),
    "an answer in an answer": (whole(whole(b"abc")), whole(b"abc"), 1),
    "error": (whole(b"abc").replace(b"200 OK", b"503 No"), b"abc", 1),
}


@each_loop
@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_answer_in_one_read_is_what_the_parser_makes_of_it(run, name):
    data, expected, rests = ODD_ANSWERS[name]

    async def main():
        made = []
        for parts in ([data], [data[:1], data[1:]]):
            call, body, keeper, _ = await carry(parts)
            made.append((call.status, call.headers, call.length, body, keeper.rested))
        assert made[0] == made[1]
        assert made[0][3:] == (expected, rests)

    run(main)


@each_loop
def test_each_read_is_one_write(run):
    async def main():
        sink = Sink()
        await carry([stream(b"a", end=b""), chunk(b"b") + chunk(b"c"), b"0\r\n\r\n"], sink=sink)
        assert sink.pieces == [b"a", b"bc"]

    run(main)


# Reads that are exactly one chunk are not parsed; whatever looks like one must be.
ODD_CHUNKS = {
    "plain": (b"a\r\n0123456789\r\n", b"0123456789"),
    "capital size": (b"A\r\n0123456789\r\n", b"0123456789"),
    "leading zero": (b"00a\r\n0123456789\r\n", b"0123456789"),
    "extension": (b"a;b=c\r\n0123456789\r\n", b"0123456789"),
    "two": (b"3\r\nabc\r\n2\r\nde\r\n", b"abcde"),
    "chunk in a chunk": (b"f\r\na\r\n0123456789\r\n\r\n", b"a\r\n0123456789\r\n"),
    "end in a chunk": (b"5\r\n0\r\n\r\n\r\n", b"0\r\n\r\n"),
    "size too small": (b"9\r\n0123456789\r\n", None),
    "size too large": (b"c\r\n0123456789\r\n", None),
    "negative": (b"-a\r\n0123456789\r\n", None),
    "no line end": (b"a\r\n0123456789ab", None),
    "no line end but NUL": (b"a\r\n01234567\nab\0", None),
}


@each_loop
@pytest.mark.parametrize("name", ODD_CHUNKS)
def test_each_chunk_passes_as_the_parser_reads_it(run, name):
    odd, expected = ODD_CHUNKS[name]

    async def main():
        for before in ([], [chunk(b"first")], [chunk(b"fir"), chunk(b"st")[:1], chunk(b"st")[1:]]):
            parts = [stream(end=b""), *before, odd, chunk(b"last"), b"0\r\n\r\n"]
            if expected is None:
                for tap in (None, StreamTap()):
                    with pytest.raises(BadUpstream):
                        await carry(parts, tap=tap)
            else:
                _, body, keeper, _ = await carry(parts)
                assert body == (b"first" if before else b"") + expected + b"last"
                assert keeper.rested == 1

    run(main)


TEXT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,'
MORE = TEXT + b'"finish_reason":null}]}\n\n'
EVENTS = [
    MORE,
    TEXT + b'"finish_reason":null,"token_ids":null}]}\n\n',
    TEXT + b'"finish_reason":null}],"usage":null}\n\n',
    TEXT + b'"finish_reason":null}],"usage":{"prompt_tokens":4,"completion_tokens":1}}\n\n',
    TEXT + b'"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[{"text":"\\"finish_reason\\":null}]}"}]}\n\n',
    b'data: {"error":"finish_reason"}\n\n',
    b": ping\n\n",
    MORE.replace(b"\n", b"\r\n"),
    MORE[:-1],
    MORE + MORE,
    MORE + b"data: [DONE]\n\n",
    b"data: [DONE]\n\n",
]


@given(
    events=st.lists(st.sampled_from(EVENTS) | st.just(MORE), max_size=12),
    cuts=st.lists(st.integers(0, 2000), max_size=8) | st.none(),
)
@settings(max_examples=300)
def test_what_passes_by_the_call_counts_as_if_it_had_been_looked_at(events, cuts):
    fed = StreamTap()
    for event in events:
        fed.feed(event, 0.0)

    async def main():
        tap, sink = StreamTap(), Sink()
        parts = [stream(end=b""), *map(chunk, events), b"0\r\n\r\n"]
        if cuts is not None:
            parts = pieces(b"".join(parts), cuts)
        await carry(parts, sink=sink, tap=tap)
        assert b"".join(sink.pieces) == b"".join(events)
        return tap

    tap = asyncio.run(main())
    for name in ("events", "usage", "finish", "done", "at_boundary"):
        assert getattr(tap, name) == getattr(fed, name), name


def test_of_an_ordinary_stream_all_but_its_ends_passes_by_the_call():
    async def main():
        tap = StreamTap()
        ends = [EVENTS[4], EVENTS[-1]]
        parts = [stream(MORE, end=b""), *[chunk(MORE)] * 20, *map(chunk, ends), b"0\r\n\r\n"]
        call, body, _, _ = await carry(parts, tap=tap)
        assert body == MORE * 21 + b"".join(ends)
        assert (tap.passing.count, tap.events, tap.finish, tap.done) == (20, 23, "stop", True)
        assert call.last_byte_s == tap.passing.last_s > 0

    asyncio.run(main())


def test_a_client_that_is_full_holds_back_what_passes_by_the_call():
    async def main():
        connection = Connection(Keeper(), asyncio.get_running_loop())
        connection.connection_made(transport := Transport())
        sink, tap = Sink(), StreamTap()
        pump = asyncio.ensure_future(connection.begin("GET", PATIENT).pump(sink, tap))
        await asyncio.sleep(0)
        connection.data_received(stream(MORE, end=b""))
        connection.data_received(chunk(MORE))
        assert (tap.passing.count, transport.reading) == (1, True)
        sink.set_writable(False)
        assert not transport.reading
        sink.set_writable(True)
        assert transport.reading
        connection.data_received(b"0\r\n\r\n")
        await pump

    asyncio.run(main())


@each_loop
def test_a_pool_tells_when_a_good_answer_under_way_last_made_progress(run):
    async def main():
        for head, heard in ((b"HTTP/1.1 200 OK", True), (b"HTTP/1.1 500 No", False)):
            ends = asyncio.Event()

            async def script(wire, _request, head=head, ends=ends):
                wire.send(head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"a"))
                await ends.wait()
                wire.send(b"0\r\n\r\n")

            async with engine(script) as (_, pool):
                assert pool.last_byte_s() == float("-inf")
                call = await get(pool)
                sink = Sink()
                pump = asyncio.ensure_future(call.pump(sink))
                await soon(sink.wrote.wait())
                assert (pool.last_byte_s() > 0) == heard
                ends.set()
                await soon(pump)
                assert pool.last_byte_s() == float("-inf")

    run(main)


@each_loop
@pytest.mark.parametrize("name", ["chunks", "chunks with trailers", "length"])
@pytest.mark.parametrize("eof", [True, False])
def test_an_answer_cut_short_anywhere_is_told_from_a_whole_one(run, name, eof):
    data, _ = BODIES[name]

    async def main():
        for cut in range(len(data)):
            connection = Connection(Keeper(), asyncio.get_running_loop())
            connection.connection_made(Transport())
            call = connection.begin("GET", PATIENT)
            if cut:
                connection.data_received(data[:cut])
            connection.eof_received() if eof else connection.connection_lost(OSError("reset"))
            before_head = cut < data.index(b"\r\n\r\n") + 4
            with pytest.raises(UpstreamDied) as died:
                await taken(call)
            assert died.value.before_head == before_head
            assert not died.value.sent_on_reused

    run(main)


BAD = {
    "garbage": b"nonsense\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "status 99": b"HTTP/1.1 099 No\r\n\r\n",
    "status 600": b"HTTP/1.1 600 No\r\n\r\n",
    "status 9999": b"HTTP/1.1 9999 No\r\n\r\n",
    "switching": b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
    "switching, plainly": b"HTTP/1.1 101 S\r\n\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip": OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "gzip, chunked": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "folded": OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "NUL": OK + b"A: \0\r\nContent-Length: 0\r\n\r\n",
    "bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "many fields": OK + b"A: b\r\n" * 200 + b"\r\n",
    "long head": OK + b"A: " + b"b" * 100_000,
    "long trailer": stream(b"a", end=b"0\r\nA: " + b"b" * 200_000),
    "long extension": stream(b"a", end=b"1;" + b"b" * 200_000),
}


@each_loop
@pytest.mark.parametrize("name", BAD)
def test_an_invalid_answer_is_an_error_and_the_end_of_its_connection(run, name):
    async def main():
        for step in (1, 1000, 60_000):
            parts = [BAD[name][i : i + step] for i in range(0, len(BAD[name]), step)]
            connection = Connection(keeper := Keeper(), asyncio.get_running_loop())
            connection.connection_made(transport := Transport())
            call = connection.begin("GET", PATIENT)
            for part in parts:
                if not transport.closed:
                    connection.data_received(part)
            with pytest.raises(BadUpstream):
                await taken(call)
            assert transport.aborted
            assert keeper.rested == 0

    run(main)


@each_loop
@pytest.mark.parametrize("extra", [b"x", b"\r\n", OK, whole(b"evil"), stream(b"evil")])
def test_bytes_after_an_answer_reach_nobody_and_end_the_connection(run, extra):
    async def main():
        for cut in (0, len(extra)):
            connection = Connection(keeper := Keeper(), asyncio.get_running_loop())
            connection.connection_made(transport := Transport())
            call = connection.begin("GET", PATIENT)
            connection.data_received(whole(b"abc") + extra[:cut])
            if extra[cut:] and not transport.closed:
                connection.data_received(extra[cut:])
            assert await call.read(100) == b"abc"
            assert transport.closed or extra == b"\r\n"
            assert keeper.rested <= 1

    run(main)


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

        async with engine(script, max_idle=2, idle_s=0.3) as (stub, pool):
            calls = [asyncio.ensure_future(get(pool)) for _ in range(4)]
            await until(lambda: len(stub.requests) == 4)
            gate.set()
            for call in calls:
                await (await call).read(10)
            assert pool.idle == 2
            await asyncio.sleep(0.4)
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


# Time.

INF = float("inf")


@each_loop
@pytest.mark.parametrize(
    ("data", "timeouts", "error"),
    [
        (b"", Timeouts(1, 0.1, INF, INF), FirstByteTimeout),
        (OK, Timeouts(1, 0.1, INF, INF), FirstByteTimeout),
        (stream(end=b""), Timeouts(1, 0.1, INF, INF), FirstByteTimeout),
        (stream(b"a", end=b""), Timeouts(1, 30, 0.1, INF), IdleTimeout),
        (stream(b"a", end=b""), Timeouts(1, 30, 30, 0.1), TotalTimeout),
        (b"", Timeouts(1, 30, 30, 0.1), TotalTimeout),
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
                await asyncio.sleep(0.04)
                wire.send(chunk(b"a"))
            wire.send(b"0\r\n\r\n")

        async with engine(script) as (_, pool):
            assert await (await get(pool, Timeouts(1, 0.5, 0.25, 60))).read(100) == b"a" * 10

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
            await asyncio.sleep(0.05)  # all of it may be here before anyone asks
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
            pump = asyncio.ensure_future((await get(pool, Timeouts(1, 5, 0.2, 60))).pump(sink))
            await soon(sink.wrote.wait())
            await asyncio.sleep(0.5)
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
            await pool.send("POST", b"/", b"", endless(), Timeouts(1, 5, 0.3, 60))
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
