"""Caps on prompts mid-prefill hold after every step, whatever cuts the chunks."""

import random

import pytest

from .conftest import teach
from .harness import BLOCK, Driver, make_request, make_scheduler, mid_prefill, tokens_left

LONG = 400


def check_caps(scheduler, partial, long):
    """Of the prompts that are unfinished after the steps scheduled so far."""
    left = [tokens_left(r) for r in mid_prefill(scheduler)]
    assert len(left) <= partial
    assert sum(tokens > LONG for tokens in left) <= long


def mixed_load(driver, rng, steps, partial, long, **options):
    """Random arrivals for `steps` steps, caps checked after each; then all must finish."""
    ids = []
    for _ in range(steps):
        for _ in range(rng.choice((0, 0, 1, 3))):
            tokens = rng.choice((5, 60, 200, LONG, LONG + 1, 1_500, 4_000))
            request = make_request(
                tokens,
                rng.randint(1, 12),
                priority=rng.choice((0, 0, 3, -2)),
                prefix=rng.randint(0, 2),
                prefix_tokens=min(tokens - 1, rng.choice((0, 160, 1_200))),
                arrival_time=driver.clock.time(),
                **options,
            )
            ids.append(request.request_id)
            driver.add(request)
        driver.step()
        check_caps(driver.scheduler, partial, long)
    while driver.scheduler.has_unfinished_requests():
        driver.step()
        check_caps(driver.scheduler, partial, long)
        assert driver.steps < 6_000
    assert set(ids) <= set(driver.finished_step)


POLICIES = ("sequential", "parallel", "priority", "slo")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("partial", "long"), [(1, 1), (2, 1), (4, 2)])
def test_caps_hold_in_a_mixed_load(drive, policy, partial, long):
    driver = drive(
        policy,
        max_num_partial_prefills=partial,
        max_long_partial_prefills=long,
        long_prefill_token_threshold=LONG,
        budget=256,
        seats=12,
    )
    mixed_load(driver, random.Random(partial), 60, partial, long)


@pytest.mark.parametrize("policy", ["parallel", "slo"])
@pytest.mark.parametrize("partial", [1, 4])
@pytest.mark.parametrize("adaptive", [False, True])
def test_caps_hold_when_vllm_cuts_chunks_itself(drive, policy, adaptive, partial):
    """With --long-prefill-token-threshold no prompt gets more than that in a step."""
    driver = drive(
        policy,
        max_num_partial_prefills=partial,
        long_prefill_token_threshold=LONG,
        budget=256,
        seats=12,
        scheduler_options={
            "long_prefill_token_threshold": 96,
            "long_prefill_token_threshold_adaptive": adaptive,
        },
    )
    long = driver.scheduler.headway.policy.caps.long
    mixed_load(driver, random.Random(5), 60, partial, long)


def test_vllms_own_chunk_limit_leaves_no_token_idle(drive):
    """Two prompts of which each may have 100 tokens a step get 100 each."""
    driver = drive(
        "parallel",
        budget=256,
        long_prefill_token_threshold=LONG,
        scheduler_options={
            "long_prefill_token_threshold": 100,
            "long_prefill_token_threshold_adaptive": False,
        },
    )
    driver.add(make_request(350), make_request(350))
    assert sorted(driver.step().num_scheduled_tokens.values()) == [100, 100]


@pytest.mark.parametrize("policy", POLICIES)
def test_caps_hold_under_vllms_priority_policy(drive, policy):
    partial = 1 if policy == "sequential" else 4
    driver = drive(
        policy,
        long_prefill_token_threshold=LONG,
        budget=256,
        seats=8,
        scheduling_policy="priority",
    )
    long = driver.scheduler.headway.policy.caps.long
    mixed_load(driver, random.Random(7), 60, partial, long)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [280, 400])
def test_caps_hold_in_a_small_pool(drive, policy, blocks):
    """Prefixes the plan counted on get evicted meanwhile; requests are preempted."""
    partial = 1 if policy == "sequential" else 4
    driver = drive(policy, long_prefill_token_threshold=LONG, budget=256, seats=12, blocks=blocks)
    long = driver.scheduler.headway.policy.caps.long
    mixed_load(driver, random.Random(blocks), 60, partial, long)


def test_a_cached_prefix_evicted_while_the_step_is_scheduled_breaks_no_cap(folder, clock):
    """What was to be finished in the step starts only if it still will be."""
    driver = Driver(
        make_scheduler(
            folder,
            "parallel",
            blocks=100,
            budget=512,
            max_num_partial_prefills=1,
            long_prefill_token_threshold=LONG,
        ),
        clock=clock,
    )
    warm = make_request(60 * BLOCK, 1, prefix=1, prefix_tokens=60 * BLOCK)
    driver.add(warm)
    driver.run()
    rng = random.Random(3)
    for _ in range(40):
        driver.add(
            make_request(60 * BLOCK + 8, 2, prefix=1, prefix_tokens=60 * BLOCK),
            make_request(rng.randint(10, 70) * BLOCK, 2),
        )
        for _ in range(rng.randint(1, 6)):
            driver.step()
            check_caps(driver.scheduler, 1, 1)
    driver.run()


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
def test_a_long_prompt_with_a_cached_prefix_passes_as_short(drive, policy):
    """Length is what is uncached: a follow-up passes while a long prompt fills the long cap."""
    driver = drive(policy, long_prefill_token_threshold=LONG)
    first = make_request(8_000, 1, prefix=9, prefix_tokens=7_936)
    driver.add(first)
    driver.run()
    driver.add(make_request(20_000, 1, name="long"))
    driver.step()
    driver.add(make_request(8_000, 1, name="follow-up", prefix=9, prefix_tokens=7_936))
    for _ in range(6):
        driver.step()
    assert "follow-up" in driver.finished_step
    assert "long" not in driver.finished_step


def test_a_held_long_prompt_whose_prefix_becomes_cached_goes_through(drive):
    """It was long when it came; by now another request has computed its prefix."""
    driver = drive("parallel", long_prefill_token_threshold=600, budget=512)
    driver.add(make_request(4_000, 1, name="writer", prefix=5, prefix_tokens=3_984))
    driver.step()
    driver.add(make_request(9_000, 1, name="other"))
    driver.add(make_request(4_000, 1, name="reader", prefix=5, prefix_tokens=3_984))
    while "reader" not in driver.finished_step:
        driver.step()
    assert "other" not in driver.first_token_step


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("interval", [2, 5])
def test_caps_hold_where_vllm_keeps_steps_free_of_prefill(drive, policy, interval):
    """From 0.33 on it does so in any engine (--prefill-schedule-interval)."""
    driver = drive(
        policy,
        long_prefill_token_threshold=LONG,
        budget=256,
        seats=12,
        scheduler_options={"prefill_schedule_interval": interval},
    )
    if policy == "slo":
        teach(driver.scheduler)
    mixed_load(driver, random.Random(interval), 40, 4, driver.scheduler.headway.policy.caps.long)
