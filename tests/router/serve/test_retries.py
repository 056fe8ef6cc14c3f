"""Requests that are tried again."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.fleet import PATHS, QUICK, Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire
from tests.testing.scenarios import FAULTS, PARAMS

BRIEF = {
    "timeouts": {
        "connect_s": 0.5,
        "first_byte_s": 0.1,
        "first_byte_s_per_1k_tokens": 0.0,
        "idle_s": 0.1,
        "total_s": 0.3,
    }
}


# The sums, whatever happens.

places = st.integers(0, 4)
faults = st.sampled_from([f for f in (*FAULTS, *PARAMS, "too long") if f != "refuse"])
steps = st.one_of(
    st.tuples(
        st.just("ask"),
        st.booleans(),
        st.sampled_from(PATHS),
        st.sampled_from([None, None, 0.0, 0.001, 0.004, 0.02]),
    ),
    st.tuples(st.just("fail"), places, faults),
    st.tuples(st.just("drain"), places, st.booleans()),
    st.tuples(st.just("kill"), places),
    st.tuples(st.just("revive"), places),
    st.tuples(st.just("reload"), st.sampled_from(["unified", "disaggregated"]), places),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.001, 0.01])),
)


@settings(max_examples=40)
@given(st.lists(steps, min_size=5, max_size=40))
def test_all_sums_are_zero_again_whatever_happens_at_once(todo):
    async def main():
        async with Fleet(
            engines=1, prefill=2, decode=2, router={**BRIEF, "strategy": "disaggregated"}
        ) as fleet:
            for stub in fleet.stubs:
                stub.prefill_s, stub.gap_s = 0.002, 0.001
            asked = []
            for step in todo:
                await play(fleet, step, asked)
                await asyncio.sleep(0)
            await asyncio.gather(*asked)
            await fleet.until(lambda: not fleet.unsettled())
            await fleet.settled()
            outcomes = fleet.count("requests")
            assert outcomes == len(asked), "every request is counted once"

    run(main)


async def play(fleet, step, asked):
    kind, *given_ = step
    if kind == "ask":
        asked.append(asyncio.create_task(ask_or_leave(fleet, *given_)))
        await asyncio.sleep(0.001)
    elif kind == "wait":
        await asyncio.sleep(given_[0])
    elif kind == "reload":
        strategy, place = given_
        gone = [fleet.stubs[place]] if place else []
        fleet.reload(fleet.config(without=gone, strategy=strategy))
    else:
        stub, *more = fleet.stubs[given_[0]], *given_[1:]
        if kind == "fail":
            stub.script.append(*more)
        elif kind == "kill":
            await stub.stop()
        elif kind == "revive" and stub._server is None:
            await stub.start()
        elif kind == "drain":
            for engine in fleet.service.engines.values():
                if engine.id.endswith(f":{stub.port}"):
                    engine.health.draining = more[0]


async def ask_or_leave(fleet, stream, path, leave_s):
    wire = await Wire.open(fleet.server.port)
    wire.send(wire_bytes(body_of(path, stream=stream), path, "connection: close"))
    if leave_s is None:
        data = await wire.rest()
        assert data.startswith(b"HTTP/1.1 "), "whoever stays gets an answer"
    else:
        await fleet.until(lambda: True)
        await asyncio.sleep(leave_s)
        wire.reset()
    wire.close()


# Trying again.


def test_a_request_costs_at_most_three_legs_and_an_engine_is_asked_once():
    async def main():
        async with Fleet(engines=5) as fleet:
            for stub in fleet.both:
                stub.fault = "503"
            answer = await fleet.ask()
            assert answer.status == 503
            assert answer.field(b"retry-after") == b"7"
            assert sorted(len(stub.seen) for stub in fleet.both) == [0, 0, 1, 1, 1]
            assert fleet.count("retries", cause="503") == 2

    run(main)


def test_without_budget_nothing_is_tried_again():
    async def main():
        router = {"retries": {"ratio": 0.0, "min_per_s": 0.0}}
        async with Fleet(engines=3, router=router) as fleet:
            for stub in fleet.both:
                stub.fault = "die before head"
            for _ in range(3):
                assert (await fleet.ask()).status == 502
            assert sum(len(stub.seen) for stub in fleet.both) == 3

    run(main)


def test_retries_stay_a_share_of_the_requests():
    async def main():
        router = {"retries": {"ratio": 0.1, "min_per_s": 0.0}}
        async with Fleet(engines=2, router=router) as fleet:
            for stub in fleet.both:
                stub.fault = "503"
            for _ in range(30):
                await fleet.ask()
            assert fleet.count("retries") == 3

    run(main)


def test_the_time_of_attempts_adds_up_to_one_limit():
    async def main():
        async with Fleet(engines=1, router=QUICK) as fleet:
            full = fleet.service.timeouts(100, streams=False)
            spent = fleet.service.timeouts(100, streams=False, spent_s=1.0)
            assert spent.total_s == full.total_s - 1.0 == spent.first_byte_s
            assert fleet.service.timeouts(100, streams=True, spent_s=99.0).total_s == 0.0

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_out_of_time_isnt_tried_again(stream):
    async def main():
        quick = QUICK["timeouts"] | {"first_byte_s": 2.0}  # after `skip`, that is
        async with Fleet(engines=2, router={"timeouts": quick}) as fleet:
            for stub in fleet.both:
                stub.fault = "hang before head"
            asked = asyncio.create_task(fleet.ask(body_of(stream=stream)))
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            fleet.skip(100.0)
            assert (await asked).status == 504
            assert sum(len(stub.seen) for stub in fleet.both) == 1

    run(main)


def test_the_last_milliseconds_arent_worth_another_attempt():
    """A timer may be a little early, and the other engine would be asked for nothing."""

    async def main():
        total_s = 600.0
        async with Fleet(engines=2, router={"timeouts": {"total_s": total_s}}) as fleet:
            for stub in fleet.both:
                stub.fault = "hang before head"
            asked = asyncio.create_task(fleet.ask())
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            (stub,) = [each for each in fleet.both if each.seen]
            late_s = fleet.service.now() + total_s - 0.005
            fleet.service.now = lambda: late_s
            await stub.stop()
            assert (await asked).status == 502
            assert sum(len(each.seen) for each in fleet.both) == 1

    run(main)


@pytest.mark.parametrize("legs", ["whole", "split"])
def test_a_connection_closed_at_rest_costs_a_fresh_one_and_a_new_id(legs):
    """The engine closes just when the request arrives; it may have read it or not."""

    async def main():
        split = legs == "split"
        async with Fleet(**({"prefill": 1, "decode": 1} if split else {"engines": 1})) as fleet:
            assert (await fleet.ask()).status == 200
            stub = (fleet.decode or fleet.both)[0]
            stub.script.append("die before head")
            answer = await fleet.ask()
            assert answer.status == 200
            _, died, again = stub.seen
            assert died.headers["x-request-id"] != again.headers["x-request-id"]
            assert fleet.count("retries", cause="stale connection") == 1
            assert fleet.engine(stub).health.breaker._failed == 0
            if split:
                counts = fleet.handoffs()
                assert (counts["started"], counts["used"], counts["stranded"]) == (3, 2, 1)

    run(main)


def test_an_engine_that_dies_isnt_tried_on_all_its_connections_at_rest():
    async def main():
        async with Fleet(engines=2) as fleet:
            answers = await asyncio.gather(*[fleet.ask() for _ in range(12)])
            assert {answer.status for answer in answers} == {200}
            lost, busier = fleet.both
            pool = fleet.engine(lost).upstream
            assert pool.idle >= 3, "else it shows nothing"
            lost.fault = "die before head"
            work = fleet.engine(busier).claim(prefill_tokens=10_000, kv_tokens=0)
            before = len(lost.seen)
            assert (await fleet.ask()).status == 200
            assert len(lost.seen) == before + 2, "one at rest, a fresh one, then the other engine"
            work.release()

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_engines_that_cant_be_reached_cost_neither_attempts_nor_budget(stream):
    async def main():
        none = {"retries": {"ratio": 0.0, "min_per_s": 0.0}}
        async with Fleet(engines=6, router=none) as fleet:
            for stub in fleet.both[1:]:
                await stub.stop()
            last = fleet.engine(fleet.both[0]).claim(prefill_tokens=10_000, kv_tokens=0)
            assert (await fleet.ask(body_of(stream=stream))).status == 200
            assert fleet.count("retries", cause="connect") == 5
            last.release()

    run(main)


def test_a_node_that_dies_with_a_prefill_and_a_decode_engine_costs_no_request():
    async def main():
        async with Fleet(prefill=2, decode=2) as fleet:
            assert {(await fleet.ask()).status for _ in range(4)} == {200}
            dead = fleet.prefill[0], fleet.decode[0]
            others = [fleet.engine(stub) for stub in (fleet.prefill[1], fleet.decode[1])]
            claims = [each.claim(prefill_tokens=10_000, kv_tokens=10_000) for each in others]
            assert (await fleet.ask()).status == 200
            before = fleet.handoffs()["used"]
            dead[0].fault = "die before head"
            await dead[1].stop()
            assert (await fleet.ask()).status == 200
            assert fleet.handoffs()["used"] == before + 1
            assert fleet.count("retries", cause="stale connection") == 1
            assert fleet.count("retries", cause="died") == 1
            assert fleet.count("retries", cause="connect") == 1
            for claim in claims:
                claim.release()

    run(main)


def dedicated(**more):
    fleet = Fleet(engines=3, router={"strategy": "dedicated", **more})
    small, middle, large = fleet.both
    fleet.pools = [
        ("small", "both", [small], {"max_prompt_tokens": 100}),
        ("middle", "both", [middle], {"max_prompt_tokens": 1000}),
        ("large", "both", [large], {}),
    ]
    return fleet


@pytest.mark.parametrize("stream", [False, True])
def test_a_length_refused_moves_to_the_next_pool_before_the_first_byte(stream):
    async def main():
        async with dedicated(retries={"ratio": 0.0, "min_per_s": 0.0}) as fleet:
            small, middle, large = fleet.both
            small.fault = middle.fault = "too long"
            answer = await fleet.ask(body_of(stream=stream))
            assert answer.status == 200
            assert 'reason="length refused"' in answer.field(b"x-headway-route").decode()
            assert [len(stub.seen) for stub in fleet.both] == [1, 1, 1]
            assert large.seen[0].raw == small.seen[0].raw
            assert fleet.count("retries") == 0, "a length misjudged is no engine's failure"

    run(main)


def test_a_length_that_every_pool_refuses_is_the_clients_400():
    async def main():
        async with dedicated() as fleet:
            for stub in fleet.both:
                stub.fault = "too long"
            answer = await fleet.ask()
            assert answer.status == 400
            assert b"maximum context length" in answer.body
            assert [len(stub.seen) for stub in fleet.both] == [1, 1, 1]

    run(main)


def test_a_death_after_a_refused_length_isnt_told_as_a_length():
    async def main():
        async with dedicated() as fleet:
            for stub, fault in zip(
                fleet.both, ("too long", "die before head", "die before head"), strict=True
            ):
                stub.fault = fault
            assert (await fleet.ask()).status == 502

    run(main)
