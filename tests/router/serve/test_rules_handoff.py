"""ROUTER_RULES 5 to 13, 17, 18 and 27: the two legs of a request and what goes between them."""

import asyncio
import json

import pytest
from tests.router.rules import engines, flags, on_loop, routing, split, until
from tests.testing.vllm_answers import (
    BODIES,
    CHOICES,
    EVENTS,
    answer,
    body_for,
    chat,
    error,
    event,
    handoff,
    usage,
)

CHAT, TEXT, RESPONSES, MESSAGES = CHOICES


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}, {"max_tokens": 77}])
@pytest.mark.parametrize(
    "modern", [{}, {"max_completion_tokens": None}, {"max_completion_tokens": 9}]
)
@on_loop
async def test_only_the_prefill_leg_is_clamped(given, modern):
    """Rule 5: both limits are clamped there; decode gets the client's own, absent and null too."""

    @split
    async def check(s):
        body = body_for(CHAT, **given, **modern)
        assert (await s.post(CHAT, body)).status_code == 200
        [first], [second] = s.prefill.legs, s.decode.legs
        assert first.json["max_tokens"] == 1
        assert first.json.get("max_completion_tokens", 1) == 1
        assert first.json["stream"] is False
        rest = second.json
        assert rest.pop("kv_transfer_params")["do_remote_prefill"] is True
        assert rest == json.loads(body)

    await check()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"n": 2}),
        (TEXT, {"best_of": 3}),
        (TEXT, {"prompt": ["a", "b"]}),
        (TEXT, {"prompt": [[1, 2], [3]]}),
        (TEXT, {"echo": True}),
        (TEXT, {"prompt_logprobs": 1}),
        (CHAT, {"prompt_logprobs": 0}),
        (RESPONSES, {"background": True}),
        (RESPONSES, {"previous_response_id": "r"}),
    ],
)
@on_loop
async def test_what_a_handoff_cannot_carry_is_served_whole(path, more):
    """Rule 6: never with a shared handoff."""

    @split
    async def check(s):
        body = body_for(path, **more)
        got = await s.post(path, body)
        assert got.status_code == 200
        assert not s.prefill.legs
        [seen] = s.decode.legs
        assert seen.body == body
        assert 'reason="not splittable"' in got.headers["x-headway-route"]

    await check()


@pytest.mark.parametrize("ended", ["stop", "length"])
@on_loop
async def test_a_prefill_leg_that_ends_early_is_no_answer(ended):
    """Rule 7: a first token that ends the sequence is decode's to say."""

    @split
    async def check(s):
        async def eos(request, seen):
            choice = {"index": 0, "message": {"content": ""}, "finish_reason": ended}
            left = {"kv_transfer_params": handoff(s.prefill)} if ended == "length" else {}
            answer(request, {"choices": [choice], "usage": usage(1, 1), **left})

        s.prefill.script = eos
        got = await s.post(CHAT, body_for(CHAT))
        assert got.status_code == 200
        assert got.json()["choices"] == json.loads(json.dumps(chat(s.decode.legs[0])["choices"]))
        assert s.handoffs("used") == (ended == "length")

    await check()


@on_loop
async def test_decodes_limit_is_checked_before_the_prefill_is_spent():
    """Rule 8: prompt + max_tokens against the decode engine's context."""
    async with engines(1) as [prefill], engines(1, max_model_len=64) as [decode]:
        config = flags(prefill=[prefill], decode=[decode])
        async with routing(config) as router, router.client() as client:
            got = await client.post(TEXT, content=body_for(TEXT, prompt=list(range(64))))
            assert got.status_code == 400
            assert got.json()["error"]["code"] == "context_length_exceeded"
            assert not decode.legs
            # What only the engine can judge (it may cut the answer) goes there whole.
            body = body_for(TEXT, prompt=list(range(60)), max_tokens=5)
            got = await client.post(TEXT, content=body)
            assert 'reason="context limit"' in got.headers["x-headway-route"]
            assert not prefill.legs
            assert [seen.body for seen in decode.legs] == [body]
            body = body_for(TEXT, prompt=list(range(59)), max_tokens=5)
            assert (await client.post(TEXT, content=body)).status_code == 200
            assert len(prefill.legs) == 1


@on_loop
async def test_each_leg_and_attempt_has_an_id_of_its_own():
    """Rule 9: fresh ids for engines; the client's own comes back to the client."""

    async with engines(1) as [prefill], engines(2) as decodes:
        legs = lambda: [leg for engine in (prefill, *decodes) for leg in engine.legs]  # noqa: E731

        async def fails(request, seen):
            if len(legs()) == 2:
                error(request, 500)

        for decode in decodes:
            decode.script = fails
        config = flags(prefill=[prefill], decode=decodes)
        async with routing(config) as router, router.client() as client:
            asked = body_for(CHAT)
            got = await client.post(CHAT, content=asked, headers={"x-request-id": "mine-7"})
            assert got.status_code == 200
            assert got.headers["x-request-id"] == "mine-7"
            ids = [seen.field(b"x-request-id") for seen in legs()]
            assert len(set(ids)) == len(ids) > 2
            assert b"mine-7" not in ids
            got = await client.post(CHAT, content=asked, headers={"x-request-id": "<no good>"})
            assert got.headers["x-request-id"] != "<no good>"


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@on_loop
async def test_an_answer_has_an_id_whoever_gives_none(path):
    """Rule 9: a correlation id of the router's own."""

    @split
    async def check(s):
        ids = {(await s.post(path, body_for(CHAT))).headers["x-request-id"] for _ in range(3)}
        assert len(ids) == 3

    await check()


@pytest.mark.parametrize("status", [500, 502, None])
@on_loop
async def test_a_handoff_is_used_once(status):
    """Rule 10: decode failed, so the prompt is prefilled anew."""
    async with engines(1) as [prefill], engines(2) as decodes:
        failed = []

        async def fails_once(request, seen):
            if not failed and seen.params.get("remote_request_id"):
                failed.append(seen)
                if status is None:
                    request.abort()
                else:
                    error(request, status)

        for decode in decodes:
            decode.script = fails_once
        async with (
            routing(flags(prefill=[prefill], decode=decodes)) as router,
            router.client() as client,
        ):
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200
            pulled = [
                seen.params["remote_request_id"]
                for decode in decodes
                for seen in decode.legs
                if seen.params.get("do_remote_prefill")
            ]
            assert len(failed) == 1
            assert len(set(pulled)) == len(pulled)


@pytest.mark.parametrize(
    "params",
    [
        "missing",
        None,
        {},
        [],
        "x",
        {"do_remote_prefill": True},
        {"remote_block_ids": "no"},
        {"remote_port": "no"},
    ],
)
@on_loop
async def test_half_a_handoff_is_none(params):
    """Rule 11: missing, null or mistyped parameters are a counted fallback."""

    @split
    async def check(s):
        async def tells(request, seen):
            told = params
            if isinstance(params, dict) and len(params) == 1 and "do_remote_prefill" not in params:
                told = handoff(s.prefill) | params
            more = {} if params == "missing" else {"kv_transfer_params": told}
            answer(request, {"usage": usage(5, 1), **more})

        s.prefill.script = tells
        body = body_for(CHAT)
        got = await s.post(CHAT, body)
        assert got.status_code == 200
        [seen] = s.decode.legs
        assert seen.body == body
        assert s.handoffs("used") == 0
        counts = s.router.service.metrics.handoffs.collect()[0].samples
        assert any(sample.value for sample in counts if sample.name.endswith("_total"))
        assert sum(line["status"] == 200 for line in s.router.log) == 1

    await check()


@on_loop
async def test_a_metric_proves_that_kv_moved():
    """Rule 13: what engines received, and how many handoffs were used."""

    @split
    async def check(s):
        s.decode.metrics = b'vllm:nixl_bytes_transferred_sum{engine="0"} 4096.0\n'
        assert (await s.post(CHAT, body_for(CHAT))).status_code == 200
        assert s.handoffs("started") == s.handoffs("used") == 1
        moved = f'headway:router_kv_moved_bytes{{engine="decode/127.0.0.1:{s.decode.port}"}} 4096.0'

        async def shown():
            return moved in (await s.client.get("/metrics")).text

        while not await shown():  # noqa: ASYNC110  scraped now and then
            await asyncio.sleep(0.02)

    await check()


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_the_answer_is_decodes_alone(stream):
    """Rules 17 and 18: usage once; the first token neither lost nor doubled; logprobs aligned."""

    @split
    async def check(s):
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        body = body_for(CHAT, logprobs=True, **more)
        got = await s.post(CHAT, body)
        alone = await s.client.post(
            f"http://127.0.0.1:{s.decode.port}{CHAT}", content=body, headers={"content-type": "a/b"}
        )
        assert got.headers["content-type"] == alone.headers["content-type"]
        if stream:
            assert got.content == alone.content
            assert got.text.count('"usage"') == 1
        else:
            wanted = alone.json()
            wanted.pop("kv_transfer_params")
            mine = got.json()
            mine.pop("kv_transfer_params", None)
            assert mine == wanted

    await check()


@pytest.mark.parametrize("known", [None, 3])
@on_loop
async def test_the_handoff_is_no_cache_hit(known):
    """Rule 17: cached_tokens are the prefill engine's hits, and never exceed the prompt."""

    @split
    async def check(s):
        async def prefills(request, seen):
            more = {} if known is None else {"remote_prefill_cached_tokens": known}
            params = handoff(s.prefill) | more
            answer(request, {"usage": usage(5, 1), "kv_transfer_params": params})

        async def decodes(request, seen):
            answer(request, chat(seen) | {"usage": usage(5, 4, cached=99)})

        s.prefill.script, s.decode.script = prefills, decodes
        told = (await s.post(CHAT, body_for(CHAT))).json()["usage"]
        assert told["prompt_tokens_details"]["cached_tokens"] == (5 if known is None else known)

    await check()


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
@on_loop
async def test_a_prefill_engines_4xx_is_the_answer(status):
    """Rules 14, 21, 22 and 27: its status, body and Retry-After, and decode is never asked."""

    @split
    async def check(s):
        async def refuses(request, seen):
            error(request, status, "because", headers=[(b"retry-after", b"17")])

        s.prefill.script = refuses
        got = await s.post(CHAT, body_for(CHAT))
        assert got.status_code == status
        assert got.json()["error"]["message"] == "because"
        assert got.headers["retry-after"] == "17"
        assert len(s.prefill.legs) == 1
        assert not s.decode.legs
        [engine] = [e for e in s.router.service.engines.values() if e.id.startswith("prefill")]
        assert engine.health.breaker.state(s.router.service.now()) == "closed"

    await check()


@on_loop
async def test_the_first_failure_is_the_one_that_is_told():
    """Rule 27: not what a retry or a fallback ran into later."""

    @split
    async def check(s):
        async def first(request, seen):
            error(request, 500, "the first")

        async def second(request, seen):
            error(request, 500, "the second")

        s.prefill.script, s.decode.script = first, second
        got = await s.post(CHAT, body_for(CHAT))
        assert got.status_code == 500
        assert got.json()["error"]["message"] == "the first"

    await check()


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_a_client_that_leaves_ends_both_legs(stream):
    """Rules 19 and 27: in the prefill leg and in the decode leg the engine sees it at once."""
    for side in ("prefill", "decode"):

        @split
        async def check(s, side=side):
            async def waits(request, seen):
                await asyncio.Event().wait()

            engine = getattr(s, side)
            engine.script = waits
            task = asyncio.create_task(s.post(CHAT, body_for(CHAT, stream=stream)))
            await until(lambda: engine.legs)
            task.cancel()
            await until(lambda: engine.left == 1)
            await until(lambda: not any(s.router.works()))
            assert [line["status"] for line in s.router.log] == [499]

        await check()


@pytest.mark.parametrize("after", ["another decode engine", "unified"])
@on_loop
async def test_a_reload_between_the_legs_loses_nobody(after):
    """The decode engine, or the strategy, that a request was routed by may be gone by then."""
    async with engines(3) as [prefill, old, new]:
        config = flags(prefill=[prefill], decode=[old])
        async with routing(config) as router, router.client() as client:
            go = asyncio.Event()

            async def holds(request, seen):
                await go.wait()

            prefill.script = holds
            asked = asyncio.create_task(client.post(CHAT, content=body_for(CHAT)))
            await until(lambda: prefill.legs)
            split_again = flags(prefill=[prefill], decode=[new])
            router.service.apply(split_again if after != "unified" else flags([new]))
            router.service.start()
            await until(lambda: len(router.healthy()) == len(router.service.engines))
            go.set()
            assert (await asked).status_code == 200


@on_loop
async def test_events_of_a_responses_stream_pass_cleaned():
    """Rule 12: the last event of /v1/responses is cleaned, the others pass byte for byte."""

    @split
    async def check(s):
        first = event({"type": "response.output_text.delta", "delta": "ü"}, "x")
        last = {"type": "response.completed", "response": {"kv_transfer_params": {"a": 1}}}

        async def tells(request, seen):
            request.start(200, [EVENTS])
            whole = first + event(last, "response.completed")
            for index in range(0, len(whole), 7):
                request.write(whole[index : index + 7])
                await asyncio.sleep(0)
            request.finish()

        s.decode.script = tells
        got = await s.post(RESPONSES, body_for(RESPONSES, stream=True))
        assert got.content.startswith(first)
        assert b"kv_transfer_params" not in got.content
        assert b"response.completed" in got.content

    await check()


def test_every_endpoint_that_generates_is_known():
    assert set(BODIES) == set(CHOICES) == {CHAT, TEXT, RESPONSES, MESSAGES}
