"""Nobody starves, whatever arrives: policies in a small engine in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batching.policy import YIELDING_SHARE
from headway.core.batching.settings import BUDGETS, ORDERS, PRESETS
from headway.core.latency import StepShape, attention_work
from headway.core.views import Probe, Prompt, Step

from .made import MODEL, make_policy, step_s

LONG = 1_000
STEP_TOKENS = 512
OUTPUT = 8


class Engine:
    """Applies plans as a host does. Every request decodes `OUTPUT` tokens after its prompt."""

    def __init__(self, *, seats=24, **values):
        self.policy = make_policy(STEP_TOKENS, MODEL, long_prefill_token_threshold=LONG, **values)
        self.now_s = 0.0
        self.seats = seats
        self.waiting = {}
        self.prefills = {}
        self.decodes = {}
        self.first_token_s = {}

    def arrive(self, name, tokens, priority=0):
        prompt = Prompt(name, self.now_s, tokens, 0, tokens, priority)
        self.waiting[name] = prompt
        self.policy.add(prompt, self.now_s)

    def probe(self, name):
        return Probe(self.waiting[name].tokens)

    def step(self):
        step = self._step()
        plan = self.policy.plan(step, self.now_s, self.probe)
        for chunk in plan.admitted:
            self.prefills[chunk.id] = self.waiting.pop(chunk.id)
        context = {name: p.context_tokens for name, p in self.prefills.items()}
        chunks = (*plan.chunks, *plan.admitted)
        self.now_s += step_s(
            StepShape(
                prefill_tokens=plan.tokens,
                prefill_work=sum(attention_work(c.tokens, context[c.id]) for c in chunks),
                prefill_context_tokens=sum(context[c.id] for c in chunks),
                decodes=len(self.decodes),
                decode_context_tokens=100 * len(self.decodes),
            )
        )
        self.decodes = {name: left - 1 for name, left in self.decodes.items() if left > 1}
        for chunk in (*plan.chunks, *plan.admitted):
            self._compute(chunk)
        return plan

    def _compute(self, chunk):
        prompt = self.prefills.pop(chunk.id)
        if not chunk.left:
            self.first_token_s[chunk.id] = self.now_s
            self.decodes[chunk.id] = OUTPUT
            return
        done = prompt.context_tokens + chunk.tokens
        self.prefills[chunk.id] = prompt._replace(tokens=chunk.left, context_tokens=done)

    def _step(self):
        pace_s = self.policy.pace_s(None)
        ahead = [
            self.first_token_s[name] + (OUTPUT - left + 1) * pace_s
            for name, left in self.decodes.items()
        ]
        return Step(
            tokens=STEP_TOKENS - len(self.decodes),
            prefills=tuple(self.prefills.values()),
            decodes=len(self.decodes),
            decode_context_tokens=100 * len(self.decodes),
            next_token_deadlines_s=ahead if self.policy.budget.uses_deadlines else [],
            seats=self.seats - len(self.prefills) - len(self.decodes),
            idle=not self.prefills and not self.decodes,
        )


def served_within(engine, name, arrivals, most_s):
    """Steps until the prompt has its first token, `arrivals` called before each step."""
    begin_s = engine.now_s
    while name not in engine.first_token_s:
        arrivals()
        engine.step()
        assert engine.now_s - begin_s < most_s, f"{name} waits on"
    return engine.now_s - begin_s


def flood(engine, tokens, priority=0, waiting=20):
    """Keeps so many such prompts waiting: more come than the engine can ever serve."""
    count = 0

    def arrivals():
        nonlocal count
        while len(engine.waiting) < waiting:
            engine.arrive(f"f{count:06d}", tokens, priority)
            count += 1

    return arrivals


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("tokens", [20, 300, 900])
def test_a_long_prompt_is_served_under_any_flood_of_short_ones(policy, tokens):
    """Within `max_wait_s` and a few times what it takes alone."""
    engine = Engine(policy=policy, max_wait_s=5.0)
    arrivals = flood(engine, tokens)
    for _ in range(20):
        arrivals()
        engine.step()
    engine.arrive("long", 8_000)
    alone_s = MODEL.alone_s(8_000, 0, STEP_TOKENS)
    served_within(engine, "long", arrivals, 5.0 + 8 * alone_s + 2.0)


@pytest.mark.parametrize("policy", PRESETS)
def test_a_short_prompt_is_served_under_any_flood_of_long_ones(policy):
    """Even those of more urgent clients, and in the sequential baseline."""
    engine = Engine(policy=policy, max_wait_s=5.0)
    arrivals = flood(engine, 4_000, priority=-5)
    for _ in range(20):
        arrivals()
        engine.step()
    engine.arrive("short", 50)
    alone_s = MODEL.alone_s(4_000, 0, STEP_TOKENS)
    served_within(engine, "short", arrivals, 5.0 + 22 * 5 * alone_s)


@pytest.mark.parametrize("policy", ["parallel", "slo"])
def test_short_prompts_do_not_wait_for_long_ones(policy):
    """A flood of long prompts adds at most one step of waiting, not a prefill."""
    engine = Engine(policy=policy, max_wait_s=1_000.0)
    arrivals = flood(engine, 4_000)
    for i in range(40):
        arrivals()
        engine.step()
        if i % 8 == 0:
            engine.arrive(f"short{i}", 50)
            wait_s = served_within(engine, f"short{i}", arrivals, 2.0)
            assert wait_s <= 4 * step_s(StepShape(STEP_TOKENS, STEP_TOKENS * 4_000, 4_000))


@pytest.mark.parametrize("order", YIELDING_SHARE)
def test_the_class_that_goes_last_keeps_its_share(order):
    """Long before `max_wait_s`: its prefill goes on in that share of the steps at least."""
    engine = Engine(order=order, budget="fixed", max_wait_s=1e6)
    arrivals = flood(engine, 400, waiting=5)
    engine.arrive("long", 8_000)
    if order == "feasible-first":
        engine.now_s += 60.0  # late by now
    for _ in range(4):
        arrivals()
        engine.step()
    steps = 800
    served = 0
    for _ in range(steps):
        if "long" in engine.first_token_s:
            return
        arrivals()
        plan = engine.step()
        served += any(c.id == "long" for c in (*plan.chunks, *plan.admitted))
    assert served >= 0.5 * YIELDING_SHARE[order] * steps


@settings(max_examples=25)
@given(
    order=st.sampled_from(ORDERS),
    budget=st.sampled_from(BUDGETS),
    partial=st.integers(1, 4),
    seats=st.integers(1, 12),
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 120), st.sampled_from((1, 40, 300, 1_001, 6_000)), st.integers(-2, 2)
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_all_that_arrive_are_served(order, budget, partial, seats, arrivals):
    """Any mix, any combination: the engine never idles with work left, and ends."""
    engine = Engine(
        seats=seats,
        order=order,
        budget=budget,
        max_num_partial_prefills=partial,
        max_long_partial_prefills=1,
        max_wait_s=20.0,
    )
    due = sorted(enumerate(arrivals), key=lambda item: item[1][0])
    steps = 0
    while due or engine.waiting or engine.prefills:
        while due and due[0][1][0] <= steps:
            number, (_, tokens, priority) = due.pop(0)
            engine.arrive(f"r{number}", tokens, priority)
        busy = engine.prefills or (engine.waiting and len(engine.decodes) < seats)
        plan = engine.step()
        assert plan.tokens > 0 or not busy
        steps += 1
        assert steps < 20_000
    assert len(engine.first_token_s) == len(arrivals)
