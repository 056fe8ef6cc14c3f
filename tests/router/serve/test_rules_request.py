"""ROUTER_RULES 1 to 4 and 26: what reaches the engine."""

import asyncio
import json

import anthropic
import openai
import pytest
from tests.router.rules import engines, flags, on_loop, routing
from tests.testing.vllm_answers import BODIES, CHOICES, WORDS, answer, body_for, error

PATHS = list(CHOICES)
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ODD_BODY = (
    b'{ "model":"m",\n "zukunft": {"a": [1.0, 1e400, -0]}, "stream" : false,"temperature":1.10,'
    b'"messages":[{"role":"developer","content":[{"type":"hologram","x":"\\u00e9\\ud83e\\udd8a"},'
    b'{"type":"text","text":"h\xc3\xa9"}],"weird":null}], "temperature":1.10 }\r\n'
)


async def post(client, path, body, **headers):
    fields = {"content-type": "application/json", **headers}
    return await client.post(path, content=body, headers=fields)


@on_loop
async def test_the_body_is_the_clients_byte_for_byte():
    """Rule 1: nothing must change, so nothing does."""
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        assert (await post(client, PATHS[0], ODD_BODY)).status_code == 200
        assert engine.seen[-1].body == ODD_BODY
        assert engine.seen[-1].path == PATHS[0]


@on_loop
async def test_what_the_router_does_not_know_survives_a_change():
    """Rule 1: unknown fields, roles and content parts survive in both legs."""
    async with (
        engines(2) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):
        assert (await post(client, PATHS[0], ODD_BODY)).status_code == 200
        wanted = json.loads(ODD_BODY)
        for seen in (prefill.seen[-1], decode.seen[-1]):
            assert seen.json["messages"] == wanted["messages"]
            assert seen.json["zukunft"] == wanted["zukunft"]
        # The decode leg is the client's own bytes with one field more.
        assert decode.seen[-1].body.startswith(ODD_BODY.rstrip()[:-1].rstrip())


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [*PATHS, "/v1/embeddings"])
@on_loop
async def test_a_body_that_is_too_large_is_refused_in_form(path, chunked):
    """Rule 2: a clean 413, declared or not, and never truncation."""

    async def parts():
        for _ in range(64):
            yield b" " * 1024

    async with (
        engines() as [engine],
        routing(flags([engine], max_body_bytes=32_768)) as router,
        router.client() as client,
    ):
        body = parts() if chunked else b" " * 65_536
        got = await post(client, path, body)
        assert got.status_code == 413
        assert "32768 bytes" in got.json()["error"]["message"]
        assert (got.json().get("type") == "error") == (path == "/v1/messages")
        assert got.headers["x-headway-route"].startswith("unified; reason=")
        assert not engine.seen
        assert router.log[-1]["status"] == 413


@pytest.mark.process
@on_loop
async def test_long_prompts_pass():
    """Rule 2: several megabytes are no reason to refuse."""
    body = body_for(PATHS[1], prompt="wörter " * 1_000_000)
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        got = await post(client, PATHS[1], body)
        assert got.status_code == 200
        assert engine.seen[-1].body == body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        pytest.param(b"[" * 100_000, marks=pytest.mark.process),
        b'{"model": 3, "messages": [], "prompt": "a", "input": "a"}',
        b'{"model": "m", "messages": "hi", "input": 7}',
        b'{"model": "m"}',
        b'{"x": ' + b"9" * 5000 + b"}",
    ],
    ids=[
        "empty",
        "cut",
        "list",
        "string",
        "no-utf8",
        "deep",
        "model",
        "types",
        "missing",
        "digits",
    ],
)
@on_loop
async def test_bad_bodies_are_refused_in_form(path, body):
    """Rule 4: a 4xx in the API's error form, never a 500."""
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        got = await post(client, path, body)
        assert got.status_code == 400
        told = got.json()["error"]
        assert isinstance(told["message"], str)
        assert told["type"] == "invalid_request_error"
        if path == "/v1/messages":
            assert got.json()["type"] == "error"
        else:
            assert set(told) == {"message", "type", "param", "code"}
        assert not engine.seen
        [line] = router.log
        assert line["status"] == 400


@on_loop
async def test_an_unknown_model_is_the_engines_to_refuse():
    """Rule 4: the engine's own 404 reaches the client as the client knows it."""
    async with engines() as [engine], routing(flags([engine])) as router:
        api = openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0)
        async with api:
            with pytest.raises(openai.NotFoundError) as caught:
                await api.chat.completions.create(model="other", **BODIES[PATHS[0]])
        assert caught.value.response.json()["error"]["message"] == "The model does not exist."
        assert caught.value.response.headers["x-headway-route"]


@pytest.mark.parametrize("split", [False, True])
@on_loop
async def test_the_openai_client_works(split):
    """Chat, streamed and not, with tools, log probabilities and usage; completions; responses."""
    async with engines(2) as [one, two]:
        config = flags(prefill=[one], decode=[two]) if split else flags([one, two])
        async with routing(config) as router:
            base = router.url + "/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as api:
                await use(api)
            await asyncio.to_thread(use_sync, base)


async def use(api):
    chat = {"model": "m", **BODIES[PATHS[0]]}
    got = await api.chat.completions.create(**chat, tools=TOOLS, logprobs=True)
    assert got.choices[0].message.content == "".join(WORDS)
    assert got.choices[0].message.tool_calls[0].function.name == "weather"
    assert [t.logprob for t in got.choices[0].logprobs.content] == [-0.0, -0.5, -1.0, -1.5]
    assert got.usage.prompt_tokens == 5
    stream = await api.chat.completions.create(
        **chat, stream=True, logprobs=True, stream_options={"include_usage": True}
    )
    tokens, totals = [], []
    async for event in stream:
        totals += [event.usage] if event.usage else []
        for choice in event.choices:
            [logprob] = choice.logprobs.content
            assert logprob.token == choice.delta.content
            tokens.append(choice.delta.content)
    assert tokens == WORDS
    assert [total.completion_tokens for total in totals] == [4]
    assert len((await api.chat.completions.create(**chat, n=3)).choices) == 3
    text = await api.completions.create(model="m", prompt="hi")
    assert text.choices[0].text == "".join(WORDS)
    made = await api.responses.create(model="m", input="hi")
    assert made.output_text == "".join(WORDS)
    assert [model.id async for model in await api.models.list()] == ["m"]


def use_sync(base):
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as api:
        chat = {"model": "m", **BODIES[PATHS[0]]}
        got = api.chat.completions.with_raw_response.create(**chat)
        assert got.parse().choices[0].message.content == "".join(WORDS)
        assert got.headers["x-headway-route"]
        assert "dur=" in got.headers["server-timing"]
        events = list(api.chat.completions.create(**chat, stream=True))
        assert "".join(e.choices[0].delta.content for e in events) == "".join(WORDS)


@pytest.mark.parametrize("split", [False, True])
@on_loop
async def test_the_anthropic_client_works(split):
    """`/v1/messages`, streamed and not, and its errors."""
    async with engines(2) as [one, two]:
        config = flags(prefill=[one], decode=[two]) if split else flags([one, two])
        async with routing(config) as router:
            api = anthropic.AsyncAnthropic(base_url=router.url, api_key="none", max_retries=0)
            async with api:
                asked = {"model": "m", **BODIES["/v1/messages"]}
                got = await api.messages.create(**asked)
                assert got.content[0].text == "".join(WORDS)
                async with api.messages.stream(**asked) as stream:
                    assert [text async for text in stream.text_stream] == WORDS
                with pytest.raises(anthropic.BadRequestError):
                    await api.messages.create(model="m", max_tokens=1, messages="hi")


@on_loop
async def test_each_side_has_keys_of_its_own(monkeypatch):
    """Rule 26: the client's credentials never reach an engine; the engines' key does."""
    monkeypatch.setenv("ENGINE_KEY", "engine-secret")
    async with (
        engines() as [engine],
        routing(flags([engine], keys={"engine_key_env": "ENGINE_KEY"})) as router,
        router.client() as client,
    ):
        mine = {"authorization": "Bearer mine", "x-api-key": "mine", "cookie": "mine"}
        for path in (PATHS[0], "/v1/embeddings", "/tokenize"):
            assert (await post(client, path, body_for(PATHS[0]), **mine)).status_code == 200
            seen = engine.seen[-1]
            assert seen.field(b"authorization") == b"Bearer engine-secret"
            assert not any(b"mine" in value for _, value in seen.headers)


@pytest.mark.parametrize("path", [*PATHS, "/v1/embeddings"])
@on_loop
async def test_what_names_a_destination_is_taken_out(path):
    """Rule 12: neither fields nor headers of a client say where an engine connects to."""
    evil = {"do_remote_prefill": True, "remote_host": "evil.example"}
    body = body_for(path if path in CHOICES else PATHS[0], kv_transfer_params=evil)
    headers = {
        "x-data-parallel-rank": "3",
        "x-headway-engine": "evil",
        "x-request-id": "mine",
        "x-forwarded-for": "1.1.1.1",
    }
    async with (
        engines(2) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):
        got = await post(client, path, body, **headers)
        assert got.status_code == 200
        assert "remote_host" not in got.text
        for seen in (*prefill.seen, *decode.seen):
            assert b"evil.example" not in seen.body
            names = {name for name, _ in seen.headers}
            assert not names & {b"x-data-parallel-rank", b"x-headway-engine", b"x-forwarded-for"}
            assert seen.field(b"x-request-id") != b"mine"
            assert seen.field(b"host") in {
                f"127.0.0.1:{each.port}".encode() for each in (prefill, decode)
            }
        assert got.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_handoff_parameters_never_reach_the_client(stream):
    """Rule 12: whatever endpoint a decode engine tells them on."""

    async def tells(request, seen):
        if seen.prefills:
            return
        secret = {"kv_transfer_params": {"remote_host": "10.9.8.7"}}
        if not stream:
            answer(request, CHOICES[seen.path](seen) | secret)
            return
        done = {"type": "response.completed", "response": {"id": "r", **secret}}
        request.start(200, [(b"content-type", b"text/event-stream")])
        request.write(b"event: response.completed\ndata: " + json.dumps(done).encode() + b"\n\n")
        request.finish()

    async with (
        engines(2) as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[decode])) as router,
        router.client() as client,
    ):
        decode.script = tells
        for path in ["/v1/responses"] if stream else PATHS:
            got = await post(client, path, body_for(path, stream=stream))
            assert got.status_code == 200
            assert "remote_host" not in got.text
            assert "kv_transfer_params" not in got.text


@on_loop
async def test_an_engines_401_is_told_as_it_is():
    """Rule 14: also when it is the router that has the wrong key."""

    async def refuses(request, seen):
        error(request, 401, "Unauthorized")

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = refuses
        got = await post(client, PATHS[0], body_for(PATHS[0]))
        assert got.status_code == 401
        assert got.json()["error"]["message"] == "Unauthorized"
