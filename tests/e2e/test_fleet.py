"""`headway up` with real engines: topologies, context lengths, and every process killed."""

import json
import os
import signal
import time
import urllib.request

import httpx
import pytest

from .fleets import (
    GONE_S,
    UNIFIED,
    Fleet,
    Traffic,
    complete,
    cores_below,
    fleet,
    ids,
    wait_ready,
    written,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DEDICATED = """
[[pool]]
name = "short"
model = "{model}"
max_prompt_tokens = 256
max_model_len = 512
kv_memory_gib = 0.5
flags = [{flags}]

[[pool]]
name = "long"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""
SPLIT = """
[[pool]]
name = "prefill"
role = "prefill"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]

[[pool]]
name = "decode"
role = "decode"
model = "{model}"
kv_memory_gib = 0.5
flags = [{flags}]
"""

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the largest ocean on Earth?": "Pacific",
    "What colour is the sky on a clear day?": "blue",
}
"""With what every right answer holds."""


def answer_to(question, url, model):
    """The answer, and the route it took if a router gave it."""
    said = [{"role": "user", "content": question}]
    body = {"model": model, "messages": said, "max_tokens": 30, "temperature": 0}
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=120)
    text = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return text, answer.headers.get("x-headway-route", "")


def test_without_a_file_a_pair_serves_the_bundled_model_to_its_full_context(tmp_path):
    """Its answers are right, and the same whole and split."""
    with fleet(tmp_path) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
            (model,) = json.load(answer)["data"]
        assert model["max_model_len"] == 8192
        answer, route = complete(url, ids(8192 - 4), model=model["id"])
        assert answer.usage.prompt_tokens == 8188
        assert answer.usage.completion_tokens == 4
        assert route.startswith('disaggregated; reason="split"')
        decode = next(engine["url"] for engine in running.engines() if engine["role"] == "decode")
        for question, right in QUESTIONS.items():
            split, route = answer_to(question, url, model["id"])
            whole, _ = answer_to(question, decode, model["id"])
            assert route.startswith('disaggregated; reason="split"')
            assert right in split
            assert whole == split
        assert set(running.states().values()) == {"ready"}
        for engine in running.engines():
            assert cores_below(engine["pid"]) <= set(engine["devices"])
        running.says("down")
        assert running.process.wait(GONE_S) == 0
        running.gone()


def test_pools_have_contexts_of_their_own(tmp_path, tiny_model):
    file = written(tmp_path, "dedicated", DEDICATED, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        assert 'pools="short"' in complete(url, ids(100))[1]
        answer, route = complete(url, ids(4000))
        assert 'pools="long"' in route
        assert answer.usage.prompt_tokens == 4000


@pytest.mark.parametrize("pools", [UNIFIED], ids=["unified"])
def test_whatever_is_killed_others_go_on_and_it_comes_back(tmp_path, tiny_model, pools):
    """A request that hasn't got a byte doesn't fail, and the other engine isn't touched."""
    file = written(tmp_path, "unified", pools, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        told = running.engines()
        ports = [int(engine["url"].rsplit(":", 1)[1]) for engine in told]
        with Traffic(url) as traffic:
            for number, part in enumerate(["VLLM::Worker", "VLLM::EngineCore", "api_server"]):
                traffic.goes_on()
                time.sleep(3)
                os.kill(running.part(part, ports[number % 2]), signal.SIGKILL)
                time.sleep(4)
                traffic.goes_on()
                wait_ready(running)
        assert traffic.answered > 20
        assert not traffic.unanswered


def test_a_killed_pair_comes_back_and_splits_again(tmp_path, tiny_model):
    file = written(tmp_path, "disaggregated", SPLIT, tiny_model)
    with fleet(tmp_path, file) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        assert 'reason="split"' in complete(url, ids(300))[1]
        told = running.engines()
        prefill = int(told[0]["url"].rsplit(":", 1)[1])
        os.kill(running.part("guard", prefill), signal.SIGKILL)
        answer, route = complete(url, ids(300))
        assert answer.usage.completion_tokens == 4
        assert 'reason="split"' not in route
        assert "decode" in route
        wait_ready(running)
        assert 'reason="split"' in complete(url, ids(300))[1]


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path, tiny_model):
    file = written(tmp_path, "unified", UNIFIED.replace("replicas = 2", "replicas = 1"), tiny_model)
    running = Fleet(tmp_path, file)
    try:
        running.until(r"ready: \S+ on (\S+); try")
    finally:
        running.look()
        running.process.kill()
        running.process.wait()
        running.gone()
