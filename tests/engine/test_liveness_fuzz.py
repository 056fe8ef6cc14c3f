"""Whatever comes, in whatever state: the scheduler moves on, keeps its caps and leaks nothing."""

import os
import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from headway.core.batching.settings import BUDGETS, ORDERS, PRESETS

from .connector import transfer
from .harness import BLOCK, Clock, Driver, make_request, make_scheduler, mid_prefill, tokens_left

LONG = 200
IDLE_STEPS = 40
"""Steps without a scheduled token while something could run: never so many."""
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))


@dataclass
class World:
    """An engine under random load, and what is known of its requests."""

    driver: Driver
    rng: random.Random
    partial: int
    long: int
    connected: bool
    adapters: int
    live: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    """Running requests that started with KV from elsewhere."""
    compiling: dict[str, Future] = field(default_factory=dict)
    idle_steps: int = 0

    def arrive(self, pool_blocks):
        rng = self.rng
        most = min(6_000, max(2, (pool_blocks - 2) * BLOCK - 60))
        tokens = min(most, rng.choice((1, 15, 16, 40, LONG, LONG + 1, 700, 1_500, most)))
        request = make_request(
            tokens,
            rng.randint(1, 50),
            priority=rng.choice((0, 0, 1, -4)),
            prefix=rng.randint(0, 2),
            prefix_tokens=min(tokens - 1, rng.choice((0, 64, 640))),
            arrival_time=self.driver.clock.time() - rng.choice((0.0, 0.0, 5.0)),
            extra_args=rng.choice((None, {"headway_ttft_slo_s": 0.2})),
            lora_request=lora(rng.randint(1, self.adapters)) if rng.random() < 0.5 else None,
        )
        if rng.random() < 0.2:
            self.compiling[request.request_id] = compile_grammar(request)
        if self.connected:
            request.kv_transfer_params = rng.choice(
                (None, None, {"do_remote_prefill": True}, {"stored": 160})
            )
        self.live.add(request.request_id)
        self.driver.add(request)

    def compiled(self, share):
        """The grammars of so many are ready; one in ten fails."""
        for name in [name for name in self.compiling if self.rng.random() < share]:
            grammar = self.compiling.pop(name)
            if self.rng.random() < 0.1:
                grammar.set_exception(ValueError("no such rule"))
            else:
                grammar.set_result(SimpleNamespace())

    def abort(self):
        if self.live:
            gone = self.rng.choice(sorted(self.live))
            request = self.driver.scheduler.requests[gone]
            loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            loading = loading and gone not in self.driver.scheduler.finished_recving_kv_req_ids
            self.driver.scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
            if loading and gone not in self.driver.kv_arrivals:
                self.driver.kv_arrivals.add(gone)
            self.live.discard(gone)
            self.gone.add(gone)

    def deliver_kv(self, share):
        scheduler = self.driver.scheduler
        for request in list(scheduler.kv_holding_waiting):
            waits = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            arrived = request.request_id in scheduler.finished_recving_kv_req_ids
            if waits and not arrived and self.rng.random() < share:
                self.driver.kv_arrivals.add(request.request_id)

    def step(self):
        driver, scheduler = self.driver, self.driver.scheduler
        fetched = {r.request_id for r in scheduler.kv_holding_waiting}
        output = driver.step()
        self.live -= driver.finished_step.keys()
        self._check_progress(output, fetched)
        self._check_slots(output)
        running = {r.request_id for r in scheduler.running}
        self.fetched = (self.fetched | fetched) & running
        self._check_caps()
        self._check_books()

    def _check_progress(self, output, fetched):
        scheduler = self.driver.scheduler
        held = fetched | self.compiling.keys()
        could_run = scheduler.running or any(r.request_id not in held for r in scheduler.waiting)
        stuck = could_run and not output.num_scheduled_tokens
        self.idle_steps = self.idle_steps + 1 if stuck else 0
        assert self.idle_steps < IDLE_STEPS

    def _check_slots(self, output):
        loras = {
            request.lora_request.lora_int_id
            for name in output.num_scheduled_tokens
            if (request := self.driver.scheduler.requests.get(name)) and request.lora_request
        }
        assert len(loras) <= self.driver.scheduler.lora_config.max_loras

    def _check_caps(self):
        """Those whose KV was fetched start whatever the caps; all others keep them."""
        prefills = mid_prefill(self.driver.scheduler)
        left = [tokens_left(r) for r in prefills if r.request_id not in self.fetched]
        assert len(left) <= self.partial
        assert sum(tokens > LONG for tokens in left) <= self.long

    def _check_books(self):
        scheduler = self.driver.scheduler
        running = {r.request_id for r in scheduler.running}
        waiting = {r.request_id for r in (*scheduler.waiting, *scheduler.kv_holding_waiting)}
        assert not running & waiting
        assert running | waiting == self.live
        assert len(scheduler.running) <= scheduler.max_num_active_reqs


def lora(number):
    return LoRARequest(lora_name=f"l{number}", lora_int_id=number, lora_path="/nowhere")


def compile_grammar(request):
    """The request waits for a grammar; its future."""
    grammar: Future = Future()
    wanted = StructuredOutputRequest(params=StructuredOutputsParams(regex="a"))
    wanted.grammar = grammar
    request.structured_output_request = wanted
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return grammar


class Delegate:
    """The `time` module of headway.engine: the clock of the example that runs."""

    clock = Clock()

    def monotonic(self):
        return self.clock.monotonic()

    def time(self):
        return self.clock.time()


@pytest.fixture(scope="module")
def time():
    made = Delegate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.engine.conductor.time", made)
        patch.setattr("headway.engine.tracks.time", made)
        yield made


policies = st.one_of(
    st.sampled_from(sorted(PRESETS)).map(lambda name: {"policy": name}),
    st.fixed_dictionaries({"order": st.sampled_from(ORDERS), "budget": st.sampled_from(BUDGETS)}),
)


# A random world doesn't shrink: what a smaller seed means is another world.
@settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    policy=policies,
    seed=st.integers(0, 100_000),
    partial=st.integers(1, 4),
    long_share=st.sampled_from((1, 1, 2)),
    blocks=st.sampled_from((40, 90, 300, 5_000)),
    budget=st.sampled_from((16, 64, 256, 1_024)),
    seats=st.sampled_from((1, 3, 8, 32)),
    depth=st.sampled_from((1, 2)),
    scheduling_policy=st.sampled_from(("fcfs", "fcfs", "priority")),
    connected=st.booleans(),
    caching=st.booleans(),
    max_wait_s=st.sampled_from((0.5, 30.0)),
    vllm_threshold=st.sampled_from((0, 0, 50)),
    slots=st.sampled_from((1, 2, 8)),
    adapters=st.integers(1, 6),
)
@example(  # the one that room is kept for isn't the oldest of its size
    policy={"budget": "deadline", "order": "fcfs"},
    seed=1142,
    partial=1,
    long_share=1,
    blocks=40,
    budget=16,
    seats=32,
    depth=2,
    scheduling_policy="fcfs",
    connected=False,
    caching=False,
    max_wait_s=0.5,
    vllm_threshold=0,
    slots=1,
    adapters=1,
)
def test_any_load_ends_well(
    folder,
    time,
    policy,
    seed,
    partial,
    long_share,
    blocks,
    budget,
    seats,
    depth,
    scheduling_policy,
    connected,
    caching,
    max_wait_s,
    vllm_threshold,
    slots,
    adapters,
):
    """Random lengths, priorities, aborts, prefixes, pools, adapters, grammars and arriving KV:
    all is finished."""
    rng = random.Random(seed)
    clock = Clock()
    long = min(partial, long_share)
    chosen = {"policy": "slo", **policy}
    scheduler = make_scheduler(
        folder,
        chosen.pop("policy"),
        budget=max(budget, seats),
        seats=seats,
        blocks=blocks,
        async_scheduling=depth == 2,
        caching=caching,
        scheduling_policy=scheduling_policy,
        kv_transfer=transfer() if connected else None,
        scheduler_options={
            "long_prefill_token_threshold": vllm_threshold,
            "long_prefill_token_threshold_adaptive": False,
        },
        max_num_partial_prefills=partial,
        max_long_partial_prefills=long,
        long_prefill_token_threshold=LONG,
        max_wait_s=max_wait_s,
        more_settings=chosen,
        config_options={"lora_config": LoRAConfig(max_loras=slots, lora_dtype="auto")},
    )
    time.clock = clock
    manager = scheduler.structured_output_manager
    manager.should_advance, manager.accept_tokens = (lambda *_: False), (lambda *_: True)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    world = World(Driver(scheduler, depth, clock), rng, partial, long, connected, adapters)
    for _ in range(60):
        for _ in range(rng.choice((0, 0, 1, 1, 4))):
            world.arrive(blocks)
        if rng.random() < 0.08:
            world.abort()
        world.deliver_kv(0.3)
        world.compiled(0.1)
        world.step()
    work = sum(r.num_tokens + r.max_tokens for r in scheduler.requests.values())
    bound = world.driver.steps + 4_000 + work
    while world.live or scheduler.has_unfinished_requests():
        world.deliver_kv(1.0)
        world.compiled(0.2)
        world.step()
        assert world.driver.steps < bound, "no end"
    world.step()  # tells of KV that arrived for requests that had left
    while world.driver.busy:
        world.driver.deliver()
    assert pool.get_num_free_blocks() == free
    assert len(scheduler.headway.tracks) == 0
    assert len(scheduler.headway.policy.backlog) == 0
    assert not world.gone & world.driver.finished_step.keys()
