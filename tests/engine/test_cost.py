"""What planning a step costs, counted: nothing that grows with the waiting queue."""

import sys

import pytest

from headway.core.batching.backlog import MOVES

from .conftest import teach
from .harness import make_request

POLICIES = ("sequential", "parallel", "priority", "slo")


def calls_in(action):
    """Python calls made by headway's own code during the action."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if event == "call" and "/headway/" in frame.f_code.co_filename:
            count += 1

    sys.setprofile(trace)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_makes_the_same_number_of_calls_however_many_wait(drive, policy):
    calls = {}
    for waiting in (200, 4_000):
        driver = drive(policy, seats=10, budget=512)
        if policy == "slo":
            teach(driver.scheduler)
        for _ in range(8):
            driver.add(make_request(30, 500, arrival_time=driver.clock.time()))
        while len(driver.first_token_step) < 8:
            driver.step()
        for i in range(waiting):
            tokens = 3_000 if i % 10 == 0 else 50 + i % 150
            driver.add(make_request(tokens, 2, arrival_time=driver.clock.time()))
        for _ in range(20):
            driver.step()
        calls[waiting] = calls_in(lambda driver=driver: [driver.step() for _ in range(40)])
    turned_late = 20 * MOVES * 40
    assert calls[4_000] <= 1.3 * calls[200] + 400 + turned_late


def test_a_step_without_prompts_plans_nothing(drive):
    """Pure decoding: the policy isn't even asked."""
    driver = drive("slo")
    driver.add(*(make_request(20, 300) for _ in range(16)))
    while len(driver.first_token_step) < 16:
        driver.step()
    driver.step()
    driver.scheduler.headway.policy.plan = None
    for _ in range(20):
        driver.step()
