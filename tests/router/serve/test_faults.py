"""Engines that fail, at every point of either leg: what the client gets, and what is left."""

import asyncio
import json

import pytest
from tests.router.fleet import PATHS, QUICK, Fleet, body_of, run
from tests.testing.answers import TOKENS, events_of
from tests.testing.scenarios import (
    BROKEN,
    CUT,
    EMPTY,
    FAULTS,
    FIRST_EVENTS,
    HEADED,
    PARAMS,
    REFUSALS,
    SAYS_SO,
    SILENT,
    STREAMED_ERROR,
)

BREAK_OFF = (*BROKEN, *CUT)
"""Of a stream, after its first event."""
TEXT = "".join(f"t{i}" for i in range(TOKENS))
STREAM = b"".join(events_of("/v1/chat/completions"))


def error_of(answer):
    return json.loads(answer.body)["error"]


def assert_good(answer, *, stream):
    assert answer.status == 200
    assert answer.complete
    if stream:
        assert answer.body == STREAM
    else:
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == TEXT
    assert b"kv_transfer_params" not in answer.body or b"null" in answer.body
    assert b"secret" not in answer.body


def assert_truth(answer, fault, *, stream):
    """The client's answer where only the engine with this fault could have served it."""
    if fault in REFUSALS or fault in FIRST_EVENTS:
        status = REFUSALS.get(fault, 500)
        assert answer.status == status
        assert error_of(answer)["message"] == f"the stub says {status}"
        assert (answer.field(b"retry-after") == b"7") == (fault in {"429", "503"})
    elif fault in BREAK_OFF and stream:
        assert answer.status == 200
        assert answer.complete, "an answer that broke off ends in order, with the error in it"
        assert b"[DONE]" not in answer.body
        assert b'finish_reason": "stop' not in answer.body
        last = answer.body.rstrip().split(b"\n\n")[-1]
        assert "error" in json.loads(last.removeprefix(b"data: "))
    elif fault == "half json" and stream:
        assert answer.status == 200
    else:
        assert answer.status == (504 if fault.startswith("hang") else 502)
        assert error_of(answer)["message"]


def fleet_for(fault, **engines):
    return Fleet(**engines, router=QUICK if fault.startswith("hang") else {})


async def set_fault(stub, fault):
    if fault == "refuse":
        await stub.stop()
    else:
        stub.fault = fault


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lone_engine_fails_and_the_client_hears_the_truth(fault, stream):
    async def main():
        async with fleet_for(fault, engines=1) as fleet:
            await set_fault(fleet.both[0], fault)
            answer = await fleet.ask(body_of(stream=stream))
            assert_truth(answer, fault, stream=stream)
            assert fleet.count("requests", status=str(answer.status)) == 1
            assert fleet.count("slo") == 1
            assert fleet.count("truncated") == (stream and fault in BREAK_OFF)

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_another_engine_serves_what_one_failed_before_the_first_byte(fault, stream):
    async def main():
        async with fleet_for(fault, engines=2) as fleet:
            first, second = fleet.both
            await set_fault(first, fault)
            fleet.engine(second).health.breaker.weight = lambda now_s: (
                0.01
            )  # the first is asked first
            answer = await fleet.ask(body_of(stream=stream))
            judged = fault in {"400", "429"}
            begun = stream and (fault in BREAK_OFF or fault == "half json")
            late = not stream and fault.startswith("hang before")
            if judged or begun or late:
                assert_truth(answer, fault, stream=stream)
                assert fleet.count("retries") == 0
                assert not second.seen
            elif answer.status == 504:
                assert not stream
                assert fault.startswith("hang")
            else:
                assert_good(answer, stream=stream)
                assert fleet.count("retries") == 1
                assert len(second.seen) == 1

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", [*FAULTS, *PARAMS])
def test_a_prefill_engine_fails_and_decode_engines_serve_the_request_whole(fault, stream):
    async def main():
        async with fleet_for(fault, prefill=1, decode=1) as fleet:
            await set_fault(fleet.prefill[0], fault)
            answer = await fleet.ask(body_of(stream=stream))
            counts = fleet.handoffs()
            legs = [seen.leg for seen in fleet.decode[0].seen]
            assert counts["used"] == 0
            if fault in {"400", "429"}:
                assert_truth(answer, fault, stream=stream)
                assert not legs
                assert counts["failed"] == 1
                return
            assert_good(answer, stream=stream)
            assert legs == ["whole"], "what was computed badly is computed again, by the decoder"
            assert counts["fallback"] == 1
            route = answer.field(b"x-headway-route").decode()
            why = {
                "no params": "no handoff",
                "null params": "no handoff",
                "mistyped params": "bad handoff",
                "params without blocks": "bad handoff",
                "wrong flag": "bad handoff",
            }.get(fault, "prefill failed")
            assert f'reason="{why}"' in route
            assert fleet.count("routes", reason=why) == 1
            unsure = fault in {*HEADED, *BROKEN, *EMPTY, *CUT, *PARAMS[2:], "half json"}
            assert counts["stranded"] == unsure

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_decode_engine_fails_and_the_handoff_is_accounted_for(fault, stream):
    async def main():
        async with fleet_for(fault, prefill=1, decode=1) as fleet:
            decode = fleet.decode[0]
            await set_fault(decode, fault)
            answer = await fleet.ask(body_of(stream=stream))
            assert_truth(answer, fault, stream=stream)
            await fleet.settled()
            counts = fleet.handoffs()
            if fault in REFUSALS or fault in FIRST_EVENTS:
                assert counts["released"] >= 1
                assert counts["stranded"] == 0
                assert decode.releases == 1
                assert fleet.oracle.left == []
            if fault.startswith("hang") and stream:
                cut = [seen for seen in decode.seen if seen.end == "cut"]
                assert cut, "the engine must be told to stop"

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", ["refuse", "503", "500", *FIRST_EVENTS, *SILENT, *HEADED, *EMPTY])
def test_another_decode_engine_takes_over_with_a_handoff_that_nobody_had(fault, stream):
    async def main():
        async with fleet_for(fault, prefill=1, decode=2) as fleet:
            first, second = fleet.decode
            await set_fault(first, fault)
            fleet.engine(second).health.breaker.weight = lambda now_s: 0.01
            answer = await fleet.ask(body_of(stream=stream))
            await fleet.settled()
            counts = fleet.handoffs()
            if answer.status == 504:
                assert not stream
                assert fault.startswith("hang")
                return
            assert_good(answer, stream=stream)
            assert [seen.leg for seen in second.seen] == ["decode"]
            assert counts["used"] == 1
            if fault == "refuse":
                assert counts["started"] == 1, "nothing had left the router"
            else:
                assert counts["started"] == 2, "a handoff is never tried again"

    run(main)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_every_endpoint_is_served_in_two_legs_and_tells_no_handoff(path, stream):
    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            sent = {"do_remote_prefill": True, "remote_host": "evil"}
            fields = body_of(path, stream=stream, kv_transfer_params=sent, unknown=[1])
            answer = await fleet.ask(fields, path, "authorization: Bearer client")
            assert answer.status == 200
            assert b"secret" not in answer.body
            assert b"remote" not in answer.body
            (prefill,), (decode,) = fleet.prefill[0].seen, fleet.decode[0].seen
            assert (prefill.leg, decode.leg) == ("prefill", "decode")
            assert decode.fields["unknown"] == [1]
            assert b"evil" not in prefill.raw + decode.raw
            ids = {prefill.headers["x-request-id"], decode.headers["x-request-id"]}
            assert len(ids) == 2
            assert not {"authorization"} & (prefill.headers.keys() | decode.headers.keys())
            assert fleet.handoffs()["used"] == 1

    run(main)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_breaks_off_ends_in_the_error_form_of_its_api(path):
    async def main():
        async with Fleet(engines=1) as fleet:
            fleet.both[0].fault = "die mid-event"
            answer = await fleet.ask(body_of(path, stream=True), path)
            last = answer.body.rstrip().split(b"\n\n")[-1]
            assert b'"error"' in last
            named = path in {"/v1/messages", "/v1/responses"}
            assert last.startswith(b"event: error" if named else b"data: ")
            for end in (b"[DONE]", b"message_stop", b"response.completed"):
                assert end not in answer.body

    run(main)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("path", PATHS)
def test_an_engine_that_says_itself_that_it_failed_is_not_told_again(path, split):
    """And its answer counts as broken off, though it ends in order."""

    async def main():
        async with Fleet(**({"prefill": 1, "decode": 1} if split else {"engines": 1})) as fleet:
            fleet.stubs[-1].fault = SAYS_SO
            answer = await fleet.ask(body_of(path, stream=True), path)
            assert answer.complete
            assert answer.body.count(b"the stub failed") == 1
            assert answer.body.count(b"error") == STREAMED_ERROR[path].count(b"error")
            assert fleet.count("truncated") == 1
            assert fleet.count("slo", met="false") == 1

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_happens_after_the_end_of_a_stream_is_no_part_of_it(stream):
    async def main():
        async with Fleet(engines=1) as fleet:
            fleet.both[0].fault = "die after the end"
            answer = await fleet.ask(body_of(stream=stream))
            assert_good(answer, stream=stream)
            assert fleet.count("truncated") == 0

    run(main)


def test_a_stream_that_was_asked_for_may_be_answered_whole():
    async def main():
        async with Fleet(engines=1) as fleet:
            fleet.both[0].fault = "not streamed"
            answer = await fleet.ask(body_of(stream=True))
            assert_good(answer, stream=False)
            assert answer.field(b"content-type") == b"application/json"

    run(main)


def test_a_handoff_that_waited_too_long_is_dropped_and_not_tried():
    async def main():
        async with Fleet(prefill=1, decode=1, lease_s=1.0) as fleet:
            upstream = fleet.engine(fleet.decode[0]).upstream
            connect = upstream._connect

            async def slow(*given):
                fleet.skip(0.8)
                return await connect(*given)

            upstream._connect = slow
            upstream.discard_idle()
            answer = await fleet.ask(body_of(stream=True))
            assert_good(answer, stream=True)
            assert [seen.leg for seen in fleet.decode[0].seen] == ["whole"]
            counts = fleet.handoffs()
            assert counts["expired"] == 1
            assert counts["used"] == 0
            assert 'reason="handoff too old"' in answer.field(b"x-headway-route").decode()

    run(main)


def test_a_decode_engine_that_left_the_configuration_doesnt_cost_the_handoff():
    async def main():
        async with Fleet(prefill=1, decode=2) as fleet:
            first, second = fleet.decode
            fleet.prefill[0].gate = asyncio.Semaphore(0)
            fleet.engine(second).health.breaker.weight = lambda now_s: 0.01
            asked = asyncio.create_task(fleet.ask(body_of(stream=True)))
            await fleet.until(lambda: fleet.prefill[0].seen)
            fleet.reload(fleet.config(without=[first]))
            fleet.prefill[0].gate.release()
            assert_good(await asked, stream=True)
            assert [seen.leg for seen in second.seen] == ["decode"]
            assert fleet.handoffs()["used"] == 1

    run(main)


def test_decode_refuses_and_the_prompt_too_long_is_the_answer():
    async def main():
        async with Fleet(prefill=1, decode=1) as fleet:
            fleet.decode[0].script.append("too long")
            answer = await fleet.ask()
            assert answer.status == 400
            assert "maximum context length" in error_of(answer)["message"]

    run(main)


def test_a_judgement_of_the_request_counts_more_than_an_engines_death():
    async def main():
        async with Fleet(engines=2) as fleet:
            first, second = fleet.both
            first.fault, second.fault = "die before head", "400"
            fleet.engine(second).health.breaker.weight = lambda now_s: 0.01
            answer = await fleet.ask()
            assert_truth(answer, "400", stream=False)

    run(main)
