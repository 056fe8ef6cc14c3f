"""Engines of one pool that don't all serve a model: an adapter is loaded on one after the other."""

import pytest
from tests.router.rules import engines, flags, on_loop, routing
from tests.testing.vllm_answers import CHOICES, body_for

CHAT, *_ = CHOICES
TIMES = 8
"""Ties are drawn, so each engine is asked first at some time."""


@pytest.mark.parametrize("stream", [False, True])
@on_loop
async def test_a_model_that_some_engines_serve_is_answered_by_one_of_them(stream):
    async with (
        engines(2) as without,
        engines(1, model="adapter") as [has],
        routing(flags([*without, has])) as router,
        router.client() as client,
    ):
        for _ in range(TIMES):
            got = await client.post(CHAT, content=body_for(CHAT, model="adapter", stream=stream))
            assert got.status_code == 200
        assert len(has.legs) == TIMES
        assert any(engine.seen for engine in without), "else this shows nothing"
        assert all(e.health.ready(router.service.now()) for e in router.service.engines.values())


@pytest.mark.parametrize("lacks", ["prefill", "decode"])
@on_loop
async def test_so_it_is_where_only_one_of_a_pair_serves_it(lacks):
    """Without it on any prefill engine, decode engines serve it whole."""
    async with (
        engines(2) as [one, other],
        engines(1, model="adapter") as [has],
        routing(
            flags(prefill=[one], decode=[has, other])
            if lacks == "prefill"
            else flags(prefill=[has], decode=[one, other])
        ) as router,
        router.client() as client,
    ):
        got = await client.post(CHAT, content=body_for(CHAT, model="adapter"))
        if lacks == "prefill":
            assert got.status_code == 200
            assert [leg.json.get("kv_transfer_params") for leg in has.legs] == [None]
        else:
            assert got.status_code == 404, "a prefill engine decodes for nobody"
            assert got.json()["error"]["type"] == "NotFoundError"


@on_loop
async def test_a_handoff_whose_decode_engine_lacks_the_model_is_made_for_another():
    async with (
        engines(1) as [lacks],
        engines(2, model="adapter") as [prefill, decode],
        routing(flags(prefill=[prefill], decode=[lacks, decode])) as router,
        router.client() as client,
    ):
        for _ in range(TIMES):
            got = await client.post(CHAT, content=body_for(CHAT, model="adapter"))
            assert got.status_code == 200
        assert lacks.seen, "else this shows nothing"
        assert len(decode.legs) == TIMES


@on_loop
async def test_a_model_that_nobody_serves_is_refused_by_the_first_engine_asked():
    async with engines(3) as stubs, routing(flags(stubs)) as router, router.client() as client:
        got = await client.post(CHAT, content=body_for(CHAT, model="nobody's"))
        assert got.status_code == 404
        assert got.json()["error"]["message"] == "The model does not exist."
        assert sum(len(engine.seen) for engine in stubs) == 1
