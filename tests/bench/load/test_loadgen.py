"""The client against a stub engine: times, totals and failures."""

import asyncio
import json
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from tests.bench import stub

from headway.bench.load import loadgen
from headway.bench.load.exchange import CUT_OFF, Extras, Target
from headway.bench.load.loadgen import Patience, play
from headway.bench.load.workload import Arrival, ClosedLoop, Workload


@pytest.fixture(autouse=True)
def _no_lead(monkeypatch) -> None:
    monkeypatch.setattr(loadgen, "LEAD_S", 0.03)


def arrivals(*at_s: float, output_tokens: int = 4) -> Workload:
    schedule = tuple(Arrival(at, "short", 5, output_tokens) for at in at_s)
    return Workload(schedule, max(at_s, default=0.0) + 0.05)


def run(workload, *engines, **options):
    async def all_of_it():
        async with AsyncExitStack() as stack:
            targets = [await stack.enter_async_context(engine.serving()) for engine in engines]
            return await play(targets, workload, "test", **options)

    return asyncio.run(all_of_it())


def test_every_token_has_the_time_it_arrived() -> None:
    engine = stub.StubEngine(first_s=0.1, gap_s=0.03)
    ((sample,),) = run(arrivals(0.0), engine)
    assert sample.error is None
    assert len(sample.token_times_s) == 4
    assert sample.token_times_s[0] - sample.sent_s >= 0.1
    assert sample.token_times_s[-1] - sample.sent_s >= 0.1 + 3 * 0.03
    assert all(before <= after for before, after in pairwise(sample.token_times_s))


async def _only_when_four_are_here(engine, body, writer) -> None:
    while len(engine.bodies) < 4:  # noqa: ASYNC110 -- polling is enough for a stub
        await asyncio.sleep(0.01)
    await engine.stream(body, writer)


def test_requests_are_sent_on_schedule_whatever_the_engine_does() -> None:
    """An engine that answers nobody before all have come still gets all."""
    engine = stub.StubEngine(handler=_only_when_four_are_here)
    (samples,) = run(arrivals(0.0, 0.05, 0.1, 0.1), engine)
    assert [sample.intended_s for sample in samples] == [0.0, 0.05, 0.1, 0.1]
    for sample in samples:
        assert sample.sent_s >= sample.intended_s
        assert sample.error is None


def test_bodies_ask_for_exact_lengths_and_never_repeat_a_prompt() -> None:
    engine = stub.StubEngine()
    extras = Extras(priority={"short": -1}, xargs={"short": {"headway_ttft_slo_s": 0.5}})
    run(arrivals(0.0, 0.0, 0.0), engine, extras=extras)
    assert len({tuple(body["prompt"]) for body in engine.bodies}) == 3
    for body in engine.bodies:
        assert len(body["prompt"]) == 5
        assert body["max_tokens"] == 4
        assert body["ignore_eos"] is True
        assert body["temperature"] == 0
        assert body["priority"] == -1
        assert body["vllm_xargs"] == {"headway_ttft_slo_s": 0.5}


def test_two_engines_get_the_same_requests() -> None:
    one, other = stub.StubEngine(), stub.StubEngine(gap_s=0.02)
    mine, theirs = run(arrivals(0.0, 0.05), one, other)
    assert sorted(one.bodies, key=json.dumps) == sorted(other.bodies, key=json.dumps)
    assert [s.intended_s for s in mine] == [s.intended_s for s in theirs]


async def _refuse(engine, body, writer) -> None:
    writer.write(b'HTTP/1.1 503 Busy\r\ncontent-length: 16\r\n\r\n{"error":"full"}')


async def _hang_up(engine, body, writer) -> None:
    writer.write(stub.HEAD + stub.chunk(stub.event(1)))
    await writer.drain()


async def _stop_early(engine, body, writer) -> None:
    await engine.stream({**body, "max_tokens": 2}, writer)


async def _never(engine, body, writer) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("handler", "message", "tokens", "patience_s"),
    [
        (_refuse, "status 503", 0, 20.0),
        (_hang_up, "closed after 1 tokens", 1, 20.0),
        (_stop_early, "ended after 2 of 4", 2, 20.0),
        (_never, "no end within", 0, 0.3),
    ],
)
def test_failures_are_counted_not_raised(handler, message, tokens, patience_s) -> None:
    engine = stub.StubEngine(handler=handler)
    ((sample,),) = run(arrivals(0.0), engine, patience=Patience(request_s=patience_s))
    assert message in sample.error
    assert len(sample.token_times_s) == tokens


def test_an_engine_that_is_not_there_fails_every_request() -> None:
    (samples,) = asyncio.run(play([Target("127.0.0.1", 1)], arrivals(0.0, 0.01), "test"))
    assert len(samples) == 2
    assert all("cannot connect" in sample.error for sample in samples)


async def _only_the_first(engine, body, writer) -> None:
    if len(engine.bodies) > 1:
        await _never(engine, body, writer)
    await engine.stream(body, writer)


def test_hopeless_requests_are_disconnected_after_the_schedule_only() -> None:
    """The first is past its limit too when its answer comes, but the schedule still runs."""
    engine = stub.StubEngine(first_s=0.3, handler=_only_the_first)
    workload = Workload((Arrival(0.0, "short", 5, 4), Arrival(5.0, "short", 5, 4)), 5.1)
    patience = Patience(hopeless_s=lambda arrival: 0.15)
    (samples,) = run(workload, engine, patience=patience)
    assert [sample.error for sample in samples] == [None, CUT_OFF]
    assert engine.disconnects == 1


def test_a_closed_loop_keeps_its_number_running_to_the_end() -> None:
    engine = stub.StubEngine(first_s=0.01, gap_s=0.01)
    running = ClosedLoop(3, "running", 4, 10, stagger_s=0.0)
    workload = Workload((Arrival(1.5, "short", 5, 4),), 1.6, running)
    (samples,) = run(workload, engine)
    decodes = [sample for sample in samples if sample.length_class == "running"]
    cut = [sample for sample in decodes if sample.error == CUT_OFF]
    assert len(samples) == len(decodes) + 1
    assert all(sample.error in {None, CUT_OFF} for sample in decodes)
    assert 3 <= len(decodes) <= 3 + len(decodes) - len(cut)  # one follows where one has ended
    assert len(cut) <= 3
    early = [sample for sample in decodes if not sample.error and sample.token_times_s[-1] < 0.6]
    assert len(decodes) >= 3 + len(early)  # also where the machine is busy with something else
    assert len({tuple(body["prompt"]) for body in engine.bodies}) == len(engine.bodies)
