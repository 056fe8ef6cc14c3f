"""Speculative decoding: drafts proposed, accepted and rejected, with prefill beside them."""

import random

import pytest
from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.v1.outputs import DraftTokenIds

from .conftest import teach
from .connector import transfer
from .harness import BLOCK, Driver, make_request, make_scheduler, mid_prefill, tokens_left

POLICIES = ("sequential", "parallel", "priority", "slo")
DRAFTS = 3
LONG = 400


def drafting(method, folder):
    """Speculation without a drafter, with a draft model, or with one that drafts in parallel.

    The last two take 1 and `DRAFTS` slots of the batch for each request beside its tokens.
    """
    if method == "ngram":
        return SpeculativeConfig(
            method="ngram_gpu",
            num_speculative_tokens=DRAFTS,
            prompt_lookup_max=3,
            prompt_lookup_min=2,
        )
    target = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=32_768
    )
    return SpeculativeConfig(
        method="draft_model",
        model=str(folder),
        num_speculative_tokens=DRAFTS,
        parallel_drafting=method == "parallel drafts",
        target_model_config=target,
        target_parallel_config=ParallelConfig(),
    )


class SpeculatingDriver(Driver):
    """Accepts a random number of the scheduled drafts, and proposes new ones.

    accept: drafts of the next ones to accept, a random number if None.
    """

    def __init__(self, scheduler, depth, clock):
        super().__init__(scheduler, depth, clock)
        self.rng = random.Random(1)
        self.accept = None
        self.accepted = 0
        self.rejected = 0

    def deliver(self):
        output = self._in_flight[0]
        super().deliver()
        if self.depth == 1:
            ids = list(output.num_scheduled_tokens)
            drafts = [[5] * DRAFTS for _ in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def _sample(self, output, request_id, computed):
        sampled = super()._sample(output, request_id, computed)
        drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        if not sampled or not drafts:
            return sampled
        accepted = self.rng.randint(0, drafts) if self.accept is None else self.accept
        self.accepted += accepted
        self.rejected += drafts - accepted
        return sampled + [7] * accepted


@pytest.fixture(params=["plain", "async"])
def speculate(request, folder, clock):
    """Makes a driver on a speculating engine, plain or with two steps in flight."""

    def made(policy="parallel", method="ngram", **options):
        steps_ahead = request.param == "async"
        scheduler = make_scheduler(
            folder,
            policy,
            async_scheduling=steps_ahead,
            config_options={"speculative_config": drafting(method, folder)},
            **options,
        )
        if policy == "slo":
            teach(scheduler)
        return SpeculatingDriver(scheduler, 2 if steps_ahead else 1, clock)

    return made


def check_counts(scheduler):
    """What is computed, less what is still to be sampled, is all but the last known token."""
    for request in scheduler.running:
        if not request.is_prefill_chunk:
            certain = request.num_computed_tokens - request.num_output_placeholders
            assert certain == request.num_tokens - 1


def check_caps(scheduler, partial, long):
    left = [tokens_left(r) for r in mid_prefill(scheduler)]
    assert len(left) <= partial
    assert sum(tokens > LONG for tokens in left) <= long


def add(driver, tokens, output=4, **options):
    driver.add(make_request(tokens, output, arrival_time=driver.clock.time(), **options))


def decoding(driver, count, output=400):
    """Run until `count` requests decode."""
    for i in range(count):
        add(driver, 16, output, name=f"decode{i}")
    while len(driver.first_token_step) < count:
        driver.step()


@pytest.mark.parametrize("method", ["ngram", "draft model", "parallel drafts"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_mixed_load_is_finished_with_all_of_its_tokens(speculate, policy, method):
    """Whatever is accepted or rejected: counts agree after every step, caps hold, nothing stays."""
    partial = 1 if policy == "sequential" else 4
    driver = speculate(policy, method, budget=256, seats=12, long_prefill_token_threshold=LONG)
    scheduler, rng = driver.scheduler, random.Random(4)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    wanted = {}
    while driver.steps < 60 or scheduler.has_unfinished_requests():
        for _ in range(rng.choice((0, 0, 1, 3)) if driver.steps < 60 else 0):
            tokens = rng.choice((1, 5, 60, 200, LONG + 1, 1_500, 4_000))
            request = make_request(
                tokens,
                rng.randint(1, 12),
                arrival_time=driver.clock.time(),
                prefix=rng.randint(0, 2),
                prefix_tokens=min(tokens - 1, rng.choice((0, 160, 1_200))),
            )
            wanted[request.request_id] = request.max_tokens
            driver.add(request)
        driver.step()
        check_counts(scheduler)
        check_caps(scheduler, partial, scheduler.headway.policy.caps.long)
        assert driver.steps < 2_000
    driver.run()
    assert driver.tokens == wanted
    assert driver.accepted
    assert driver.rejected
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert len(scheduler.headway.tracks) == 0
    assert len(scheduler.headway.policy.backlog) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_preempted_requests_are_finished_with_all_of_their_tokens(speculate, policy):
    driver = speculate(policy, blocks=60, seats=12, budget=128)
    requests = [make_request(100, 150) for _ in range(12)]
    driver.add(*requests)
    while driver.scheduler.has_unfinished_requests():
        driver.step()
        check_counts(driver.scheduler)
        assert driver.steps < 6_000
    driver.run()
    assert sum(r.num_preemptions for r in requests) > 0
    assert [driver.tokens[r.request_id] for r in requests] == [150] * 12


@pytest.mark.parametrize("accept", [0, 1, DRAFTS])
@pytest.mark.parametrize("policy", ["sequential", "parallel", "priority"])
def test_prefill_takes_what_decodes_and_their_drafts_leave(speculate, policy, accept):
    """No token of the budget idles, and every decode gets its drafts."""
    driver = speculate(policy, budget=64)
    driver.accept = accept
    decoding(driver, 8)
    add(driver, 4_000, 1, name="long")
    for _ in range(20):
        output = driver.step()
        assert output.total_num_scheduled_tokens == 64
        assert output.num_scheduled_tokens["long"] == 64 - 8 * (1 + DRAFTS)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_of_one_token_starts_beside_speculating_decodes(speculate, policy):
    """vLLM starts it with as many tokens as a decode with its drafts has, or not at all."""
    driver = speculate(policy)
    decoding(driver, 4)
    add(driver, 1, 2, name="tiny")
    for _ in range(1 + driver.depth):
        driver.step()
    assert "tiny" in driver.first_token_step


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_cached_but_for_one_token_starts_beside_speculating_decodes(speculate, policy):
    driver = speculate(policy)
    add(driver, 4 * BLOCK + 1, 1, prefix=3, prefix_tokens=4 * BLOCK)
    driver.run()
    driver.first_token_step.clear()
    decoding(driver, 4)
    add(driver, 4 * BLOCK + 1, 2, name="cached", prefix=3, prefix_tokens=4 * BLOCK)
    for _ in range(1 + driver.depth):
        driver.step()
    assert "cached" in driver.first_token_step


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waits", [False, True])
def test_a_request_whose_kv_has_arrived_starts_beside_speculating_decodes(speculate, policy, waits):
    """Also where the step plans nothing, because what waits can't start."""
    driver = speculate(policy, kv_transfer=transfer(), blocks=300)
    decoding(driver, 4)
    add(driver, 1_000, 2, name="fetched")
    driver.scheduler.requests["fetched"].kv_transfer_params = {"do_remote_prefill": True}
    driver.step()
    if waits:
        add(driver, 4_000, 2, name="too big for now")
    driver.kv_arrivals = {"fetched"}
    for _ in range(1 + 2 * driver.depth):
        driver.step()
    assert "fetched" in driver.first_token_step


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
def test_prompts_padded_to_the_drafts_break_no_cap(speculate, policy):
    """A prompt of one token takes the tokens of its drafts too; others are planned around it."""
    driver = speculate(policy, budget=64, max_num_partial_prefills=1)
    decoding(driver, 4)
    add(driver, 9_000, 1)
    driver.step()
    for last in range(40, 49):
        add(driver, 1, 2)
        add(driver, last, 2)
        for _ in range(3):
            driver.step()
            check_caps(driver.scheduler, 1, 1)


@pytest.mark.parametrize("policy", ["parallel", "priority", "slo"])
@pytest.mark.parametrize("method", ["draft model", "parallel drafts"])
@pytest.mark.parametrize("shorts", [1, 3])
def test_prompts_cut_by_the_slots_for_drafts_break_no_cap(speculate, policy, method, shorts):
    """Each request takes slots of the model's input; what is planned whole fits beside them."""
    driver = speculate(policy, method, budget=64, max_num_partial_prefills=1)
    decoding(driver, 4)
    add(driver, 9_000, 1)
    driver.step()
    for last in range(20, 49):
        for i in range(shorts):
            add(driver, last // shorts + i, 2)
        for _ in range(3):
            driver.step()
            check_caps(driver.scheduler, 1, 1)


@pytest.mark.parametrize("policy", ["sequential", "parallel", "priority"])
@pytest.mark.parametrize("method", ["draft model", "parallel drafts"])
def test_a_lone_prompt_beside_decodes_takes_stocks_steps(speculate, policy, method):
    steps = {}
    for name in (None, policy):
        driver = speculate(name, method, budget=64)
        driver.accept = 1
        decoding(driver, 4)
        add(driver, 2_000, 1, name="lone")
        while "lone" not in driver.finished_step:
            driver.step()
        steps[name] = driver.steps
    assert steps[policy] <= steps[None] + 1
