"""The admin port: state, draining, and who may ask."""

import asyncio
import contextlib

import httpx
import pytest
from tests.router.rules import engines, flags, on_loop, routing, until
from tests.testing.vllm_answers import body_for

from headway.core.reliability.checks import Checks, HealthState
from headway.router.serve.admin import Admin
from headway.router.wire.server import serve

CHAT = "/v1/chat/completions"


@contextlib.asynccontextmanager
async def admin_of(router):
    server = await serve(Admin(router.service), "127.0.0.1", 0)
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60)
    try:
        async with client:
            yield client
    finally:
        await server.close(0.0)


@on_loop
async def test_state_shows_engines_work_and_reasons():
    async with (
        engines(2) as [one, two],
        routing(flags([one, two])) as router,
        router.client() as client,
        admin_of(router) as admin,
    ):
        held = asyncio.Event()

        async def holds(request, seen):
            await held.wait()

        one.script = two.script = holds
        task = asyncio.create_task(client.post(CHAT, content=body_for(CHAT)))
        await until(lambda: one.seen or two.seen)
        state = (await admin.get("/state")).json()
        assert state["strategy"] == "unified"
        assert state["in_flight"] == 1
        [pool] = state["pools"]
        known = pool["engines"]
        assert [each["id"] for each in known] == [
            f"engines/127.0.0.1:{engine.port}" for engine in (one, two)
        ]
        assert sorted(each["work"]["requests"] for each in known) == [0, 1]
        assert {each["reason"] for each in known} == {"ready"}
        assert {tuple(each["models"]) for each in known} == {("m",)}
        assert state["routes"] == [{"strategy": "unified", "reason": "least work", "count": 1}]
        held.set()
        await task
        state = (await admin.get("/state")).json()
        assert not any(v for each in state["pools"][0]["engines"] for v in each["work"].values())


@on_loop
async def test_a_drained_engine_ends_its_answers_and_gets_no_more():
    async with (
        engines(2) as [one, two],
        routing(flags([one, two])) as router,
        router.client() as client,
        admin_of(router) as admin,
    ):
        held = asyncio.Event()

        async def holds(request, seen):
            await held.wait()

        one.script = two.script = holds
        task = asyncio.create_task(client.post(CHAT, content=body_for(CHAT)))
        await until(lambda: one.seen or two.seen)
        busy, other = (one, two) if one.seen else (two, one)
        name = f"engines/127.0.0.1:{busy.port}"
        told = await admin.post("/drain", params={"engine": name})
        assert told.json()["ready"] is False
        assert told.json()["reason"] == "draining"
        held.set()
        assert (await task).status_code == 200
        for _ in range(4):
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200
        assert (len(busy.seen), len(other.seen)) == (1, 4)
        # A reload keeps what an operator said.
        router.service.apply(flags([one, two]))
        assert (await admin.post("/drain", params={"engine": name})).json()["draining"] is True
        told = await admin.post("/undrain", params={"engine": name})
        assert told.json()["reason"] == "ready"
        await admin.post("/drain", params={"engine": f"engines/127.0.0.1:{other.port}"})
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200
        assert len(busy.seen) == 2


@on_loop
async def test_reasons_name_what_is_wrong():
    async with (
        engines() as [engine],
        routing(flags([engine])) as router,
        admin_of(router) as admin,
    ):

        async def reason():
            state = (await admin.get("/state")).json()
            return state["pools"][0]["engines"][0]["reason"]

        engine.health = 500
        await until(lambda: not router.healthy())
        assert "health checks failed" in await reason()
        engine.health = 200
        await until(router.healthy)
        [known] = router.service.engines.values()
        now_s = router.service.now()
        while known.health.breaker.would_allow(now_s):
            known.health.breaker.failed(now_s, known.health.breaker.allow(now_s))
        assert await reason() == "circuit breaker open"


@on_loop
async def test_an_engine_that_was_drained_and_restarted_is_back_at_once():
    """As a supervisor does it. Health checks alone would take minutes."""
    async with (
        engines() as [engine],
        routing(flags([engine], health={"interval_s": 600.0, "passes": 10})) as router,
        admin_of(router) as admin,
    ):
        [known] = router.service.engines.values()
        await admin.post("/drain", params={"engine": known.id})
        known.health.see(Checks(HealthState.EJECTED))
        engine.health = 500
        told = await admin.post("/undrain", params={"engine": known.id})
        assert told.json()["reason"] == "not up yet"
        await until(lambda: known.health.checks.failed)
        assert not known.health.usable, "it is asked, not believed"
        engine.health = 200
        await until(router.healthy)
        assert known.ready(router.service.now())


@on_loop
async def test_metrics_are_here_too():
    async with (
        engines() as [engine],
        routing(flags([engine])) as router,
        admin_of(router) as admin,
    ):
        got = await admin.get("/metrics")
        assert "headway:router_requests_in_flight 0.0" in got.text
        assert got.headers["content-type"].startswith("text/plain")
        # An engine that has left the settings isn't told any more.
        router.service.apply(flags([engine]))
        assert got.text.count("headway:router_engine_ready{") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/state", 404),
        ("GET", "/drain?engine=x", 404),
        ("POST", "/drain?engine=nope", 404),
        ("POST", "/drain", 404),
        ("POST", "/drain?engine=nope&engine=nope", 404),
        ("POST", "/undrain?engine=" + "x" * 60_000, 404),
        ("POST", "/drain?engine=" + "%00%ff" * 5_000, 404),
        ("POST", "/drain?" + "&".join(["engine="] * 5_000), 404),
    ],
)
@on_loop
async def test_what_is_asked_wrongly_is_told_rightly(method, path, status):
    async with (
        engines() as [engine],
        routing(flags([engine])) as router,
        admin_of(router) as admin,
    ):
        got = await admin.request(method, path)
        assert got.status_code == status
        message = got.json()["error"]["message"]
        assert len(message) < 1500
        assert "GET /state" in message or f"engines/127.0.0.1:{engine.port}" in message


@pytest.mark.parametrize(
    "fields",
    [{"origin": "http://evil.example"}, {"host": "evil.example:9001"}, {"host": "127.0.0.1.evil"}],
)
@on_loop
async def test_web_pages_cannot_reach_it(fields):
    """A browser on this machine may be led here: by a form, or by a name that points here."""
    async with (
        engines() as [engine],
        routing(flags([engine])) as router,
        admin_of(router) as admin,
    ):
        name = f"engines/127.0.0.1:{engine.port}"
        got = await admin.post("/drain", params={"engine": name}, headers=fields)
        assert got.status_code == 403
        assert (await admin.get("/state", headers=fields)).status_code == 403
        assert router.healthy()[0].health.draining is False
        assert (await admin.get("/state", headers={"host": "localhost:9"})).status_code == 200
