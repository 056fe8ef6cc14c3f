"""Requests that can't start yet, with vLLM's real scheduler: adapters, grammars, their counts."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from .conftest import teach
from .harness import Driver, make_request, make_scheduler
from .test_cost import calls_in

POLICIES = ("sequential", "parallel", "priority", "slo")
ADAPTERS = 8


def lora_options(slots=2):
    return {"config_options": {"lora_config": LoRAConfig(max_loras=slots, lora_dtype="auto")}}


def request_of(adapter, name=None, *, output=10, **options):
    """A request computed with that adapter, or with none if it is 0."""
    lora = adapter and LoRARequest(
        lora_name=f"l{adapter}", lora_int_id=adapter, lora_path="/nowhere"
    )
    return make_request(30, output, name=name, lora_request=lora or None, **options)


def mixed_up(each):
    """Adapters in an order in which neighbours differ, each so many times."""
    return [1 + (i * 5 + i // ADAPTERS) % ADAPTERS for i in range(ADAPTERS * each)]


def steps_for(driver, adapters):
    """Steps until one request for each of `adapters` is done; those of one began in order."""
    requests = [
        request_of(adapter, arrival_time=driver.clock.time() + i * 1e-6)
        for i, adapter in enumerate(adapters)
    ]
    driver.add(*requests)
    steps = driver.run()
    for adapter in set(adapters):
        first = [
            driver.first_token_step[request.request_id]
            for request, its in zip(requests, adapters, strict=True)
            if its == adapter
        ]
        assert first == sorted(first)
    return steps


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("each", [2, 10])
def test_more_adapters_than_slots_take_no_more_steps_than_with_stock_vllm(
    folder, clock, policy, each
):
    options = {"budget": 2_048, **lora_options()}
    stock = Driver(make_scheduler(folder, None, **options), clock=clock)
    ours = Driver(make_scheduler(folder, policy, **options), clock=clock)
    teach(ours.scheduler)
    assert steps_for(ours, mixed_up(each)) <= steps_for(stock, mixed_up(each)) + 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_costs_the_same_however_many_wait_for_an_adapters_slot(drive, policy):
    calls = {}
    for waiting in (100, 2_000):
        driver = drive(policy, **lora_options())
        teach(driver.scheduler)
        driver.add(request_of(1, output=500), request_of(2, output=500))
        for _ in range(4):
            driver.step()
        driver.add(*(request_of(3 + i % ADAPTERS) for i in range(waiting)))
        calls[waiting] = calls_in(lambda driver=driver: [driver.step() for _ in range(40)])
    assert calls[2_000] <= 1.1 * calls[100]


def test_vllms_metrics_count_those_without_a_slot_as_deferred(drive):
    """As stock vLLM's do; those whose turn it only isn't yet wait for capacity."""
    driver = drive("slo", seats=3, **lora_options())
    teach(driver.scheduler)
    driver.add(request_of(1, output=100), request_of(2, output=100))
    for _ in range(4):
        driver.step()
    driver.add(request_of(3, output=50), request_of(4), request_of(4))
    driver.step()
    stats = driver.scheduler.make_stats()
    assert (stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (0, 3)
    driver.add(request_of(0, output=100), request_of(0), request_of(1))
    driver.step()
    stats = driver.scheduler.make_stats()
    assert (stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (2, 3)
    driver.run()
    stats = driver.scheduler.make_stats()
    assert (stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_without_an_adapter_start_while_one_is_given_a_slot(drive, policy):
    """An adapter that has waited too long stops the loaded ones, and nobody else."""
    driver = drive(policy, **lora_options(1), max_wait_s=1.0)
    teach(driver.scheduler)
    driver.add(request_of(1, output=300))
    driver.step()
    driver.add(request_of(2, "waits"))
    while driver.clock.now_s < 1_000_002.0:
        driver.step()
    driver.add(
        request_of(1, "held", output=2, arrival_time=driver.clock.time()),
        request_of(0, "free", output=2, arrival_time=driver.clock.time()),
    )
    for _ in range(6):
        driver.step()
    assert "free" in driver.finished_step
    assert not {"held", "waits"} & driver.first_token_step.keys()
    driver.run()
    assert driver.first_token_step["waits"] <= driver.first_token_step["held"]


@pytest.fixture
def compiling(drive, monkeypatch):
    """A driver and a way to add a request whose grammar is being compiled."""

    def made(policy, **options):
        driver = drive(policy, **options)
        manager = driver.scheduler.structured_output_manager
        monkeypatch.setattr(manager, "should_advance", lambda *_: False, raising=False)
        monkeypatch.setattr(manager, "accept_tokens", lambda *_: True, raising=False)

        def add(name, **more):
            grammar: Future = Future()
            request = make_request(20, 3, name=name, **more)
            wanted = StructuredOutputRequest(params=StructuredOutputsParams(regex="a"))
            wanted.grammar = grammar
            request.structured_output_request = wanted
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            driver.add(request)
            return grammar

        return driver, add

    return made


@pytest.mark.parametrize("policy", POLICIES)
def test_grammars_that_become_ready_at_once_start_as_seats_allow(compiling, policy):
    """In order of arrival, whatever other grammars are still compiled."""
    driver, add = compiling(policy, seats=1_024, budget=8_192)
    teach(driver.scheduler)
    now_s = driver.clock.time()
    grammars = [add(f"g{i:03d}", arrival_time=now_s + i * 1e-6) for i in range(400)]
    for _ in range(3):
        driver.step()
    assert not driver.first_token_step
    for grammar in grammars[200:]:
        grammar.set_result(SimpleNamespace())
    limit = 2 + driver.depth if policy != "slo" else 20
    for _ in range(limit):
        driver.step()
    assert len(driver.first_token_step) == 200
    for grammar in grammars[:200]:
        grammar.set_result(SimpleNamespace())
    driver.run(most=200)


def test_a_ready_grammar_is_not_looked_for(compiling):
    """Steps cost the same however many are still compiled."""
    calls = {}
    for waiting in (100, 1_000):
        driver, add = compiling("slo")
        teach(driver.scheduler)
        driver.add(make_request(20, 500, name="runs"))
        for i in range(waiting):
            add(f"g{i}")
        for _ in range(4):
            driver.step()
        calls[waiting] = calls_in(lambda driver=driver: [driver.step() for _ in range(40)])
        assert "runs" in driver.first_token_step
    assert calls[1_000] <= 1.1 * calls[100]


def test_a_grammar_that_fails_ends_its_request_and_no_other(compiling):
    driver, add = compiling("parallel")
    bad, good = add("bad"), add("good")
    driver.step()
    bad.set_exception(ValueError("no such rule"))
    good.set_result(SimpleNamespace())
    driver.run(most=60)
    assert driver.reasons["bad"] == "error"
    assert driver.tokens["good"] == 3


def test_one_that_leaves_while_its_grammar_is_compiled_is_forgotten(compiling):
    driver, add = compiling("parallel")
    grammar = add("gone")
    driver.step()
    driver.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    grammar.set_result(SimpleNamespace())
    driver.add(make_request(20, 2, name="other"))
    driver.run(most=60)
    assert set(driver.finished_step) == {"other"}
