"""What clients may ask for, by key and path, over sockets: what engines and clients are told."""

import asyncio
import contextlib
import json

import pytest
from tests.router.rules import engines, flags, on_loop, routing, until
from tests.testing.vllm_answers import CHOICES, body_for

from headway import config as settings
from headway.router.openai.jobs import LIGHT_BYTES

CHAT = "/v1/chat/completions"
KEYS = {name: f"sk-{name}-0123456789abcdefghij" for name in ("alice", "batch", "bob")}
ROUTER = {
    "keys": {"hashes": [f"{name}:{settings.hash_key(key)}" for name, key in KEYS.items()]},
    "clients": {
        "*": {"priority": [0, 10], "ttft_slo_s": [0.5, 30]},
        "alice": {"priority": [-5, 10], "ttft_slo_s": [0.1, 30], "tpot_slo_s": [0.01, 1]},
        "batch": {"priority": [5, 10], "default_priority": 7, "beyond": "refuse"},
    },
}
TIGHT = {"headway_ttft_slo_s": 0.001, "headway_tpot_slo_s": 0.001}
PASSED = {
    "/v1/embeddings": {"input": "x"},
    "/pooling": {"input": "x"},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "x"}]]},
    "/invocations": {"input": "x"},
}


class Asking:
    """A router with these clients, and what its engine saw of each request."""

    def __init__(self, router, client, stubs):
        self.router = router
        self.stubs = stubs
        self._client = client

    async def ask(self, path, body, key=None, **fields):
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        if key:
            fields["authorization"] = f"Bearer {KEYS[key]}"
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields.setdefault("content-type", "application/json")
        got = await self._client.post(path, content=content, headers=fields)
        return got, [seen for stub in self.stubs for seen in stub.seen if seen.method == "POST"]

    def beyond(self, client, kind, done):
        labels = {"client": client, "kind": kind, "done": done}
        return self.router.metric("beyond_range_total", **labels)


@contextlib.asynccontextmanager
async def asking(router=ROUTER, **roles):
    counts = roles or {"engine": 1}
    async with contextlib.AsyncExitStack() as stack:
        made = {
            role: await stack.enter_async_context(engines(count)) for role, count in counts.items()
        }
        router = await stack.enter_async_context(routing(flags(**made, **router)))
        client = await stack.enter_async_context(router.client())
        yield Asking(router, client, [stub for stubs in made.values() for stub in stubs])
        assert not any(key in line for key in KEYS.values() for line in router.lines)


def said(seen):
    """What an engine is told: the header's priority and the body's, and the limits."""
    head = seen.field(b"x-vllm-priority")
    body = seen.json
    own = body.get("vllm_xargs") or {}
    return (
        None if head is None else int(head),
        body.get("priority"),
        [own[name] for name in TIGHT if name in own],
    )


@pytest.mark.parametrize("path", CHOICES)
@on_loop
async def test_by_default_nobody_gets_ahead_of_others(path):
    async with asking({}) as a:
        got, seen = await a.ask(path, body_for(path, priority=-100, vllm_xargs=TIGHT))
        assert got.status_code == 200
        assert said(seen[0]) == (0, 0, [1.0, 0.15])
        for kind in ("priority", "ttft", "tpot"):
            assert a.beyond("*", kind, "clamped") == 1
        got, seen = await a.ask(path, body_for(path), x_vllm_priority="-100")
        assert got.status_code == 200
        assert said(seen[1]) == (0, None, [])


@pytest.mark.parametrize("path", CHOICES)
@on_loop
async def test_what_is_allowed_passes_byte_for_byte(path):
    own = {"headway_ttft_slo_s": 2, "headway_tpot_slo_s": 0.3, "mine": "x"}
    async with asking({}) as a:
        for body in (body_for(path), body_for(path, priority=3, vllm_xargs=own)):
            got, seen = await a.ask(path, body)
            assert got.status_code == 200
            assert seen[-1].body == body
        assert [said(each)[0] for each in seen] == [None, 3]
        assert not a.beyond("*", "priority", "clamped")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", *PASSED])
@on_loop
async def test_each_key_has_its_own_range(path):
    plain = PASSED.get(path) or json.loads(body_for(path))
    asks = {**plain, "priority": -3, "vllm_xargs": TIGHT}
    async with asking() as a:
        _, seen = await a.ask(path, asks, "alice")
        assert said(seen[-1]) == (-3, -3, [0.1, 0.01])
        _, seen = await a.ask(path, asks, "bob")
        assert said(seen[-1]) == (0, 0, [0.5, 0.15])
        got, seen = await a.ask(path, asks, "batch")
        assert got.status_code == 400
        assert len(seen) == 2
        got, seen = await a.ask(path, plain, "batch")
        assert got.status_code == 200
        # A path that may not read the header has it in the body.
        assert said(seen[-1])[:2] == (7, 7 if path in PASSED else None)
        counts = [
            a.beyond("alice", "priority", "clamped"),
            a.beyond("alice", "ttft", "clamped"),
            a.beyond("*", "priority", "clamped"),
            a.beyond("batch", "priority", "refused") + a.beyond("batch", "ttft", "refused"),
        ]
        assert counts == [0, 1, 1, 1]


@pytest.mark.parametrize("path", [*CHOICES, *PASSED])
@on_loop
async def test_what_is_refused_is_told_the_range_in_the_apis_form(path):
    plain = PASSED.get(path) or json.loads(body_for(path))
    async with asking() as a:
        got, seen = await a.ask(path, {**plain, "priority": 4}, "batch")
        assert got.status_code == 400
        error = got.json()["error"]
        assert error["message"] == "`priority` must be from 5 to 10."
        assert error["type"] == "invalid_request_error"
        if path != "/v1/messages":
            assert (error["param"], error["code"]) == ("priority", "out_of_range")
        got, seen = await a.ask(path, plain, "batch", x_vllm_priority="-1")
        assert got.status_code == 400
        assert "`x-vllm-priority` must be from 5 to 10." in got.text
        assert not seen
        assert a.beyond("batch", "priority", "refused") == 2


@on_loop
async def test_both_legs_of_a_split_request_are_within_the_range():
    async with asking({}, prefill=1, decode=1) as a:
        body = json.loads(body_for(CHAT, priority=-100, vllm_xargs=TIGHT))
        got, seen = await a.ask(CHAT, body)
        assert got.status_code == 200
        first, second = seen
        assert (first.prefills, second.prefills) == (True, False)
        assert said(first) == said(second) == (0, 0, [1.0, 0.15])
        assert a.beyond("*", "priority", "clamped") == 1


@on_loop
async def test_another_engine_that_is_tried_is_told_the_same():
    async with asking({}, engine=2) as a:

        async def fail(request, seen):
            request.respond(500, [], b"")
            for stub in a.stubs:
                stub.script = None

        for stub in a.stubs:
            stub.script = fail
        got, seen = await a.ask(CHAT, json.loads(body_for(CHAT, priority=-9)), x_vllm_priority="-1")
        assert got.status_code == 200
        assert [said(each)[:2] for each in seen] == [(0, 0), (0, 0)]
        assert a.beyond("*", "priority", "clamped") == 1


@pytest.mark.process
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@on_loop
async def test_large_bodies_are_within_the_range(path):
    """They are read in another process."""
    heavy = [[0] * LIGHT_BYTES] * 2
    body = {**json.loads(body_for(CHAT)), "input": "x", "x": heavy, "priority": -1}
    async with asking() as a:
        got, seen = await a.ask(path, {**body, "vllm_xargs": TIGHT}, "bob")
        assert got.status_code == 200
        assert said(seen[-1]) == (0, 0, [0.5, 0.15])
        assert seen[-1].json["x"] == heavy
        got, seen = await a.ask(path, body, "batch")
        assert (got.status_code, len(seen)) == (400, 1)
        assert a.beyond("batch", "priority", "refused") == 1


@on_loop
async def test_limits_deep_in_a_body_that_passes():
    body = {"token_ids": [1], "sampling_params": {"extra_args": {**TIGHT, "x": 1}}}
    async with asking() as a:
        _, [seen] = await a.ask("/inference/v1/generate", body, "bob")
        assert seen.json["sampling_params"]["extra_args"] == {
            "headway_ttft_slo_s": 0.5,
            "headway_tpot_slo_s": 0.15,
            "x": 1,
        }


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"headway_ttft_slo_s": 0.001}', 400),
        ('{"\\u0068eadway_ttft_slo_s": 0.001}', 400),
        ('{"mine": 1}', 200),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
@on_loop
async def test_limits_in_a_form_are_refused(arguments, status, chunked):
    form = (
        f'--y\r\ncontent-disposition: form-data; name="vllm_xargs"\r\n\r\n{arguments}\r\n--y--\r\n'
    ).encode()

    async def bytewise():
        for index in range(len(form)):
            yield form[index : index + 1]

    kind = {"content-type": "multipart/form-data; boundary=y"}
    path = "/v1/audio/transcriptions"
    async with asking({}) as a:
        content = bytewise() if chunked else form
        got = await a._client.post(path, content=content, headers=kind)
        assert got.status_code == status
        assert (status == 200) == bool(a.stubs[0].seen)
        for odd in ("charset=utf-7", 'Charset="utf-16"', "charset=utf-8; charset=utf-7"):
            fields = {"content-type": f"multipart/form-data; boundary=y; {odd}"}
            got = await a._client.post(path, content=form, headers=fields)
            assert got.status_code == 400
        utf8 = {"content-type": 'multipart/form-data; charset="UTF-8"; boundary=y'}
        got = await a._client.post(path, content=form, headers=utf8)
        assert got.status_code == status


@on_loop
async def test_a_reload_takes_other_ranges():
    async with asking() as a:
        body = {**json.loads(body_for(CHAT)), "priority": -3}
        _, seen = await a.ask(CHAT, body, "bob")
        assert said(seen[-1])[0] == 0
        clients = {"bob": {"priority": [-4, 0]}}
        a.router.service.apply(flags(engine=a.stubs, **{**ROUTER, "clients": clients}))
        await until(a.router.healthy)
        _, seen = await a.ask(CHAT, body, "bob")
        assert said(seen[-1])[:2] == (-3, -3)
        _, seen = await a.ask(CHAT, body, "alice")
        assert said(seen[-1])[:2] == (0, 0)


@on_loop
async def test_requests_side_by_side_keep_their_own_terms():
    async with asking() as a:
        body = json.loads(body_for(CHAT))
        asks = [(key, priority) for key in ("alice", "bob") for priority in (-9, -3, 3)]
        await asyncio.gather(
            *(a.ask(CHAT, {**body, "user": f"{k}{p}", "priority": p}, k) for k, p in asks)
        )
        told = {seen.json["user"]: said(seen)[0] for seen in a.stubs[0].seen if seen.body}
        granted = {"alice-9": -5, "alice-3": -3, "alice3": 3, "bob-9": 0, "bob-3": 0, "bob3": 3}
        assert told == granted
