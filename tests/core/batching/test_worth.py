"""Chunks whose context is costly to read; steps that end before a first token is due."""

from headway.core.batching.budget import PACE, STALL_LIMIT, STRETCH
from headway.core.batching.policy import MAX_WAITS
from headway.core.batching.step import WORTH
from headway.core.latency import SETTLED_SAMPLES, StepShape, StepTimeModel, attention_work
from headway.core.views import Probe, Prompt, Step

from .made import make_policy

FIXED_S, TOKEN_S, READ_S = 0.05, 2e-3, 6e-5
TPOT_S = 0.4
NOW_S = 50.0


def costly_model() -> StepTimeModel:
    """A machine on which reading 4,000 tokens of context takes as long as 120 prompt tokens."""
    model = StepTimeModel()
    for i in range(6 * SETTLED_SAMPLES):
        tokens, context = (0, 16, 100, 256, 512)[i % 5], (i * 977) % 5_000
        context = context if tokens else 0
        decodes = i % 4
        shape = StepShape(tokens, attention_work(tokens, context), context, decodes, decodes * 100)
        model.observe(shape, FIXED_S + TOKEN_S * tokens + READ_S * context + 0.005 * decodes)
    return model


def long_step(slack_s: float | None) -> Step:
    prefill = Prompt("long", 0.0, 2_000, 4_000, 6_000)
    deadlines = [] if slack_s is None else [NOW_S + slack_s]
    return Step(
        tokens=512,
        prefills=(prefill,),
        decodes=len(deadlines),
        decode_context_tokens=100 * len(deadlines),
        next_token_deadlines_s=deadlines,
    )


def plan(policy, step):
    return policy.plan(step, NOW_S, {}.__getitem__)


def policy_on(model):
    return make_policy(model=model, policy="slo", tpot_slo_s=TPOT_S)


def test_a_chunk_gets_the_time_that_is_worth_reading_its_context():
    """Also where responsiveness alone would leave it less."""
    model = costly_model()
    for step in (long_step(None), long_step(5.0)):
        chunk = plan(policy_on(model), step).tokens
        read_s = model.read_s(4_000)
        assert model.chunk_s(chunk + 1, 4_000) > min(WORTH * read_s, 0.5)
        assert model.chunk_s(chunk, 4_000) <= STRETCH * 1.0


def test_a_chunk_waits_a_few_steps_for_decodes_to_bank_its_time_and_no_longer():
    policy = policy_on(costly_model())
    tokens = [plan(policy, long_step(PACE * TPOT_S)).tokens for _ in range(MAX_WAITS + 1)]
    assert tokens[:MAX_WAITS] == [0] * MAX_WAITS
    assert tokens[MAX_WAITS] > 0


def test_a_chunk_does_not_wait_where_waiting_can_not_help():
    """Decodes that are as slow as their limit bank nothing."""
    model = costly_model()
    policy = make_policy(model=model, policy="slo", tpot_slo_s=0.05)
    assert WORTH * model.read_s(4_000) > STALL_LIMIT * 0.05
    assert plan(policy, long_step(0.05)).tokens > 0


def test_a_step_ends_before_the_first_token_it_brings_is_due():
    """The long prompt's share of the step shrinks to what the short one's deadline leaves."""
    model = costly_model()
    policy = policy_on(model)
    waited_s = 0.75
    policy.add(Prompt("short", NOW_S - waited_s, 40, 0, 40), NOW_S)
    early = Prompt("long", 0.0, 2_000, 0, 2_000)
    step = Step(tokens=512, prefills=(early,), seats=4)
    made = policy.plan(step, NOW_S, lambda _: Probe(40))
    assert [c.id for c in made.admitted] == ["short"]
    long_tokens = sum(c.tokens for c in made.chunks)
    seconds = model.chunk_s(40, 0) + model.chunk_s(long_tokens, 0)
    assert model.predict(StepShape()) + seconds <= 1.0 - waited_s + 1e-6
