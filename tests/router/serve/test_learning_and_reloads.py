"""What routing learns, the ceiling, reloads and the log."""

import asyncio
import json

import pytest
from tests.router.fleet import Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire

from headway import config
from headway.core.errors import SettingError
from headway.core.routing.length import PRIOR_BYTES_PER_TOKEN

LONG = "all work and no play " * 400


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


@pytest.mark.parametrize("kv_capacity_tokens", [None, 10_000, 1_000_000])
def test_a_cold_prompt_leaves_a_warm_session_s_engine_alone(kv_capacity_tokens):
    async def main():
        async with Fleet(engines=2) as fleet:
            for pool in fleet.service.pools:
                pool.kv_capacity_tokens = kv_capacity_tokens
            for stub in fleet.both:
                stub.prompt_tokens = len(LONG) // 4
            await fleet.ask(body_of(text=LONG))
            (warm,) = [stub for stub in fleet.both if stub.seen]
            for _ in range(3):
                await fleet.ask(body_of(text=LONG))
            assert len(warm.seen) == 4
            await fleet.ask(body_of(text=f"another beginning {LONG}"))
            assert len(warm.seen) == 4

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


def opened(stub):
    """What waits at its gate goes on."""
    gate, stub.gate = stub.gate, None
    gate.release()


def test_a_request_beyond_the_ceiling_is_told_when_to_come_back():
    async def main():
        async with Fleet(engines=1, router={"max_concurrent": 1}) as fleet:
            (stub,) = fleet.both
            stub.gate = asyncio.Semaphore(0)
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: stub.seen)
            refused = await fleet.ask()
            assert refused.status == 429
            assert int(refused.field(b"retry-after")) >= 1
            opened(stub)
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
        gate = asyncio.Semaphore(0)
        async with Fleet(engines=2) as fleet:
            for stub in fleet.both:
                stub.gate = gate
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: any(stub.seen for stub in fleet.both))
            (busy,) = [stub for stub in fleet.both if stub.seen]
            fleet.reload(fleet.config(without=[busy]))
            opened(busy)
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
