"""vLLM's features with headway's scheduler."""

from types import SimpleNamespace

import pytest
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from .conftest import teach
from .harness import make_request

POLICIES = ("sequential", "parallel", "priority", "slo")


def lora(number):
    return LoRARequest(lora_name=f"l{number}", lora_int_id=number, lora_path="/nowhere")


def lora_options():
    return {"config_options": {"lora_config": LoRAConfig(max_loras=1, lora_dtype="auto")}}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_whose_adapter_has_no_slot_lets_others_pass(drive, policy):
    """Within the bound; then it gets its turn."""
    driver = drive(policy, **lora_options(), max_wait_s=3.0)
    if policy == "slo":
        teach(driver.scheduler)
    driver.add(make_request(60, 100, lora_request=lora(1)))
    driver.step()
    driver.add(make_request(60, 2, name="blocked", lora_request=lora(2)))
    driver.add(make_request(60, 2, name="free"))
    for _ in range(6):
        driver.step()
    assert "free" in driver.finished_step
    assert "blocked" not in driver.first_token_step
    begin_s = driver.clock.now_s
    while "blocked" not in driver.finished_step:
        if len(driver.scheduler.running) < 4:
            driver.add(make_request(60, 60, lora_request=lora(1), arrival_time=driver.clock.time()))
        driver.step()
        assert driver.clock.now_s - begin_s < 15.0


def grammar_request(name, *, ready):
    request = make_request(60, 2, name=name)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = SimpleNamespace(grammar=object() if ready else None)
    return request


@pytest.mark.parametrize("policy", POLICIES)
def test_a_grammar_that_is_not_ready_stops_nobody_ever(drive, policy, monkeypatch):
    driver = drive(policy, max_wait_s=1.0)
    manager = driver.scheduler.structured_output_manager
    monkeypatch.setattr(manager, "should_advance", lambda *_: False, raising=False)
    monkeypatch.setattr(manager, "accept_tokens", lambda *_: True, raising=False)
    waiting = grammar_request("waits", ready=False)
    driver.add(waiting)
    for i in range(30):
        driver.clock.now_s += 0.3
        driver.add(make_request(60, 2, name=f"free{i}", arrival_time=driver.clock.time()))
        for _ in range(2 + driver.depth):
            driver.step()
        assert f"free{i}" in driver.finished_step
    waiting.structured_output_request.grammar = object()
    driver.run(most=50)
    assert "waits" in driver.finished_step


@pytest.mark.parametrize("policy", POLICIES)
def test_pausing_new_requests_lets_running_ones_finish(drive, policy):
    driver = drive(policy)
    scheduler = driver.scheduler
    driver.add(make_request(2_000, 5, name="runs"))
    driver.step()
    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    driver.add(make_request(30, 2, name="waits"))
    driver.run(most=200)
    assert list(driver.finished_step) == ["runs"]
    scheduler.set_pause_state(PauseState.UNPAUSED)
    driver.run(most=50)
    assert "waits" in driver.finished_step


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_pause_stops_everything_and_loses_nothing(drive, policy):
    driver = drive(policy)
    scheduler = driver.scheduler
    driver.add(make_request(2_000, 5, name="a"))
    for _ in range(3):
        driver.step()
    driver.add(make_request(30, 5, name="b"))
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for _ in range(5):
        assert not driver.step().num_scheduled_tokens
    scheduler.set_pause_state(PauseState.UNPAUSED)
    driver.run(most=200)
    assert driver.tokens == {"a": 5, "b": 5}


@pytest.mark.parametrize("policy", ["parallel", "slo"])
def test_decodes_keep_their_draft_tokens(folder, clock, policy):
    """Speculative tokens are part of the decodes, before any prefill."""
    from .harness import Driver, make_scheduler

    scheduler = make_scheduler(folder, policy, budget=64)
    scheduler.num_spec_tokens = 3
    driver = Driver(scheduler, clock=clock)
    if policy == "slo":
        teach(scheduler)
    decodes = [make_request(16, 200) for _ in range(8)]
    driver.add(*decodes)
    while len(driver.first_token_step) < len(decodes):
        driver.step()
    driver.add(make_request(4_000, 1))
    for _ in range(20):
        for request in decodes:
            request.spec_token_ids = [5, 6, 7]
        output = driver.step()
        for request in decodes:
            assert output.num_scheduled_tokens[request.request_id] == 4
            assert output.scheduled_spec_decode_tokens[request.request_id] == [5, 6, 7]


def test_throttling_of_prefills_is_forwarded(drive):
    """Data-parallel balancing asks for steps without prefill: decodes go on, prompts wait."""
    driver = drive("parallel")
    scheduler = driver.scheduler
    driver.add(make_request(16, 100, name="decode"))
    while "decode" not in driver.first_token_step:
        driver.step()
    driver.add(make_request(3_000, 1, name="long"))
    driver.step()
    scheduler.prefill_capacity_bound = False
    schedule = scheduler.schedule
    scheduler.schedule = lambda: schedule(throttle_prefills=True)
    for _ in range(3):
        assert list(driver.step().num_scheduled_tokens) == ["decode"]
    scheduler.schedule = schedule
    driver.run()
    assert {"decode", "long"} <= set(driver.finished_step)


@pytest.mark.parametrize(("policy", "bound"), [("slo", False), ("parallel", True)])
def test_a_backlog_that_a_policys_own_limit_makes_does_not_end_throttling(drive, policy, bound):
    """vLLM ends it where an engine can't keep up: its tokens, seats or KV blocks are used up."""
    driver = drive(policy, budget=4_096, max_num_partial_prefills=1)
    teach(driver.scheduler)
    driver.add(*(make_request(16, 500, arrival_time=driver.clock.time()) for _ in range(8)))
    while len(driver.first_token_step) < 8:
        driver.step()
    driver.add(make_request(20_000, 1, arrival_time=driver.clock.time()))
    driver.add(*(make_request(3_000, 1, arrival_time=driver.clock.time()) for _ in range(3)))
    driver.step()
    assert len(driver.scheduler.waiting) > 0
    assert driver.scheduler.prefill_capacity_bound == bound


@pytest.mark.parametrize("seats", [2, 64])
def test_throttling_ends_where_seats_are_taken_or_prompts_are_late(drive, seats):
    driver = drive("slo", budget=4_096, seats=seats, ttft_slo_s=0.5)
    teach(driver.scheduler)
    driver.add(*(make_request(16, 900, arrival_time=driver.clock.time()) for _ in range(2)))
    while len(driver.first_token_step) < 2:
        driver.step()
    ages_s = [0.0] if seats == 2 else [30.0] * 20
    for age_s in ages_s:
        driver.add(make_request(9_000, 1, arrival_time=driver.clock.time() - age_s))
    for _ in range(3):
        driver.step()
    assert driver.scheduler.prefill_capacity_bound


def limits(scheduler, **extra_args):
    request = make_request(50, 2, extra_args=extra_args)
    scheduler.add_request(request)
    return scheduler.headway.tracks.get(request.request_id)


def test_a_clients_own_limits_win_within_the_operators_range(drive):
    scheduler = drive("slo", tpot_slo_s=0.2, min_client_slo_factor=0.25).scheduler
    usual = limits(scheduler)
    own = limits(scheduler, headway_ttft_slo_s=0.25, headway_tpot_slo_s=0.1)
    assert usual.ttft_slo_s is None
    assert own.ttft_slo_s == 0.25
    assert own.pace_s == pytest.approx(usual.pace_s / 2)
    assert not scheduler.headway.tracks.clamped


def test_what_a_client_asks_beyond_its_range_is_clamped_and_counted(drive):
    scheduler = drive("slo", tpot_slo_s=0.2).scheduler
    usual = limits(scheduler)
    tight = limits(scheduler, headway_ttft_slo_s=1e-3, headway_tpot_slo_s=1e-3)
    wide = limits(scheduler, headway_ttft_slo_s=1e308, headway_tpot_slo_s=1e308)
    assert (tight.ttft_slo_s, tight.pace_s) == (1.0, usual.pace_s)
    assert (wide.ttft_slo_s, wide.pace_s) == (10.0, pytest.approx(10 * usual.pace_s))
    scheduler.add_request(make_request(50, 2, priority=-5))
    assert scheduler.headway.tracks.clamped == {"ttft": 2, "tpot": 2, "priority": 1}


@pytest.mark.parametrize(
    "value", [0, -1, True, "0.5", None, float("nan"), float("inf"), [1], -(2**63)]
)
def test_limits_that_make_no_sense_are_ignored(drive, value):
    scheduler = drive("slo").scheduler
    usual = limits(scheduler)
    odd = limits(scheduler, headway_ttft_slo_s=value, headway_tpot_slo_s=value)
    assert (odd.ttft_slo_s, odd.pace_s) == (None, usual.pace_s)


def test_a_tight_limit_of_one_client_shortens_the_steps(drive):
    """Whoever arrives next with that limit must not wait for a long step."""
    driver = drive("slo", budget=32_768, min_client_slo_factor=0.1)
    teach(driver.scheduler)
    driver.add(make_request(30_000, 1, arrival_time=driver.clock.time()))
    before = driver.step().total_num_scheduled_tokens
    driver.add(
        make_request(
            20, 1, extra_args={"headway_ttft_slo_s": 0.2}, arrival_time=driver.clock.time()
        )
    )
    for _ in range(3):
        after = driver.step().total_num_scheduled_tokens
    assert after < before / 3
