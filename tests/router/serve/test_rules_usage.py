"""ROUTER_RULES 16 and 17: what answers say of their coding and of cached tokens."""

import asyncio
import gzip
import json
import re

import pytest
from tests.router.rules import engines, flags, on_loop, routing, split
from tests.testing.vllm_answers import (
    CHOICES,
    EVENTS,
    WORDS,
    answer,
    body_for,
    chat,
    chunk,
    event,
    events,
    handoff,
    usage,
)

CHAT, TEXT, RESPONSES, MESSAGES = CHOICES


@pytest.mark.parametrize("known", [None, 3])
@pytest.mark.parametrize("together", [False, True])
@on_loop
async def test_the_handoff_is_no_cache_hit_in_a_stream_either(known, together):
    """Rule 17: as in an answer at once, whether usage comes by itself or with other events."""

    @split
    async def check(s):
        async def prefills(request, seen):
            more = {} if known is None else {"remote_prefill_cached_tokens": known}
            params = handoff(s.prefill) | more
            answer(request, {"usage": usage(5, 1), "kv_transfer_params": params})

        async def decodes(request, seen):
            *first, _ = events(seen)
            last = [event(chunk(seen, []) | {"usage": usage(5, 4, cached=99)}), b"data: [DONE]\n\n"]
            request.start(200, [EVENTS])
            pieces = [b"".join([*first, *last])] if together else [*first, *last]
            for piece in pieces:
                request.write(piece)
                await asyncio.sleep(0)
            request.finish()

        s.prefill.script, s.decode.script = prefills, decodes
        got = await s.post(CHAT, body_for(CHAT, stream=True))
        lines = [line[6:] for line in got.text.splitlines() if line.startswith("data: {")]
        told = json.loads(lines[-1])["usage"]
        assert told["prompt_tokens_details"]["cached_tokens"] == (5 if known is None else known)
        words = [json.loads(line)["choices"] for line in lines[:-1]]
        assert "".join(c[0]["delta"]["content"] for c in words if c) == "".join(WORDS)
        assert got.text.endswith("data: [DONE]\n\n")

    await check()


def _cached(path, told):
    """A stream's events, each with usage that counts `told` tokens as cached."""
    if path == RESPONSES:
        usage = {"input_tokens": 5, "output_tokens": 4, "input_tokens_details": told}
        yield event({"type": "response.created", "response": {"usage": None}}, "response.created")
        done = {"type": "response.completed", "response": {"usage": usage}}
        yield event(done, "response.completed")
    elif path == MESSAGES:
        usage = {"input_tokens": 0, "output_tokens": 1, "cache_read_input_tokens": 5}
        yield event({"type": "message_start", "message": {"usage": usage}}, "message_start")
        yield event({"type": "message_delta", "usage": usage}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")
    else:
        for _ in range(3):  # vLLM's continuous_usage_stats
            usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": told}
            yield event({"choices": [{"index": 0, "finish_reason": None}], "usage": usage})
        yield b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, MESSAGES])
@on_loop
async def test_each_usage_of_a_stream_says_what_the_prefill_engine_had(path):
    """Rule 17, on every endpoint, and where each event has usage."""

    @split
    async def check(s):
        async def prefills(request, seen):
            params = handoff(s.prefill) | {"remote_prefill_cached_tokens": 2}
            answer(request, {"usage": usage(5, 1), "kv_transfer_params": params})

        async def decodes(request, seen):
            request.start(200, [EVENTS])
            for piece in _cached(path, {"cached_tokens": 4}):
                request.write(piece)
                await asyncio.sleep(0)
            request.finish()

        s.prefill.script, s.decode.script = prefills, decodes
        got = await s.post(path, body_for(path, stream=True))
        told = re.findall(r'"(?:cached_tokens|cache_read_input_tokens)":\s?(\d+)', got.text)
        assert set(told) == {"2"}
        assert len(told) == {RESPONSES: 1, MESSAGES: 2}.get(path, 3)
        if path == MESSAGES:
            assert re.findall(r'"input_tokens":\s?(\d+)', got.text) == ["3", "3"]

    await check()


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@on_loop
async def test_whole_and_passed_on_answers_may_be_compressed_unasked_too(path, status):
    async with engines(1) as [engine], routing(flags([engine])) as router:

        async def codes(request, seen):
            coded = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
            request.respond(status, coded, gzip.compress(b'{"said": "so"}'))

        engine.script = codes
        async with router.client() as client:
            got = await client.post(path, content=body_for(CHAT))
        assert (got.status_code, got.json()) == (status, {"said": "so"})
        assert engine.seen[0].field(b"accept-encoding") == b"identity"


@pytest.mark.parametrize("side", ["prefill", "decode", "both"])
@on_loop
async def test_an_answer_that_is_compressed_unasked_is_read_all_the_same(side):
    """By a proxy between router and engine, say: the handoff goes on, and the client gets JSON."""

    @split
    async def check(s):
        def compressed(request, value):
            coded = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
            request.respond(200, coded, gzip.compress(json.dumps(value).encode()))

        async def prefills(request, seen):
            say = compressed if side != "decode" else answer
            say(request, {"usage": usage(5, 1), "kv_transfer_params": handoff(s.prefill)})

        async def decodes(request, seen):
            say = compressed if side != "prefill" else answer
            say(request, chat(seen) | {"usage": usage(5, 4, cached=99)})

        s.prefill.script, s.decode.script = prefills, decodes
        got = await s.post(CHAT, body_for(CHAT))
        assert got.status_code == 200
        assert "content-encoding" not in got.headers
        assert got.json()["choices"][0]["message"]["content"] == "".join(WORDS)
        assert got.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
        assert [len(engine.legs) for engine in (s.prefill, s.decode)] == [1, 1]

    await check()


@pytest.mark.parametrize(("coding", "body"), [(b"br", b"{}"), (b"gzip", b"{}")])
@on_loop
async def test_an_answer_that_can_not_be_uncompressed_is_a_failed_one(coding, body):
    """The other engine's answer is what the client gets."""
    async with engines(2) as [bad, good], routing(flags([bad, good])) as router:

        async def codes(request, seen):
            request.respond(200, [(b"content-encoding", coding)], body)

        bad.script = codes
        async with router.client() as client:
            for _ in range(4):
                got = await client.post(CHAT, content=body_for(CHAT))
                assert got.status_code == 200
                assert got.json()["choices"]
        assert bad.legs


@on_loop
async def test_a_stream_that_is_compressed_unasked_is_a_failed_one():
    """Its events can't be told apart, so nobody could say that it is complete."""
    async with engines(2) as [bad, good], routing(flags([bad, good])) as router:

        async def codes(request, seen):
            coded = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
            request.respond(200, coded, gzip.compress(b"".join(events(seen))))

        bad.script = codes
        async with router.client() as client:
            for _ in range(4):
                got = await client.post(CHAT, content=body_for(CHAT, stream=True))
                assert got.text.endswith("data: [DONE]\n\n")
        assert bad.legs


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
@on_loop
async def test_a_stream_that_is_cleaned_keeps_its_end(end):
    """Also where no blank line follows it, which an event needs but the last may lack."""

    @split
    async def check(s):
        async def ends(request, seen):
            request.start(200, [EVENTS])
            for piece in (event(chunk(seen, [])), b"data: [DO", b"NE]" + end):
                request.write(piece)
                await asyncio.sleep(0)
            request.finish()

        s.decode.script = ends
        got = await s.post(CHAT, body_for(CHAT, stream=True))
        assert got.content.endswith(b"data: [DONE]" + end)
        assert s.router.log[-1]["status"] == 200

    await check()
