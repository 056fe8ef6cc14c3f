"""`headway serve --emulate`: vLLM on GPUs that aren't there, as clients see it."""

import json
import time

import openai
import pytest

from headway.core.hardware.shape import model_shape
from headway.gpus import step_times
from headway.models import known

from .conftest import metric

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL = "llama-3.1-70b"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "years": {"type": "integer"}},
    "required": ["name", "years"],
    "additionalProperties": False,
}


def chat(client, **more):
    given = {"max_tokens": 12, "temperature": 0, "model": "tiny"} | more
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return client.chat.completions.create(messages=messages, **given)


def text(answer):
    return answer.choices[0].message.content


def check_answers(client):
    answer = chat(client)
    words = text(answer).split()
    assert len(words) == 12 == answer.usage.completion_tokens
    assert answer.choices[0].finish_reason == "length"
    assert text(chat(client)) == text(answer), "greedy answers are the same again"
    streamed = [c.choices[0].delta.content or "" for c in chat(client, stream=True)]
    assert "".join(streamed) == text(answer)
    assert sum(map(bool, streamed)) == 12, "each token is a chunk of its own"
    ended = chat(client, max_tokens=None)
    assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", 21)


def check_what_can_be_asked_for(client):
    two = chat(client, n=2, temperature=1.0, logprobs=True, top_logprobs=3)
    assert len({choice.message.content for choice in two.choices}) == 2
    for choice in two.choices:
        assert len(choice.logprobs.content) == 12
        assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    found = json.loads(text(chat(client, response_format=form, max_tokens=400)))
    assert isinstance(found["name"], str)
    assert isinstance(found["years"], int)
    for wish in ({"prompt_logprobs": 1}, {"bad_words": ["the"]}):
        with pytest.raises(openai.BadRequestError, match="emulated"):
            chat(client, extra_body=wish)
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        chat(client, logit_bias={"5": 1})


def check_times(client):
    """A result is never early, however fast the machine is."""
    shape = model_shape(known.CONFIG_BY_NAME[MODEL])
    alone_s = step_times(shape, "h100-sxm", gpus=4).prompt_seconds(8_000, step_tokens=8_192)
    begin_s = time.monotonic()
    client.completions.create(model="tiny", prompt=[*range(1_000, 9_000)], max_tokens=1)
    assert time.monotonic() - begin_s > alone_s > 0.3


def check_faults(client, file, running):
    file.write_text('{"hang": true}')
    with pytest.raises(openai.APITimeoutError):
        chat(client, timeout=2.0)
    file.unlink()
    assert text(chat(client, timeout=60.0))
    file.write_text('{"crash": true}')
    with pytest.raises(openai.APIError):
        chat(client, timeout=60.0)
    assert running.wait() not in {0, None}


def test_an_engine_on_gpus_that_are_not_there(engine, tmp_path):
    file = tmp_path / "faults.json"
    asked = json.dumps({"gpu": "h100-sxm", "answer_tokens": 20, "faults": str(file)})
    flags = ("--emulate", asked, "--tensor-parallel-size", "4", "--dtype", "bfloat16")
    flags = (*flags, "--max-num-batched-tokens", "8192")
    with engine("slo", *flags, model=known.ensure(MODEL)) as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        check_answers(client)
        check_what_can_be_asked_for(client)
        check_times(client)
        assert metric(running.url, "headway:emulated", gpu="h100-sxm", gpus="4") == 1
        assert metric(running.url, "headway:emulated_step_seconds_total") > 1
        assert metric(running.url, "headway:emulated_lateness_seconds_count") > 50
        check_faults(client, file, running)
        log = running.log.read_text()
        assert "emulated 4 x NVIDIA H100 80GB HBM3" in log
        assert "results late by" in log
        assert running.leaves_nothing()
