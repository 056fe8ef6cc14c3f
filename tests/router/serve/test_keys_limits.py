"""Keys, the ceiling, TLS: who gets in, and how many."""

import asyncio
import ssl

import httpx
import openai
import pytest
from tests.router.certificates import certificate
from tests.router.raw_client import Wire
from tests.router.route_process import route, served
from tests.router.rules import engines, flags, on_loop, routing, until
from tests.testing.vllm_answers import CHOICES, body_for

from headway import config as settings

CHAT = "/v1/chat/completions"
KEY = "sk-0123456789abcdefghijklmnop"
KEYS = {"hashes": [f"alice:{settings.hash_key(KEY)}"]}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer"},
        {"x-api-key": ""},
        {"cookie": KEY},
    ],
)
@pytest.mark.parametrize("path", [*CHOICES, "/v1/embeddings", "/v1/models", "/nothing"])
@on_loop
async def test_without_a_key_nothing_is_served(path, fields):
    """Rule 26: 401 in the API's error form; nothing reaches an engine."""
    async with engines() as [engine], routing(flags([engine], keys=KEYS)) as router:
        async with router.client() as client:
            got = await client.post(path, content=b"{}", headers=fields)
            assert got.status_code == 401
            assert got.headers["www-authenticate"] == "Bearer"
            assert got.json()["error"]["type"] == "authentication_error"
            assert (got.json().get("type") == "error") == (path == "/v1/messages")
            assert KEY not in got.text
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 200
        assert not engine.seen
        assert not any(KEY in line for line in router.lines)


@on_loop
async def test_what_is_counted_takes_a_key_too_and_only_where_there_are_keys():
    """Whoever scrapes without one has the admin port, on the loopback address."""
    async with (
        engines() as [engine],
        routing(flags([engine], keys=KEYS)) as router,
        router.client() as client,
    ):
        for path in ("/metrics", "/%6detrics"):
            for method in ("GET", "HEAD"):
                for fields in ({}, {"authorization": f"Bearer {KEY}x"}):
                    got = await client.request(method, path, headers=fields)
                    assert got.status_code == 401
                    assert got.headers["www-authenticate"] == "Bearer"
            for fields in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
                got = await client.get(path, headers=fields)
                assert got.status_code == 200
                assert "headway:router_requests_in_flight" in got.text
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.process
@on_loop
async def test_with_a_key_all_is_served():
    async with engines() as [engine], routing(flags([engine], keys=KEYS)) as router:
        base = router.url + "/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key=KEY, max_retries=0) as api:
            got = await api.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
            assert got.choices
            with pytest.raises(openai.AuthenticationError):
                await api.with_options(api_key="wrong").models.list()
        async with router.client() as client:
            for fields in ({"x-api-key": KEY}, {"authorization": f"bearer  {KEY}"}):
                got = await client.post(CHAT, content=body_for(CHAT), headers=fields)
                assert got.status_code == 200
        for seen in engine.seen:
            assert not any(KEY.encode() in value for _, value in seen.headers)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings"])
@on_loop
async def test_beyond_the_ceiling_clients_hear_when_to_come_back(path):
    async with (
        engines() as [engine],
        routing(flags([engine], max_concurrent=2)) as router,
        router.client() as client,
    ):
        hold = asyncio.Event()

        async def holds(request, seen):
            await hold.wait()

        engine.script = holds
        body = body_for("/v1/messages")
        held = [asyncio.create_task(client.post(path, content=body)) for _ in range(2)]
        await until(lambda: len(engine.seen) == 2)
        got = await client.post(path, content=body)
        assert got.status_code == 429
        assert 1 <= int(got.headers["retry-after"]) <= 60
        assert got.json()["error"]["type"] == "rate_limit_error"
        assert got.headers["x-headway-route"].startswith('unified; reason="ceiling"')
        assert len(engine.seen) == 2
        for free in ("/health", "/ready", "/metrics", "/v1/models"):
            assert (await client.get(free)).status_code == 200
        hold.set()
        assert [(await each).status_code for each in held] == [200, 200]
        assert (await client.post(path, content=body)).status_code == 200


@on_loop
async def test_a_ceiling_that_sinks_cuts_nobody():
    """A reload with a lower one lets those in flight end."""
    async with (
        engines() as [engine],
        routing(flags([engine], max_concurrent=2)) as router,
        router.client() as client,
    ):
        hold = asyncio.Event()

        async def holds(request, seen):
            await hold.wait()

        engine.script = holds
        held = [asyncio.create_task(client.post(CHAT, content=body_for(CHAT))) for _ in range(2)]
        await until(lambda: len(engine.seen) == 2)
        router.service.apply(flags([engine], max_concurrent=1))
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 429
        hold.set()
        assert [(await each).status_code for each in held] == [200, 200]
        assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200


@on_loop
async def test_smuggled_requests_are_refused():
    """Conflicting lengths reach no engine."""
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
    async with engines() as [engine], routing(flags([engine])) as router:
        for fields in (
            b"content-length: 3\r\ncontent-length: 4\r\n",
            b"content-length: 3\r\ntransfer-encoding: chunked\r\n",
            b"transfer-encoding: gzip, chunked\r\n",
            b"content-length : 3\r\n",
        ):
            wire = await Wire.open(router.port)
            wire.send(head + fields + b"\r\nabcd")
            got = await wire.answer()
            wire.close()
            assert got.status in {400, 501}
            assert b'"error"' in got.body
        assert not engine.seen


@pytest.mark.process
@on_loop
async def test_tls_is_spoken_and_renewed_without_a_restart(tmp_path):
    cert, key = certificate(tmp_path)
    async with engines() as [engine]:
        config = tmp_path / "headway.toml"
        config.write_text(
            f"""
            [router]
            port = 0
            admin_port = 0
            [router.tls]
            cert = "{cert.name}"
            key = "{key.name}"
            [[pool]]
            name = "all"
            engines = ["{engine.url}"]
            """
        )
        async with route("--config", str(config)) as process:
            assert process.url.startswith("https://127.0.0.1:")

            async def ask():
                trust = ssl.create_default_context(cafile=str(cert))
                async with httpx.AsyncClient(base_url=process.url, verify=trust) as client:
                    return await served(client, CHAT, body_for(CHAT))

            assert (await ask()).status_code == 200
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(process.url.replace("https", "http") + "/health")
                with pytest.raises(httpx.ConnectError):
                    await client.get(process.url + "/health")
            since = len(process.said)
            certificate(tmp_path)  # another one, which the old doesn't vouch for
            await process.says("settings applied", since)
            assert (await ask()).status_code == 200
