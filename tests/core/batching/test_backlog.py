"""The backlog against a plain sorted list."""

import heapq
from contextlib import closing
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.batching.backlog import BLOCKED_LOOKS, Backlog
from headway.core.batching.heap import SLACK, LazyHeap
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
        self.roomless: dict[str, int] = {}
        self.blocked: set[str] = set()
        self.loaded: set[int] = set()
        self.slots = 1
        self.now_s = 20.0

    @property
    def parked(self):
        return self.roomless.keys() | self.blocked

    def unparked(self, prompt_id):
        self.roomless.pop(prompt_id, None)
        self.blocked.discard(prompt_id)

    def admits(self, prompt):
        return prompt.adapter is None or prompt.adapter in self.loaded or self.slots > 0

    def free(self):
        return [p for p in self.here.values() if p.id not in self.parked and self.admits(p)]

    def some(self, data, among):
        return data.draw(st.sampled_from(sorted(among)))

    def expected(self):
        return sorted(self.free(), key=lambda p: self.backlog.rank(p, self.now_s))

    def rank(self, prompt):
        return self.backlog.rank(prompt, self.now_s)

    @rule(
        data=st.data(),
        n=st.integers(0, 15),
        tokens=st.sampled_from((1, 16, 300, 2_000)),
        adapter=st.sampled_from((None, None, 1, 2, 3)),
    )
    def add(self, data, n, tokens, adapter):
        """Few lengths, so that equal lanes mean equal work and the order is exact."""
        prompt = data.draw(prompts(f"p{n:02d}"))
        known = self.here.get(prompt.id, prompt)
        prompt = prompt._replace(
            tokens=tokens,
            total_tokens=tokens,
            context_tokens=0,
            ttft_slo_s=None,
            arrival_s=known.arrival_s,
            adapter=adapter,
        )
        self.here[prompt.id] = prompt
        self.unparked(prompt.id)
        self.backlog.add(prompt, self.now_s)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def discard(self, data):
        prompt_id = self.some(data, self.here)
        del self.here[prompt_id]
        self.unparked(prompt_id)
        self.backlog.discard(prompt_id)

    @rule()
    def discard_a_stranger(self):
        self.backlog.discard("nobody")

    @rule(adapters=st.sets(st.integers(1, 3), max_size=2), slots=st.integers(0, 1))
    def begin_step(self, adapters, slots):
        self.loaded, self.slots = adapters, slots
        self.backlog.begin_step(adapters, slots, float("-inf"))

    def set_aside(self, prompt_id, blocks):
        """Blocked if `blocks` is 0, and in want of so many otherwise."""
        self.unparked(prompt_id)
        if blocks:
            self.roomless[prompt_id] = blocks
        else:
            self.blocked.add(prompt_id)
        seen = Probe(5, blocks=blocks, blocked=None if blocks else "x")
        self.backlog.park(prompt_id, seen, self.now_s)

    @precondition(lambda self: len(self.here) > len(self.parked))
    @rule(data=st.data(), blocks=st.integers(0, 20))
    def park(self, data, blocks):
        self.set_aside(self.some(data, self.here.keys() - self.parked), blocks)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def wake(self, data):
        prompt_id = self.some(data, self.here)
        self.backlog.wake(prompt_id, self.now_s)
        self.unparked(prompt_id)

    @rule(room=st.integers(0, 40), ready=st.sets(st.integers(0, 15)))
    def unpark(self, room, ready):
        """Those that lack room start in order of arrival among their like, blocked ones in turn."""
        before = self.parked
        looked = []
        needs = {**dict.fromkeys(self.blocked, 0), **self.roomless}

        def probe(prompt_id):
            looked.append(prompt_id)
            blocked = prompt_id in self.blocked and int(prompt_id[1:]) not in ready
            return Probe(5, blocks=needs[prompt_id], blocked="x" if blocked else None)

        self.backlog.unpark(probe, lambda _, seen, taken: seen.blocks + taken <= room, self.now_s)
        assert len(set(looked)) == len(looked)
        assert set(looked) <= before
        back = {i for i in before if i not in self.backlog._parked}
        assert sum(needs[i] for i in back) <= room
        for size in range(1, 6):
            queue = [self.here[i] for i in self.roomless if needs[i].bit_length() == size]
            queue.sort(key=lambda p: (not p.resumed, p.priority, p.arrival_s, p.id))
            started = [p.id in back for p in queue]
            assert started == sorted(started, reverse=True)
        in_vain = [i for i in looked if i in self.blocked and i not in back]
        assert len(in_vain) <= BLOCKED_LOOKS
        if len(self.blocked) <= BLOCKED_LOOKS:
            assert {i for i in self.blocked if int(i[1:]) in ready} <= back
        for prompt_id in back:
            self.unparked(prompt_id)

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
        """Yielded prompts may start, leave, be set aside or judged anew while drawing."""
        expected = self.expected()
        drawn = self.backlog.draw(self.now_s, self.rank)
        for wanted in expected:
            if not self.admits(wanted):
                continue
            rank, prompt = next(drawn)
            assert (rank, prompt) == (self.rank(wanted), wanted)
            deed = data.draw(st.sampled_from(("keep", "start", "discard", "park", "judge")))
            if deed == "start":
                del self.here[prompt.id]
                self.slots -= prompt.adapter is not None and prompt.adapter not in self.loaded
                self.loaded = self.loaded | {prompt.adapter}
                self.backlog.start(prompt, self.now_s)
            elif deed == "discard":
                del self.here[prompt.id]
                self.backlog.discard(prompt.id)
            elif deed == "park":
                self.set_aside(prompt.id, data.draw(st.integers(0, 20)))
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
        free = sorted(self.free(), key=lambda p: (p.arrival_s, p.id))
        for long in (False, True):
            expected = [p for p in free if (p.tokens > LONG) == long and not p.resumed]
            expected = [p for p in expected if p.arrival_s < self.now_s - 10]
            assert list(self.backlog.older(self.now_s - 10, long=long)) == expected

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
def test_prompts_that_came_and_left_leave_no_memory_behind(name):
    """Also while all seats are taken, so that nothing is drawn; some are set aside."""
    backlog = filled(name, 100)
    for i in range(30_000):
        prompt = Prompt(f"q{i}", 1.0 + i * 1e-3, 50 + i % 4_000, 0, 50, adapter=i % 7 or None)
        backlog.add(prompt, prompt.arrival_s)
        if i % 3 == 0:
            backlog.park(prompt.id, Probe(5, blocks=i % 50, blocked="x" if i % 2 else None), 9.0)
        backlog.discard(prompt.id)
    assert list(backlog._shelves) == [None]
    shelf = backlog._shelves[None]
    heaps = [*shelf.by_arrival.values(), *shelf.lanes.values()]
    assert all(len(heap._entries) <= 2 * len(heap) + SLACK for heap in heaps)
    assert sum(map(len, heaps)) == 200
    assert len(backlog._parked) == 0
    assert not backlog._parked._roomless
    assert not backlog._parked._since_s


@given(st.lists(st.tuples(st.sampled_from("pdtr"), st.integers(0, 9), st.integers(0, 3))))
def test_a_lazy_heap_is_a_sorted_dict(deeds):
    heap, known, taken = LazyHeap(), {}, {}
    for deed, n, key in deeds:
        name = f"i{n}"
        if deed == "p":
            heap.push(name, (key, name))
            known[name] = (key, name)
            taken.pop(name, None)
        elif deed == "d":
            heap.discard(name)
            known.pop(name, None)
            taken.pop(name, None)
        elif deed == "t" and (entry := heap.take()) is not None:
            assert entry[0] == min(known[i] for i in known.keys() - taken.keys())
            taken[entry[1]] = entry
        elif deed == "r":
            for entry in taken.values():
                heap.restore(entry)
            taken.clear()
        here = known.keys() - taken.keys()
        assert heap.first() == (min(here, key=known.__getitem__) if here else None)
        assert len(heap) == len(known)
        assert len(heap._entries) <= 2 * len(heap) + SLACK


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
