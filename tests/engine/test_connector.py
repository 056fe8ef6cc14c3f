"""Requests whose KV comes from elsewhere."""

import random

import pytest
from vllm.v1.request import RequestStatus

from headway.core.batching.policy import REJUDGE_STEPS

from .conftest import teach
from .connector import transfer
from .harness import BLOCK, make_request
from .test_features import lora
from .test_parking import lora_options

POLICIES = ("sequential", "parallel", "priority", "slo")
LONG = 400


def remote(tokens, name, output=3, **parameters):
    request = make_request(tokens, output, name=name)
    request.kv_transfer_params = parameters or {"do_remote_prefill": True}
    return request


@pytest.fixture
def connected(drive):
    def made(policy, **options):
        return drive(
            policy,
            kv_transfer=transfer(),
            budget=256,
            long_prefill_token_threshold=LONG,
            **options,
        )

    return made


@pytest.mark.parametrize("policy", POLICIES)
def test_loading_starts_at_once_while_a_long_prompt_is_prefilled_and_caps_are_full(
    connected, policy
):
    """It costs no prefill, so neither caps nor the long prompt ahead concern it."""
    driver = connected(policy, max_num_partial_prefills=1, max_long_partial_prefills=1)
    driver.add(make_request(9_000, 1, name="long"))
    for _ in range(3):
        driver.step()
    driver.add(remote(3_000, "fetched"))
    driver.step()
    assert driver.scheduler.connector.loading == ["fetched"]
    assert driver.scheduler.requests["fetched"].status == RequestStatus.WAITING_FOR_REMOTE_KVS


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_whose_kv_has_arrived_gets_its_token_in_the_next_step(connected, policy):
    driver = connected(policy)
    driver.add(remote(3_000, "fetched"))
    driver.step()
    driver.add(make_request(9_000, 1, name="long"), make_request(9_000, 1))
    for _ in range(3):
        driver.step()
    driver.kv_arrivals = {"fetched"}
    driver.step()
    for _ in range(2 + driver.depth):
        driver.step()
    assert "fetched" in driver.first_token_step
    assert "long" not in driver.first_token_step
    driver.run()
    assert len(driver.scheduler.headway.tracks) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_others_start_while_kv_is_on_its_way(connected, policy):
    """Requests with KV in flight take no place under the caps."""
    driver = connected(policy, max_num_partial_prefills=1, max_long_partial_prefills=1)
    driver.add(remote(3_000, "a"), remote(3_000, "b"))
    driver.step()
    driver.add(make_request(50, 1, name="c"), make_request(2_000, 1, name="d"))
    for _ in range(20):
        driver.step()
    assert {"c", "d"} <= set(driver.finished_step)
    driver.kv_arrivals = {"a", "b"}
    driver.run(most=200)
    assert {"a", "b"} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_partly_stored_prompt_is_loaded_then_computed(connected, policy):
    """Its length is what nobody has; the rest arrives by itself."""
    driver = connected(policy)
    driver.add(make_request(9_000, 1, name="long"))
    driver.step()
    driver.add(remote(3_200, "stored", stored=190 * BLOCK))
    while "stored" not in driver.scheduler.connector.loading:
        driver.step()
    if policy != "sequential":
        assert driver.steps <= 2 + REJUDGE_STEPS
    driver.kv_arrivals = {"stored"}
    driver.run(most=400)
    assert driver.tokens["stored"] == 3


def test_blocks_held_by_kv_in_flight_do_not_stall_those_that_fit(connected):
    """Nothing runs, most of the pool is being filled: a big prompt waits, a small one doesn't."""
    driver = connected("parallel", blocks=100)
    driver.add(remote(80 * BLOCK, "fetched"))
    driver.step()
    driver.add(make_request(50 * BLOCK, 1, name="big"), make_request(5 * BLOCK, 1, name="small"))
    for _ in range(4):
        driver.step()
    assert "small" in driver.finished_step
    driver.kv_arrivals = {"fetched"}
    driver.run(most=200)
    assert {"fetched", "big"} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_abort_while_kv_is_on_its_way_leaves_nothing(connected, policy):
    driver = connected(policy)
    pool = driver.scheduler.kv_cache_manager.block_pool
    before = pool.get_num_free_blocks()
    driver.add(remote(3_000, "fetched"), make_request(3_000, 1))
    driver.step()
    driver.scheduler.finish_requests("fetched", RequestStatus.FINISHED_ABORTED)
    driver.kv_arrivals = {"fetched"}
    driver.run(most=200)
    assert pool.get_num_free_blocks() == before
    assert len(driver.scheduler.headway.tracks) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_no_token_is_set_aside_for_a_prompt_while_the_connector_is_undecided(connected, policy):
    """The step goes to others; once the connector knows, the prompt starts."""
    driver = connected(policy)
    if policy == "slo":
        teach(driver.scheduler)
    driver.add(make_request(3_000, 1, name="long", arrival_time=driver.clock.time()))
    driver.step()
    asked = remote(390, "asked", undecided=True)
    driver.add(asked)
    for _ in range(4):
        assert driver.step().num_scheduled_tokens.get("long", 0) > 200
    asked.kv_transfer_params = {}
    driver.run(most=60)
    assert {"asked", "long"} <= set(driver.finished_step)


def arrive_and_finish(driver, requests, per_step):
    """All requests, some a step; whatever KV is on its way arrives after each step."""
    todo = list(requests)
    scheduler = driver.scheduler
    while todo or scheduler.has_unfinished_requests():
        driver.add(*todo[:per_step])
        del todo[:per_step]
        for request in scheduler.kv_holding_waiting:
            arrived = request.request_id in scheduler.finished_recving_kv_req_ids
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS and not arrived:
                driver.kv_arrivals.add(request.request_id)
        driver.step()
        assert driver.steps < 5_000


@pytest.mark.parametrize("policy", POLICIES)
def test_a_connector_is_asked_at_most_once_more_than_by_stock_vllm(connected, policy):
    """To plan; by vLLM when it starts the prompt. While 200 wait, and many are held or cut."""
    driver = connected(policy, seats=12)
    teach(driver.scheduler)
    rng = random.Random(7)
    requests = []
    for i in range(200):
        tokens = rng.choice((60, 150, 300, 600, 3_000))
        where = rng.choice(({}, {}, {"stored": tokens // 2}, {"stored": tokens, "at_once": True}))
        request = remote(tokens, f"r{i}", rng.randint(1, 20), **where or {"nowhere": True})
        requests.append(request)
    arrive_and_finish(driver, requests, per_step=4)
    asked = driver.scheduler.connector.asked
    assert len(asked) == 200
    assert max(asked.values()) <= 2


def test_prompts_that_fit_the_step_are_asked_for_by_vllm_alone(connected):
    driver = connected("parallel")
    for i in range(20):
        driver.add(remote(50, f"r{i}", stored=32, at_once=True))
        driver.step()
    driver.run()
    assert set(driver.scheduler.connector.asked.values()) == {1}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_that_vllm_finds_undecided_is_set_aside_until_the_connector_knows(
    connected, policy
):
    """It fits the step, so nobody asked before; then it is asked again, and stops nobody."""
    driver = connected(policy)
    asked = remote(50, "asked", undecided=True)
    driver.add(asked)
    for i in range(6):
        driver.add(make_request(50, 1, name=f"free{i}"))
        driver.step()
    assert "asked" not in driver.first_token_step
    assert len(driver.first_token_step) >= 4
    assert driver.scheduler.connector.asked["asked"] >= 4
    assert driver.scheduler.make_stats().num_skipped_waiting_reqs == 1
    asked.kv_transfer_params = {}
    driver.run(most=30)
    assert driver.tokens["asked"] == 3


def test_a_preempted_prompt_is_asked_for_anew(connected):
    """What the connector has may have changed since."""
    driver = connected("parallel")
    driver.add(remote(3_000, "r", 40, stored=640, at_once=True))
    while "r" not in driver.first_token_step:
        driver.step()
    while driver.busy:
        driver.deliver()
    before = driver.scheduler.connector.asked["r"]
    driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    driver.run(most=200)
    assert driver.scheduler.connector.asked["r"] > before


def test_a_request_that_reads_no_cache_is_planned_without_the_connectors(connected):
    """vLLM computes all of its prompt (prompt logprobs need that), whatever is stored."""
    driver = connected("parallel")
    driver.add(make_request(9_000, 1, name="long"))
    driver.step()
    request = remote(3_000, "whole", stored=2_992, at_once=True)
    request.skip_reading_prefix_cache = True
    driver.add(request)
    for _ in range(3 + REJUDGE_STEPS):
        driver.step()
    assert "whole" not in {r.request_id for r in driver.scheduler.running}
    driver.run()
    assert driver.tokens["whole"] == 3


@pytest.mark.parametrize("policy", ["parallel", "slo"])
def test_a_fetched_request_waits_for_its_adapters_slot_though_the_loaded_one_is_paused(
    connected, policy
):
    """vLLM starts it by itself as soon as it sees a free slot, and fails where two take one."""
    driver = connected(policy, **lora_options(1))
    teach(driver.scheduler)
    fetched = remote(3_000, "fetched", 40)
    fetched.lora_request = lora(2)
    driver.add(fetched)
    driver.step()
    long = make_request(9_000, 3, name="long", lora_request=lora(1))
    driver.add(long)
    for _ in range(3):
        driver.step()
    driver.add(*(make_request(390, 2, name=f"short{i}") for i in range(6)))
    driver.kv_arrivals = {"fetched"}
    driver.run(most=400)
    assert driver.tokens["fetched"] == 40
