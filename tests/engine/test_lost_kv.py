"""KV that was to be loaded within a step and wasn't: vLLM computes it after all."""

import pytest
from vllm.config import KVTransferConfig

from .conftest import teach
from .connector import NAME
from .harness import BLOCK, make_request, mid_prefill, tokens_left

POLICIES = ("sequential", "parallel", "priority", "slo")
LONG = 400


@pytest.fixture
def loading(drive):
    def made(policy, **options):
        transfer = KVTransferConfig(
            kv_connector=NAME, kv_role="kv_both", kv_load_failure_policy="recompute"
        )
        driver = drive(
            policy,
            kv_transfer=transfer,
            budget=256,
            long_prefill_token_threshold=LONG,
            **options,
        )
        if policy == "slo":
            teach(driver.scheduler)
        return driver

    return made


def stored(driver, tokens, stored_tokens, name, output=3):
    request = make_request(tokens, output, name=name, arrival_time=driver.clock.time())
    request.kv_transfer_params = {"stored": stored_tokens, "at_once": True}
    driver.add(request)
    return request


def lose(driver, request, first):
    """Report the request's blocks from `first` on as not loaded."""
    (blocks,) = driver.scheduler.kv_cache_manager.get_block_ids(request.request_id)
    driver.kv_losses = set(blocks[first:])


@pytest.mark.parametrize("policy", [None, *POLICIES])
@pytest.mark.parametrize("tokens", [30 * BLOCK, 100 * BLOCK])
def test_a_prompt_whose_kv_is_lost_is_computed_after_all(loading, policy, tokens):
    driver = loading(policy)
    request = stored(driver, tokens, 20 * BLOCK, "lost")
    output = driver.scheduler.schedule()
    lose(driver, request, 5)
    driver.take(output)
    driver.run(most=100)
    assert driver.tokens["lost"] == 3


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
@pytest.mark.parametrize("first", [5, 19])
def test_it_is_mid_prefill_again_at_once(loading, policy, first):
    """What it takes is planned: beside it no more prompts are left unfinished than may be."""
    driver = loading(policy, max_num_partial_prefills=1)
    scheduler = driver.scheduler
    for round_ in range(4):
        request = stored(driver, 22 * BLOCK, 20 * BLOCK, f"lost{round_}")
        output = scheduler.schedule()
        driver.add(make_request(3_000, 1, arrival_time=driver.clock.time()))
        while request.request_id not in output.num_scheduled_tokens:
            driver.take(output)
            output = scheduler.schedule()
        lose(driver, request, first)
        driver.take(output)
        while not driver.scheduler.running or driver.kv_losses:
            driver.step()
        for tokens in (200, 150, 100):
            driver.add(make_request(tokens, 2, arrival_time=driver.clock.time()))
        for _ in range(6):
            driver.step()
            others = [r for r in mid_prefill(scheduler) if "lost" not in r.request_id]
            assert len(others) <= 1
            assert sum(tokens_left(r) > LONG for r in others) <= 1
    driver.run(most=300)
