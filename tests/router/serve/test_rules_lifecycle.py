"""ROUTER_RULES 19 to 25: leaving, time, retries, breakers, load, health, models."""

import asyncio
import json

import pytest
from tests.router.raw_client import Wire
from tests.router.rules import engines, flags, on_loop, routing, until
from tests.testing.ports import held_port
from tests.testing.recorder import RecordingEngine
from tests.testing.vllm_answers import EVENTS, body_for, error, event

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, "/v1/embeddings"]


async def waits(request, seen):
    await asyncio.Event().wait()


class Dead(RecordingEngine):
    """An address where nobody listens, nor will."""

    def __init__(self):
        super().__init__()
        self.held = held_port()
        self.port = self.held.number


@pytest.mark.parametrize("leave", ["close", "reset", "half_close"])
@pytest.mark.parametrize("path", PATHS)
@on_loop
async def test_a_client_that_leaves_while_waiting_is_noticed(path, leave):
    """Rule 19: whatever it waits for, the engine's request ends at once; counters are zero."""
    async with engines() as [engine], routing(flags([engine])) as router:
        engine.script = waits
        wire = await Wire.open(router.port)
        body = body_for(CHAT)
        wire.send(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            % (path.encode(), len(body))
        )
        wire.send(body)
        await until(lambda: engine.seen)
        getattr(wire, leave)()
        await until(lambda: engine.left == 1)
        await until(lambda: router.log)
        wire.close()
        assert router.log[0]["status"] == 499
        assert router.service.ceiling.in_flight == 0


@on_loop
async def test_a_client_that_leaves_in_its_own_body_costs_nothing():
    """Rule 19: before there is anything to route."""
    async with engines() as [engine], routing(flags([engine])) as router:
        for path in PATHS:
            wire = await Wire.open(router.port)
            wire.send(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{" % path.encode())
            await until(lambda: router.service.ceiling.in_flight == 1)
            wire.reset()
            await until(lambda: router.service.ceiling.in_flight == 0)
        assert not engine.seen
        assert [line["status"] for line in router.log] == [499, 499]


@on_loop
async def test_limits_in_time_are_separate():
    """Rule 20: first byte and idle; each ends in its own way."""
    timeouts = {"first_byte_s": 0.3, "first_byte_s_per_1k_tokens": 0, "idle_s": 0.3, "total_s": 600}
    async with (
        engines() as [engine],
        routing(flags([engine], timeouts=timeouts, retries={"min_per_s": 0.1})) as router,
        router.client() as client,
    ):
        engine.script = waits
        got = await client.post(CHAT, content=body_for(CHAT, stream=True))
        assert got.status_code == 504
        assert got.json()["error"]["type"] == "timeout_error"

        async def stalls(request, seen):
            request.start(200, [EVENTS])
            request.write(event({"choices": []}))
            await asyncio.Event().wait()

        engine.script = stalls
        got = await client.post(CHAT, content=body_for(CHAT, stream=True))
        assert '"error"' in got.text
        assert "[DONE]" not in got.text
        await until(lambda: engine.left == 2)


@on_loop
async def test_the_total_ends_what_is_not_streamed():
    """Rule 20: no missing limit that hangs."""
    timeouts = {"first_byte_s": 0.1, "first_byte_s_per_1k_tokens": 0, "total_s": 0.5}
    async with (
        engines() as [engine],
        routing(flags([engine], timeouts=timeouts)) as router,
        router.client() as client,
    ):
        engine.script = waits
        for path in PATHS:
            assert (await client.post(path, content=body_for(CHAT))).status_code in {502, 504}


@on_loop
async def test_a_long_prompt_has_longer():
    """Rule 20: the first byte's limit grows with the prompt."""
    timeouts = {"first_byte_s": 0.2, "first_byte_s_per_1k_tokens": 30.0}

    async def slow(request, seen):
        if len(seen.json["prompt"]) < 1000:
            await waits(request, seen)
        await asyncio.sleep(0.8)

    async with (
        engines() as [engine],
        routing(flags([engine], timeouts=timeouts)) as router,
        router.client() as client,
    ):
        engine.script = slow
        long = body_for(TEXT, prompt=list(range(2000)), stream=True)
        assert (await client.post(TEXT, content=long)).status_code == 200
        short = body_for(TEXT, prompt=[1, 2], stream=True)
        assert (await client.post(TEXT, content=short)).status_code == 504


@pytest.mark.parametrize("how", ["dies", "503", "500"])
@on_loop
async def test_another_engine_is_tried_before_the_first_byte(how):
    """Rule 21: once there, engines that failed are left out."""
    async with engines(2) as both, routing(flags(both)) as router, router.client() as client:
        bad = []

        def failing(engine):
            async def fails(request, seen):
                bad[:] = bad or [engine]
                if bad == [engine]:
                    request.abort() if how == "dies" else error(request, int(how))

            return fails

        for engine in both:
            engine.script = failing(engine)
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200
        [good] = [engine for engine in both if engine not in bad]
        assert len(good.seen) == 1
        assert sum(s.value for s in router.service.metrics.retries.collect()[0].samples) >= 1


@pytest.mark.parametrize("status", [400, 404, 422, 429])
@on_loop
async def test_a_4xx_is_never_tried_again(status):
    """Rule 21."""

    async def refuses(request, seen):
        error(request, status)

    async with engines(2) as both, routing(flags(both)) as router, router.client() as client:
        for engine in both:
            engine.script = refuses
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == status
        assert sum(len(engine.seen) for engine in both) == 1


@on_loop
async def test_retries_end_with_their_budget():
    """Rule 21: failing engines aren't asked more and more."""

    async def fails(request, seen):
        error(request, 500, "broken")

    retries = {"ratio": 0.0, "min_per_s": 0.1}
    async with (
        engines(3) as three,
        routing(flags(three, retries=retries)) as router,
        router.client() as client,
    ):
        for engine in three:
            engine.script = fails
        for _ in range(10):
            got = await client.post(CHAT, content=body_for(CHAT))
            assert got.status_code in {500, 503}
        assert sum(len(engine.seen) for engine in three) <= 10 + 2


@pytest.mark.parametrize("status", [400, 429, 503])
@on_loop
async def test_refusals_open_no_breaker(status):
    """Rule 22: and Retry-After is passed on."""

    async def refuses(request, seen):
        error(request, status, headers=[(b"retry-after", b"11")])

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = refuses
        for _ in range(12):
            got = await client.post(CHAT, content=body_for(CHAT))
            assert got.status_code == status
            assert got.headers["retry-after"] == "11"
        [known] = router.service.engines.values()
        assert known.health.breaker.state(router.service.now()) == "closed"
        engine.script = None
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200


@on_loop
async def test_failures_open_the_breaker_and_the_probe_slot_comes_back():
    """Rule 22: also when the probe's client leaves."""

    async def fails(request, seen):
        error(request, 500)

    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = fails
        [known] = router.service.engines.values()
        opened_s, now = router.service.now(), router.service.now
        router.service.now = lambda: opened_s  # it stays open as long as that
        while known.health.breaker.state(opened_s) == "closed":
            await client.post(CHAT, content=body_for(CHAT))
        got = await client.post(CHAT, content=body_for(CHAT))
        assert got.status_code == 503
        assert int(got.headers["retry-after"]) >= 1
        router.service.now = now
        engine.script = waits
        await until(lambda: known.health.breaker.would_allow(now()))
        seen = len(engine.seen)
        probe = asyncio.create_task(client.post(CHAT, content=body_for(CHAT)))
        await until(lambda: len(engine.seen) > seen)
        probe.cancel()
        await until(lambda: known.health.breaker.would_allow(now()))
        engine.script = None
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200


@on_loop
async def test_load_is_what_is_in_flight():
    """Rule 23: no herding, though no metrics say anything."""
    async with engines(3) as three, routing(flags(three)) as router, router.client() as client:
        hold = asyncio.Event()

        async def holds(request, seen):
            await hold.wait()

        for engine in three:
            engine.script = holds
        prompts = [f"{number} " * 50 for number in range(12)]
        asked = [
            asyncio.create_task(client.post(TEXT, content=body_for(TEXT, prompt=prompt)))
            for prompt in prompts
        ]
        await until(lambda: sum(len(engine.seen) for engine in three) == 12)
        assert [len(engine.seen) for engine in three] == [4, 4, 4]
        hold.set()
        assert {(await each).status_code for each in asked} == {200}


@on_loop
async def test_an_engine_is_ejected_after_several_failed_checks():
    """Rules 24 and 25: it comes back, and the others' models are told meanwhile."""
    async with engines(2) as [one, two]:
        two.model = "n"
        async with routing(flags([one, two])) as router, router.client() as client:

            async def models():
                return [m["id"] for m in (await client.get("/v1/models")).json()["data"]]

            assert await models() == ["m", "n"]
            two.health = 500
            await until(lambda: len(router.healthy()) == 1)
            assert "ejected: 2 health checks failed" in router.said[-1]
            assert await models() == ["m"]
            assert (await client.get("/ready")).status_code == 200
            two.health = 200
            await until(lambda: len(router.healthy()) == 2)
            await until(lambda: router.service.engines)
            assert await models() == ["m", "n"]


@on_loop
async def test_an_engine_that_makes_progress_is_not_dead():
    """Rule 24: a /health that fails under load, while tokens come."""
    async with engines() as [engine], routing(flags([engine])) as router:
        engine.health = 503
        [known] = router.service.engines.values()
        for number in range(8):
            engine.metrics = b'vllm:generation_tokens_total{a="b"} %d.0\n' % (number + 1)
            at_s = known.reported_s
            await until(lambda at_s=at_s: known.reported_s > at_s)
            engine.metrics = b'vllm:generation_tokens_total{a="b"} %d.5\n' % (number + 1)
        assert known.health.usable


@on_loop
async def test_one_dead_engine_breaks_nothing():
    """Rule 25: from the start."""
    async with engines() as [engine]:
        config = flags([engine, Dead()])
        async with routing(config, ready=1) as router, router.client() as client:
            got = await client.get("/v1/models")
            assert [model["id"] for model in got.json()["data"]] == ["m"]
            assert (await client.head("/v1/models")).content == b""
            for path in ("/health", "/ready", "/metrics"):
                assert (await client.get(path)).status_code == 200
                assert (await client.head(path)).content == b""
                assert (await client.post(path)).status_code == 405
            text = (await client.get("/metrics")).text
            assert text.count("headway:router_engine_ready{") == 2
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200


@on_loop
async def test_without_engines_the_router_is_alive_and_not_ready():
    """Rules 4 and 25: 503 with Retry-After in the error form."""
    async with routing(flags([Dead()]), ready=0) as router, router.client() as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        asked = [client.post(path, content=body_for(CHAT)) for path in PATHS]
        for waiting in (*asked, client.get("/v1/models")):
            got = await waiting
            assert got.status_code == 503
            assert int(got.headers["retry-after"]) >= 1
            assert json.loads(got.text)["error"]["type"] == "service_unavailable_error"
