"""Large bodies, of clients and of engines: none is read on the event loop, and none is changed."""

import json

import pytest
from tests.router.raw_client import Wire
from tests.router.rules import engines, flags, on_loop, routing
from tests.testing.vllm_answers import answer, chat, handoff, usage

from headway.bench.router.shapes import CHAT, COMPLETIONS, bodies
from headway.router.openai import beside
from headway.router.openai.jobs import is_light
from headway.router.wire.http1 import ChunkedReader
from headway.router.wire.pieces import Pieces

SIZE = 400_000
SHAPES = [each for each in bodies(SIZE) if each[0] not in {"deep", "odd messages"}]


@pytest.fixture(autouse=True)
def on_the_loop(monkeypatch):
    """What is read on the event loop; all of it must be light."""
    read = []

    def watched(job):
        def run(*args, **kwargs):
            body = next(each for each in args if isinstance(each, bytes | Pieces))
            read.append(body)
            assert is_light(body)
            return job(*args, **kwargs)

        return run

    for name in ("parse", "_here"):
        monkeypatch.setattr(beside, name, watched(getattr(beside, name)))
    return read


def heavy(**fields):
    return json.dumps({"model": "m", "x": [1] * SIZE} | fields).encode()


@pytest.mark.process
@on_loop
async def test_each_shape_reaches_the_engine_as_it_was_sent():
    async with (
        engines(max_model_len=SIZE) as [engine],
        routing(flags([engine])) as router,
        router.client() as client,
    ):
        engine.script = lambda request, seen: served(request)
        for name, path, body in bodies(SIZE):
            got = await client.post(path, content=body)
            if name == "deep":
                assert got.status_code == 400
                assert got.json()["error"]["code"] == "invalid_json"
            else:
                assert got.status_code == 200, name
                assert engine.seen[-1].body == body
                assert engine.seen[-1].length == len(body)


async def served(request):
    answer(request, {"usage": usage(5, 1)})


@pytest.mark.process
@on_loop
async def test_each_shape_is_split():
    """Both legs have the same prompt, and the decode leg the client's own bytes."""
    async with (
        engines(2, max_model_len=SIZE) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):

        async def script(request, seen):
            if seen.prefills:
                answer(request, {"usage": usage(5, 1), "kv_transfer_params": handoff(prefill)})
            else:
                answer(request, {"usage": usage(5, 1), "kv_transfer_params": None})

        prefill.script = decode.script = script
        for name, path, body in SHAPES:
            got = await client.post(path, content=body)
            assert got.status_code == 200
            if name == "many prompts":  # one handoff is one prompt
                assert decode.seen[-1].body == body
                continue
            first, second = prefill.seen[-1], decode.seen[-1]
            assert second.body.startswith(body.rstrip()[:-1])
            assert second.length == len(second.body)
            asked, fields = json.loads(body), first.json
            params = fields.pop("kv_transfer_params")
            assert params == {"do_remote_decode": True, "do_remote_prefill": False}
            assert fields == asked | {"stream": False, "max_tokens": 1}
            assert second.json.pop("kv_transfer_params")["do_remote_prefill"]


@pytest.mark.process
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/embeddings"])
@on_loop
async def test_what_a_client_may_not_say_is_taken_out(path):
    evil = {"remote_host": "evil.example"}
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        body = heavy(messages=[], prompt="x", input="x", kv_transfer_params=evil)
        assert (await client.post(path, content=body)).status_code == 200
        sent = engine.seen[-1]
        assert b"evil" not in sent.body
        assert sent.length == len(sent.body)
        assert sent.json == {k: v for k, v in json.loads(body).items() if "kv" not in k}


@pytest.mark.process
@on_loop
async def test_another_engine_gets_all_of_it_where_the_first_failed():
    async with (
        engines(2) as stubs,
        routing(flags(stubs)) as router,
        router.client() as client,
    ):
        seen = []

        async def script(request, one):
            seen.append(one.body)
            if len(seen) % 2:
                request.abort()
            else:
                answer(request, {"usage": usage(5, 1)})

        for stub in stubs:
            stub.script = script
        for path, body in ((CHAT, heavy(messages=[])), ("/v1/embeddings", heavy(input="x"))):
            assert (await client.post(path, content=body)).status_code == 200
            assert seen[-2:] == [body, body]


@pytest.mark.process
@pytest.mark.parametrize("split", [False, True])
@on_loop
async def test_a_large_answer_passes(split, on_the_loop):
    """One of which something must change, and one of which nothing must."""
    async with (
        engines(2) as [first, decode],
        routing(
            flags(prefill=[first], decode=[decode]) if split else flags([first, decode])
        ) as router,
        router.client() as client,
    ):
        sent = []

        async def script(request, seen):
            if seen.prefills:
                params = handoff(first) | {"remote_prefill_cached_tokens": 2}
                more = {"prompt_token_ids": [1] * SIZE}
                answer(request, {"usage": usage(5, 1), "kv_transfer_params": params, **more})
                return
            made = chat(seen) | {"usage": usage(5, 4, cached=5), "x": [2] * SIZE}
            sent.append(made)
            answer(request, made | {"kv_transfer_params": None})

        first.script = decode.script = script
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        got = await client.post(CHAT, json=body)
        assert got.status_code == 200
        found = got.json()
        if split:
            sent[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] = 2
            sent[-1]["kv_transfer_params"] = None
        assert found == sent[-1] | {"kv_transfer_params": None}
        assert all(len(each) < SIZE for each in on_the_loop)


@on_loop
async def test_brackets_that_can_be_read_and_not_written_are_refused():
    """Where that limit is depends on who writes; both answers are right, and no other."""
    async with (
        engines(2) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):
        for depth in range(860, 1_010):
            body = b'{"model":"m","prompt":"x","x":%b%b}' % (b"[" * depth, b"]" * depth)
            got = await client.post(COMPLETIONS, content=body)
            if got.status_code != 200:
                assert got.status_code == 400
                assert got.json()["error"]["code"] == "invalid_json"
                assert router.log[-1]["status"] == 400
        assert got.status_code == 400


@on_loop
async def test_a_body_that_is_all_framing_is_read_in_steps():
    """Chunks of empty lines, each of which might be a body's end; a request follows at once."""
    data = b"\r\n\r\n" * 40_000
    chunk = b"4\r\n\r\n\r\n\r\n"
    head = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-type: audio/wav\r\n"
    sent = head + b"transfer-encoding: chunked\r\n\r\n" + chunk * 10_000
    sent += b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
    async with engines() as [engine], routing(flags([engine])) as router:
        wire = await Wire.open(router.port)
        wire.send(sent + head + b"content-length: 3\r\n\r\nabc")
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).status == 200
        assert [seen.body for seen in engine.seen] == [b"\r\n\r\n" * 10_000 + data, b"abc"]
        wire.close()


@pytest.mark.parametrize(
    "raw",
    [b"4\r\n\r\n\r\n\r\n" * 30_000, b"1\r\na\r\n" * 40_000, b"40000\r\n" + b"\r\n\r\n" * 65_536],
    ids=["empty lines", "single bytes", "one chunk"],
)
def test_a_step_is_short(raw, monkeypatch):
    calls = []
    for name in ("_parse", "on_body"):
        known = getattr(ChunkedReader, name)
        monkeypatch.setattr(
            ChunkedReader, name, lambda *args, known=known: (calls.append(1), known(*args))[1]
        )
    reader, steps, most = ChunkedReader(), 0, 0
    while raw:
        step = reader.step(raw)
        calls.clear()
        reader.feed(step)
        most, steps, raw = max(most, len(calls)), steps + 1, raw[len(step) :]
    assert most < 9_000
    assert steps > 10


def test_an_ordinary_read_is_one_step():
    data = b"40000\r\n" + b"x" * 0x40000 + b"\r\n"
    assert ChunkedReader().step(data) is data
