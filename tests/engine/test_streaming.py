"""Sessions whose input comes in pieces: between two of them a session waits and keeps its KV."""

import random

import pytest
from vllm.v1.request import RequestStatus

from .conftest import teach
from .harness import make_request, mid_prefill, tokens_left

POLICIES = ("sequential", "parallel", "priority", "slo")
LONG = 400


@pytest.fixture
def stream(drive):
    def made(policy, **options):
        driver = drive(policy, long_prefill_token_threshold=LONG, budget=256, **options)
        if policy == "slo":
            teach(driver.scheduler)
        return driver

    return made


def piece(driver, name, tokens, output=2, *, last=False):
    """The next piece of a session's input; the last one is empty."""
    driver.add(
        make_request(
            tokens, output, name=name, arrival_time=driver.clock.time(), resumable=not last
        )
    )


def close(driver, name):
    piece(driver, name, 1, last=True)


def answered(driver, name):
    """Tokens that the session has been given so far."""
    return driver.tokens.get(name, 0)


def run_until(driver, condition, most=200):
    begin = driver.steps
    while not condition():
        driver.step()
        assert driver.steps - begin < most, "no end"


def idle(driver, name):
    """The session has answered all there was and waits."""
    return driver.scheduler.requests[name].status == RequestStatus.WAITING_FOR_STREAMING_REQ


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def check_nothing_left(driver, free):
    scheduler = driver.scheduler
    while driver.busy:
        driver.deliver()
    assert not scheduler.requests
    assert scheduler.num_waiting_for_streaming_input == 0
    assert free_blocks(scheduler) == free
    assert len(scheduler.headway.tracks) == 0
    assert len(scheduler.headway.policy.backlog) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_each_piece_is_answered(stream, policy):
    driver = stream(policy)
    free = free_blocks(driver.scheduler)
    for i, tokens in enumerate((700, 1, 60, 300)):
        piece(driver, "session", tokens, 3)
        run_until(driver, lambda want=3 * (i + 1): answered(driver, "session") == want)
        assert idle(driver, "session")
    close(driver, "session")
    check_nothing_left(driver, free)


@pytest.mark.parametrize("policy", POLICIES)
def test_pieces_that_come_early_wait_for_their_turn(stream, policy):
    driver = stream(policy)
    free = free_blocks(driver.scheduler)
    for tokens in (700, 60, 300):
        piece(driver, "session", tokens, 3)
    close(driver, "session")
    run_until(driver, lambda: "session" not in driver.scheduler.requests)
    assert answered(driver, "session") == 9
    check_nothing_left(driver, free)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_session_blocks_nobody(stream, policy):
    driver = stream(policy, max_wait_s=1.0)
    piece(driver, "session", 60)
    run_until(driver, lambda: idle(driver, "session"))
    for i in range(20):
        driver.clock.now_s += 0.3
        driver.add(make_request(60, 2, name=f"other{i}", arrival_time=driver.clock.time()))
        for _ in range(2 + driver.depth):
            driver.step()
        assert f"other{i}" in driver.finished_step
    assert idle(driver, "session")


@pytest.mark.parametrize("policy", POLICIES)
def test_idle_sessions_keep_their_seats_and_no_more(stream, policy):
    driver = stream(policy, seats=3)
    for name in ("a", "b"):
        piece(driver, name, 60)
    run_until(driver, lambda: idle(driver, "a") and idle(driver, "b"))
    for i in range(6):
        driver.add(make_request(60, 2, name=f"other{i}"))
    driver.run(most=60)
    assert {f"other{i}" for i in range(6)} <= set(driver.finished_step)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [5, 3_000])
@pytest.mark.parametrize("waits", ["nobody", "one without room", "a long prompt"])
def test_a_session_with_new_input_goes_on_beside_decodes(stream, policy, tokens, waits):
    """Whatever waits or is mid-prefill, and though vLLM starts the session outside of the plan."""
    driver = stream(policy, blocks=500)
    piece(driver, "session", 60)
    run_until(driver, lambda: idle(driver, "session"))
    for i in range(4):
        driver.add(make_request(16, 600, name=f"decode{i}", arrival_time=driver.clock.time()))
    run_until(driver, lambda: len(driver.first_token_step) == 5)
    if waits == "one without room":
        driver.add(make_request(490 * 16, 2, arrival_time=driver.clock.time()))
    elif waits == "a long prompt":
        driver.add(make_request(3_000, 2, arrival_time=driver.clock.time()))
        driver.step()
    piece(driver, "session", tokens)
    run_until(driver, lambda: answered(driver, "session") == 4, most=60)
    assert "decode0" not in driver.finished_step


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
def test_a_short_piece_passes_a_long_prompt(stream, policy):
    driver = stream(policy)
    piece(driver, "session", 60)
    run_until(driver, lambda: idle(driver, "session"))
    driver.add(make_request(20_000, 2, name="long", arrival_time=driver.clock.time()))
    driver.step()
    piece(driver, "session", 5)
    run_until(driver, lambda: answered(driver, "session") == 4, most=4 + 2 * driver.depth)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [220, 5_000])
@pytest.mark.parametrize("seats", [4, 16])
def test_sessions_and_others_are_all_served(stream, policy, blocks, seats):
    """Pieces come at any time, sessions are closed or aborted at any time, memory is short."""
    driver = stream(policy, seats=seats, blocks=blocks)
    scheduler, rng = driver.scheduler, random.Random(seats + blocks)
    free = free_blocks(scheduler)
    open_ones, others = {}, set()
    for step in range(80):
        if rng.random() < 0.3 and len(open_ones) < 3:
            open_ones[f"session{step}"] = 0
        for name in sorted(open_ones):
            if rng.random() < 0.15 and open_ones[name] < 5:
                open_ones[name] += 1
                piece(driver, name, rng.choice((1, 20, 200)), 2)
            elif rng.random() < 0.02 and name in scheduler.requests:
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                del open_ones[name]
        if rng.random() < 0.3:
            others.add(f"other{step}")
            driver.add(
                make_request(
                    rng.choice((1, 60, 900)),
                    rng.randint(1, 20),
                    name=f"other{step}",
                    arrival_time=driver.clock.time(),
                )
            )
        driver.step()
    run_until(
        driver,
        lambda: (
            others <= driver.finished_step.keys()
            and all(answered(driver, name) == 2 * pieces for name, pieces in open_ones.items())
        ),
        most=2_000,
    )
    for name in sorted(open_ones.keys() & scheduler.requests.keys()):
        close(driver, name)
    driver.run(most=20)
    check_nothing_left(driver, free)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", ["mid-prefill", "idle", "with new input"])
def test_an_aborted_session_leaves_nothing(stream, policy, state):
    driver = stream(policy)
    free = free_blocks(driver.scheduler)
    piece(driver, "session", 2_000)
    driver.step()
    if state != "mid-prefill":
        run_until(driver, lambda: idle(driver, "session"))
    if state == "with new input":
        piece(driver, "session", 60)
    driver.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    driver.add(make_request(60, 2, name="next"))
    driver.run(most=20)
    assert "next" in driver.finished_step
    check_nothing_left(driver, free)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_that_continues_leaves_the_caps_to_the_others(stream, policy):
    """vLLM starts it by itself; beside it no more prompts are mid-prefill than may be."""
    driver = stream(policy, max_num_partial_prefills=1)
    piece(driver, "session", 60)
    run_until(driver, lambda: idle(driver, "session"))
    driver.add(make_request(3_000, 1), make_request(3_000, 1))
    piece(driver, "session", 2_000)
    while driver.scheduler.has_unfinished_requests():
        driver.step()
        others = [r for r in mid_prefill(driver.scheduler) if r.request_id != "session"]
        assert len(others) <= 1
        assert sum(tokens_left(r) > LONG for r in others) <= 1
