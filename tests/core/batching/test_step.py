"""What every plan keeps to, whatever the policy."""

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batching.budget import FLOOR_TOKENS
from headway.core.batching.policy import MAX_WAITS, Policy
from headway.core.batching.settings import BUDGETS, ORDERS
from headway.core.batching.step import MAX_TRIES
from headway.core.latency import StepShape, StepTimeModel, attention_work
from headway.core.views import Probe, Prompt, Step

from .made import MODEL, make_policy, many

NOW_S = 30.0
LONG = 500


@dataclass(frozen=True)
class Scene:
    """A policy's parameters, what waits and how it is judged, and the engine's state."""

    values: dict
    waiting: tuple[Prompt, ...]
    probes: dict[str, Probe]
    step: Step

    def policy(self, seed: int = 0, model: StepTimeModel | None = None) -> Policy:
        """The policy after the waiting prompts arrived, in an order of `seed`."""
        made = make_policy(model=model, **self.values)
        arrivals = list(self.waiting)
        random.Random(seed).shuffle(arrivals)
        for prompt in arrivals:
            made.add(prompt, NOW_S)
        return made

    def plan(self, seed: int = 0, model: StepTimeModel | None = None):
        return self.policy(seed, model).plan(self.step, NOW_S, self.probes.__getitem__)


@st.composite
def scenes(draw, budgets=BUDGETS):
    partial = draw(st.integers(1, 5))
    values = {
        "order": draw(st.sampled_from(ORDERS)),
        "budget": draw(st.sampled_from(budgets)),
        "max_num_partial_prefills": partial,
        "max_long_partial_prefills": draw(st.integers(1, partial)),
        "long_prefill_token_threshold": LONG,
        "max_wait_s": draw(st.sampled_from((15.0, 1_000.0))),
    }
    waiting = draw(many(0, 10, long_tokens=2_000))
    probes = {}
    for prompt in waiting:
        tokens = draw(st.sampled_from((prompt.tokens, prompt.tokens, 1, prompt.tokens * 2)))
        probes[prompt.id] = Probe(
            tokens,
            draw(st.sampled_from((0, 0, 300))),
            blocks=-(-tokens // 16),
            blocked=draw(st.sampled_from((None, None, None, "lora"))),
            exact=draw(st.sampled_from((True, True, False))),
        )
    running = tuple(
        p._replace(id=f"r{p.id}", context_tokens=draw(st.integers(1, 4_000)), resumed=False)
        for p in draw(many(0, 5, long_tokens=2_000))
    )
    decodes = draw(st.integers(0, 12))
    deadlines = [NOW_S + draw(st.floats(-1, 2)) for _ in range(decodes)]
    step = Step(
        tokens=draw(st.sampled_from((0, 1, 7, 64, 512, 2_048))),
        prefills=running,
        decodes=decodes,
        decode_context_tokens=decodes * 300,
        next_token_deadlines_s=deadlines if values["budget"] == "deadline" else [],
        seats=draw(st.sampled_from((0, 1, 2, 100))),
        free_blocks=draw(st.sampled_from((0, 20, 10_000))),
        idle=not running and not decodes,
        chunk_tokens=draw(st.sampled_from((1 << 30, 1 << 30, 96))),
    )
    return Scene(values, waiting, probes, step)


def unfinished(scene, plan):
    """Tokens before the step of each prompt that may be mid-prefill after it."""
    done = {chunk.id for chunk in plan.chunks if not chunk.left}
    running = [p.tokens for p in scene.step.prefills if p.id not in done]
    started = [
        chunk.tokens + chunk.left
        for chunk in plan.admitted
        if chunk.left or not scene.probes[chunk.id].exact
    ]
    return running, started


@settings(max_examples=150)
@given(scenes())
def test_caps_are_never_exceeded(scene):
    """Prompts mid-prefill from earlier steps count; nothing is started beyond the caps."""
    running, started = unfinished(scene, scene.plan())
    values = scene.values
    if started:
        assert len(running) + len(started) <= values["max_num_partial_prefills"]
    long_started = sum(tokens > LONG for tokens in started)
    if long_started:
        long_running = sum(tokens > LONG for tokens in running)
        assert long_running + long_started <= values["max_long_partial_prefills"]


@settings(max_examples=150)
@given(scenes())
def test_a_plan_spends_only_what_there_is(scene):
    """Tokens, seats and KV blocks; each prompt once; only the last one that starts may be cut."""
    plan, step = scene.plan(), scene.step
    chunks = (*plan.chunks, *plan.admitted)
    assert sum(chunk.tokens for chunk in chunks) == plan.tokens <= step.tokens
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    left = {p.id: p.tokens for p in step.prefills}
    assert all(c.tokens > 0 and c.tokens + c.left == left[c.id] for c in plan.chunks)
    for chunk in plan.admitted:
        seen = scene.probes[chunk.id]
        assert chunk.tokens > 0
        assert chunk.tokens + chunk.left == seen.tokens
        assert seen.blocked is None
    assert all(c.tokens <= step.chunk_tokens for c in chunks)
    assert not any(c.left and c.tokens < step.chunk_tokens for c in plan.admitted[:-1])
    assert len(plan.admitted) <= step.seats
    blocks = [scene.probes[chunk.id].blocks for chunk in plan.admitted]
    assert sum(blocks) <= max(step.free_blocks, blocks[0] if blocks and step.idle else 0)


@settings(max_examples=150)
@given(scenes(budgets=("deadline",)))
def test_a_deadline_is_kept_beyond_the_floor(scene):
    """The step's predicted time is within its limit unless it carries only the floor."""
    plan, step = scene.plan(), scene.step
    if plan.tokens <= FLOOR_TOKENS:
        return
    context = {p.id: p.context_tokens for p in step.prefills}
    context.update((name, seen.context_tokens) for name, seen in scene.probes.items())
    chunks = (*plan.chunks, *plan.admitted)
    shape = StepShape(
        prefill_tokens=plan.tokens,
        prefill_work=sum(attention_work(c.tokens, context[c.id]) for c in chunks),
        prefill_context_tokens=sum(context[c.id] for c in chunks),
        decodes=step.decodes,
        decode_context_tokens=step.decode_context_tokens,
    )
    floor_s = MODEL.chunk_s(FLOOR_TOKENS, 5_000)
    assert MODEL.predict(shape) <= plan.limit_s + floor_s + 1e-9


@settings(max_examples=150)
@given(scenes(budgets=("fixed",)))
def test_no_token_is_left_idle_that_a_prompt_may_take(scene):
    """With a fixed budget. `May`: caps, seats, blocks, and a bounded number of looks."""
    policy, step = scene.policy(), scene.step
    looked = []

    def probe(prompt_id):
        looked.append(prompt_id)
        return scene.probes[prompt_id]

    plan = policy.plan(step, NOW_S, probe)
    idle = step.tokens - plan.tokens
    if not idle:
        return
    served = {chunk.id for chunk in plan.chunks}
    assert all(p.id in served for p in step.prefills)
    limit = step.chunk_tokens
    assert not any(c.left and c.tokens < limit for c in plan.chunks + plan.admitted)
    if len(plan.admitted) == step.seats or len(looked) > MAX_TRIES:
        return
    running, started = unfinished(scene, plan)
    partial = len(running) + len(started)
    long = sum(tokens > LONG for tokens in (*running, *started))
    free = step.free_blocks - sum(scene.probes[c.id].blocks for c in plan.admitted)
    values = scene.values
    gone = {c.id for c in plan.admitted}
    for prompt in scene.waiting:
        seen = scene.probes[prompt.id]
        if prompt.id in gone or seen.blocked or seen.blocks > free:
            continue
        whole = seen.tokens <= min(idle, limit) and seen.exact
        room = partial < values["max_num_partial_prefills"]
        if max(seen.tokens, prompt.tokens) > LONG:
            room = room and long < values["max_long_partial_prefills"]
            whole = whole and prompt.tokens <= LONG  # a held one is judged again only in turn
        assert not whole, prompt
        assert not room, prompt


@settings(max_examples=100)
@given(scenes())
def test_a_plan_only_decides(scene):
    """What it doesn't name stays: paused prompts nowhere dropped, waiting ones in the backlog."""
    policy = scene.policy()
    before = [p._asdict() for p in scene.step.prefills]
    plan = policy.plan(scene.step, NOW_S, scene.probes.__getitem__)
    assert [p._asdict() for p in scene.step.prefills] == before
    admitted = {chunk.id for chunk in plan.admitted}
    assert admitted <= {p.id for p in scene.waiting}
    assert {c.id for c in plan.chunks} <= {p.id for p in scene.step.prefills}
    for prompt in scene.waiting:
        assert (prompt.id in policy.backlog) == (prompt.id not in admitted)


@settings(max_examples=100)
@given(scenes(), st.integers(0, 1_000), st.randoms(use_true_random=False))
def test_the_same_state_gives_the_same_plan(scene, seed, rng):
    """Neither the order of adding nor that of `running` matters."""
    running = list(scene.step.prefills)
    rng.shuffle(running)
    other = Scene(
        scene.values, scene.waiting, scene.probes, scene.step._replace(prefills=tuple(running))
    )
    assert scene.plan() == other.plan(seed)


@given(scenes(budgets=("deadline",)))
def test_a_cold_model_still_gives_usable_plans(scene):
    plan = scene.plan(model=StepTimeModel())
    assert plan.tokens <= scene.step.tokens
    if scene.step.prefills and scene.step.tokens:
        assert plan.tokens > 0


@given(scenes())
def test_prefill_moves_in_every_step_that_has_room(scene):
    """Or, where a chunk waits for a step that is worth reading its context, soon after."""
    if not (scene.step.prefills and scene.step.tokens):
        return
    policy = scene.policy()
    plans = [policy.plan(scene.step, NOW_S, scene.probes.__getitem__) for _ in range(MAX_WAITS + 1)]
    assert any(plan.tokens for plan in plans)
    if scene.values["budget"] == "fixed" or not scene.step.decodes:
        assert plans[0].tokens > 0


def test_planning_looks_at_the_same_number_of_prompts_however_many_wait():
    """Looks of one step, counted, for each order."""
    for order in ORDERS:
        looks = {}
        for waiting in (100, 10_000):
            policy = make_policy(
                order=order, budget="fixed", long_prefill_token_threshold=LONG, max_wait_s=1e6
            )
            for i in range(waiting):
                tokens = 100 + (i * 37) % 900
                policy.add(Prompt(f"p{i}", i * 1e-3, tokens, 0, tokens), NOW_S)
            looked = []

            def probe(prompt_id, policy=policy, looked=looked):
                looked.append(prompt_id)
                return Probe(800, blocks=1, blocked="lora" if len(looked) % 3 else None)

            for i in range(20):
                policy.plan(Step(tokens=512, seats=4), NOW_S + i, probe)
            looks[waiting] = len(looked)
        assert looks[10_000] <= looks[100] + 20 * MAX_TRIES, order
        assert looks[10_000] <= 20 * 4 * MAX_TRIES, order


@pytest.mark.parametrize("order", ORDERS)
def test_a_lone_long_prompt_takes_every_token_of_a_fixed_budget(order):
    policy = make_policy(order=order, budget="fixed")
    prompt = Prompt("long", NOW_S, 50_000, 0, 50_000)
    policy.add(prompt, NOW_S)
    plan = policy.plan(Step(tokens=512, idle=True), NOW_S, lambda _: Probe(50_000))
    assert plan.tokens == 512
    for decodes in (0, 3):
        running = prompt._replace(tokens=40_000, context_tokens=10_000)
        step = Step(tokens=512 - decodes, prefills=(running,), decodes=decodes)
        assert policy.plan(step, NOW_S, lambda _: Probe(1)).tokens == 512 - decodes


def test_a_held_long_prompt_whose_prefix_is_cached_by_now_goes_through():
    """Its length is what is uncached at the time of the decision."""
    policy = make_policy(policy="parallel", long_prefill_token_threshold=LONG)
    running = Prompt("first", 0.0, 100_000, 512, 100_000)
    policy.add(Prompt("follow-up", 1.0, 9_000, 0, 9_000), NOW_S)
    step = Step(tokens=512, prefills=(running,))
    assert policy.plan(step, NOW_S, lambda _: Probe(9_000)).held_long
    for i in range(50):
        plan = policy.plan(step, NOW_S + i * 0.1, lambda _: Probe(40, 8_960))
        if plan.admitted:
            assert plan.admitted[0].tokens == 40
            return
    pytest.fail("still held")


def test_one_that_cannot_start_is_out_of_the_way_of_others():
    policy = make_policy(policy="sequential")
    policy.add(Prompt("stuck", 0.0, 100, 0, 100), NOW_S)
    policy.add(Prompt("next", 1.0, 100, 0, 100), NOW_S)
    probes = {"stuck": Probe(1, blocked="lora"), "next": Probe(100)}
    plan = policy.plan(Step(tokens=512, idle=True), NOW_S, probes.__getitem__)
    assert [chunk.id for chunk in plan.admitted] == ["next"]


def test_one_that_finds_no_room_is_given_room_in_the_end():
    """After `max_wait_s` aside it gets the next room: others start only beside it."""
    policy = make_policy(policy="parallel", max_wait_s=10.0)
    policy.add(Prompt("big", NOW_S, 1_000, 0, 1_000), NOW_S)
    probes = {"big": Probe(1_000, blocks=63)}
    step = Step(tokens=512, decodes=1, free_blocks=40)
    for second in range(15):
        now_s = NOW_S + second
        small = f"small{second}"
        policy.add(Prompt(small, now_s, 50, 0, 50), now_s)
        probes[small] = Probe(50, blocks=4)
        plan = policy.plan(step, now_s, probes.__getitem__)
        assert bool(plan.admitted) == (second <= 10)
    plan = policy.plan(step._replace(free_blocks=63), NOW_S + 20, probes.__getitem__)
    assert [chunk.id for chunk in plan.admitted] == ["big"]


def test_one_that_waits_for_something_else_than_room_holds_up_nobody():
    """However long: making room doesn't compile a grammar."""
    policy = make_policy(policy="parallel", max_wait_s=10.0)
    policy.add(Prompt("grammar", NOW_S, 100, 0, 100), NOW_S)
    probes = {"grammar": Probe(1, blocked="grammar")}
    for second in range(40):
        now_s = NOW_S + second
        name = f"r{second}"
        policy.add(Prompt(name, now_s, 50, 0, 50), now_s)
        probes[name] = Probe(50)
        plan = policy.plan(Step(tokens=512), now_s, probes.__getitem__)
        assert [chunk.id for chunk in plan.admitted] == [name]


def test_what_was_preempted_goes_first():
    policy = make_policy(policy="slo")
    policy.add(Prompt("new", 0.0, 5, 0, 5), NOW_S)
    policy.add(Prompt("back", 5.0, 400, 0, 400, resumed=True), NOW_S)
    plan = policy.plan(
        Step(tokens=512, idle=True), NOW_S, lambda i: Probe(5 if i == "new" else 400)
    )
    assert plan.admitted[0].id == "back"


@given(scenes())
def test_a_plan_gives_a_reason_and_a_limit_where_time_counts(scene):
    plan = scene.plan()
    assert plan.reason
    if scene.values["budget"] == "fixed":
        assert plan.limit_s is None
    else:
        assert plan.limit_s is None or math.isfinite(plan.limit_s)
