"""Clients that leave, wherever their request is: the engine hears of it at once."""

import asyncio
import pathlib

import pytest
from tests.router.fleet import Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire

ROUNDS, TOGETHER = 5, 10
LEAVING = {"reset": Wire.reset, "half-close": Wire.half_close, "close": Wire.close}


PATIENT = {"slo": {"ttft_s": 600.0, "tpot_s": 600.0}}
"""Limits that don't pass while a test runs: who leaves, leaves before."""


def on_one_engine():
    return Fleet(engines=1, router=PATIENT)


def on_two():
    return Fleet(prefill=1, decode=1, router=PATIENT)


async def in_the_body(fleet, stub, name, *, stream):
    """The rest of the body never comes."""
    wire = await Wire.open(fleet.server.port)
    before = fleet.server.requests
    wire.send(wire_bytes(body_of(stream=stream))[:-5])
    await fleet.until(lambda: fleet.server.requests > before)
    return wire


async def with_the_engine(fleet, stub, name, *, stream):
    """The engine has the request and says nothing."""
    wire = await Wire.open(fleet.server.port)
    wire.send(wire_bytes(body_of(stream=stream, user=name)))
    await fleet.until(lambda: any(seen.fields["user"] == name for seen in stub.seen))
    return wire


async def in_the_stream(fleet, stub, name, *, stream):
    """The first token has come; an answer that isn't streamed is being computed."""
    wire = await with_the_engine(fleet, stub, name, stream=stream)
    if stream:
        await wire.until(b"t0")
    return wire


def hangs(stub):
    stub.fault = "hang before head"


def streams_slowly(stub):
    stub.gap_s = 600.0


POINTS = {
    "body": (on_one_engine, "both", hangs, in_the_body),
    "headers": (on_one_engine, "both", hangs, with_the_engine),
    "prefill": (on_two, "prefill", hangs, with_the_engine),
    "between the legs": (on_two, "decode", hangs, with_the_engine),
    "stream": (on_one_engine, "both", streams_slowly, in_the_stream),
    "decode's stream": (on_two, "decode", streams_slowly, in_the_stream),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("how", LEAVING)
@pytest.mark.parametrize("point", POINTS)
def test_an_engine_stops_at_once_when_the_client_leaves(point, how, stream):
    fleet_of, role, prepare, go = POINTS[point]

    async def main():
        async with fleet_of() as fleet:
            (stub,) = getattr(fleet, role)
            prepare(stub)

            async def once(name):
                wire = await go(fleet, stub, name, stream=stream)
                LEAVING[how](wire)
                return wire

            before = []
            for each in range(ROUNDS):
                names = [f"{each}-{i}" for i in range(TOGETHER)]
                wires = await asyncio.gather(*[once(name) for name in names])
                await fleet.until(lambda: not fleet.unsettled())
                for wire in wires:
                    wire.close()
                await fleet.until(lambda: not fleet.server.connections)
                await fleet.settled()
                before.append(held(fleet))
                await fleet.until(lambda: held(fleet) <= before[0])
            check_accounts(fleet, stub, point)

    run(main)


def held(fleet):
    """Tasks and sockets of this process, but for connections at rest."""
    for engine in fleet.service.engines.values():
        engine.upstream.discard_idle()
    return len(asyncio.all_tasks()) + len(list(pathlib.Path("/proc/self/fd").iterdir()))


def check_accounts(fleet, stub, point):
    times = ROUNDS * TOGETHER
    counts = fleet.handoffs()
    assert fleet.count("requests", status="499") == times
    assert fleet.verdicts() == {"client left": times}, "that says nothing of limits met or missed"
    assert fleet.count("slo", met="none") == times
    if point == "body":
        assert not stub.seen
        return
    assert [seen.end for seen in stub.seen] == ["cut"] * times
    if point == "prefill":
        assert counts["started"] == counts["aborted"] == times
        assert not fleet.decode[0].seen
    elif point == "between the legs":
        assert counts["released"] == times
        assert fleet.oracle.left == []
    elif point == "decode's stream":
        assert counts["used"] + counts["released"] == times


@pytest.mark.parametrize("how", LEAVING)
def test_clients_that_leave_at_any_moment_leave_nothing_behind(how):
    """The moment sweeps over the whole life of a request, in steps of less than a leg."""

    async def main():
        async with Fleet(prefill=1, decode=2) as fleet:
            fleet.prefill[0].prefill_s = 0.004
            for stub in fleet.decode:
                stub.gap_s = 0.002

            async def once(after_s, *, stream):
                wire = await Wire.open(fleet.server.port)
                wire.send(wire_bytes(body_of(stream=stream)))
                await asyncio.sleep(after_s)
                LEAVING[how](wire)
                return wire

            for stream in (False, True):
                moments = [step * 0.0005 for step in range(50)]
                wires = await asyncio.gather(*[once(at_s, stream=stream) for at_s in moments])
                await fleet.until(lambda: not fleet.unsettled())
                await fleet.settled()
                for wire in wires:
                    wire.close()
                await fleet.until(lambda: not fleet.server.connections)
            assert not fleet.handoffs()["stranded"]

    run(main)


@pytest.mark.parametrize("how", LEAVING)
def test_a_handoff_that_no_decode_leg_took_is_released(how):
    """The client leaves while the decode leg waits for its connection."""

    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            upstream = fleet.engine(fleet.decode[0]).upstream
            connect, waiting = upstream._connect, asyncio.Event()

            async def never(*given):
                upstream._connect = connect
                waiting.set()
                await asyncio.Event().wait()

            upstream._connect = never
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of(stream=True)))
            await waiting.wait()
            LEAVING[how](wire)
            await fleet.until(lambda: fleet.handoffs()["released"])
            wire.close()
            assert not fleet.decode[0].seen
            assert fleet.decode[0].releases == 1
            assert fleet.oracle.left == []

    run(main)


def test_a_half_closed_client_that_has_its_answer_is_no_client_that_left():
    async def main():
        async with Fleet(engines=1) as fleet:
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of()))
            answer = await wire.answer()
            wire.half_close()
            assert answer.status == 200
            assert await wire.rest() == b""
            wire.close()
            assert fleet.count("requests", status="200") == 1

    run(main)
