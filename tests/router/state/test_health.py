"""Engines that say nothing: busy ones are kept as a last resort, dead ones aren't."""

import dataclasses
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.router.fleet import Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire

from headway.core.reliability.checks import HealthState
from headway.router.serve.admin import Admin
from headway.router.wire.server import serve

TOLD = {"health": {"interval_s": 600.0, "timeout_s": 30.0, "fails": 3, "passes": 2}}
"""Checked when a test says so."""


async def check(fleet, stub, times=1):
    """As if nothing had been heard of it for a while; one that says nothing is given up soon."""
    engine = fleet.engine(stub)
    engine.last_byte_s = float("-inf")
    checker = fleet.service._checker(engine)
    if stub.mute:
        soon = dataclasses.replace(checker._settings(), timeout_s=0.05)
        checker._settings = lambda: soon
    for _ in range(times):
        await checker.check()
    return engine.health.state


async def ask(fleet, **more):
    """A request whose answer isn't waited for."""
    wire = await Wire.open(fleet.server.port)
    wire.send(wire_bytes(body_of(**more)))
    return wire


def gauge(fleet, name, stub):
    service = fleet.service
    text = service.metrics_text().decode()
    for family in text_string_to_metric_families(text):
        if family.name == f"headway:router_{name}":
            return {s.labels["engine"]: s.value for s in family.samples}[fleet.engine(stub).id]
    raise AssertionError(name)


async def state_of(fleet, stub):
    server = await serve(Admin(fleet.service), "127.0.0.1", 0)
    try:
        wire = await Wire.open(server.port)
        wire.send(b"GET /state HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = await wire.answer()
        wire.close()
    finally:
        await server.close(0.1)
    pools = json.loads(answer.body)["pools"]
    (found,) = [e for p in pools for e in p["engines"] if e["id"] == fleet.engine(stub).id]
    return found


def test_the_only_engine_is_not_ejected_while_it_computes():
    """It answers neither /health nor /metrics for as long as one request takes."""

    async def main():
        async with Fleet(engines=1, router=TOLD) as fleet:
            (stub,) = fleet.both
            stub.mute, stub.fault = True, "hang before head"
            wire = await ask(fleet)
            await fleet.until(lambda: stub.seen)
            assert await check(fleet, stub, 2) is HealthState.WELL
            assert await check(fleet, stub, 10) is HealthState.DEGRADED
            (said,) = [line for line in fleet.said if "degraded" in line]
            assert said.startswith(f"{fleet.engine(stub).id} is degraded: 3 health checks unanswer")
            assert gauge(fleet, "engine_ready", stub) == 1
            assert gauge(fleet, "engine_degraded", stub) == 1
            told = await state_of(fleet, stub)
            assert (told["ready"], told["health"]) == (True, "degraded")
            assert told["reason"] == "degraded: 12 health checks unanswered"
            assert told["patience_s"] >= 120
            assert fleet.service.ready()
            stub.fault = ""
            assert (await fleet.ask()).status == 200, "the next request is served, not refused"
            stub.mute = False
            assert await check(fleet, stub) is HealthState.WELL
            engine = fleet.engine(stub)
            assert engine.health.breaker.weight(fleet.service.now()) == 1.0, "it was never away"
            assert gauge(fleet, "engine_degraded", stub) == 0
            wire.reset()

    run(main)


def test_others_are_asked_first_and_the_silent_one_when_they_fail():
    async def main():
        async with Fleet(engines=2, router=TOLD) as fleet:
            silent, other = fleet.both
            silent.mute = True
            assert await check(fleet, silent, 3) is HealthState.DEGRADED
            for _ in range(10):
                assert (await fleet.ask()).status == 200
            wire = await Wire.open(fleet.server.port)
            wire.send(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            await wire.answer()
            wire.close()
            assert not silent.seen
            other.fault = "500"
            assert (await fleet.ask()).status == 200
            assert len(silent.seen) == 1

    run(main)


@pytest.mark.parametrize("before", ["well", "silent"])
def test_an_engine_that_nobody_listens_for_is_dead_even_if_it_is_the_last(before):
    async def main():
        async with Fleet(engines=1, router=TOLD) as fleet:
            (stub,) = fleet.both
            if before == "silent":
                stub.mute = True
                assert await check(fleet, stub, 3) is HealthState.DEGRADED
            await stub.stop()
            assert await check(fleet, stub, 3) is HealthState.EJECTED
            assert (await fleet.ask()).status == 503
            stub.mute = False
            await stub.start()
            assert await check(fleet, stub) is HealthState.EJECTED
            assert await check(fleet, stub) is HealthState.WELL
            engine = fleet.engine(stub)
            assert engine.health.breaker.weight(fleet.service.now()) < 1.0, "it comes back slowly"

    run(main)


def test_a_silent_prefill_engine_leaves_requests_whole_and_a_silent_decode_engine_serves():
    async def main():
        async with Fleet(prefill=1, decode=1, router=TOLD) as fleet:
            (prefill,), (decode,) = fleet.prefill, fleet.decode
            prefill.mute = decode.mute = True
            assert await check(fleet, decode, 3) is HealthState.DEGRADED
            assert (await fleet.ask(body_of(stream=True))).status == 200
            assert [seen.leg for seen in decode.seen] == ["decode"]
            assert await check(fleet, prefill, 3) is HealthState.DEGRADED
            answer = await fleet.ask(body_of(stream=True))
            assert answer.status == 200
            assert b'reason="no prefill engine"' in answer.field(b"x-headway-route")
            assert [seen.leg for seen in decode.seen] == ["decode", "whole"]

    run(main)


def test_what_an_engine_may_be_silent_over_are_requests_from_before():
    limits = {"first_byte_s": 30.0, "first_byte_s_per_1k_tokens": 0.0, "idle_s": 20.0}

    async def main():
        async with Fleet(engines=1, router={**TOLD, "timeouts": limits}) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)

            def patience_s():
                return engine.patience_s(fleet.service.config.router.timeouts)

            assert patience_s() == 0
            stub.gap_s = 60.0
            stub.fault = "hang before head"
            wire = await ask(fleet)
            await fleet.until(lambda: stub.seen)
            assert patience_s() == 30, "for a first byte, however it is answered"
            wire.reset()
            await fleet.until(lambda: not engine.load.work.requests)
            stub.fault = ""
            wire = await ask(fleet, stream=True)
            await wire.until(b"t0")
            assert patience_s() == 20, "from then on between pieces"
            wire.reset()
            await fleet.until(lambda: not engine.load.work.requests)
            assert patience_s() == 0
            stub.mute, stub.fault = True, "hang before head"
            await check(fleet, stub, 3)
            wire = await ask(fleet)
            await fleet.until(lambda: engine.load.work.requests)
            assert patience_s() == 0, "what goes to it now gives it no more time"
            wire.reset()

    run(main)


def test_models_and_contexts_are_followed_from_check_to_check():
    """An adapter loaded at run time, and an engine replaced by one with a longer context."""

    async def main():
        async with Fleet(engines=1, router=TOLD) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)
            assert engine.max_model_len == 8192
            stub.max_model_len, stub.adapters = 32_768, ("adapter",)
            assert await check(fleet, stub) is HealthState.WELL
            assert engine.max_model_len == 32_768
            assert [model["id"] for model in engine.models] == ["m", "adapter"]

    run(main)


def test_models_that_are_not_told_for_once_are_those_of_before():
    async def main():
        async with Fleet(engines=1, router=TOLD) as fleet:
            (stub,) = fleet.both
            stub.unlisted = True
            assert await check(fleet, stub, 3) is HealthState.WELL
            assert [model["id"] for model in fleet.engine(stub).models] == ["m"]

    run(main)
