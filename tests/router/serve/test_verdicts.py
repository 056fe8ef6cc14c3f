"""Every request that comes in ends in one verdict, and in the right one, however it ends."""

import asyncio
import json

import pytest
from tests.router.fleet import PATHS, QUICK, Fleet, body_of, run, wire_bytes
from tests.router.raw_client import Wire

from headway.core.slo import Verdict

CHAT = "/v1/chat/completions"
NEVER_LATE = {"slo": {"ttft_s": 600.0, "tpot_s": 600.0}}
LATE_FIRST = {"slo": {"ttft_s": 1e-9, "ttft_factor": 1e-9, "tpot_s": 600.0}}
SLOW = {"slo": {"ttft_s": 600.0, "tpot_s": 1e-9}}
NO_TIME = {"slo": {"ttft_s": 1e-9, "ttft_factor": 1e-9, "tpot_s": 1e-9}}
OF_FAULT = {
    "refuse": Verdict.ERROR,
    "400": Verdict.CLIENT_ERROR,
    "429": Verdict.REFUSED,
    "503": Verdict.REFUSED,
    "500": Verdict.ERROR,
    "500 in the first event": Verdict.ERROR,
    "die before head": Verdict.ERROR,
    "die after head": Verdict.ERROR,
    "hang before head": Verdict.ERROR,
    "die mid-event": Verdict.TRUNCATED,
    "hang mid-stream": Verdict.TRUNCATED,
}


def check(fleet, verdict, times=1):
    assert fleet.verdicts() == {verdict: times}
    met = {True: "true", False: "false", None: "none"}[verdict.met]
    assert fleet.count("slo", met=met) == times
    logged = [json.loads(line) for line in fleet.logged]
    assert [line["verdict"] for line in logged] == [verdict] * times


@pytest.mark.parametrize(
    ("limits", "stream", "verdict"),
    [
        (NEVER_LATE, True, Verdict.MET),
        (NEVER_LATE, False, Verdict.MET),
        (LATE_FIRST, True, Verdict.TTFT),
        (LATE_FIRST, False, Verdict.MET),
        (SLOW, True, Verdict.TPOT),
        (SLOW, False, Verdict.MET),
        (NO_TIME, True, Verdict.TTFT),
        (NO_TIME, False, Verdict.TOTAL),
    ],
)
@pytest.mark.parametrize("engines", [{"engines": 1}, {"prefill": 1, "decode": 1}])
@pytest.mark.parametrize("path", PATHS)
def test_whole_answers_are_judged_by_their_time(path, engines, limits, stream, verdict):
    async def main():
        async with Fleet(**engines, router=limits) as fleet:
            for stub in fleet.stubs:
                stub.gap_s = 0.001
            answer = await fleet.ask(body_of(path, stream=stream), path)
            assert answer.status == 200
            await fleet.settled()
            check(fleet, verdict)

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_clients_own_limits_count(stream):
    async def main():
        tight = {"clients": {"*": {"ttft_slo_s": [1e-9, 1], "tpot_slo_s": [1e-9, 1]}}}
        async with Fleet(engines=1, router=NEVER_LATE | tight) as fleet:
            own = {"headway_ttft_slo_s": 1e-9, "headway_tpot_slo_s": 1e-9}
            await fleet.ask(body_of(stream=stream, vllm_xargs=own))
            await fleet.settled()
            check(fleet, Verdict.TTFT if stream else Verdict.TOTAL)

    run(main)


@pytest.mark.parametrize("fault", OF_FAULT)
@pytest.mark.parametrize("engines", [{"engines": 1}, {"prefill": 1, "decode": 1}])
def test_engines_that_fail(fault, engines):
    async def main():
        quick = QUICK if fault.startswith("hang") else {}
        async with Fleet(**engines, router={**NEVER_LATE, **quick}) as fleet:
            for stub in (*fleet.both, *fleet.decode):
                if fault == "refuse":
                    await stub.stop()
                else:
                    stub.fault = fault
            await fleet.ask(body_of(stream=True))
            await fleet.settled()
            check(fleet, OF_FAULT[fault])

    run(main)


AT_THE_DOOR = {
    "no JSON": (wire_bytes(b"{"), 400, Verdict.CLIENT_ERROR),
    "no prompt": (wire_bytes({"model": "m"}), 400, Verdict.CLIENT_ERROR),
    "too large": (wire_bytes(b" " * 2048), 413, Verdict.CLIENT_ERROR),
    "malformed": (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
        Verdict.CLIENT_ERROR,
    ),
    "no such path": (b"GET /nope HTTP/1.1\r\nhost: x\r\n\r\n", 404, Verdict.NO_LIMITS),
    "models": (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 200, Verdict.NO_LIMITS),
    "passed on": (wire_bytes({"input": "x"}, "/v1/embeddings"), 404, Verdict.NO_LIMITS),
    "passed on, too large": (wire_bytes(b" " * 2048, "/v1/embeddings"), 413, Verdict.NO_LIMITS),
}


@pytest.mark.parametrize("case", AT_THE_DOOR)
def test_requests_that_come_to_no_generation(case):
    sent, status, verdict = AT_THE_DOOR[case]

    async def main():
        async with Fleet(engines=1, router={"max_body_bytes": 1024}) as fleet:
            wire = await Wire.open(fleet.server.port)
            wire.send(sent)
            answer = await wire.answer()
            wire.close()
            if case != "passed on":  # whatever the stub thinks of it
                assert answer.status == status
            await fleet.settled()
            check(fleet, verdict)

    run(main)


def test_without_a_key_and_an_engine_that_doesnt_take_the_routers():
    async def main():
        keys = {"keys": {"hashes": ["a:" + "0" * 64]}}
        async with Fleet(engines=1, router=keys) as fleet:
            assert (await fleet.ask()).status == 401
            await fleet.settled()
            check(fleet, Verdict.CLIENT_ERROR)

    run(main)


def test_beyond_the_ceiling_and_without_an_engine():
    async def main():
        async with Fleet(engines=1, router={"max_concurrent": 1, **NEVER_LATE}) as fleet:
            (stub,) = fleet.both
            stub.fault = "hang before head"
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of()))
            await fleet.until(lambda: stub.seen)
            assert (await fleet.ask()).status == 429
            wire.reset()
            await fleet.until(lambda: not fleet.unsettled())
            stub.fault = ""
            fleet.engine(stub).health.draining = True
            assert (await fleet.ask()).status == 503
            await fleet.settled()
            assert fleet.verdicts() == {"refused": 2, "client left": 1}
            assert fleet.count("slo", met="false") == 2

    run(main)


@pytest.mark.parametrize("moment", ["routing", "answering"])
def test_the_routers_own_fault_is_an_error(moment):
    async def main():
        async with Fleet(engines=1, router=NEVER_LATE) as fleet:

            def fails(*_given):
                raise RuntimeError("a fault")

            if moment == "routing":
                fleet.service.route = fails
            else:
                fleet.service.lengths.observe = fails
            await fleet.ask(body_of(stream=True))
            await fleet.settled()
            # Once the answer is complete the client has it.
            check(fleet, Verdict.ERROR if moment == "routing" else Verdict.MET)

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_when_a_token_was_due_counts_as_missed(stream):
    async def main():
        async with Fleet(engines=1, router=NO_TIME) as fleet:
            (stub,) = fleet.both
            stub.fault = "hang before head"
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of(stream=stream)))
            await fleet.until(lambda: stub.seen)
            wire.reset()
            await fleet.settled()
            check(fleet, Verdict.LEFT_WAITING)

    run(main)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [(NEVER_LATE, "client left"), (LATE_FIRST, "ttft"), (SLOW, "tpot")],
)
def test_who_leaves_in_the_stream_is_judged_by_what_was_due(limits, verdict):
    async def main():
        async with Fleet(engines=1, router=limits) as fleet:
            (stub,) = fleet.both
            stub.gap_s = 60.0
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of(stream=True)))
            await wire.until(b"t0")
            wire.reset()
            await fleet.settled()
            check(fleet, Verdict(verdict))

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_router_that_is_stopped_owes_the_answer(stream):
    async def main():
        async with Fleet(engines=1, router=NEVER_LATE) as fleet:
            (stub,) = fleet.both
            stub.gap_s = 60.0
            wire = await Wire.open(fleet.server.port)
            wire.send(wire_bytes(body_of(stream=stream)))
            if stream:
                await wire.until(b"t0")
            await fleet.until(lambda: stub.seen)
            await fleet.server.close(0.0)
            await fleet.until(lambda: fleet.logged)
            check(fleet, Verdict.TRUNCATED if stream else Verdict.ERROR)
            wire.close()
            await asyncio.sleep(0)

    run(main)
