"""Prompts that can't start yet: nobody is lost, nobody starves, order is kept among the like."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batching.settings import ORDERS
from headway.core.views import Probe, Prompt, Step

from .made import make_policy

STEP_S = 0.05
BLOCKS = 20
MAX_WAIT_S = 10.0


@dataclass
class Asked:
    """A request: what it needs, and the step from which on its grammar is ready."""

    adapter: int | None
    blocks: int
    ready_step: int
    output: int


class Engine:
    """Slots for adapters, KV blocks, seats and grammars; every prompt is one token long."""

    def __init__(self, order, slots, seats):
        self.policy = make_policy(
            64, order=order, budget="fixed", max_wait_s=MAX_WAIT_S, ttft_slo_s=1e6
        )
        self.slots = slots
        self.seats = seats
        self.asked = {}
        self.waiting = []
        self.running = {}
        self.started_step = {}
        self.steps = 0

    @property
    def now_s(self):
        return self.steps * STEP_S

    def arrive(self, name, asked):
        self.asked[name] = asked
        self.waiting.append(name)
        prompt = Prompt(name, self.now_s, 1, 0, 1, adapter=asked.adapter)
        blocked = "grammar" if asked.ready_step > self.steps else None
        self.policy.add(prompt, self.now_s, blocked)

    def probe(self, name):
        asked = self.asked[name]
        blocked = "grammar" if asked.ready_step > self.steps else None
        return Probe(1, blocks=asked.blocks, blocked=blocked)

    def step(self):
        loaded = {self.asked[name].adapter for name in self.running} - {None}
        free = BLOCKS - sum(self.asked[name].blocks for name in self.running)
        step = Step(
            tokens=64 - len(self.running),
            decodes=len(self.running),
            seats=self.seats - len(self.running),
            free_blocks=free,
            idle=not self.running,
            adapters=frozenset(loaded),
            adapter_slots=self.slots - len(loaded),
        )
        plan = self.policy.plan(step, self.now_s, self.probe)
        for chunk in plan.admitted:
            asked = self.asked[chunk.id]
            assert asked.ready_step <= self.steps
            free -= asked.blocks
            loaded |= {asked.adapter} - {None}
            self.waiting.remove(chunk.id)
            self.running[chunk.id] = asked.output
            self.started_step[chunk.id] = self.steps
        assert free >= 0
        assert len(loaded) <= self.slots
        assert len(self.running) <= self.seats
        self.running = {name: left - 1 for name, left in self.running.items() if left > 1}
        self.steps += 1
        assert set(self.waiting) == set(self.policy.backlog._prompts)


requests = st.builds(
    Asked,
    adapter=st.sampled_from((None, 1, 2, 3, 4, 5)),
    blocks=st.sampled_from((1, 3, 10, BLOCKS)),
    ready_step=st.sampled_from((0, 0, 0, 20, 60)),
    output=st.integers(1, 8),
)


@settings(max_examples=60)
@given(
    st.sampled_from(ORDERS),
    st.integers(1, 3),
    st.integers(1, 6),
    st.lists(st.tuples(requests, st.integers(0, 40)), min_size=1, max_size=50),
)
def test_all_that_can_start_some_day_do(order, slots, seats, arrivals):
    """Whatever they wait for; and soon: their number times the longest run bounds it."""
    engine = Engine(order, slots, seats)
    due = sorted(enumerate(arrivals), key=lambda item: item[1][1])
    while due or engine.waiting:
        while due and due[0][1][1] <= engine.steps:
            number, (asked, _) = due.pop(0)
            engine.arrive(f"r{number:02d}", asked)
        engine.step()
        assert engine.steps < 200 + 12 * len(arrivals)


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 8),
    st.lists(st.sampled_from((None, 1, 2, 3, 4, 5, 6)), min_size=1, max_size=60),
)
def test_requests_of_one_adapter_start_in_order_and_as_soon_as_a_scan_would_find_them(
    slots, seats, adapters
):
    """Against vLLM's own rule: all in order of arrival, over those whose adapter has no slot."""
    engine = Engine("fcfs", slots, seats)
    for number, adapter in enumerate(adapters):
        engine.arrive(f"r{number:02d}", Asked(adapter, 1, 0, 3))
    waiting, running, steps = list(range(len(adapters))), {}, 0
    while waiting:
        loaded = {adapters[i] for i in running} - {None}
        for i in list(waiting):
            adapter = adapters[i]
            slot = adapter is None or adapter in loaded or len(loaded) < slots
            if slot and len(running) < seats:
                running[i] = 3
                waiting.remove(i)
                loaded |= {adapter} - {None}
        engine.step()
        assert set(engine.started_step) == {f"r{i:02d}" for i in range(len(adapters))} - {
            f"r{i:02d}" for i in waiting
        }
        running = {i: left - 1 for i, left in running.items() if left > 1}
        steps += 1


@pytest.mark.parametrize("order", ORDERS)
def test_an_adapter_gets_a_slot_however_busy_the_loaded_ones_are(order):
    """Within `max_wait_s` and the time that a running request takes."""
    engine = Engine(order, slots=2, seats=12)
    count = 0
    while "rare" not in engine.started_step:
        while len(engine.waiting) < 12:
            engine.arrive(f"f{count:05d}", Asked((1, 2, None)[count % 3], 1, 0, 8))
            count += 1
        if engine.steps == 20:
            engine.arrive("rare", Asked(3, 1, 0, 8))
        engine.step()
        assert engine.now_s < 1.0 + MAX_WAIT_S + 1.0


@pytest.mark.parametrize("order", ORDERS)
def test_prompts_that_need_the_same_room_start_in_order_of_arrival(order):
    """A hundred, of which two fit at once."""
    engine = Engine(order, slots=1, seats=64)
    for number in range(100):
        engine.arrive(f"r{number:03d}", Asked(None, 9, 0, 3))
        if number % 3 == 0:
            engine.step()
    while engine.waiting:
        engine.step()
        assert engine.steps < 400
    started = sorted(engine.started_step, key=lambda name: (engine.started_step[name], name))
    assert started == sorted(started)


def test_a_thousand_that_become_ready_at_once_start_as_seats_allow():
    """Told of each, the policy looks at none in vain; untold it finds them in turn."""
    for told in (True, False):
        engine = Engine("fcfs", slots=1, seats=10_000)
        engine.asked = {}
        for number in range(1_000):
            engine.arrive(f"r{number:03d}", Asked(None, 0, 30, 1))
        while engine.steps < 30:
            engine.step()
        if told:
            for name in engine.waiting:
                engine.policy.wake(name, engine.now_s)
        while engine.waiting:
            engine.step()
        assert engine.steps - 30 <= 1_000 // 63 + 1
