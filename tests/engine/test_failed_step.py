"""`schedule()` fails half-way: headway has put everything back, and the next step works."""

import pytest

from .conftest import teach
from .connector import transfer
from .harness import check_restored, make_request

POLICIES = ("sequential", "parallel", "priority", "slo")
PLACES = ("allocating", "writing the batch down", "advancing the counts")


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


class Failing:
    """Calls through, but for the call of this number, counted from 1."""

    def __init__(self, call, at):
        self._call = call
        self._left = at

    def __call__(self, *args, **kwargs):
        self._left -= 1
        if self._left == 0:
            raise ZeroDivisionError
        return self._call(*args, **kwargs)


def busy(driver):
    """Decodes, a long prompt mid-prefill that the next step leaves out, and prompts that wait.

    The names of all of them.
    """
    driver.add(make_request(30, 40, name="d1"), make_request(30, 40, name="d2"))
    while len(driver.first_token_step) < 2:
        driver.step()
    driver.add(make_request(3_000, 5, name="long", arrival_time=driver.clock.time()))
    driver.step()
    for i in range(5):
        tokens = 100 + i
        driver.add(make_request(tokens, 3, name=f"short{i}", arrival_time=driver.clock.time()))
    return {"d1", "d2", "long", *(f"short{i}" for i in range(5))}


def fail(driver, monkeypatch, place, call):
    """Run into the failure; False if the step has fewer calls of the kind and went well."""
    scheduler = driver.scheduler
    owner, name = {
        "allocating": (scheduler.kv_cache_manager, "allocate_slots"),
        "writing the batch down": (scheduler, "_get_new_block_ids_to_zero"),
        "advancing the counts": (scheduler, "_update_after_schedule"),
    }[place]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Failing(getattr(owner, name), call))
        try:
            output = scheduler.schedule()
        except ZeroDivisionError:
            return True
    driver.take(output)
    return False


def check_whole(driver, names):
    """Nothing of the plan is left, and each request is in exactly one place."""
    scheduler = driver.scheduler
    check_restored(scheduler)
    assert scheduler.waiting._planned is None
    prefills = [r for r in scheduler.running if r.is_prefill_chunk]
    assert all(r.num_output_placeholders == 0 for r in prefills)
    here = [r.request_id for r in (*scheduler.running, *scheduler.waiting)]
    assert sorted(here) == sorted(names - driver.finished_step.keys())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", range(1, 6))
def test_all_is_put_back_wherever_allocation_fails(drive, policy, call, monkeypatch):
    """At a decode, at the prompt mid-prefill, or at the first or a later waiting prompt."""
    driver = drive(policy, budget=256)
    if policy == "slo":
        teach(driver.scheduler)
    free = free_blocks(driver.scheduler)
    names = busy(driver)
    failed = fail(driver, monkeypatch, "allocating", call)
    assert failed or call > 3
    check_whole(driver, names)
    driver.run(most=300)
    assert set(driver.finished_step) == names
    assert driver.tokens == {"d1": 40, "d2": 40, "long": 5, **{f"short{i}": 3 for i in range(5)}}
    assert free_blocks(driver.scheduler) == free
    assert len(driver.scheduler.headway.tracks) == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PLACES[1:])
def test_all_is_put_back_when_the_batch_is_complete_and_the_step_fails(
    drive, policy, place, monkeypatch
):
    driver = drive(policy, budget=256)
    if policy == "slo":
        teach(driver.scheduler)
    names = busy(driver)
    assert fail(driver, monkeypatch, place, 1)
    check_whole(driver, names)
    driver.run(most=300)
    assert set(driver.finished_step) == names


@pytest.mark.parametrize("policy", POLICIES)
def test_step_after_step_may_fail(drive, policy, monkeypatch):
    driver = drive(policy, budget=256)
    names = busy(driver)
    for place in PLACES * 3:
        assert fail(driver, monkeypatch, place, 1)
        check_whole(driver, names)
    driver.run(most=300)
    assert set(driver.finished_step) == names


def test_tokens_are_withheld_in_these_tests(drive, monkeypatch):
    """The long prompt gets nothing, or less than vLLM would give it, in the step that fails."""
    driver = drive("parallel", budget=256)
    busy(driver)
    seen = []
    scheduler = driver.scheduler
    allocate = scheduler.kv_cache_manager.allocate_slots

    def looked_at(*args, **kwargs):
        seen.append(scheduler.requests["long"].num_output_placeholders)
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler.kv_cache_manager, "allocate_slots", looked_at)
    with pytest.raises(ZeroDivisionError):
        scheduler.schedule()
    assert seen[0] < 0
    monkeypatch.setattr(scheduler.kv_cache_manager, "allocate_slots", allocate)
    driver.run(most=300)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_is_put_back_when_a_kv_connector_fails(drive, policy, monkeypatch):
    driver = drive(policy, budget=256, kv_transfer=transfer())
    names = busy(driver)
    with monkeypatch.context() as patch:
        connector = driver.scheduler.connector
        patch.setattr(connector, "build_connector_meta", Failing(None, 1))
        with pytest.raises(ZeroDivisionError):
            driver.scheduler.schedule()
    check_whole(driver, names)
    driver.run(most=300)
    assert set(driver.finished_step) == names
