"""Which engine is picked, and what may never sway it."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing import pick as rules
from headway.core.routing.pick import decode_work, has_room, pick, prefill_work, ttft_s

from .made import ENGINE_IDS, draws, engine, fleets, request, requests

works = st.sampled_from((prefill_work, decode_work))


def load(place, asked, peers, work):
    speed = rules._known(place) or rules.usual_tokens_per_s(peers) or rules.GUESSED_TOKENS_PER_S
    return work(place, asked, speed) / min(1.0, max(0.01, place.weight))


def usable(fleet, asked):
    return [e for e in fleet if e.ready and e.id not in asked.excluded]


@given(fleets(), requests(), draws, works)
def test_the_least_loaded_usable_engine_with_room_is_picked(fleet, asked, draw, work):
    chosen = pick(fleet, asked, draw, work)
    peers = usable(fleet, asked)
    assert (chosen is None) == (not peers)
    if chosen is None:
        return
    assert chosen in peers
    roomy = [e for e in peers if has_room(e, asked)] or peers
    assert chosen in roomy
    least = min(load(e, asked, peers, work) for e in roomy)
    assert load(chosen, asked, peers, work) <= 1.05 * least * (1 + 1e-9)


@given(fleets(), requests(), draws, works, st.randoms(use_true_random=False))
def test_the_pick_is_blind_to_the_order_of_asking(fleet, asked, draw, work, rng):
    shuffled = list(fleet)
    rng.shuffle(shuffled)
    assert pick(shuffled, asked, draw, work) == pick(fleet, asked, draw, work)


@given(requests(), works, st.integers(1, 6))
def test_equal_engines_share_the_draws_evenly(asked, work, n):
    fleet = [engine("z", port) for port in range(n)]
    steps = 60 * n
    seen = Counter(pick(fleet, asked, i / steps, work) for i in range(steps))
    assert set(seen.values()) == {60}


@given(st.integers(2, 6), st.integers(20, 120), st.randoms(use_true_random=False))
def test_a_burst_spreads_although_nothing_is_scraped_meanwhile(n, burst, rng):
    """Stale numbers, even ones that favour one engine, don't make a herd."""
    own = dict.fromkeys(range(n), 0)
    stale = {port: 0 if port == 0 else 3 for port in range(n)}
    for _ in range(burst):
        fleet = [
            engine("z", p, prefill_tokens=own[p] * 1_000, decodes=own[p], queued=stale[p])
            for p in range(n)
        ]
        chosen = pick(fleet, request(1_000), rng.random())
        own[int(chosen.id[-1])] += 1
    assert max(own.values()) - min(own.values()) <= 2 + 0.1 * burst / n


@given(st.integers(0, 10**9), st.integers(0, 10**6), works, draws)
def test_scraped_queues_add_no_more_than_so_much(queued, prefill_tokens, work, draw):
    """Own work beyond that outvotes them, however long they are."""
    most = rules.QUEUED_AS_TOKENS * rules.MOST_QUEUED
    queueing = engine(port=1, queued=queued, prefill_tokens=prefill_tokens)
    busy = engine(port=2, prefill_tokens=int(1.1 * (prefill_tokens + most + 2_000)))
    assert pick([queueing, busy], request(500), draw, work) is queueing


def test_a_queue_of_others_is_avoided():
    assert pick([engine(port=1, queued=5), engine(port=2)], request(), 0.0).id == "a/h:2"


@given(draws)
def test_a_cached_prefix_draws_a_request_until_the_queue_there_costs_more(draw):
    asked = request(10_000, cached_tokens={"a/h:1": 9_000})
    other = engine(port=2)
    assert pick([engine(port=1, prefill_tokens=5_000), other], asked, draw).id == "a/h:1"
    assert pick([engine(port=1, prefill_tokens=12_000), other], asked, draw).id == "a/h:2"


@given(draws)
def test_a_faster_engine_gets_more_and_an_unknown_speed_is_taken_as_usual(draw):
    slow = engine(port=1, prefill_tokens=1_000, prefill_tokens_per_s=100.0)
    fast = engine(port=2, prefill_tokens=5_000, prefill_tokens_per_s=1_000.0)
    fresh = engine(port=3, prefill_tokens=2_000)
    assert pick([slow, fast], request(), draw) is fast
    assert pick([slow, fresh], request(), draw) is slow
    assert pick([slow, fast, fresh], request(), draw) is fresh


@given(draws, st.floats(0, 0.5))
def test_a_readmitted_engine_gets_little_until_the_others_are_busy(draw, weight):
    back = engine(port=1, weight=weight)
    assert pick([back, engine(port=2)], request(), draw).id == "a/h:2"
    assert pick([back, engine(port=2, prefill_tokens=200_000)], request(), draw) is back


@given(draws, works)
def test_an_engine_without_kv_room_comes_last_but_comes(draw, work):
    full = engine(port=1, kv_tokens=9_000, kv_capacity_tokens=10_000)
    busy = engine(port=2, prefill_tokens=10**6, decodes=900, kv_capacity_tokens=10**6)
    assert pick([full, busy], request(1_000), draw, work) is busy
    assert pick([full], request(1_000), draw, work) is full


@given(draws)
def test_decodes_are_spread_by_their_number_and_by_staged_kv(draw):
    few, many = engine(port=1, decodes=4), engine(port=2, decodes=5)
    assert pick([few, many], request(), draw, decode_work) is few
    staging = few._replace(kv_tokens=100_000)
    assert pick([staging, many], request(), draw, decode_work) is many


@given(fleets(), requests())
def test_more_work_ahead_is_never_predicted_to_answer_sooner(fleet, asked):
    for place in fleet:
        first_s = ttft_s(place, asked, fleet)
        busier = ttft_s(place._replace(prefill_tokens=place.prefill_tokens + 500), asked, fleet)
        assert (first_s is None) == (busier is None)
        if first_s is not None and busier is not None:
            assert 0 < first_s <= busier


def test_the_prediction_is_all_prefill_ahead_at_the_engines_speed():
    place = engine(prefill_tokens=3_000, prefill_tokens_per_s=2_000.0)
    assert ttft_s(place, request(1_000), ()) == pytest.approx(2.0)
    unknown = engine(port=2, prefill_tokens=3_000)
    assert ttft_s(unknown, request(1_000), (unknown,)) is None
    assert ttft_s(unknown, request(1_000), (unknown, place)) == pytest.approx(2.0)


# What is cached for others


@given(fleets(), st.integers(1, 100_000), draws, st.data())
def test_less_cached_only_decides_between_equals(engines, tokens, draw, data):
    kept = data.draw(st.dictionaries(st.sampled_from(ENGINE_IDS), st.integers(0, 10**6)))
    plain = pick(engines, request(tokens), draw)
    found = pick(engines, request(tokens, kept_tokens=kept), draw)
    assert (plain is None) == (found is None)
    others = {pick(engines, request(tokens), other / 32) for other in range(32)}
    assert found in others, "it is one of those that are tied"


def test_a_cold_prompt_leaves_a_warm_engine_alone_where_another_is_as_idle():
    warm, cold = engine("a", 1), engine("a", 2)
    asked = request(80_000, kept_tokens={warm.id: 60_000, cold.id: 0})
    assert {pick([warm, cold], asked, draw / 8) for draw in range(8)} == {cold}


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4_000)), min_size=2, max_size=4),
    st.sampled_from((None, 100_000, 10**7)),
    st.integers(1, 90_000),
    draws,
)
def test_of_equals_the_one_that_has_least_for_others_is_chosen(kept, capacity, tokens, draw):
    """Within a small tolerance, whatever they have of the prompt, if it is the same."""
    own = min(tokens, 4_096)
    fleet = [engine("z", port, kv_capacity_tokens=capacity) for port in range(len(kept))]
    held = {e.id: own + many + few for e, (many, few) in zip(fleet, kept, strict=True)}
    found = pick(
        fleet,
        request(tokens, cached_tokens=dict.fromkeys(held, own), kept_tokens=held),
        draw,
    )
    most = math.inf if capacity is None else capacity
    assert min(most, held[found.id] - own) <= min(held.values()) - own + 2 * rules.SPARED_TOKENS


def test_where_there_is_room_for_both_the_one_that_comes_back_still_finds_its_engine_idle():
    warm, cold = (engine("a", port, kv_capacity_tokens=500_000) for port in (1, 2))
    asked = request(80_000, kept_tokens={warm.id: 60_000})
    assert {pick([warm, cold], asked, draw / 8) for draw in range(8)} == {cold}


def test_room_for_all_of_it_counts_more_than_how_much_is_there():
    full = engine("a", 1, kv_capacity_tokens=100_000)
    roomy = engine("a", 2, kv_capacity_tokens=1_000_000)
    asked = request(80_000, kept_tokens={full.id: 100_000, roomy.id: 400_000})
    assert {pick([full, roomy], asked, draw / 8) for draw in range(8)} == {roomy}


def test_what_is_remembered_beyond_an_engine_s_memory_is_not_there():
    small, same = (engine("a", port, kv_capacity_tokens=100_000) for port in (1, 2))
    asked = request(80_000, kept_tokens={small.id: 2_000_000, same.id: 150_000})
    assert {pick([small, same], asked, draw / 8) for draw in range(8)} == {small, same}


def test_what_is_cached_of_the_prompt_itself_is_nobody_else_s():
    warm, other = engine("a", 1), engine("a", 2)
    asked = request(80_000, cached_tokens={warm.id: 60_000}, kept_tokens={warm.id: 60_000})
    assert {pick([warm, other], asked, draw / 8) for draw in range(8)} == {warm}
