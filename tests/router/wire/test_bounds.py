"""What clients may take up together: bytes of bodies, files, time."""

import asyncio
import gc
import json
import tracemalloc

import httpx
import pytest
from tests.router.certificates import contexts
from tests.router.fleet import PATHS, Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire, no_more_files, until
from tests.router.route_process import route, served
from tests.testing.engine import Stub
from tests.testing.scenarios import FLOODS

from headway.router.wire.hub import ClientLimits

SIZES = {"max_body_bytes": 60_000, "max_bodies_bytes": 200_000}
JSON_PATHS = (*PATHS, "/v1/embeddings")
FORMS = ("declared", "chunked")


def upload(path, form):
    """The two parts of an upload that stops in between: 40,000 bytes, and the rest."""
    body = json.dumps(body_of(path, "x" * 55_000)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n"
    if form == "declared":
        head += f"content-length: {len(body)}\r\n\r\n"
        return head.encode() + body[:40_000], body[40_000:]
    head += "transfer-encoding: chunked\r\n\r\n"
    last = len(body) - 40_000
    first = b"%b%x\r\n%b\r\n" % (head.encode(), 40_000, body[:40_000])
    return first, b"%x\r\n%b\r\n0\r\n\r\n" % (last, body[40_000:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", JSON_PATHS)
def test_uploads_that_stop_hold_no_more_than_they_may_together(path, form):
    """What doesn't fit is a 429 that says when to come back; the others can still end well."""

    async def main():
        async with Fleet(engines=1, router=SIZES) as fleet:
            first, rest = upload(path, form)
            wires = [await Wire.open(fleet.server.port) for _ in range(12)]
            for wire in wires:
                wire.send(first)
            bodies = fleet.service.bodies
            await fleet.until(lambda: sum(bool(w.reader._buffer) for w in wires) >= 7)
            refused = [w for w in wires if w.reader._buffer]
            assert 160_000 <= bodies.held_bytes <= 200_000
            for wire in refused:
                answer = await wire.answer()
                assert answer.status == 429
                assert int(answer.field(b"retry-after")) >= 1
                error = json.loads(answer.body)["error"]
                assert error["type"] == "rate_limit_error"
            waiting = [wire for wire in wires if wire not in refused]
            left = waiting.pop()
            left.close()
            await fleet.until(lambda: bodies.held_bytes == 40_000 * len(waiting))
            for wire in waiting:
                wire.send(rest)
                assert (await wire.answer()).status == 200
            for wire in wires:
                wire.close()

    run(main)


def test_a_body_that_cannot_fit_isnt_asked_for():
    async def main():
        async with Fleet(engines=1, router=SIZES) as fleet:
            first, _ = upload(PATHS[0], "declared")
            wires = [await Wire.open(fleet.server.port) for _ in range(5)]
            for wire in wires[:4]:
                wire.send(first)
                held = fleet.service.bodies.held_bytes + 40_000
                await fleet.until(lambda: fleet.service.bodies.held_bytes == held)  # noqa: B023
            head, _, _ = first.partition(b"\r\n\r\n")
            wires[4].send(head + b"\r\nexpect: 100-continue\r\n\r\n")
            assert (await wires[4].answer()).status == 429
            for wire in wires:
                wire.close()

    run(main)


def test_a_body_that_passes_as_it_comes_counts_while_it_is_held():
    """One that isn't read whole holds its client back instead of filling up."""

    async def main():
        async with Fleet(engines=1, router=SIZES | {"max_body_bytes": 200_000}) as fleet:
            wire = await Wire.open(fleet.server.port)
            head = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-type: audio/wav\r\n"
            wire.send(head + b"content-length: 150000\r\n\r\n" + b"x" * 149_999)
            await fleet.until(lambda: fleet.server.requests == 1)
            await fleet.until(lambda: not fleet.service.bodies.held_bytes)
            wire.close()

    run(main)


@pytest.mark.process
@pytest.mark.parametrize(
    ("split", "path"),
    [(False, PATHS[0]), (True, PATHS[0]), (False, "/inference/v1/generate")],
    ids=["whole", "split", "passed through"],
)
def test_a_body_is_given_up_when_its_answer_begins(split, path):
    """A long stream holds neither its bytes nor what was read out of them."""
    size = 20_000_000

    async def main():
        engines = {"prefill": 1, "decode": 1} if split else {"engines": 1}
        async with Fleet(**engines) as fleet:
            stub = fleet.stubs[-1]
            stub.gate = asyncio.Semaphore(0)
            gc.collect()
            tracemalloc.start()
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of(text="x" * size, stream=True), path))
            await fleet.until(lambda: stub.active)
            if path in PATHS:  # others' heads are passed on before their first event
                assert fleet.service.bodies.held_bytes > size
            stub.gate.release()
            await wire.until(b"t0")
            assert fleet.service.bodies.held_bytes == 0
            fleet.stubs[0].seen.clear()
            held, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most > 3 * size
            assert held < 2.5 * size, "the stub has the bytes and what it read out of them"
            for _ in range(10):
                stub.gate.release()
            await wire.until(b"0\r\n\r\n")
            wire.close()

    run(main)


@pytest.mark.parametrize("how", ["stops", "drips"])
def test_an_upload_that_is_too_slow_gives_back_what_it_holds(how):
    async def main():
        limits = ClientLimits(body_timeout_s=0.3)
        async with Fleet(engines=1, router=SIZES, limits=limits) as fleet:
            first, _ = upload(PATHS[0], "declared")
            wire = await Wire.open(fleet.server.port)
            wire.send(first)
            asked = asyncio.create_task(wire.answer())
            while not asked.done():
                if how == "drips":
                    wire.send(b"x")
                await asyncio.sleep(0.02)
            assert asked.result().status == 408
            assert fleet.service.bodies.held_bytes == 0
            wire.close()

    run(main)


@pytest.mark.process
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("secret", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("split", [False, True], ids=["one leg", "two legs"])
def test_a_client_that_does_not_read_is_cut_and_its_engine_stops(split, secret, stream, tmp_path):
    server, client = contexts(tmp_path)

    async def main():
        engines = {"prefill": 1, "decode": 1} if split else {"engines": 1}
        limits = ClientLimits(write_stall_s=0.5)
        async with Fleet(**engines, limits=limits, tls=server if secret else None) as fleet:
            fleet.stubs[-1].fault = FLOODS
            wire = await Wire.open(fleet.server.port, limit=1024, ssl=client if secret else None)
            wire.send(wire_bytes(body_of(stream=stream)))
            await wire.until(b"\r\n\r\n")
            await fleet.until(lambda: not fleet.server.connections)
            await fleet.until(lambda: not fleet.unsettled())
            assert fleet.count("requests", status="499" if stream else "200") == 1
            if stream:
                assert fleet.stubs[-1].seen[-1].end == "cut"
            wire.close()

    run(main)


@pytest.mark.parametrize("path", JSON_PATHS)
def test_an_engine_isnt_blamed_for_files_that_are_missing_here(path):
    async def main():
        async with Fleet(engines=2) as fleet:
            wire = await Wire.open(fleet.server.port)
            wire.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await wire.answer()).status == 200
            with no_more_files():
                for _ in range(10):
                    wire.send(wire_bytes(body_of(path), path))
                    assert (await wire.answer()).status == 502
                for engine in fleet.known:
                    engine.upstream.discard_idle()
                    for _ in range(5):
                        await fleet.service._checker(engine).check()
            assert all(e.ready(fleet.service.now()) for e in fleet.service.engines.values())
            wire.send(wire_bytes(body_of(path), path))
            assert (await wire.answer()).status == 200
            wire.close()

    run(main)


@pytest.mark.process
def test_as_many_clients_connect_as_files_allow():
    """The limit is said, no file is ever missing, and each that got in is served."""
    files, engines = 400, 1
    allowed = (files - 192 - (64 + 4) * engines) // 2  # 4: lookups, and addresses tried

    async def main():
        stub = Stub()
        await stub.start()
        flags = ("--engine", stub.url, "--port", "0", "--admin-port", "0")
        async with route(*flags, files=files) as process:
            warning = await process.says("warning:")
            assert f"{files} files may be open, so {allowed} clients may connect" in warning
            port = int(process.url.rpartition(":")[2])
            async with httpx.AsyncClient(base_url=process.url) as client:
                assert (await served(client, PATHS[0], json.dumps(body_of()))).status_code == 200
            stub.fault = "hang before head"
            wires = [await Wire.open(port) for _ in range(allowed)]
            for wire in wires:
                wire.send(wire_bytes(body_of()))
            await until(lambda: stub.active == allowed)
            more = [await Wire.open(port) for _ in range(2 * files)]
            answers = [await wire.rest() for wire in more]
            assert answers[0].startswith(b"HTTP/1.1 503")
            assert not any(answer and b" 503 " not in answer for answer in answers)
            await process.says(
                f"headway: warning: {allowed} connections are open, as many as may be"
            )
            stub.fault = ""
            for wire in more:
                wire.close()
            for wire in wires[1:]:
                wire.close()
            await until(lambda: stub.active == 1)
            again = await Wire.open(port)
            again.send(wire_bytes(body_of()))
            assert (await again.answer()).status == 200
            again.close()
            assert not any("open files" in line for line in process.said)
            wires[0].close()
        await stub.stop()

    run(main)
