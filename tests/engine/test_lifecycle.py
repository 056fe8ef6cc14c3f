"""Requests that leave at any moment, and steps that fail."""

import pytest
from vllm.v1.request import RequestStatus

from .conftest import teach
from .harness import check_restored, make_request, mid_prefill

POLICIES = ("sequential", "parallel", "priority", "slo")


def abort(driver, request_ids):
    driver.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def busy(driver):
    """Requests in every state: name by state."""
    driver.add(make_request(30, 400, name="decoding"))
    while "decoding" not in driver.first_token_step:
        driver.step()
    driver.add(make_request(9_000, 5, name="mid-prefill"))
    driver.step()
    driver.step()
    driver.add(make_request(9_000, 5, name="waiting"), make_request(300, 5, name="new"))
    return ("decoding", "mid-prefill", "waiting", "new")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", ["decoding", "mid-prefill", "waiting", "new"])
def test_an_abort_in_any_state_leaves_the_others_alone(drive, policy, state):
    driver = drive(policy)
    before = free_blocks(driver.scheduler)
    names = busy(driver)
    abort(driver, state)
    check_restored(driver.scheduler)
    driver.run(most=800)
    assert set(driver.finished_step) == set(names) - {state}
    assert free_blocks(driver.scheduler) == before
    assert len(driver.scheduler.headway.tracks) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_aborting_all_leaves_nothing(drive, policy):
    driver = drive(policy)
    before = free_blocks(driver.scheduler)
    busy(driver)
    abort(driver, None)
    driver.run(most=10)
    assert free_blocks(driver.scheduler) == before
    assert len(driver.scheduler.headway.tracks) == 0
    assert len(driver.scheduler.headway.policy.backlog) == 0
    driver.add(make_request(30, 2, name="next"))
    driver.run(most=10)
    assert "next" in driver.finished_step


def test_a_paused_prompt_can_be_aborted(drive):
    """Two are mid-prefill, one gets nothing in this step; it leaves and the other goes on."""
    driver = drive("parallel", long_prefill_token_threshold=20_000, budget=256)
    driver.add(make_request(3_000, 2, name="a"), make_request(3_000, 2, name="b"))
    driver.step()
    driver.add(make_request(250, 2, name="c"))
    output = driver.step()
    paused = [r.request_id for r in mid_prefill(driver.scheduler)]
    paused = [i for i in paused if i not in output.num_scheduled_tokens] or ["a"]
    abort(driver, paused[0])
    driver.run(most=200)
    assert set(driver.finished_step) == {"a", "b", "c"} - {paused[0]}


def test_a_preempted_request_can_be_aborted(drive):
    driver = drive("parallel", blocks=60, seats=12, budget=128)
    requests = [make_request(100, 150) for _ in range(12)]
    before = free_blocks(driver.scheduler)
    driver.add(*requests)
    while not any(r.status == RequestStatus.PREEMPTED for r in requests):
        driver.step()
    gone = next(r for r in requests if r.status == RequestStatus.PREEMPTED)
    abort(driver, gone.request_id)
    driver.run(most=6_000)
    assert set(driver.finished_step) == {r.request_id for r in requests} - {gone.request_id}
    assert free_blocks(driver.scheduler) == before


def test_aborting_a_refused_request_before_it_is_told_is_harmless(drive):
    driver = drive("parallel", blocks=64)
    driver.add(make_request(3_000, 2, name="huge"), make_request(30, 2, name="small"))
    abort(driver, "huge")
    driver.run(most=20)
    assert set(driver.finished_step) == {"small"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_that_fails_leaves_the_scheduler_as_it_was(drive, policy, monkeypatch):
    """Budget, withheld tokens and the waiting queue are restored; the next step works."""
    driver = drive(policy)
    if policy == "slo":
        teach(driver.scheduler)
    scheduler = driver.scheduler
    names = busy(driver)
    fails = monkeypatch.context()
    with fails as patch:
        patch.setattr(scheduler.kv_cache_manager, "new_step_starts", _raise)
        with pytest.raises(ZeroDivisionError):
            scheduler.schedule()
    check_restored(scheduler)
    driver.run(most=800)
    assert set(driver.finished_step) == set(names)


def _raise():
    raise ZeroDivisionError


def test_an_unknown_setting_stops_the_engine_with_its_key(drive):
    from headway.core.errors import SettingError

    with pytest.raises(SettingError, match=r"headway\.bugdet: unknown setting"):
        drive("parallel", bugdet="fixed")


def test_deadlines_without_chunked_prefill_are_refused(folder):
    from headway.core.errors import SettingError
    from headway.engine.steering import Steering

    from .harness import make_scheduler

    scheduler = make_scheduler(folder, None)
    scheduler.scheduler_config.enable_chunked_prefill = False
    from headway.core.batching.settings import parse

    with pytest.raises(SettingError, match=r"headway\.budget: deadline needs chunked prefill"):
        Steering(scheduler, parse({"policy": "slo"}, 4_096))
