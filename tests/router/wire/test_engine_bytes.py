"""Answers of engines, byte for byte, however they are cut."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.raw_client import (
    PATIENT,
    Sink,
    Transport,
    each_loop,
    engine,
    pieces,
    soon,
)
from tests.router.wire.engine_side import OK, get, stream, taken, whole

from headway.router.openai.stream import StreamTap
from headway.router.wire.engines.connection import Connection
from headway.router.wire.engines.pool import (
    BadUpstream,
    UpstreamDied,
)
from headway.router.wire.http1 import chunk

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
