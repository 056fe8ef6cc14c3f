"""ROUTER_RULES 3: what doesn't generate is passed on as it is, to engines that serve it whole."""

import asyncio
import json
import subprocess
from urllib.parse import unquote

import openai
import pytest
from tests.router.fleet import wire_bytes
from tests.router.raw_client import Wire, soon
from tests.router.rules import engines, flags, on_loop, routing, until
from tests.testing.vllm_answers import answer, body_for, error, event

JSON_PATHS = ["/v1/embeddings", "/v1/rerank", "/rerank", "/tokenize", "/detokenize", "/v1/score"]
GENERATING = ["/inference/v1/generate", "/invocations", "/v1/chat/completions/batch"]
EVIL = {"do_remote_prefill": True, "remote_host": "evil.example"}


@pytest.mark.parametrize(
    "path", [*JSON_PATHS, "/v1/models/org%2Fname", "/v1/messages/count_tokens"]
)
@on_loop
async def test_bytes_pass_as_they_are(path):
    """Rule 3: never split, though the router has a prefill engine."""
    sent = b'{ "model" : "m","input": ["\xc3\xa9", 1.0] ,"input":2}\n'
    async with (
        engines(2) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):
        got = await client.post(f"{path}?a=b%20c&d", content=sent, headers={"x-own": "1"})
        assert got.json() == {"path": path, "got": len(sent)}
        assert not prefill.seen
        [seen] = decode.seen
        assert (seen.path, seen.query, seen.body) == (path, b"a=b%20c&d", sent)
        assert seen.field(b"x-own") == b"1"
        assert seen.length == len(sent)
        assert 'reason="passed through"' in got.headers["x-headway-route"]
        assert router.log[-1]["path"] == path
        assert router.log[-1]["endpoint"] == "other"


@on_loop
async def test_multipart_passes():
    """Rule 3: audio, in chunks or with a length, as it comes."""
    sound = bytes(range(256)) * 2048

    async def parts(data):
        for index in range(0, len(data), 10_000):
            yield data[index : index + 10_000]

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        path = "/v1/audio/transcriptions"
        got = await client.post(path, files={"file": ("a.wav", sound)}, data={"model": "m"})
        assert got.status_code == 200
        assert sound in engine.seen[-1].body
        fields = {"content-type": got.request.headers["content-type"]}
        body = engine.seen[-1].body
        got = await client.post(path, content=parts(body), headers=fields)
        assert got.status_code == 200
        assert engine.seen[-1].body == body
        assert engine.seen[-1].field(b"transfer-encoding") == b"chunked"
        api = openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0)
        async with api:

            async def text(request, seen):
                answer(request, {"text": "hello"})

            engine.script = text
            heard = await api.audio.transcriptions.create(model="m", file=("a.wav", sound))
            assert heard.text == "hello"


@pytest.mark.parametrize("chunked", [False, True])
@on_loop
async def test_an_upload_that_is_too_large_is_refused(chunked):
    """Rule 2, for bodies that are passed on as they come."""

    async def parts():
        for _ in range(64):
            yield b"x" * 1024

    fields = {"content-type": "multipart/form-data; boundary=y"}
    async with (
        engines() as [engine],
        routing(flags([engine], max_body_bytes=32_768)) as router,
        router.client() as client,
    ):
        body = parts() if chunked else b"x" * 65_536
        got = await client.post("/v1/audio/translations", content=body, headers=fields)
        assert got.status_code == 413
        assert "32768 bytes" in got.json()["error"]["message"]
        assert not engine.seen
        [known] = router.service.engines.values()
        assert known.ready(router.service.now())
        assert [line["status"] for line in router.log] == [413]


@on_loop
async def test_an_upload_waits_for_a_slow_engine():
    """Backpressure: what the engine doesn't take isn't kept here."""
    total = 64 << 20
    go = asyncio.Event()

    async def accept(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = json.dumps({"data": [{"id": "m"}]}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            )
            writer.write(body)
        else:
            await go.wait()
            await reader.readexactly(total)
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=65536)

    class Slow:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async with routing(flags([Slow()], max_body_bytes=total)) as router:
        wire = await Wire.open(router.port)
        wire.send(
            b"POST /v1/audio/translations HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data"
            b"\r\ncontent-length: %d\r\n\r\n" % total
        )
        sent = 0
        piece = bytes(1 << 20)
        try:
            while sent < total:
                wire.send(piece)
                async with asyncio.timeout(1.0):
                    await wire.writer.drain()
                sent += len(piece)
        except TimeoutError:
            sent += len(piece)
        assert sent < 40 << 20  # kernels' buffers, ours at both sides, and no more
        go.set()
        while sent < total:
            wire.send(piece)
            await soon(wire.writer.drain())
            sent += len(piece)
        assert (await wire.answer()).status == 200
        wire.close()
    server.close()


@on_loop
async def test_heads_and_odd_methods_pass():
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:

        async def tells(request, seen):
            request.respond(200, [(b"x-method", seen.method.encode())], b"body")

        engine.script = tells
        got = await client.head("/version")
        assert got.content == b""
        assert got.headers["content-length"] == "4"
        for method in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS"):
            got = await client.request(method, "/v1/responses/r1")
            assert (got.content, got.headers["x-method"]) == (b"body", method)
        got = await client.get("/v1/chat/completions")
        assert got.headers["x-method"] == "GET"


@on_loop
async def test_streams_pass_as_they_come():
    """An answer of unknown length, piece by piece."""
    turn = asyncio.Semaphore(0)

    async def drips(request, seen):
        request.start(200, [(b"content-type", b"text/event-stream")])
        for number in range(5):
            request.write(event({"n": number}))
            await turn.acquire()
        request.finish()

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = drips
        async with client.stream("POST", "/v1/audio/speech", content=b"{}") as got:
            parts = []
            async for part in got.aiter_bytes():
                parts.append(part)
                turn.release()
            assert parts == [event({"n": number}) for number in range(5)]


@on_loop
async def test_an_answer_cut_short_looks_cut_short():
    heard = asyncio.Event()

    async def dies(request, seen):
        request.start(200, [], length=100)
        request.write(b"half")
        await heard.wait()
        request.abort()

    async with engines() as [engine], routing(flags([engine])) as router:
        engine.script = dies
        wire = await Wire.open(router.port)
        wire.send(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await wire.until(b"half")).startswith(b"HTTP/1.1 200 ")
        heard.set()
        assert await wire.rest() == b"", "of the 100 bytes that its head tells"
        wire.close()
        await until(lambda: router.log)
        assert router.log[-1]["broke_off"] is True


@pytest.mark.parametrize("form", ["plain", "escaped", "deep", "utf-16"])
@pytest.mark.parametrize("path", GENERATING)
@on_loop
async def test_no_path_lets_a_client_name_a_destination(path, form):
    """Rule 12, where rule 3 doesn't look into bodies: these paths of vLLM generate too."""
    body = {"model": "m", "kv_transfer_params": EVIL, "kept": ["é"]}
    if form == "deep":
        body = {"model": "m", "kept": ["é"], "sampling_params": {"extra_args": body}}
    sent = json.dumps(body).encode()
    if form == "escaped":
        sent = sent.replace(b"kv_transfer", b"kv_tr\\u0061nsfer")
    if form == "utf-16":
        sent = json.dumps(body).encode("utf-16")
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        fields = {"content-type": "application/json"}
        assert (await client.post(path, content=sent, headers=fields)).status_code == 200
        assert b"evil" not in engine.seen[-1].body
        assert engine.seen[-1].json["kept"] == ["é"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completion%73",
        "/%761/chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "//v1/chat///completions//",
    ],
)
@on_loop
async def test_a_path_written_otherwise_is_the_same_path(path):
    """Rule 12: engines decode paths, so this one generates."""
    body = body_for("/v1/chat/completions", kv_transfer_params=EVIL)
    async with engines() as [engine], routing(flags([engine])) as router:
        wire = await Wire.open(router.port)
        wire.send(wire_bytes(body, path))
        assert (await wire.answer()).status == 200
        wire.close()
        assert router.log[-1]["endpoint"] == "chat"
        assert b"evil" not in engine.seen[-1].body
        assert unquote(engine.seen[-1].path) == "/v1/chat/completions"


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/collective_rpc",
        "/update_weights",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/load_lora%5Fadapter",
        "/v1/../sleep",
        "/v1/%2e%2e/sleep",
        "/v1/%2Fchat/completions",
        "/v1/chat/completions%2F",
        "//sleep/",
        "/v1//load_lora_adapter/",
        "/",
        "//",
        "/state",
        "/drain",
    ],
)
@on_loop
async def test_what_is_for_operators_is_not_passed_on(path):
    async with engines() as [engine], routing(flags([engine])) as router:
        wire = await Wire.open(router.port)
        wire.send(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" % path.encode())
        got = await wire.answer()
        wire.close()
        assert got.status == 404
        assert json.loads(got.body)["error"]["type"] == "not_found_error"
        assert not engine.seen


@on_loop
async def test_a_redirect_does_not_show_where_engines_are():
    async def elsewhere(request, seen):
        request.respond(307, [(b"location", b"http://10.0.0.1:8100/v1/x")], b"")

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = elsewhere
        got = await client.get("/v1/x")
        assert got.status_code == 307
        assert "location" not in got.headers


@on_loop
async def test_what_an_engine_does_not_offer_is_no_failure():
    """Rule 22: clients can't shut an engine by asking for what it hasn't."""

    async def lacks(request, seen):
        error(request, 501)

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = lacks
        for _ in range(10):
            assert (await client.post("/v1/embeddings", content=b"{}")).status_code == 501
        [known] = router.service.engines.values()
        assert known.ready(router.service.now())


@pytest.mark.parametrize("streamed", [False, True])
@on_loop
async def test_a_dead_engine_is_passed_by(streamed):
    """Rule 21: nothing was sent, so another engine may have it."""
    async with engines(2) as both, routing(flags(both, health={"interval_s": 60})) as router:
        await both[0].stop()
        fields = {"content-type": "multipart/form-data; boundary=x" if streamed else "a/json"}
        async with router.client() as client:
            for _ in range(4):
                got = await client.post("/v1/audio/translations", content=b"{}", headers=fields)
                assert got.status_code == 200
        assert len(both[1].seen) == 4


@pytest.mark.process
@on_loop
async def test_curl_is_served():
    """Expect: 100-continue, compressed wishes and a body of a megabyte."""
    async with engines() as [engine], routing(flags([engine])) as router:
        body = json.dumps({"input": "x" * (1 << 20)})

        def curl(*more):
            command = ["curl", "-sS", "--compressed", "--max-time", "20", *more]
            return subprocess.run(
                command, input=body.encode(), capture_output=True, check=True
            ).stdout

        fields = ["-H", "content-type: application/json", "-H", "expect: 100-continue"]
        url = f"{router.url}/v1/embeddings"
        got = await asyncio.to_thread(curl, *fields, "--data-binary", "@-", url)
        assert json.loads(got) == {"path": "/v1/embeddings", "got": len(body)}
        chunked = ["-H", "transfer-encoding: chunked"]
        got = await asyncio.to_thread(curl, *fields, *chunked, "--data-binary", "@-", url)
        assert json.loads(got) == {"path": "/v1/embeddings", "got": len(body)}
        got = await asyncio.to_thread(curl, "-I", f"{router.url}/v1/models")
        assert got.startswith(b"HTTP/1.1 200")
