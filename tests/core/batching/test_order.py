"""What each order promises."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.order import ORDER_BY_NAME, PrefillClock, size_class
from headway.core.batching.settings import ORDERS, PRIORITY_LEVELS, parse
from headway.core.latency import StepTimeModel
from headway.core.views import Prompt

from .made import MAX_MODEL_LEN, MODEL, make_order, many

moments = st.integers(20, 400).map(float)
orders = st.sampled_from(ORDERS)


def ranked(order, prompts, now_s):
    return [p.id for p in sorted(prompts, key=lambda p: order.rank(p, now_s))]


def test_every_order_that_can_be_set_exists():
    assert set(ORDER_BY_NAME) == set(ORDERS)


@given(orders, many(), moments, st.randoms(use_true_random=False))
def test_ranks_are_total_and_blind_to_the_order_of_asking(name, prompts, now_s, rng):
    order = make_order(name)
    shuffled = list(prompts)
    rng.shuffle(shuffled)
    assert ranked(order, prompts, now_s) == ranked(order, shuffled, now_s)
    assert len({order.rank(p, now_s) for p in prompts}) == len(prompts)


@given(orders, many(2), moments, moments)
def test_equals_go_by_arrival_then_id(name, prompts, now_s, later_s):
    """Two prompts that differ only in arrival, or only in id."""
    order = make_order(name)
    first = prompts[0]
    same = first._replace(id="zz")
    assert order.rank(first, now_s) < order.rank(same, now_s)
    newer = first._replace(id="aa", arrival_s=first.arrival_s + 1, ttft_slo_s=None)
    older = first._replace(ttft_slo_s=None)
    if order.yielding(older, now_s) == order.yielding(newer, now_s):
        assert order.rank(older, now_s) < order.rank(newer, now_s)


@given(orders, many(2, 2), moments, moments)
def test_within_a_lane_the_order_never_changes(name, prompts, one_s, other_s):
    """What makes a lane a heap: while two stay in one lane, `key` keeps their order."""
    order = make_order(name)
    now_s, later_s = min(one_s, other_s), max(one_s, other_s)
    a, b = prompts
    if order.lane(a, now_s) == order.lane(b, now_s) == order.lane(a, later_s):
        before = order.key(a, now_s) < order.key(b, now_s)
        if order.lane(b, later_s) == order.lane(a, later_s):
            assert before == (order.key(a, later_s) < order.key(b, later_s))
        if a.tokens == b.tokens and a.context_tokens == b.context_tokens:
            assert before == (order.rank(a, now_s) < order.rank(b, now_s))


@given(many(), moments)
def test_fcfs_is_priority_then_arrival(prompts, now_s):
    expected = sorted(prompts, key=lambda p: (p.priority, p.arrival_s, p.id))
    assert ranked(make_order("fcfs"), prompts, now_s) == [p.id for p in expected]


@given(many(), moments)
def test_short_first_has_two_lanes_fcfs_in_each(prompts, now_s):
    order = make_order("short-first", long_prefill_token_threshold=299)
    expected = sorted(prompts, key=lambda p: (p.tokens > 299, p.priority, p.arrival_s, p.id))
    assert ranked(order, prompts, now_s) == [p.id for p in expected]


@given(st.integers(300, 5_000), st.integers(1, 299), moments)
def test_what_started_long_stays_in_the_long_lane(total, left, now_s):
    """Near its end a long prompt doesn't turn into a short one that passes others."""
    order = make_order("short-first", long_prefill_token_threshold=299)
    nearly_done = Prompt("long", 0.0, left, total - left, total)
    short = Prompt("short", 5.0, 100, 0, 100)
    assert order.yielding(nearly_done, now_s)
    assert order.rank(short, now_s) < order.rank(nearly_done, now_s)


@given(moments, st.integers(1, 5_000), st.integers(1, 5_000))
def test_penalised_serves_the_lighter_of_two_that_came_together(now_s, a, b):
    order = make_order("penalised")
    one, other = Prompt("a", 1.0, a, 0, a), Prompt("b", 1.0, b, 0, b)
    first = ranked(order, [one, other], now_s)[0]
    assert (a if first == "a" else b) == min(a, b)


@given(st.integers(1_000, 50_000), st.integers(1, 500))
def test_a_penalised_long_prompt_ages_past_any_newcomer(long_tokens, short_tokens):
    """However long: once it has waited a multiple of its own work, a new short one goes after."""
    order = make_order("penalised")
    long = Prompt("long", 0.0, long_tokens, 0, long_tokens)
    for now_s in (1.0, 10.0, 100.0, 1_000.0):
        newcomer = Prompt("short", now_s - 0.01, short_tokens, 0, short_tokens)
        if order.rank(long, now_s) < order.rank(newcomer, now_s):
            return
    pytest.fail("never served")


@given(st.sampled_from(("penalised", "fcfs")), many(1, 1), st.integers(1, 20), moments)
def test_client_priority_counts(name, prompts, levels, now_s):
    """Lower goes first, all else equal."""
    order = make_order(name)
    base = prompts[0]._replace(priority=0)
    urgent = base._replace(id="zz", priority=-levels)
    assert order.rank(urgent, now_s) < order.rank(base, now_s)


@given(st.integers(-1_000, 1_000), moments)
def test_wild_priorities_make_no_more_lanes(priority, now_s):
    """Clients choose priorities; the number of heaps to look at must not be theirs to choose."""
    for name in ORDERS:
        order = make_order(name)
        clamped = max(-PRIORITY_LEVELS, min(PRIORITY_LEVELS, priority))
        wild, tame = (Prompt("p", 1.0, 100, 0, 100, p) for p in (priority, clamped))
        assert order.lane(wild, now_s) == order.lane(tame, now_s)


@given(many(), moments)
def test_feasible_before_late_and_least_work_first(prompts, now_s):
    order = make_order("feasible-first")
    place = {p_id: i for i, p_id in enumerate(ranked(order, prompts, now_s))}
    work = {p.id: (min(8, max(-8, p.priority)), size_class(p.tokens)) for p in prompts}
    assert PRIORITY_LEVELS == 8
    for a, b in itertools.permutations(prompts, 2):
        late_a, late_b = order.yielding(a, now_s), order.yielding(b, now_s)
        if late_a != late_b:
            assert (place[a.id] < place[b.id]) == late_b
        elif not late_a and work[a.id] < work[b.id]:
            assert place[a.id] < place[b.id]


@given(st.integers(1, 5_000), st.integers(0, 10), st.integers(0, 10), moments)
def test_late_equals_go_by_arrival(tokens, one_s, other_s, now_s):
    order = make_order("feasible-first")
    late = [
        Prompt(i, float(s), tokens, 0, tokens, 0, 1e-3) for i, s in (("a", one_s), ("b", other_s))
    ]
    assert all(order.yielding(p, now_s) for p in late)
    expected = [p.id for p in sorted(late, key=lambda p: (p.arrival_s, p.id))]
    assert ranked(order, late, now_s) == expected


@given(st.integers(1, 100_000))
def test_sizes_of_a_class_differ_by_a_quarter_at_most(tokens):
    """So `least work first` is wrong by no more than that."""
    assert size_class(tokens) <= size_class(tokens + 1)
    assert size_class(tokens) < size_class(int(tokens * 1.25) + 1)


@given(many(1), st.integers(0, 400).map(float))
def test_late_means_that_even_alone_it_would_miss_its_limit(prompts, now_s):
    settings = parse({}, MAX_MODEL_LEN)
    clock = PrefillClock(MODEL, settings, 512)
    for p in prompts:
        floor_s = min(p.ttft_slo_s or settings.ttft_slo_s, settings.ttft_slo_s)
        waited_s = now_s - p.arrival_s
        left_s = MODEL.alone_s(p.tokens, p.context_tokens, 512)
        if waited_s + left_s <= floor_s:
            assert clock.feasible(p, now_s)
        alone_s = MODEL.alone_s(p.tokens, 0, 512)
        engine_s = max(settings.ttft_slo_s, settings.ttft_slo_factor * alone_s)
        limit_s = min(p.ttft_slo_s or engine_s, engine_s)
        assert clock.feasible(p, now_s) == (now_s + left_s <= p.arrival_s + limit_s)


@given(orders, many(2), moments)
def test_orders_work_before_anything_is_learned(name, prompts, now_s):
    order = make_order(name, model=StepTimeModel())
    assert len(ranked(order, prompts, now_s)) == len(prompts)
