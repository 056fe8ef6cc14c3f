"""A router in front of engines that write down what they get, byte for byte."""

import asyncio
import contextlib
import functools
import json

import httpx
import uvloop
from tests.testing.recorder import RecordingEngine

from headway import config as settings
from headway.router.serve.app import App
from headway.router.state.service import Service
from headway.router.wire.server import ClientLimits, serve

WAIT_S = 60.0
HEALTH = {"interval_s": 0.05, "timeout_s": 20.0, "fails": 2, "passes": 1}


def on_loop(test):
    """Runs an async test; none takes longer than two minutes."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def bounded():
            async with asyncio.timeout(110):
                await test(*args, **kwargs)

        uvloop.run(bounded())

    return run


async def until(condition):
    """Returns when it holds; fails if it doesn't in time."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def engines(count=1, **options):
    """Stub engines; all connections are closed at the end."""
    stubs = [RecordingEngine(**options) for _ in range(count)]
    for stub in stubs:
        await stub.start()
    try:
        yield stubs
    finally:
        for stub in stubs:
            await stub.stop()


class Router:
    """A router in this process. said, log: its lines."""

    def __init__(self, config):
        self.said = []
        self.lines = []
        self.service = Service(config, say=self.said.append, log=self.lines.append)
        self.server = None

    @property
    def port(self):
        return self.server.port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self):
        return [json.loads(line) for line in self.lines]

    def client(self):
        return httpx.AsyncClient(base_url=self.url, timeout=WAIT_S)

    def healthy(self):
        return [e for e in self.service.engines.values() if e.health.usable]

    def works(self):
        return [
            getattr(engine.load.work, name)
            for engine in self.service.engines.values()
            for name in type(engine.load.work).__slots__
        ]

    def metric(self, name, **labels):
        registry = self.service.metrics.registry
        value = registry.get_sample_value(f"headway:router_{name}", labels)
        return 0 if value is None else value


def config_of(text):
    return settings.parse(text)


def flags(engine=(), prefill=(), decode=(), **router):
    health = HEALTH | router.pop("health", {})
    return settings.from_flags(
        engines=[each.url for each in engine],
        prefill=[each.url for each in prefill],
        decode=[each.url for each in decode],
        router={"seed": 1, "health": health, **router},
    )


@contextlib.asynccontextmanager
async def routing(config, *, ready=None, limits=None):
    """A router whose engines (or `ready` of them) are up. It must end with nothing in flight."""
    router = Router(config)
    router.server = await serve(App(router.service), "127.0.0.1", 0, limits or ClientLimits())
    router.service.start()
    wanted = len(router.service.engines) if ready is None else ready
    try:
        await until(lambda: len(router.healthy()) >= wanted)
        yield router
        await until(lambda: not any(router.works()) and not router.service.ceiling.in_flight)
    finally:
        await router.server.close(0.0)
        await router.service.stop()


class Split:
    """A prefill engine, a decode engine, and a client of the router before them."""

    def __init__(self, prefill, decode, router, client):
        self.prefill = prefill
        self.decode = decode
        self.router = router
        self.client = client

    async def post(self, path, body, **headers):
        fields = {"content-type": "application/json", **headers}
        return await self.client.post(path, content=body, headers=fields)

    def handoffs(self, name):
        return self.router.metric("handoffs_total", event=name)


def split(test):
    """Runs the test with a `Split`."""

    async def run(*args, **kwargs):
        async with (
            engines(2) as [prefill, decode],
            routing(flags(prefill=[prefill], decode=[decode])) as router,
            router.client() as client,
        ):
            await test(Split(prefill, decode, router, client), *args, **kwargs)

    return run
