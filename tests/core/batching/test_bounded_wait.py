"""Nobody starves, whatever arrives: policies in a small engine in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batching.budget import PACE
from headway.core.batching.settings import BUDGETS, ORDERS
from headway.core.batching.shares import SHARE
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
        pace_s = PACE * self.policy.settings.tpot_slo_s
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


def longest_wait_tokens(engine, name):
    """Prefill tokens within which a prompt that has just aged has its first token.

    As docs/policies.md derives it: its share of them is what it, those older and those
    mid-prefill still need, and a few steps.
    """
    prompt = engine.waiting[name]
    older = [p for p in engine.waiting.values() if p.arrival_s <= prompt.arrival_s]
    work = sum(p.tokens for p in (*older, *engine.prefills.values()))
    return (work + 4 * STEP_TOKENS) / SHARE


def served_in_time(engine, name, arrivals, max_wait_s):
    """Steps until the prompt has its first token, under a flood, and checks that bound."""
    most, spent = None, 0
    while name not in engine.first_token_s:
        arrivals()
        if most is None and name not in engine.waiting:
            return  # it started before it could age
        if most is None and engine.now_s - engine.waiting[name].arrival_s > max_wait_s:
            most = longest_wait_tokens(engine, name)
        spent += engine.step().tokens * (most is not None)
        assert most is None or spent <= most, f"{name} waits on"


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    budget=st.sampled_from(BUDGETS),
    partial=st.integers(1, 4),
    seats=st.sampled_from((2, 8, 64)),
    tokens=st.sampled_from((20, 300, 900, 1_500, 4_000)),
    priority=st.sampled_from((-5, 0)),
    watched=st.lists(st.sampled_from((50, 700, 2_000, 6_000)), min_size=1, max_size=4),
)
def test_the_wait_is_bounded_under_any_flood(
    order, budget, partial, seats, tokens, priority, watched
):
    """Of short prompts or long ones, more urgent or not; with any caps, order and budget."""
    engine = Engine(
        seats=seats,
        order=order,
        budget=budget,
        max_num_partial_prefills=partial,
        max_long_partial_prefills=1,
        max_wait_s=2.0,
    )
    arrivals = flood(engine, tokens, priority)
    for _ in range(10):
        arrivals()
        engine.step()
    for number, length in enumerate(watched):
        engine.arrive(f"watched{number}", length)
        arrivals()
        engine.step()
    for number in range(len(watched)):
        served_in_time(engine, f"watched{number}", arrivals, 2.0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokens", [100, 4_000])
def test_what_has_waited_too_long_takes_no_more_than_its_share(order, tokens):
    """Of a flood that is urgent: late in overload, it doesn't make everyone else late."""
    engine = Engine(order=order, budget="fixed", max_wait_s=20.0, seats=200)
    for number in range(50):
        engine.arrive(f"old{number:03d}", tokens, priority=5)
    engine.now_s += 30.0
    arrivals = flood(engine, 200, priority=-8, waiting=110)
    old, total = 0, 0
    for _ in range(120):
        arrivals()
        plan = engine.step()
        total += plan.tokens
        old += sum(c.tokens for c in (*plan.chunks, *plan.admitted) if c.id.startswith("old"))
    assert SHARE * total - 2 * STEP_TOKENS <= old
    if order == "fcfs":
        assert old <= SHARE * total + 2 * STEP_TOKENS


def test_several_have_waited_too_long_at_once():
    """In one step as many start as the step and their share have room for, oldest first."""
    engine = Engine(policy="parallel", max_wait_s=1.0)
    for number in range(20):
        engine.arrive(f"old{number:02d}", 40, priority=5)
        engine.now_s += 0.01
    engine.now_s += 5.0
    arrivals = flood(engine, 400, priority=-5)
    started = []
    while len(started) < 12:
        arrivals()
        started.append([c.id for c in engine.step().admitted if c.id.startswith("old")])
        started = [ids for ids in started if ids]
        if started:
            break
    (first,) = started
    assert len(first) > 5
    assert first == [f"old{number:02d}" for number in range(len(first))]


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


@pytest.mark.parametrize("order", ["short-first", "feasible-first"])
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
    assert served >= 0.5 * SHARE * steps


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
