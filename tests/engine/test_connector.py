"""Requests whose KV comes from elsewhere."""

import pytest
from vllm.v1.request import RequestStatus

from headway.core.batching.policy import REJUDGE_STEPS

from .conftest import teach
from .connector import transfer
from .harness import BLOCK, make_request

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
