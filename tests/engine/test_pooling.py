"""Requests that ask for an embedding instead of tokens."""

import random

import pytest
import torch
from vllm.pooling_params import PoolingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request, RequestStatus

from .conftest import teach
from .harness import BLOCK, make_request, mid_prefill, tokens_left

POLICIES = ("sequential", "parallel", "priority", "slo")
LONG = 400


def pooled(tokens, name, arrival_time):
    return Request(
        request_id=name,
        prompt_token_ids=[(len(name) * 131 + i * 31) % 31_000 for i in range(tokens)],
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
        arrival_time=arrival_time,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


@pytest.fixture
def embed(drive):
    """Makes a driver whose model answers pooling requests once their prompt is complete."""

    def made(policy, *, only_pooling=False, **options):
        driver = drive(policy, long_prefill_token_threshold=LONG, budget=256, **options)
        if only_pooling:
            driver.scheduler.num_sampled_tokens_per_step = 0
        if policy == "slo":
            teach(driver.scheduler)
        update = driver.scheduler.update_from_output

        def with_embeddings(output, results):
            requests = driver.scheduler.requests
            rows = list(enumerate(results.req_ids))
            pools = {i: i in requests and requests[i].pooling_params for i in results.req_ids}
            results.pooler_output = [
                torch.zeros(1) if pools[i] and results.sampled_token_ids[row] else None
                for row, i in rows
            ]
            for row, i in rows:
                if pools[i]:
                    results.sampled_token_ids[row] = []
            return update(output, results)

        driver.scheduler.update_from_output = with_embeddings
        return driver

    return made


def add(driver, tokens, name):
    driver.add(pooled(tokens, name, driver.clock.time()))


def check_nothing_left(scheduler, free_blocks):
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free_blocks
    assert len(scheduler.headway.tracks) == 0
    assert len(scheduler.headway.policy.backlog) == 0


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("only_pooling", [False, True])
def test_pooling_requests_are_finished_within_the_caps(embed, policy, only_pooling):
    driver = embed(policy, only_pooling=only_pooling, seats=12)
    scheduler, rng = driver.scheduler, random.Random(2)
    partial, free = 1 if policy == "sequential" else 4, free_blocks(scheduler)
    names = set()
    while driver.steps < 40 or scheduler.has_unfinished_requests():
        if driver.steps < 40:
            names.add(f"pooled{driver.steps}")
            add(driver, rng.choice((1, 60, 300, 2_000)), f"pooled{driver.steps}")
        driver.step()
        left = [tokens_left(r) for r in mid_prefill(scheduler)]
        assert len(left) <= partial
        assert sum(tokens > LONG for tokens in left) <= scheduler.headway.policy.caps.long
        assert driver.steps < 1_000
    driver.run()
    assert set(driver.finished_step) == names
    assert set(driver.reasons.values()) == {"stop"}
    assert not driver.tokens
    check_nothing_left(scheduler, free)


@pytest.mark.parametrize("policy", POLICIES)
def test_pooling_requests_and_others_are_finished_side_by_side(embed, policy):
    driver = embed(policy, seats=8)
    free = free_blocks(driver.scheduler)
    for i, tokens in enumerate((3_000, 60, 1, 700, 60)):
        add(driver, tokens, f"pooled{i}")
        driver.add(make_request(tokens, 5, name=f"other{i}", arrival_time=driver.clock.time()))
        driver.step()
    driver.run(most=300)
    assert driver.tokens == {f"other{i}": 5 for i in range(5)}
    assert len(driver.finished_step) == 10
    check_nothing_left(driver.scheduler, free)


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
def test_a_short_one_passes_a_long_one(embed, policy):
    driver = embed(policy)
    add(driver, 20_000, "long")
    driver.step()
    add(driver, 60, "short")
    driver.run(most=300)
    assert driver.finished_step["short"] <= 2 + driver.depth
    assert "long" in driver.finished_step


@pytest.mark.parametrize("policy", POLICIES)
def test_an_abort_while_its_prompt_is_prefilled_leaves_nothing(embed, policy):
    driver = embed(policy)
    free = free_blocks(driver.scheduler)
    add(driver, 3_000, "gone")
    add(driver, 300, "stays")
    driver.step()
    driver.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    driver.run(most=50)
    assert set(driver.finished_step) == {"stays"}
    check_nothing_left(driver.scheduler, free)
