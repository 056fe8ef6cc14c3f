"""KV memory: preemption, prompts that don't fit, warm prefixes."""

import random

import pytest
from vllm.v1.request import RequestStatus

from .conftest import teach
from .harness import BLOCK, make_request

POLICIES = ("sequential", "parallel", "priority", "slo")


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_preempted_requests_are_finished_and_all_blocks_come_back(drive, policy, scheduling_policy):
    """Twelve growing answers in a pool for four: all end with all of their tokens."""
    driver = drive(policy, blocks=60, seats=12, budget=128, scheduling_policy=scheduling_policy)
    before = free_blocks(driver.scheduler)
    ids = []
    for i in range(12):
        request = make_request(
            100, 150, priority=i % 3, arrival_time=driver.clock.time() - 1 + i / 20
        )
        ids.append(request.request_id)
        driver.add(request)
    driver.run(most=8_000)
    assert [driver.tokens[i] for i in ids] == [150] * 12
    assert free_blocks(driver.scheduler) == before
    assert len(driver.scheduler.headway.tracks) == 0


@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_preemption_happens_in_these_tests(drive, scheduling_policy):
    driver = drive(blocks=60, seats=12, budget=128, scheduling_policy=scheduling_policy)
    requests = [make_request(100, 150) for _ in range(12)]
    driver.add(*requests)
    driver.run(most=8_000)
    assert sum(r.num_preemptions for r in requests) > 0


def test_the_victim_is_the_request_whose_loss_wastes_least(drive):
    """Not the one that came last: recomputing 40 tokens is cheaper than recomputing 500."""
    driver = drive(blocks=48, seats=4, budget=128)
    small = make_request(40, 200)
    driver.add(small)
    for _ in range(3):
        driver.step()
    big = make_request(500, 100)
    driver.add(big)
    while not (small.num_preemptions or big.num_preemptions or driver.steps > 400):
        driver.step()
    assert (small.num_preemptions, big.num_preemptions) == (1, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_larger_than_the_pool_is_refused_at_once(drive, policy):
    """With an error; others go on as if it had never come."""
    driver = drive(policy, blocks=64, seats=4)
    driver.add(make_request(200, 3, name="before"))
    driver.step()
    driver.add(make_request(64 * BLOCK + 1, 3, name="huge"), make_request(60, 3, name="after"))
    for _ in range(1 + driver.depth):
        driver.step()
    assert driver.reasons["huge"] == "error"
    driver.run(most=100)
    assert {"before", "after"} <= set(driver.finished_step)
    assert driver.tokens.get("huge") is None
    assert len(driver.scheduler.headway.tracks) == 0


def test_the_largest_prompt_that_fits_is_served(drive):
    driver = drive(blocks=65, seats=4)
    driver.add(make_request(64 * BLOCK - 2, 1, name="all"))
    driver.run(most=100)
    assert driver.tokens["all"] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_does_not_fit_now_blocks_nobody_behind_it(drive, policy):
    driver = drive(policy, blocks=100, seats=8, max_wait_s=60.0)
    driver.add(make_request(70 * BLOCK, 200, name="holder"))
    while "holder" not in driver.first_token_step:
        driver.step()
    driver.add(make_request(60 * BLOCK, 2, name="big"), make_request(30, 2, name="small"))
    for _ in range(6):
        driver.step()
    assert "small" in driver.finished_step
    driver.run(most=2_000)
    assert "big" in driver.finished_step


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_does_not_fit_gets_its_turn_within_the_bound(drive, policy):
    """Small ones keep the pool full for ever; after `max_wait_s` they leave it room."""
    driver = drive(policy, blocks=100, seats=16, max_wait_s=2.0)
    if policy == "slo":
        teach(driver.scheduler)
    rng = random.Random(1)
    for _ in range(8):
        driver.add(make_request(10 * BLOCK, rng.randint(10, 40), arrival_time=driver.clock.time()))
    for _ in range(5):
        driver.step()
    big = make_request(80 * BLOCK, 2, name="big", arrival_time=driver.clock.time())
    driver.add(big)
    begin_s = driver.clock.now_s
    while "big" not in driver.finished_step:
        if len(driver.scheduler.waiting) < 8:
            tokens = 10 * BLOCK
            driver.add(make_request(tokens, rng.randint(10, 40), arrival_time=driver.clock.time()))
        driver.step()
        assert driver.clock.now_s - begin_s < 20.0


def test_a_held_long_prompts_cached_prefix_survives_others(drive):
    """While it waits for the long cap, churn evicts what nobody waits for, not its prefix."""
    driver = drive("parallel", blocks=600, budget=256, long_prefill_token_threshold=200)
    driver.add(make_request(100 * BLOCK, 1, prefix=3, prefix_tokens=100 * BLOCK))
    driver.run()
    driver.add(make_request(300 * BLOCK, 1, name="runs"))
    driver.step()
    held = make_request(150 * BLOCK, 1, name="held", prefix=3, prefix_tokens=100 * BLOCK)
    driver.add(held)
    manager = driver.scheduler.kv_cache_manager
    while "runs" not in driver.finished_step:
        driver.add(make_request(12 * BLOCK, 1))
        driver.clock.now_s += 0.5
        driver.step()
        if held.status == RequestStatus.WAITING:
            assert manager.get_computed_blocks(held)[1] == 100 * BLOCK


def test_keeping_a_prefix_warm_leaves_reference_counts_alone(drive):
    driver = drive("parallel", blocks=600)
    driver.add(make_request(50 * BLOCK, 1, prefix=4, prefix_tokens=50 * BLOCK))
    driver.run()
    waiting = make_request(60 * BLOCK, 1, prefix=4, prefix_tokens=50 * BLOCK)
    pool = driver.scheduler.kv_cache_manager.block_pool
    counts, free = [b.ref_cnt for b in pool.blocks], free_blocks(driver.scheduler)
    kv = driver.scheduler.headway.kv
    kv.keep_warm(waiting)
    assert [b.ref_cnt for b in pool.blocks] == counts
    assert free_blocks(driver.scheduler) == free
    hit = {b.block_id for group in kv.prefix_hit(waiting).blocks.blocks for b in group}
    last = [b.block_id for b in pool.free_block_queue.get_all_free_blocks()][-len(hit) :]
    assert set(last) == hit


@pytest.mark.parametrize("policy", POLICIES)
def test_resetting_the_prefix_cache_restarts_running_requests(drive, policy):
    """They are preempted, computed again and finished."""
    driver = drive(policy, seats=6)
    ids = []
    for tokens in (2_000, 30, 700, 60):
        request = make_request(tokens, 20)
        ids.append(request.request_id)
        driver.add(request)
    for _ in range(6):
        driver.step()
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert not driver.scheduler.running
    driver.run(most=500)
    assert set(driver.finished_step) == set(ids)
    assert len(driver.scheduler.headway.tracks) == 0
