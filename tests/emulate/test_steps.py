"""Whatever vLLM's scheduler does with requests, each gets the tokens of its positions."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.harness import make_request, make_scheduler, model_dir

from headway.emulate.answers import writing
from headway.emulate.batch import Requests
from headway.emulate.sampler import Sampler

CONTEXT = 32_768


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_dir(tmp_path_factory.mktemp("model"))


def how(new, answer_tokens=4):
    return writing(
        new.req_id,
        new.prompt_token_ids,
        new.sampling_params,
        context_tokens=CONTEXT,
        answer_tokens=answer_tokens,
    )


class Engine:
    """vLLM's scheduler, and the emulated computation behind it; `depth` steps are in flight."""

    def __init__(self, scheduler, depth, *, v2):
        scheduler.use_v2_model_runner = v2
        self.scheduler = scheduler
        self.depth = depth
        self.requests = Requests(how)
        self.sampler = Sampler(scheduler.vllm_config.model_config)
        self.in_flight = deque()
        self.tokens = {}
        self.chunks = []

    def run(self, *requests, most=5_000):
        for request in requests:
            self.scheduler.add_request(request)
        for _ in range(most):
            if self.scheduler.has_requests():
                self.begin()
            if len(self.in_flight) >= self.depth or not self.scheduler.has_requests():
                if not self.in_flight:
                    return self
                self.end()
        raise AssertionError("no end")

    def begin(self):
        output = self.scheduler.schedule()
        batch = self.requests.batch(output)
        computed = sum(chunk.tokens for chunk in batch.chunks) + batch.decodes
        assert computed == output.total_num_scheduled_tokens
        self.chunks += [(chunk.tokens, chunk.context_tokens) for chunk in batch.chunks]
        self.in_flight.append((output, self.sampler.output(batch, None)))

    def end(self):
        output, result = self.in_flight.popleft()
        for batch in self.scheduler.update_from_output(output, result).values():
            for item in batch.outputs:
                self.tokens.setdefault(item.request_id, []).extend(item.new_token_ids)


def expected(request, words):
    written = writing(
        request.request_id,
        request.prompt_token_ids,
        request.sampling_params,
        context_tokens=CONTEXT,
        answer_tokens=4,
    )
    begin = request.num_prompt_tokens
    return [written.token(p, words) for p in range(begin, begin + request.max_tokens)]


WAYS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("ahead", "v2"), WAYS)
@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=8),
    blocks=st.integers(32, 80),
    budget=st.sampled_from([32, 100, 512]),
    policy=st.sampled_from([None, "slo", "sequential"]),
)
def test_answers_do_not_depend_on_how_steps_were_cut(
    folder, ahead, v2, lengths, blocks, budget, policy
):
    scheduler = make_scheduler(
        folder,
        policy,
        budget=budget,
        seats=8,
        blocks=blocks,
        async_scheduling=ahead,
        max_model_len=CONTEXT,
    )
    requests = [make_request(prompt, output) for prompt, output in lengths]
    engine = Engine(scheduler, 2 if ahead else 1, v2=v2).run(*requests)
    for request in requests:
        assert engine.tokens[request.request_id] == expected(request, engine.sampler._words)
    assert not len(engine.requests), "what has ended is forgotten"


@pytest.mark.parametrize(("ahead", "v2"), WAYS)
def test_a_request_that_was_preempted_goes_on_where_it_was(folder, ahead, v2):
    scheduler = make_scheduler(
        folder, None, budget=64, blocks=24, async_scheduling=ahead, max_model_len=CONTEXT
    )
    requests = [make_request(100, 120) for _ in range(3)]
    engine = Engine(scheduler, 2 if ahead else 1, v2=v2).run(*requests)
    assert sum(request.num_preemptions for request in requests) > 0
    for request in requests:
        assert engine.tokens[request.request_id] == expected(request, engine.sampler._words)


def test_what_is_cached_is_not_computed_again(folder):
    scheduler = make_scheduler(folder, None, budget=512, max_model_len=CONTEXT)
    engine = Engine(scheduler, 1, v2=True)
    engine.run(make_request(400, 2, prefix=1, prefix_tokens=320))
    engine.chunks.clear()
    engine.run(make_request(400, 2, prefix=1, prefix_tokens=320))
    assert engine.chunks == [(80, 320)]


def test_the_same_prompt_gets_the_same_answer_and_others_get_others(folder):
    engine = Engine(make_scheduler(folder, None, max_model_len=CONTEXT), 1, v2=True)
    same = [make_request(64, 20, name=n, prefix=3, prefix_tokens=64) for n in ("a", "b")]
    for request in same:
        request.sampling_params.temperature = 0.0
    other = make_request(64, 20, name="c")
    engine.run(*same, other)
    assert engine.tokens["a"] == engine.tokens["b"] != engine.tokens["c"]


def test_an_answer_whose_length_nobody_asked_for_ends(folder):
    engine = Engine(make_scheduler(folder, None, max_model_len=CONTEXT), 1, v2=True)
    request = make_request(64, CONTEXT - 64)
    request.sampling_params.ignore_eos = False
    request.sampling_params._eos_token_id = 31_999
    engine.run(request)
    assert len(engine.tokens[request.request_id]) == 5
    assert engine.tokens[request.request_id][-1] == 31_999
