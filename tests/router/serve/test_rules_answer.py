"""ROUTER_RULES 14 to 16: what reaches the client."""

import asyncio
import json

import pytest
from tests.router.raw_client import Wire, soon
from tests.router.rules import engines, flags, on_loop, routing
from tests.testing.vllm_answers import CHOICES, EVENTS, JSON, body_for, event

CHAT = "/v1/chat/completions"


def raw(path, body, *fields):
    head = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *fields]
    head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 413, 429, 500, 503])
@pytest.mark.parametrize("path", CHOICES)
@on_loop
async def test_an_error_before_the_first_byte_is_told_as_it_is(path, status, stream):
    """Rule 14: the engine's status and body."""

    async def refuses(request, seen):
        body = b'{"error": {"message": "\xc3\xa9 as it is",  "code": 7}}'
        request.respond(status, [JSON, (b"retry-after", b"9")], body)

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = refuses
        got = await client.post(path, content=body_for(path, stream=stream))
        assert got.status_code == status
        assert got.content == b'{"error": {"message": "\xc3\xa9 as it is",  "code": 7}}'
        assert got.headers["retry-after"] == "9"
        assert got.headers["x-headway-route"]


@pytest.mark.parametrize("path", CHOICES)
@pytest.mark.parametrize("cut", ["between events", "in an event"])
@on_loop
async def test_a_failure_after_the_first_byte_is_told_in_band(path, cut):
    """Rule 14: an error event, no [DONE], no finish_reason stop."""
    heard = asyncio.Event()
    begun = event({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]})

    async def dies(request, seen):
        request.start(200, [EVENTS])
        request.write(begun + (b'data: {"choices": [{"del' if cut == "in an event" else b""))
        await heard.wait()
        request.abort()

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = dies
        content = body_for(path, stream=True)
        async with client.stream("POST", path, content=content) as got:
            whole = b""
            async for part in got.aiter_bytes():
                whole += part
                heard.set()
        text = whole.decode()
        assert got.status_code == 200
        assert "[DONE]" not in text
        assert '"stop"' not in text
        last = text.strip().split("\n\n")[-1].split("\n")
        [data] = [line.removeprefix("data: ") for line in last if line.startswith("data: ")]
        assert json.loads(data)["error"]["message"]
        assert ("event: error" in last) == (path in {"/v1/responses", "/v1/messages"})
        assert router.log[-1]["broke_off"] is True


@on_loop
async def test_an_answer_that_breaks_off_unstreamed_is_an_error():
    """Rule 14: half of a JSON answer is none."""

    async def dies(request, seen):
        request.start(200, [JSON], length=1000)
        request.write(b'{"choices": [')
        request.abort()

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = dies
        got = await client.post(CHAT, content=body_for(CHAT))
        assert got.status_code == 502
        assert got.json()["error"]["type"] == "server_error"


@on_loop
async def test_events_are_passed_on_as_they_come():
    """Rule 15: the next piece is sent only when the client has the one before it.

    The first is long enough to tell that it is no error.
    """
    text = 'data: {"a": "ä🦊"}\n\n'.encode()
    parts = [text[:9], *(bytes([value]) for value in text[9:]), b"data: [DONE]\n\n"]
    turn = asyncio.Semaphore(0)

    async def drips(request, seen):
        request.start(200, [EVENTS])
        for part in parts:
            request.write(part)
            await turn.acquire()
        request.finish()

    async with engines() as [engine], routing(flags([engine])) as router:
        engine.script = drips
        wire = await Wire.open(router.port)
        wire.send(raw(CHAT, body_for(CHAT, stream=True)))
        await wire.until(b"\r\n\r\n")
        for part in parts:
            framed = b"%x\r\n%b\r\n" % (len(part), part)
            assert await soon(wire.reader.readexactly(len(framed))) == framed
            turn.release()
        assert await wire.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        wire.close()


@on_loop
async def test_a_line_may_be_long():
    """Rule 15: longer than 128 KiB, and the bytes are the engine's."""
    long = event({"choices": [{"delta": {"content": "ü" * 300_000}}]})

    async def tells(request, seen):
        request.start(200, [EVENTS])
        for index in range(0, len(long), 65_521):
            request.write(long[index : index + 65_521])
            await asyncio.sleep(0)
        request.write(b"data: [DONE]\n\n")
        request.finish()

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = tells
        got = await client.post(CHAT, content=body_for(CHAT, stream=True))
        assert got.content == long + b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@on_loop
async def test_headers_of_one_connection_stay_there(path):
    """Rule 16: hop-by-hop headers are never copied; others are."""

    async def tells(request, seen):
        names = {name for name, _ in seen.headers}
        assert not names & {b"te", b"upgrade", b"x-mine", b"keep-alive", b"proxy-authorization"}
        fields = [
            JSON,
            (b"keep-alive", b"timeout=5"),
            (b"proxy-authenticate", b"x"),
            (b"x-kept", b"yes"),
            (b"set-cookie", b"a=1"),
            (b"x-headway-route", b"forged"),
            (b"server-timing", b"forged"),
            (b"server", b"uvicorn"),
        ]
        request.respond(200, fields, b'{"choices": []}')

    async with engines() as [engine], routing(flags([engine])) as router:
        engine.script = tells
        wire = await Wire.open(router.port)
        extra = ["te: trailers", "connection: x-mine", "x-mine: 1", "keep-alive: 3", "x-kept: 1"]
        wire.send(raw(path, body_for(CHAT), *extra))
        got = await wire.answer()
        wire.close()
        assert got.status == 200
        assert got.body == b'{"choices": []}'
        names = [name for name, _ in got.headers]
        assert got.field(b"x-kept") == b"yes"
        assert not {b"keep-alive", b"proxy-authenticate", b"server"} & set(names)
        assert names.count(b"content-length") == 1
        assert names.count(b"x-headway-route") == names.count(b"server-timing") == 1
        assert b"forged" not in {value for _, value in got.headers}
        assert engine.seen[-1].field(b"x-kept") == b"1"


@on_loop
async def test_the_engine_is_asked_for_plain_bytes():
    """Rule 16: what the router reads must not be compressed."""
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        await client.post(CHAT, content=body_for(CHAT), headers={"accept-encoding": "gzip, br"})
        assert engine.seen[-1].field(b"accept-encoding") == b"identity"


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("receipt", [True, False])
@on_loop
async def test_the_receipt_can_be_switched_off(receipt, split):
    """On every answer, errors included, or on none; a log line either way."""
    async with engines(2) as [one, two]:
        config = flags(
            **({"prefill": [one], "decode": [two]} if split else {"engine": [one, two]}),
            receipt=receipt,
        )
        async with routing(config) as router, router.client() as client:
            asked = [
                (CHAT, body_for(CHAT)),
                (CHAT, body_for(CHAT, stream=True)),
                (CHAT, b"{"),
                (CHAT, body_for(CHAT, model="other")),
                ("/v1/embeddings", b"{}"),
                ("/no/such/path", b""),
            ]
            for path, body in asked:
                got = await client.post(path, content=body)
                for name in ("x-headway-route", "server-timing"):
                    assert (name in got.headers) is receipt, (path, got.status_code, name)
                assert "x-request-id" in got.headers
            assert len(router.log) == len(asked)
            assert all("\n" not in line for line in router.lines)
            good = router.log[0]
            assert good["strategy"] == ("disaggregated" if split else "unified")
            assert good["status"] == 200
            assert len(good["engines"]) == 1 + split


@on_loop
async def test_the_receipt_names_no_engine():
    """Clients learn pools; where engines are is the log's."""
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        for path in (CHAT, "/v1/embeddings", "/v1/models"):
            got = await client.request("GET" if "models" in path else "POST", path)
            assert str(engine.port) not in str(got.headers)
        bad = await client.post(CHAT, content=body_for(CHAT))
        assert 'pools="engines"' in bad.headers["x-headway-route"]
        assert str(engine.port) in router.lines[-1]


@on_loop
async def test_an_engine_that_answers_nonsense_is_a_bad_gateway():
    """Rule 4 and 14: no hang, no 500 of the router's own."""

    async def hangs_up(request, seen):
        request.abort()

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = hangs_up
        got = await client.post(CHAT, content=body_for(CHAT))
        assert got.status_code == 502


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@on_loop
async def test_a_redirect_does_not_show_where_the_engine_is(path):
    async def elsewhere(request, seen):
        where = b"http://10.0.0.1:8100" + path.encode() + b"/"
        request.respond(307, [JSON, (b"location", where)], b"{}")

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = elsewhere
        got = await client.post(path, content=body_for(path), follow_redirects=False)
        assert "location" not in got.headers
        assert "10.0.0.1" not in got.text
