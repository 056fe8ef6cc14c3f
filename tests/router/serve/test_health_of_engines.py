"""Breakers, checks and draining, as requests meet them."""

import asyncio

import pytest
from tests.router.fleet import QUICK, Fleet, any_work, body_of, run, wire_bytes
from tests.router.raw_client import Wire
from tests.testing.scenarios import BROKEN, CUT, FAULTS

from headway.core.reliability.checks import Checks, HealthState

# Health.


def opened(fleet, stub):
    """Its breaker is half open now."""
    engine = fleet.engine(stub)
    failed_s = fleet.service.now() - 2.0
    for _ in range(5):
        engine.health.breaker.failed(failed_s)
    assert not engine.ready(failed_s)
    assert engine.ready(fleet.service.now())
    return engine


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["", *FAULTS, "too long", "leave"])
def test_a_probes_place_is_given_back_however_it_ends(fault, stream):
    async def main():
        router = QUICK if fault.startswith("hang") else {}
        async with Fleet(engines=1, router=router) as fleet:
            (stub,) = fleet.both
            engine = opened(fleet, stub)
            fleet.freeze()
            if fault == "leave":
                stub.fault = "hang before head"
                wire = await Wire.open(fleet.server.port)
                wire.send(wire_bytes(body_of(stream=stream)))
                await fleet.until(lambda: stub.seen)
                assert not engine.ready(fleet.service.now()), "one probe at a time"
                assert (await fleet.ask()).status == 503
                wire.close()
            else:
                stub.fault = fault
                if fault == "refuse":
                    await stub.stop()
                await fleet.ask(body_of(stream=stream))
            await fleet.until(lambda: not fleet.unsettled())
            state = engine.health.breaker.state(fleet.service.now())
            if not fault or (stream and fault in {*BROKEN, *CUT, "half json"}):
                assert state == "closed"
            elif fault in {"400", "429", "503", "too long", "leave"}:
                assert state == "half_open"
                assert engine.ready(fleet.service.now())
            else:
                assert state == "open"

    run(main)


def test_an_engine_that_may_be_well_again_is_asked_though_the_other_is_idle():
    """It must be back when the other one fails, with however many requests."""

    async def main():
        async with Fleet(engines=2) as fleet:
            once_bad, good = fleet.both
            engine = opened(fleet, once_bad)
            for _ in range(2):
                assert (await fleet.ask()).status == 200
            assert engine.health.breaker.state(fleet.service.now()) == "closed"
            good.fault = "die before head"
            asked = [fleet.ask() for _ in range(4)]
            assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 4

    run(main)


def test_an_engine_that_was_ejected_and_is_back_owes_nothing():
    """It is another process by then."""

    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)
            for _ in range(5):
                engine.health.breaker.failed(fleet.service.now())
            assert not fleet.service.ready()
            check = fleet.service._checker(engine).check
            for sick in (True, True, True, False, False):
                stub.sick = sick
                await check()
            assert fleet.service.ready()

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["400", "429", "503", "too long"])
def test_refusals_never_open_a_breaker(fault, stream):
    async def main():
        async with Fleet(engines=1) as fleet:
            fleet.both[0].fault = fault
            for _ in range(10):
                await fleet.ask(body_of(stream=stream))
            assert fleet.service.ready()

    run(main)


@pytest.mark.parametrize("fault", ["500", "die before head", "die after head"])
def test_an_engine_that_fails_and_fails_is_left_alone(fault):
    """Also one that sends its head each time: vLLM does so before it has computed anything."""

    async def main():
        router = {"retries": {"ratio": 0.0, "min_per_s": 0.0}}
        async with Fleet(engines=1, router=router) as fleet:
            fleet.both[0].fault = fault
            fleet.freeze()
            for _ in range(5):
                await fleet.ask(body_of(stream=True))
            answer = await fleet.ask(body_of(stream=True))
            assert answer.status == 503
            assert len(fleet.both[0].seen) == 5

    run(main)


def test_an_engine_is_ejected_after_several_failed_checks_and_comes_back_slowly():
    async def main():
        async with Fleet(engines=2) as fleet:
            stub, _ = fleet.both
            engine = fleet.engine(stub)
            check = fleet.service._checker(engine).check
            fleet.service.prefixes.add((1, 2), engine.id)
            stub.sick = True
            for _ in range(2):
                await check()
                assert engine.health.usable
            await check()
            assert not engine.health.usable
            assert "ejected" in fleet.said[-1]
            assert fleet.service.prefixes.match((1, 2), engine.id) == 0
            for _ in range(5):
                assert (await fleet.ask()).status == 200
            assert not stub.seen
            stub.sick = False
            await check()
            assert not engine.health.usable, "one good check is not enough"
            await check()
            assert engine.health.usable
            first = engine.view(fleet.service.now()).weight
            fleet.skip(5.0)
            second = engine.view(fleet.service.now()).weight
            fleet.skip(6.0)
            assert 0 < first < 0.2 < second < engine.view(fleet.service.now()).weight == 1.0

    run(main)


def test_one_good_check_between_bad_ones_starts_the_count_again():
    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)
            check = fleet.service._checker(engine).check
            for sick in (True, True, False) * 3:
                stub.sick = sick
                await check()
                assert engine.health.usable

    run(main)


@pytest.mark.parametrize("shown_by", ["metrics", "answers"])
def test_an_engine_that_makes_progress_isnt_ejected(shown_by):
    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)
            check = fleet.service._checker(engine).check
            stub.sick = True
            for _ in range(10):
                if shown_by == "metrics":
                    stub.progress += 1
                else:
                    engine.last_byte_s = fleet.service.now()
                await check()
                assert engine.health.usable
            engine.last_byte_s = float("-inf")
            for _ in range(3):
                await check()
            assert not engine.health.usable

    run(main)


@pytest.mark.parametrize(
    "nonsense",
    [
        b'vllm:num_requests_running{a="b"} 1e999\nvllm:num_requests_waiting 3\n',
        b"vllm:num_requests_running 1e+-1\nvllm:num_requests_waiting 3\n",
        b"vllm:num_requests_waiting 3\n\xff\xfe",
    ],
)
def test_metrics_that_make_no_sense_dont_end_the_checks(nonsense):
    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.both
            engine = fleet.engine(stub)
            stub._metrics = lambda: nonsense
            await fleet.service._checker(engine).check()
            assert engine.health.usable
            assert engine.report.waiting == 3

    run(main)


def test_a_draining_engine_ends_what_it_has_and_gets_nothing_new():
    async def main():
        async with Fleet(engines=2) as fleet:
            for stub in fleet.both:
                stub.gap_s = 0.05
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            (busy,) = [stub for stub in fleet.both if stub.seen]
            fleet.engine(busy).health.draining = True
            answers = await asyncio.gather(*[fleet.ask() for _ in range(4)], asked)
            assert [answer.status for answer in answers] == [200] * 5
            assert len(busy.seen) == 1
            assert busy.seen[0].end == "done"
            assert not any_work(fleet.engine(busy))

    run(main)


def test_an_ejected_prefill_engine_leaves_whole_requests_on_decode_engines():
    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            fleet.engine(fleet.prefill[0]).health.see(Checks(HealthState.EJECTED))
            answer = await fleet.ask()
            assert answer.status == 200
            route = answer.field(b"x-headway-route").decode()
            assert 'reason="no prefill engine"' in route
            assert 'pools="decode"' in route
            assert fleet.count("routes", reason="no prefill engine") == 1
            assert [seen.leg for seen in fleet.decode[0].seen] == ["whole"]

    run(main)
