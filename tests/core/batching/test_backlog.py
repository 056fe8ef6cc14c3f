"""The backlog against a plain sorted list."""

import heapq
from contextlib import closing
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.batching.backlog import Backlog
from headway.core.batching.settings import ORDERS
from headway.core.views import Probe, Prompt

from .made import make_order, prompts

LONG = 300


class AgainstAList(RuleBasedStateMachine):
    """Every operation is also done on a dict that is sorted when asked."""

    order_name = "fcfs"

    def __init__(self):
        super().__init__()
        self.order = make_order(self.order_name, long_prefill_token_threshold=LONG)
        self.backlog = Backlog(self.order, lambda tokens: tokens > LONG)
        self.here: dict[str, Prompt] = {}
        self.parked: dict[str, float] = {}
        self.now_s = 20.0

    def some(self, data, among):
        return data.draw(st.sampled_from(sorted(among)))

    def expected(self):
        free = [p for p in self.here.values() if p.id not in self.parked]
        return sorted(free, key=lambda p: self.backlog.rank(p, self.now_s))

    def rank(self, prompt):
        return self.backlog.rank(prompt, self.now_s)

    @rule(data=st.data(), n=st.integers(0, 15), tokens=st.sampled_from((1, 16, 300, 2_000)))
    def add(self, data, n, tokens):
        """Few lengths, so that equal lanes mean equal work and the order is exact."""
        prompt = data.draw(prompts(f"p{n:02d}"))
        known = self.here.get(prompt.id, prompt)
        prompt = prompt._replace(
            tokens=tokens,
            total_tokens=tokens,
            context_tokens=0,
            ttft_slo_s=None,
            arrival_s=known.arrival_s,
        )
        self.here[prompt.id] = prompt
        self.parked.pop(prompt.id, None)
        self.backlog.add(prompt, self.now_s)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def discard(self, data):
        prompt_id = self.some(data, self.here)
        del self.here[prompt_id]
        self.parked.pop(prompt_id, None)
        self.backlog.discard(prompt_id)

    @rule()
    def discard_a_stranger(self):
        self.backlog.discard("nobody")

    @precondition(lambda self: len(self.here) > len(self.parked))
    @rule(data=st.data())
    def park(self, data):
        prompt_id = self.some(data, self.here.keys() - self.parked.keys())
        self.parked[prompt_id] = self.now_s
        self.backlog.park(prompt_id, self.now_s, needs_room=True)

    @rule(blocked=st.sets(st.integers(0, 15)), looks=st.integers(0, 4))
    def unpark(self, blocked, looks):
        """Those that can start come back; nobody is looked at who isn't set aside."""
        looked = []

        def probe(prompt_id):
            looked.append(prompt_id)
            return Probe(5, blocked="x" if int(prompt_id[1:]) in blocked else None)

        self.backlog.unpark(probe, lambda seen: True, looks, self.now_s)
        assert len(looked) <= looks
        assert set(looked) <= self.parked.keys()
        for prompt_id in looked:
            if int(prompt_id[1:]) not in blocked:
                self.parked.pop(prompt_id, None)

    @rule(seconds=st.sampled_from((0.0, 0.3, 2.0, 15.0)))
    def wait(self, seconds):
        self.now_s += seconds

    @rule(most=st.integers(0, 20))
    def draw_some(self, most):
        """The first few in order; an abandoned draw leaves everything in place."""
        drawn = self.backlog.draw(self.now_s, self.rank)
        taken = [p for _, p in islice(drawn, most)]
        drawn.close()
        assert taken == self.expected()[:most]

    @rule(data=st.data())
    def draw_and_change(self, data):
        """Yielded prompts may be discarded, set aside or judged anew while drawing."""
        expected = self.expected()
        drawn = self.backlog.draw(self.now_s, self.rank)
        for wanted in expected:
            rank, prompt = next(drawn)
            assert (rank, prompt) == (self.rank(wanted), wanted)
            deed = data.draw(st.sampled_from(("keep", "keep", "discard", "park", "judge")))
            if deed == "discard":
                del self.here[prompt.id]
                self.backlog.discard(prompt.id)
            elif deed == "park":
                self.parked[prompt.id] = self.now_s
                self.backlog.park(prompt.id, self.now_s, needs_room=True)
            elif deed == "judge":
                longer = prompt._replace(tokens=2_000, total_tokens=2_000)
                self.here[prompt.id] = longer
                self.backlog.add(longer, self.now_s)
                drawn.close()
                return
        assert next(drawn, None) is None

    @rule()
    def draw_while_long_ones_are_held(self):
        self.backlog.hold_long = True
        drawn = [p.id for _, p in self.backlog.draw(self.now_s, self.rank)]
        self.backlog.hold_long = False
        assert drawn == [p.id for p in self.expected() if p.tokens <= LONG]

    @invariant()
    def counts_agree(self):
        assert len(self.backlog) == len(self.here)
        assert bool(self.backlog) == bool(self.here)
        assert all(prompt_id in self.backlog for prompt_id in self.here)

    @invariant()
    def the_oldest_is_known(self):
        free = [p for p in self.here.values() if p.id not in self.parked]
        oldest = min(free, key=lambda p: (p.arrival_s, p.id), default=None)
        assert self.backlog.oldest() == oldest

    @invariant()
    def the_next_long_one_is_known(self):
        long = [p for p in self.expected() if p.tokens > LONG]
        assert self.backlog.long_head(self.now_s) == (long[0] if long else None)


@pytest.mark.parametrize("name", ORDERS)
def test_the_backlog_behaves_like_a_sorted_list(name):
    machine = type(f"AgainstAList_{name}", (AgainstAList,), {"order_name": name})
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
    machine.TestCase().runTest()


def filled(name, waiting):
    """A backlog whose prompts came a millisecond apart."""
    backlog = Backlog(make_order(name), lambda tokens: tokens > 3_000)
    for i in range(waiting):
        tokens = 50 + (i * 7919) % 4_000
        backlog.add(Prompt(f"p{i:05d}", i * 1e-3, tokens, 0, tokens), i * 1e-3)
    return backlog


def draw_one(backlog, now_s):
    """Draw the first prompt and take it out."""
    drawn = backlog.draw(now_s, lambda prompt: backlog.rank(prompt, now_s))
    with closing(drawn):
        backlog.discard(next(drawn)[1].id)


@pytest.mark.parametrize("name", ORDERS)
def test_drawing_costs_the_same_however_many_wait(name, monkeypatch):
    """Heap operations of adding, drawing and discarding ten prompts, counted, also while
    thousands have turned late since the last draw."""
    operations = 0

    def counted(call):
        def wrapper(*args):
            nonlocal operations
            operations += 1
            return call(*args)

        return wrapper

    counts = {}
    for waiting in (2_000, 20_000):
        backlog, operations = filled(name, waiting), 0
        with monkeypatch.context() as patch:
            patch.setattr(heapq, "heappush", counted(heapq.heappush))
            patch.setattr(heapq, "heappop", counted(heapq.heappop))
            for step in range(10):
                now_s = waiting * 1e-3 + step * 1e-3
                backlog.add(Prompt(f"q{step}", now_s, 200, 0, 200), now_s)
                draw_one(backlog, now_s)
        counts[waiting] = operations
    assert counts[20_000] <= 2.5 * counts[2_000] + 50
