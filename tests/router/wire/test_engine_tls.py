"""Engines with https: whom the router believes, and how it says who it is."""

import asyncio
import contextlib
import ssl

import pytest
from tests.router.certificates import certificate
from tests.router.fleet import run
from tests.router.raw_client import PATIENT, Engine, until

from headway import config
from headway.router.state.service import Service
from headway.router.wire.engines.pool import ConnectFailed, UpstreamError

MODELS = b'{"data": [{"id": "m"}]}'


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Certificate and key of an engine, of a router, and of somebody else."""
    made = {}
    for name in ("engine", "router", "other"):
        made[name], made[f"{name} key"] = certificate(tmp_path_factory.mktemp(name))
    return made


@contextlib.asynccontextmanager
async def engine(pem, trusts=None):
    """An engine with https that asks for a certificate where it `trusts` one; its port."""

    async def answer(wire, request):
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(MODELS), MODELS))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem["engine"], pem["engine key"])
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trusts)
    stub = Engine(answer)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in stub.tasks:
            task.cancel()
        await asyncio.gather(*stub.tasks, return_exceptions=True)


def written(folder, port, tls):
    """The configuration of a router for the engine, as a file says it."""
    lines = ['[[pool]]\nname = "a"', f'engines = ["https://127.0.0.1:{port}"]', "[pool.tls]"]
    lines += [f'{name} = "{path}"' for name, path in tls.items()]
    path = folder / "headway.toml"
    path.write_text("\n".join(lines))
    return config.load(path)


def service(parsed):
    return Service(parsed, say=lambda what: None)


async def ask(router):
    [known] = router.engines.values()
    call = await known.upstream.send("GET", b"/v1/models", b"", b"", PATIENT)
    return await call.read(1000)


def test_an_engine_is_believed_by_the_pools_authorities_alone(pem, tmp_path):
    async def main():
        async with engine(pem) as port:
            for ca in ({}, {"ca": pem["other"]}):
                router = service(written(tmp_path, port, ca))
                with pytest.raises(ConnectFailed, match="certificate verify failed"):
                    await ask(router)
                await router.stop()
            router = service(written(tmp_path, port, {"ca": pem["engine"]}))
            assert await ask(router) == MODELS
            await router.stop()

    run(main)


def test_an_engine_that_asks_who_the_router_is_gets_its_certificate(pem, tmp_path):
    own = {"cert": pem["router"], "key": pem["router key"]}

    async def main():
        async with engine(pem, trusts=pem["router"]) as port:
            router = service(written(tmp_path, port, {"ca": pem["engine"]}))
            with pytest.raises(UpstreamError):
                await ask(router)
            router.apply(written(tmp_path, port, {"ca": pem["engine"], **own}))
            assert await ask(router) == MODELS
            await router.stop()

    run(main)


def test_a_reload_brings_other_authorities_to_engines_that_stay(pem, tmp_path):
    async def main():
        async with engine(pem) as port:
            router = service(written(tmp_path, port, {}))
            router.start()
            [known] = router.engines.values()
            with pytest.raises(ConnectFailed):
                await ask(router)
            router.apply(written(tmp_path, port, {"ca": pem["engine"]}))
            assert router.engines[known.id] is known
            await until(router.ready)
            await router.stop()

    run(main)
