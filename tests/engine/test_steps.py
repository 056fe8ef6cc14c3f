"""How many engine steps requests take, against stock vLLM."""

import pytest

from headway.core.batching.budget import IDLE_RESPONSIVE_SHARE, waiting_limit_s
from headway.core.latency import StepShape, attention_work

from .conftest import teach
from .harness import make_request

PASSING = ("parallel", "priority", "slo")
PRESETS = ("sequential", *PASSING)
BLOCKING = (None, "sequential")
EXACT = ("sequential", "parallel", "priority")


def add(driver, *sizes, output=4):
    requests = [make_request(tokens, output, arrival_time=driver.clock.time()) for tokens in sizes]
    driver.add(*requests)
    return [r.request_id for r in requests]


def steps_to_first_token(driver, request_id, most=500):
    begin = driver.steps
    while request_id not in driver.first_token_step:
        driver.step()
        assert driver.steps - begin < most
    return driver.first_token_step[request_id] - begin


@pytest.mark.parametrize("policy", PASSING)
def test_a_short_prompt_passes_a_long_one(drive, policy):
    """Its first token comes two steps after it arrived, however much of the long one is left."""
    driver = drive(policy)
    if policy == "slo":
        teach(driver.scheduler)
    long, *_ = add(driver, 20_000)
    for _ in range(3):
        driver.step()
    short, *_ = add(driver, 30)
    assert steps_to_first_token(driver, short) <= 2 + driver.depth
    assert long not in driver.first_token_step


@pytest.mark.parametrize("policy", BLOCKING)
def test_without_passing_it_waits_for_all_of_the_long_ones_steps(drive, policy):
    """Stock vLLM, and the baseline that stands for it."""
    driver = drive(policy)
    add(driver, 20_000)
    for _ in range(3):
        driver.step()
    short, *_ = add(driver, 30)
    assert steps_to_first_token(driver, short) >= 20_000 // 512 - 3


@pytest.mark.parametrize("policy", PASSING)
def test_many_short_prompts_pass_and_the_long_one_moves_on(drive, policy):
    """A burst of shorts in one step's budget takes one step; the long one loses only that."""
    driver = drive(policy)
    if policy == "slo":
        teach(driver.scheduler)
    add(driver, 10_000)
    driver.step()
    shorts = add(driver, *([60] * 8))
    for request_id in shorts:
        steps_to_first_token(driver, request_id)
    assert driver.steps <= 4 + driver.depth


@pytest.mark.parametrize("policy", EXACT)
@pytest.mark.parametrize(
    ("tokens", "budget"), [(511, 512), (513, 512), (9_000, 128), (9_000, 2_048)]
)
def test_a_lone_long_prompt_takes_exactly_stocks_steps(drive, policy, budget, tokens):
    taken = {}
    for name in (None, policy):
        driver = drive(name, budget=budget)
        add(driver, tokens, output=1)
        taken[name] = driver.run()
    assert taken[policy] == taken[None]


@pytest.mark.parametrize("policy", EXACT)
@pytest.mark.parametrize("budget", [128, 512])
@pytest.mark.parametrize("decodes", [1, 20])
def test_beside_running_decodes_it_takes_stocks_steps_too(drive, policy, budget, decodes):
    taken = {}
    for name in (None, policy):
        driver = drive(name, budget=budget)
        running = add(driver, *([16] * decodes), output=300)
        for request_id in running:
            steps_to_first_token(driver, request_id)
        long, *_ = add(driver, 7_777)
        taken[name] = steps_to_first_token(driver, long)
    assert taken[policy] == taken[None]


@pytest.mark.parametrize("policy", PRESETS)
def test_running_decodes_get_a_token_in_every_step(drive, policy):
    """Decodes first: prefill never takes the budget from under them."""
    driver = drive(policy, budget=64)
    if policy == "slo":
        teach(driver.scheduler)
    running = add(driver, *([16] * 10), output=60)
    for request_id in running:
        steps_to_first_token(driver, request_id)
    add(driver, 3_000, 500, 20)
    for _ in range(30):
        output = driver.step()
        assert all(output.num_scheduled_tokens.get(i) == 1 for i in running)


@pytest.mark.parametrize("floor_s", [0.3, 1.0])
def test_under_slo_a_lone_prompts_steps_follow_the_responsiveness_rule(drive, floor_s):
    """No step longer than a share of the TTFT limit, and none much shorter than it may be."""
    driver = drive("slo", budget=8_192, ttft_slo_s=floor_s)
    scheduler = driver.scheduler
    teach(scheduler)
    add(driver, 30_000, output=1)
    model = scheduler.headway.model
    in_flight = scheduler.vllm_config.max_concurrent_batches
    limit_s = IDLE_RESPONSIVE_SHARE * waiting_limit_s(floor_s, in_flight)
    done = 0
    while done < 30_000:
        chunk = sum(driver.step().num_scheduled_tokens.values())
        seconds = model.predict(StepShape(chunk, attention_work(chunk, done), done))
        assert seconds <= limit_s * 1.01
        done += chunk
        assert done >= 30_000 or seconds >= 0.8 * limit_s or chunk == 8_192


@pytest.mark.parametrize("policy", PRESETS)
def test_everything_finishes_as_with_stock(drive, policy):
    """The same requests give the same finished ones with the same numbers of tokens."""
    tokens = {}
    for name in (None, policy):
        driver = drive(name, seats=6)
        ids = add(driver, 5_000, 30, 700, 16, 1, 12_000, 40, 512, 513, 2_048, output=7)
        driver.run()
        tokens[name] = [driver.tokens[i] for i in ids]
        assert set(driver.finished_step) == set(ids)
    assert tokens[policy] == tokens[None]


@pytest.mark.parametrize("policy", PRESETS)
def test_a_cold_engine_serves_long_and_short(drive, policy):
    """Nothing learned yet, no client limits: everything still finishes."""
    driver = drive(policy)
    add(driver, 9_000, 30, 30, 9_000)
    driver.run(most=600)
    assert len(driver.finished_step) == 4
