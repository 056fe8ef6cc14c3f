"""The processes in which large bodies are read: the same answers, and none of their ends hurts."""

import asyncio
import json
import os
import signal
import sys

import pytest
from tests.router.asking import FREELY
from tests.router.rules import on_loop, until

from headway.bench.router.shapes import CHAT, bodies
from headway.router.openai import BodyError, parse, prefill_body
from headway.router.openai.answers import AnswerError
from headway.router.openai.beside import LANE_BYTES, BodyReader, BodyUnreadable
from headway.router.openai.jobs import LIGHT_BYTES, is_light
from headway.router.wire.pieces import Pieces, gathered, joined

HEAVY = json.dumps({"prompt": [1] * 20_000}).encode()
READY = "import os, socket; link = socket.socket(fileno=0); link.sendall(b'+'); "
DIES = (sys.executable, "-c", READY + "link.recv(1)")
NEVER = (sys.executable, "-c", "")
HANGS = (sys.executable, "-c", READY + "\nwhile link.recv(65536): pass")


def pieces(body):
    return gathered([body[start : start + 100_000] for start in range(0, len(body), 100_000)])


async def passed(reader, body):
    return (await reader.passed(body, FREELY))[0]


def process(reader, lane=0):
    return reader._lanes[lane]._process


@pytest.fixture
def reader():
    made = BodyReader(pytest.fail)
    yield made
    made.stop()
    assert process(made) is process(made, 1) is None


@pytest.mark.process
@on_loop
async def test_it_says_the_same(reader):
    for name, path, body in bodies(600_000):
        sent = pieces(body)
        if name == "deep":
            with pytest.raises(BodyError, match="ordinary numbers and nesting"):
                await reader.request(path, sent, FREELY, splits=True)
            continue
        known = parse(path, body, FREELY)
        found = await reader.request(path, sent, FREELY, splits=True)
        assert found.body is sent, name
        if known.splittable:
            assert joined(prefill_body(found)) == prefill_body(known)
        assert found.prompt_bytes == known.prompt_bytes
    assert process(reader, 1) is None, "all of them are small enough for the first"


@pytest.mark.process
@on_loop
async def test_each_job_comes_back(reader):
    marked = b'{"kv_transfer_params": {"a": 1}, "usage": {"prompt_tokens": 7}, "x": [%b]}'
    heavy = marked % b",".join([b"1"] * 200_000)
    params, tokens, whole = await reader.prefill_answer(pieces(heavy))
    assert (params, tokens, whole) == ({"a": 1}, 7, True)
    for clean in (
        await reader.clean_answer(pieces(heavy), cached_tokens=None),
        await passed(reader, pieces(heavy)),
    ):
        assert isinstance(clean, Pieces)
        assert json.loads(joined(clean)).keys() == {"usage", "x"}
    plain = pieces(heavy.replace(b"kv_transfer_params", b"x"))
    assert await passed(reader, plain) is plain
    assert await reader.clean_answer(plain, cached_tokens=None) is plain
    assert await reader.is_whole(plain, framed=False)
    assert not await reader.is_whole(pieces(heavy[:-1]), framed=False)
    with pytest.raises(AnswerError):
        await reader.clean_answer(pieces(heavy[:-1]), cached_tokens=None)
    with pytest.raises(BodyError) as refused:
        await passed(reader, pieces(heavy[:-1]))
    assert refused.value.code == "invalid_json"


@on_loop
async def test_a_light_body_needs_no_process(reader):
    body = b'{"prompt": "%b"}' % (b"x" * 100_000)
    assert is_light(body)
    assert (await reader.request("/v1/completions", body, FREELY, splits=True)).body is body
    assert await passed(reader, body) is body
    assert await reader.is_whole(pieces(HEAVY * 9), framed=True)


@pytest.mark.process
@on_loop
async def test_the_end_of_its_process_is_harmless(reader):
    """At rest or in the middle of a job: another does the job."""
    first = await reader.request("/v1/completions", HEAVY, FREELY, splits=False)
    before = process(reader)
    os.kill(before.pid, signal.SIGKILL)
    before.wait()
    assert await reader.request("/v1/completions", HEAVY, FREELY, splits=False) == first
    stopped = process(reader)
    os.kill(stopped.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(reader.request("/v1/completions", HEAVY, FREELY, splits=False))
    await asyncio.sleep(0)
    os.kill(stopped.pid, signal.SIGKILL)
    assert await waiting == first
    assert process(reader).pid not in {before.pid, stopped.pid}


@pytest.mark.process
@on_loop
async def test_it_ends_with_the_router(reader):
    """Also where the router couldn't end it: all it takes is that nobody holds the socket."""
    await reader.request("/v1/completions", HEAVY, FREELY, splits=False)
    reader._lanes[0]._link[1].transport.abort()
    assert await asyncio.to_thread(process(reader).wait, 60) == 0


@pytest.mark.process
@on_loop
async def test_a_body_that_ends_two_processes_is_refused():
    reader = BodyReader(pytest.fail, DIES)
    with pytest.raises(BodyUnreadable) as refused:
        await reader.request("/v1/completions", HEAVY, FREELY, splits=False)
    assert refused.value.status == 503
    assert process(reader) is None
    light = HEAVY[:LIGHT_BYTES]
    assert await passed(reader, light) is light


@pytest.mark.process
@pytest.mark.parametrize("command", [NEVER, ("/nonexistent/python",)], ids=["ends", "none"])
@on_loop
async def test_where_no_process_can_start_bodies_are_read_all_the_same(command):
    said = []
    reader = BodyReader(said.append, command)
    for _ in range(2):
        parsed = await reader.request("/v1/completions", HEAVY, FREELY, splits=False)
        assert parsed.prompt_token_ids == 20_000
    assert len(said) == 1
    assert "no process can start" in said[0]


@pytest.mark.process
@on_loop
async def test_a_caller_that_is_cancelled_ends_the_job():
    reader = BodyReader(pytest.fail, HANGS)
    jobs = [
        asyncio.create_task(reader.request("/v1/completions", HEAVY, FREELY, splits=False))
        for _ in range(2)
    ]
    await until(lambda: reader._lanes[0]._link is not None)
    first = process(reader)
    jobs[0].cancel()
    await asyncio.wait(jobs[:1])
    assert first.returncode == -signal.SIGKILL
    await until(lambda: process(reader) not in {None, first})  # the next has its turn
    jobs[1].cancel()
    await asyncio.wait(jobs)
    assert process(reader) is None


@pytest.mark.process
@on_loop
async def test_the_largest_bodies_do_not_hold_up_the_others():
    """Two lanes: one that is stuck with a huge body doesn't keep a large one waiting."""
    reader = BodyReader(pytest.fail)
    huge = pieces(b'{"prompt": "%b"}' % (b"x" * LANE_BYTES))
    await reader.request("/v1/completions", huge, FREELY, splits=False)
    os.kill(process(reader, 1).pid, signal.SIGSTOP)
    waiting = asyncio.create_task(reader.request("/v1/completions", huge, FREELY, splits=False))
    parsed = await reader.request("/v1/completions", HEAVY, FREELY, splits=False)
    assert parsed.prompt_token_ids == 20_000
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    reader.stop()


@pytest.mark.process
@on_loop
async def test_a_model_of_megabytes_is_not_kept():
    reader = BodyReader(pytest.fail)
    body = json.dumps({"model": "m" * 3_000_000, "messages": []}).encode()
    parsed = await reader.request(CHAT, pieces(body), FREELY, splits=False)
    assert len(parsed.model) < 2_000
    assert len(parsed.prefix) < 300_000
    reader.stop()
