"""Scheduling changes when tokens are computed, never which: greedy output equals stock vLLM's."""

import asyncio
import random

import openai
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

LENGTHS = (1, 15, 16, 17, 40, 130, 511, 512, 513, 900, 1500, 2300)
"""Around KV block and step boundaries, and longer than several steps."""


def prompts():
    """Prompts of all lengths, and follow-ups that share most of one."""
    rng = random.Random(7)
    made = [[rng.randrange(100, 40_000) for _ in range(n)] for n in LENGTHS]
    return [*made, made[-1][:2200] + made[4], made[-2][:1400] + made[3]]


async def complete(client, model, prompt):
    answer = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=12,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    return answer.choices[0].token_ids


async def answers(url, model):
    """Tokens of every prompt: one after the other, then all at once."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        alone = [await complete(client, model, prompt) for prompt in prompts()]
        mixed = await asyncio.gather(*(complete(client, model, p) for p in reversed(prompts())))
        return alone, mixed[::-1]


def test_greedy_output_is_that_of_stock_vllm_alone_and_mixed(engine):
    with engine("vllm") as stock:
        expected, _ = asyncio.run(answers(stock.url, stock.model))
    assert all(len(tokens) == 12 for tokens in expected)
    for policy in ("sequential", "parallel", "priority", "slo"):
        with engine(policy) as running:
            alone, mixed = asyncio.run(answers(running.url, running.model))
            assert "headway scheduler" in running.log.read_text()
        assert alone == expected, policy
        assert mixed == expected, policy
