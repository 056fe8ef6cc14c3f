"""Prefill on one real engine, decode on another, KV moved by NIXL: as one engine alone."""

import asyncio
import contextlib
import json
import os
import random
import time
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from headway.router.openai.stream import StreamTap
from headway.router.wire.http1 import chunk

from .conftest import free_port, metric

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CONNECTOR = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
LENGTHS = (1, 15, 16, 17, 31, 33, 64, 300, 512, 513, 1200)
"""Around KV block and step boundaries."""
SETTLED_S = 60.0
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture(scope="module")
def pair(engine):
    """A prefill and a decode engine, which start together."""

    def start(port, core):
        flags = ("--kv-transfer-config", json.dumps(CONNECTOR), "--enable-prompt-tokens-details")
        own = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
        return engine("slo", *flags, port=port, core=core, **own)

    cores = sorted(os.sched_getaffinity(0))
    with start(free_port(), cores[0]) as prefill, start(free_port(), cores[-1]) as decode:
        yield prefill, decode, start


@pytest.fixture
def routed(pair, router):
    prefill, decode, _ = pair
    with router("--prefill", prefill.url, "--decode", decode.url) as running:
        yield running


def prompts():
    rng = random.Random(3)
    made = [[rng.randrange(100, 40_000) for _ in range(n)] for n in LENGTHS]
    return [*made, made[-1][:900] + made[4]]


def client(url):
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


async def completion(api, prompt, **more):
    """Token ids and log probabilities of one answer."""
    answer = await api.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=10,
        logprobs=2,
        extra_body={"ignore_eos": True, "return_token_ids": True},
        **{"temperature": 0, **more},
    )
    if not more.get("stream"):
        return [choice.token_ids for choice in answer.choices], answer.usage
    ids, usage = [], None
    async for event in answer:
        ids += [token for choice in event.choices for token in choice.token_ids or ()]
        usage = event.usage or usage
        assert "kv_transfer_params" not in event.model_extra or not event.kv_transfer_params
    return [ids], usage


async def chat(api, *, stream, **more):
    """The text of a chat's answer and its usage."""
    words = " ".join(f"word{i}" for i in range(200))
    answer = await api.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": words}],
        max_completion_tokens=8,
        temperature=0,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **more,
    )
    if not stream:
        return answer.choices[0].message.content, answer.usage
    text, usage = "", None
    async for event in answer:
        text += "".join(choice.delta.content or "" for choice in event.choices)
        usage = event.usage or usage
    return text, usage


async def everything(url):
    """All kinds of requests, one after the other and then together."""
    async with client(url) as api:
        alone = [(await completion(api, prompt))[0] for prompt in prompts()]
        usage = {"stream_options": {"include_usage": True}}
        streamed = [(await completion(api, p, stream=True, **usage))[0] for p in prompts()]
        mixed = await asyncio.gather(*(completion(api, p) for p in reversed(prompts())))
        two, _ = await completion(api, prompts()[7], n=2, temperature=0.8, seed=5)
        chats = [await chat(api, stream=stream) for stream in (False, True)]
        tools = await chat(api, stream=False, tools=TOOLS, tool_choice="none")
        texts = [text for text, _ in (*chats, tools)]
        counts = [(u.prompt_tokens, u.completion_tokens) for _, u in (*chats, tools)]
        return alone, streamed, [ids for ids, _ in mixed][::-1], two, texts, counts


def settled(urls):
    """Wait until no engine holds KV for a request or computes one."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        held = [metric(url, "vllm:kv_cache_usage_perc") for url in urls]
        busy = [metric(url, "vllm:num_requests_running") for url in urls]
        if not any((*held, *busy)):
            return
        assert time.monotonic() < deadline, (held, busy)
        time.sleep(0.5)


def test_output_is_that_of_one_engine_alone(pair, routed):
    _, decode, _ = pair
    expected = asyncio.run(everything(decode.url))
    used = routed.metric("headway:router_handoffs_total", event="used")
    assert asyncio.run(everything(routed.url)) == expected
    more = routed.metric("headway:router_handoffs_total", event="used") - used
    assert more == 3 * len(prompts()) + 3
    assert metric(decode.url, "vllm:nixl_bytes_transferred_sum") > 0
    assert all(not any(work.values()) for work in routed.works())


def test_the_handoff_is_no_cache_hit(routed):
    """A fresh prompt has no cached tokens, though all of its KV came from elsewhere."""

    async def fresh():
        async with client(routed.url) as api:
            rng = random.Random(99)
            return await completion(api, [rng.randrange(100, 40_000) for _ in range(400)])

    _, usage = asyncio.run(fresh())
    details = usage.prompt_tokens_details
    assert details is None or not details.cached_tokens


@pytest.mark.parametrize(
    ("kind", "path", "asked"),
    [
        ("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Count."}]}),
        ("completions", "/v1/completions", {"prompt": "Count: 1, 2,"}),
    ],
)
def test_the_events_of_a_real_stream_pass_the_router_without_being_kept(routed, kind, path, asked):
    body = {**asked, "max_tokens": 20, "min_tokens": 20, "stream": True, "temperature": 0}
    answer = httpx.post(routed.url + path, json=body, timeout=120)
    events = [event + b"\n\n" for event in answer.content.split(b"\n\n") if event]
    tap, kept = StreamTap(kind), []
    for event in events:
        if not chunk(event).endswith(tap.passing.ending):
            kept.append(event)
            tap.feed(event, 0.0)
    # At the begin, the first of their kind; at the end, why the answer ended, and [DONE].
    assert len(events) >= 20
    assert len(kept) <= 5, kept


@pytest.mark.parametrize("after_s", [0.05, 0.4, 1.0])
def test_a_client_that_leaves_frees_the_kv_on_both_engines(pair, routed, after_s):
    """Mid-prefill and around the handoff."""
    prefill, decode, _ = pair
    rng = random.Random(int(after_s * 100))

    async def leave():
        async with client(routed.url) as api:
            prompt = [rng.randrange(100, 40_000) for _ in range(1_800)]
            answer = asyncio.create_task(completion(api, prompt))
            await asyncio.sleep(after_s)
            answer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer

    asyncio.run(leave())
    settled([prefill.url, decode.url])
    assert all(not any(work.values()) for work in routed.works())


def test_a_prefill_engine_that_dies_is_done_without_and_taken_back(pair, routed):
    """Requests are served whole meanwhile; once it is back, they are disaggregated again.

    The last test of its pair.
    """
    prefill, decode, start = pair

    async def ask(url):
        async with client(url) as api:
            return (await completion(api, prompts()[6]))[0]

    expected = asyncio.run(ask(decode.url))
    assert asyncio.run(ask(routed.url)) == expected
    prefill.launcher.terminate()
    prefill.wait()
    assert asyncio.run(ask(routed.url)) == expected
    without = routed.metric("headway:router_routes_total", reason="no prefill engine")
    assert without + routed.metric("headway:router_handoffs_total", event="fallback")
    with start(urlsplit(prefill.url).port, min(os.sched_getaffinity(0))):
        deadline = time.monotonic() + SETTLED_S
        used = routed.metric("headway:router_handoffs_total", event="used")
        while routed.metric("headway:router_handoffs_total", event="used") == used:
            assert asyncio.run(ask(routed.url)) == expected
            assert time.monotonic() < deadline
            time.sleep(1)
