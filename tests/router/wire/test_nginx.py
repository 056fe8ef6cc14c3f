"""A real nginx in front: what it is asked in, what its client asks in, TLS on either side.

The engine sends each event of a stream only after the client has had the one before: if anything
between them holds one back, the test never ends well, however fast or slow the machine is.
"""

import asyncio
import json

import pytest
from tests.router.certificates import contexts
from tests.router.fleet import PATHS, Fleet, body_of, run, wire_bytes
from tests.router.nginx import nginx
from tests.testing.answers import events_of

pytestmark = pytest.mark.process

SETTINGS = {
    "defaults": "",
    "http/1.0": "proxy_http_version 1.0;",
    "http/1.1": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "buffering on": "proxy_http_version 1.0; proxy_buffering on;",
}
PASSED_ON = "/inference/v1/generate"


async def assert_streams(fleet, wire, path):
    """The next event leaves the engine when the client has this one."""
    (stub,) = fleet.stubs
    stub.gate = asyncio.Semaphore(0)
    wire.send(wire_bytes(body_of(path, stream=True), path))
    for event in events_of(path):
        stub.gate.release()
        await wire.until(event)
    await wire.until(b"0\r\n\r\n")


@pytest.mark.parametrize("path", [*PATHS, PASSED_ON])
@pytest.mark.parametrize("location", SETTINGS.values(), ids=SETTINGS)
def test_events_pass_as_they_come(location, path):
    async def main():
        async with Fleet(engines=1) as fleet:
            url = f"http://127.0.0.1:{fleet.server.port}"
            async with nginx(url, location=location) as front:
                wire = await front.open()
                await assert_streams(fleet, wire, path)
                wire.close()
                await fleet.settled()

    run(main)


@pytest.mark.parametrize("location", ["", "proxy_http_version 1.0;"], ids=["defaults", "http/1.0"])
@pytest.mark.parametrize("tls_at", ["front", "router", "both"])
def test_events_pass_as_they_come_over_tls(tls_at, location, tmp_path):
    server, client = contexts(tmp_path)
    at_front, at_router = tls_at != "router", tls_at != "front"

    async def main():
        async with Fleet(engines=1, tls=server if at_router else None) as fleet:
            url = f"http{'s' if at_router else ''}://127.0.0.1:{fleet.server.port}"
            own = {"certificate": tmp_path, "tls": client} if at_front else {}
            async with nginx(url, location=location, **own) as front:
                wire = await front.open()
                await assert_streams(fleet, wire, PATHS[0])
                wire.close()
                await fleet.settled()

    run(main)


@pytest.mark.parametrize("location", SETTINGS.values(), ids=SETTINGS)
def test_what_is_not_streamed_passes_whole(location):
    """Bodies that wait to be asked for, answers without a body, more than one on a connection."""

    async def main():
        async with Fleet(engines=1) as fleet:
            url = f"http://127.0.0.1:{fleet.server.port}"
            async with nginx(url, location=location) as front:
                wire = await front.open()
                wire.send(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                head = await wire.answer(bodiless=True)
                assert (head.status, head.body) == (200, b"")
                request = wire_bytes(body_of(), PATHS[0], "expect: 100-continue")
                asked, _, body = request.partition(b"\r\n\r\n")
                wire.send(asked + b"\r\n\r\n")
                assert b"100 Continue" in await wire.until(b"\r\n\r\n")
                wire.send(body)
                for _ in range(2):
                    answer = await wire.answer()
                    assert answer.status == 200
                    assert json.loads(answer.body)["choices"]
                    wire.send(wire_bytes(body_of(text="x" * 500_000)))
                await wire.answer()
                wire.close()

    run(main)


@pytest.mark.parametrize("location", SETTINGS.values(), ids=SETTINGS)
def test_the_engine_hears_of_a_client_that_leaves(location):
    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.stubs
            stub.gate = asyncio.Semaphore(1)
            stub.gap_s = 600.0
            url = f"http://127.0.0.1:{fleet.server.port}"
            async with nginx(url, location=location) as front:
                wire = await front.open()
                wire.send(wire_bytes(body_of(stream=True)))
                await wire.until(b"t0")
                wire.close()
                await fleet.until(lambda: stub.seen[0].end == "cut")

    run(main)
