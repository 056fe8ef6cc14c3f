"""Generating requests under all that may happen at once, and the rules of trying again."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.router.fleet import PATHS, QUICK, Fleet, any_work, body_of, run, wire_bytes
from tests.router.raw_client import Wire
from tests.testing.scenarios import BROKEN, CUT, FAULTS, PARAMS

from headway import config
from headway.core.errors import SettingError
from headway.core.reliability.checks import Checks, HealthState
from headway.core.routing.length import PRIOR_BYTES_PER_TOKEN

BRIEF = {
    "timeouts": {
        "connect_s": 0.5,
        "first_byte_s": 0.1,
        "first_byte_s_per_1k_tokens": 0.0,
        "idle_s": 0.1,
        "total_s": 0.3,
    }
}
LONG = "all work and no play " * 400


def answer_at_once(fleet):
    for stub in fleet.stubs:
        stub.fault = ""
        stub.script.clear()


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
        async with Fleet(engines=2, router=QUICK) as fleet:
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
        async with Fleet(engines=2, router=QUICK) as fleet:
            for stub in fleet.both:
                stub.fault = "hang before head"
            asked = asyncio.create_task(fleet.ask())
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            (stub,) = [each for each in fleet.both if each.seen]
            late_s = fleet.service.now() + QUICK["timeouts"]["total_s"] - 0.005
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
        async with Fleet(engines=2, router=QUICK) as fleet:
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


# Health.


def opened(fleet, stub):
    """Its breaker is half open now."""
    engine = fleet.engine(stub)
    for _ in range(5):
        engine.health.breaker.failed(fleet.service.now())
    assert not engine.ready(fleet.service.now())
    engine.health.breaker._retry_s -= 2.0
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


# What routing learns.


def test_a_prompt_goes_where_its_beginning_is():
    async def main():
        async with Fleet(engines=4) as fleet:
            text = LONG
            await fleet.ask(body_of(text=text))
            (home,) = [stub for stub in fleet.both if stub.seen]
            for turn in range(8):
                text += f" turn {turn} " * 50
                answer = await fleet.ask(body_of(text=text))
                assert 'reason="prefix"' in answer.field(b"x-headway-route").decode()
            assert len(home.seen) == 9
            for other in range(12):
                await fleet.ask(body_of(text=f"{other} another beginning {LONG}"))
            assert sum(bool(stub.seen) for stub in fleet.both) == 4

    run(main)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_lengths_are_learned_from_usage(stream, split):
    async def main():
        async with Fleet(**({"prefill": 1, "decode": 1} if split else {"engines": 1})) as fleet:
            for stub in fleet.stubs:
                stub.prompt_tokens = len(LONG) // 2
            for _ in range(12):
                await fleet.ask(body_of(text=LONG, stream=stream))
            tokens = fleet.service.lengths.estimate("m", "chat", len(LONG))
            assert tokens > 1.8 * len(LONG) / PRIOR_BYTES_PER_TOKEN

    run(main)


def test_long_prompts_weigh_most_in_an_engines_prefill_speed():
    async def main():
        async with Fleet(engines=1) as fleet:
            (engine,) = fleet.service.engines.values()
            engine.load.learn_rate(100_000, 10.0)
            for _ in range(5):
                engine.load.learn_rate(10, 0.1)
            assert engine.load.prefill_tokens_per_s > 9_000
            engine.load.learn_rate(0, 1.0)
            engine.load.learn_rate(10, 0.0)
            assert engine.load.prefill_tokens_per_s > 9_000

    run(main)


# Limits and reloads.


def test_a_request_beyond_the_ceiling_is_told_when_to_come_back():
    async def main():
        async with Fleet(engines=1, router={"max_concurrent": 1}) as fleet:
            (stub,) = fleet.both
            stub.gap_s = 0.05
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: stub.seen)
            refused = await fleet.ask()
            assert refused.status == 429
            assert int(refused.field(b"retry-after")) >= 1
            assert (await asked).status == 200
            assert (await fleet.ask()).status == 200

    run(main)


def test_an_answers_limit_beyond_reason_takes_no_kv_it_will_never_use():
    async def main():
        async with Fleet(engines=1) as fleet:
            (stub,) = fleet.both
            stub.fault = "hang before head"
            stub.max_model_len = 10**9
            fleet.engine(stub).max_model_len = None
            fields = body_of(max_tokens=10**12)
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(fields))
            await fleet.until(lambda: stub.seen)
            assert fleet.engine(stub).load.work.kv_tokens < 1000
            wire.close()

    run(main)


def test_settings_that_cant_be_used_change_nothing(monkeypatch):
    async def main():
        async with Fleet(engines=2) as fleet:
            service, (first, _) = fleet.service, fleet.both
            before = (service.config, dict(service.engines), service.strategy)
            monkeypatch.setenv("ENGINE_KEY", "bad\nkey")
            bad = fleet.config(without=[first], keys={"engine_key_env": "ENGINE_KEY"})
            with pytest.raises(SettingError):
                service.apply(bad)
            assert before == (service.config, service.engines, service.strategy)

    run(main)


def test_a_stream_outlives_the_reload_that_removes_its_engine():
    async def main():
        async with Fleet(engines=2) as fleet:
            for stub in fleet.both:
                stub.gap_s = 0.03
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            (busy,) = [stub for stub in fleet.both if stub.seen]
            fleet.reload(fleet.config(without=[busy]))
            answer = await asked
            assert answer.complete
            assert answer.body.endswith(b"data: [DONE]\n\n")

    run(main)


def test_engines_that_replace_all_others_are_watched_and_used():
    async def main():
        async with Fleet(engines=2) as fleet:
            old, new = fleet.both
            fleet.reload(fleet.config(without=[new]))
            assert (await fleet.ask()).status == 200
            fleet.reload(fleet.config(without=[old]))
            await fleet.until(fleet.all_healthy)
            assert (await fleet.ask()).status == 200
            assert [len(stub.seen) for stub in fleet.both] == [1, 1]

    run(main)


def test_an_engine_that_turns_to_tls_is_another_engine():
    async def main():
        async with Fleet(engines=1) as fleet:
            (before,) = fleet.service.engines.values()
            host, port = "127.0.0.1", fleet.both[0].port
            fleet.reload(config.from_flags(engines=[f"https://{host}:{port}"]))
            (after,) = fleet.service.engines.values()
            assert after is not before
            assert after.id == before.id
            assert not after.health.usable
            assert before.upstream.idle == 0

    run(main)


def test_a_release_under_way_ends_before_the_router_does():
    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            fleet.decode[0].release_s = 0.1
            fleet.decode[0].fault = "503"
            answer = await fleet.ask()
            await fleet.service.stop()
            assert answer.status == 503
            assert fleet.handoffs()["released"] == fleet.decode[0].releases == 1

    run(main)


def test_the_log_has_a_line_for_each_request_with_all_its_engines():
    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            await fleet.ask(body_of(stream=True), "/v1/chat/completions", "x-request-id: mine")
            (line,) = map(json.loads, fleet.logged)
            assert [engine.split("/")[0] for engine in line["engines"]] == ["prefill", "decode"]
            assert line["status"] == 200
            assert line["ttft_s"] > 0

    run(main)
