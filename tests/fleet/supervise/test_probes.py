"""What tells a hung engine from a busy and from an idle one."""

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.fleet.net.http_async import exchange
from headway.fleet.supervise import probes
from headway.fleet.supervise.probes import EngineProbe, Look, WorkProgress


def test_an_engine_with_work_that_does_not_move_hangs():
    progress = WorkProgress(60)
    for now_s in range(0, 60, 5):
        assert progress.observe(Look(200, 3, (1.0,)), now_s) is None
    assert progress.observe(Look(200, 3, (1.0,)), 60) == (
        "hung: 3 requests and no progress for 60 s"
    )


@given(st.lists(st.sampled_from(["moves", "idle"]), min_size=1, max_size=200))
def test_one_that_moves_or_has_nothing_to_do_never_hangs(looks):
    progress = WorkProgress(60)
    moved = 0.0
    for count, look in enumerate(looks):
        moved += look == "moves"
        work = 5 if look == "moves" else 0
        assert progress.observe(Look(200, work, (moved,)), count * 59.0) is None
        assert not progress.doubtful


def test_a_prompt_longer_than_the_limit_moves_the_kv_cache_and_so_does_not_hang():
    progress = WorkProgress(60)
    for step in range(100):
        assert progress.observe(Look(200, 1, (0.0, step / 100)), step * 5.0) is None


def test_work_that_begins_after_idle_hours_has_the_whole_time():
    progress = WorkProgress(60)
    progress.observe(Look(200, 0, (1.0,)), 0)
    progress.observe(Look(200, 0, (1.0,)), 9000)
    assert progress.observe(Look(200, 1, (1.0,)), 9005) is None
    assert progress.observe(Look(200, 1, (1.0,)), 9059) is None
    assert progress.observe(Look(200, 1, (1.0,)), 9060) is not None


def test_health_that_is_not_answered_is_a_hang_and_missing_metrics_are_not():
    progress = WorkProgress(60)
    assert progress.observe(Look(200), 0) is None
    assert progress.observe(Look(200), 1000) is None
    assert progress.observe(Look(None), 1030) is None
    assert progress.observe(Look(None), 1060) == "hung: /health hasn't answered for 60 s"


SILENT = Look(None, routed=1, patience_s=120.0)
STILL = Look(200, 1, (1.0,), 1, 120.0)
UNKNOWN = Look(200, 0, (1.0,), 1, 120.0)


@pytest.mark.parametrize("look", [SILENT, STILL, UNKNOWN], ids=["silent", "still", "unknown"])
def test_one_that_may_be_computing_a_request_has_as_long_as_the_request(look):
    """A first compilation, or a huge prompt in one step: 75 s without a sign, and 60 allowed."""
    progress = WorkProgress(60)
    progress.observe(Look(200, 1, (1.0,), 1, 120.0), 0)
    for now_s in range(5, 120, 5):
        assert progress.observe(look, now_s) is None
        assert not progress.doubtful
    assert progress.observe(look, 120) or progress.doubtful


@pytest.mark.parametrize("look", [SILENT, STILL], ids=["silent", "still"])
def test_one_whose_requests_have_been_given_up_has_no_more_time(look):
    progress = WorkProgress(60)
    progress.observe(Look(200, 1, (1.0,), 1, 120.0), 0)
    assert progress.observe(look, 75) is None
    given_up = dataclasses.replace(look, routed=0, patience_s=0.0)
    assert progress.observe(given_up, 80).startswith("hung: ")


def test_requests_that_only_the_router_knows_of_raise_a_doubt():
    progress = WorkProgress(60)
    progress.observe(Look(200, 0, (1.0,), 0), 0)
    assert progress.observe(Look(200, 0, (1.0,), 2), 59) is None
    assert not progress.doubtful
    assert progress.observe(Look(200, 0, (1.0,), 2), 61) is None
    assert progress.doubtful
    progress.observe(Look(200, 0, (2.0,), 2), 62)
    assert not progress.doubtful


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """What answers has the time it takes."""
    monkeypatch.setattr(probes, "_QUICK_S", 60.0)
    monkeypatch.setattr(probes, "_LOOK_TIMEOUT_S", 60.0)


class Vllm:
    """Answers as it is told. computes: whether a completion is answered. at_metrics: called when
    they are asked for.
    """

    def __init__(self):
        self.at_metrics = lambda: None
        self.health = 200
        self.metrics = b"vllm:num_requests_running 0.0\nvllm:generation_tokens_total 1.0\n"
        self.computes = True
        self.asked = []

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.asked.append(path)
        body = b""
        if path == "/metrics":
            self.at_metrics()
            body = self.metrics
        elif path == "/v1/models":
            body = json.dumps({"data": [{"id": "m"}]}).encode()
        elif path == "/v1/completions" and not self.computes:
            await reader.read()
            return
        status = self.health if path == "/health" else 200
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()


def with_engine(test, routed=lambda: (0, 0.0), hang_s=0.3):
    async def run():
        vllm = Vllm()
        server = await asyncio.start_server(vllm.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        vllm.url = url
        async with server:
            await test(vllm, EngineProbe(url, hang_s, routed))

    asyncio.run(run())


def test_a_dead_engine_core_is_trouble_at_once():
    async def test(vllm, probe):
        assert await probe.ready()
        assert not await probe.dead()
        vllm.health = 503
        assert await probe.dead()
        assert await probe.trouble(0.0) == ""

    with_engine(test)


FAULTS = b"""# TYPE headway:fallback_steps_total counter
headway:fallback_steps_total{pid="7"} 2.0
headway:fallback_steps_total{pid="8"} 1.0
headway:stands_aside 0.0
"""


def test_what_is_to_be_said_of_an_engine_that_runs_is_noted_at_each_look():
    notes = []

    async def test(vllm, _):
        probe = EngineProbe(vllm.url, 1.0, lambda: (0, 0.0), notes.append)
        assert notes == [""]
        vllm.metrics = FAULTS
        assert await probe.trouble(0.0) is None
        assert notes[-1].startswith("headway's scheduler failed: 3 steps were left to vLLM")
        vllm.metrics = FAULTS.replace(b"aside 0", b"aside 1")
        assert await probe.trouble(0.1) is None
        assert "stands aside until a restart" in notes[-1]
        vllm.metrics = b"headway:fallback_steps_total 0.0"
        assert await probe.trouble(0.2) is None
        assert notes[-1] == ""

    with_engine(test)


@pytest.mark.parametrize("computes", [True, False])
def test_a_doubt_is_settled_by_a_request_for_one_token(computes):
    """A client slow to take its answer, or an engine core that hung while idle."""

    hang_s = 60.0 if computes else 0.3

    async def test(vllm, probe):
        vllm.computes = computes
        assert await probe.trouble(0.0) is None
        assert await probe.trouble(0.7 * hang_s) is None
        assert "/v1/completions" not in vllm.asked
        why = await probe.trouble(1.4 * hang_s)
        assert "/v1/completions" in vllm.asked
        assert why is None if computes else "one token" in why

    with_engine(test, lambda: (1, 0.0), hang_s)


def test_a_request_that_ends_while_the_engine_is_asked_had_its_time_until_then():
    """The engine was over it when it told of itself; the router has its answer a moment later."""
    waiting = [1, 600.0]

    def end():
        waiting[:] = 0, 0.0

    async def test(vllm, probe):
        vllm.metrics = b"vllm:num_requests_running 1.0\nvllm:generation_tokens_total 1.0\n"
        assert await probe.trouble(0.0) is None
        vllm.at_metrics = end
        assert await probe.trouble(300.0) is None
        assert "no progress" in await probe.trouble(301.0)

    with_engine(test, lambda: tuple(waiting), 60.0)


def test_nobody_there_is_not_ready_and_dead():
    async def run():
        probe = EngineProbe("http://127.0.0.1:1", 1.0, lambda: (0, 0.0))
        assert not await probe.ready()
        assert await probe.dead()
        assert await probe.trouble(0.0) is None
        assert "hasn't answered" in await probe.trouble(1.0)

    asyncio.run(run())


ANSWERS = {
    "counted": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", True, b"body"),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
        True,
        b"body",
    ),
    "until the end": (b"HTTP/1.0 200 OK\r\n\r\nbody", False, b"body"),
    "broken off": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody", False, None),
    "broken off in a chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nbo",
        False,
        None,
    ),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", True, None),
    "silent": (b"", True, None),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_exchange_gives_the_whole_answer_or_none_and_never_waits_longer(kind):
    """`stays`: the server keeps the connection open."""
    sent, stays, body = ANSWERS[kind]
    limit_s = 0.5 if kind == "silent" else 600.0

    async def run():
        over = asyncio.Event()

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for place in range(len(sent)):
                writer.write(sent[place : place + 1])
                await writer.drain()
            if stays:
                await over.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x?y=1"
        async with asyncio.timeout(60):
            reply = await exchange("GET", url, limit_s)
        assert (reply.body if reply else None) == body
        over.set()
        server.close()

    asyncio.run(run())
