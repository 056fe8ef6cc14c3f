"""Which pool, whole or split: what each strategy promises."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.classify import Fit, belongs, context_limit, fit, uncached_tokens
from headway.core.routing.route import Reason
from headway.core.routing.strategies import STRATEGY_BY_NAME
from headway.core.routing.strategies.dedicated import dedicated
from headway.core.routing.strategies.disaggregated import disaggregated
from headway.core.routing.strategies.unified import unified

from .made import NOW_S, draws, engine, many_pools, pool, request, requests

names = st.sampled_from(sorted(STRATEGY_BY_NAME))


def route(strategy, asked, *pools, draw=0.0, now_s=NOW_S):
    return strategy(asked, tuple(pools), now_s, draw)


def by_id(pools):
    return {e.id: (e, p) for p in pools for e in p.engines}


# Every strategy


@given(names, requests(), many_pools(), draws)
def test_a_route_names_only_engines_that_may_take_the_request(name, asked, pools, draw):
    """Ready, not excluded, of the right role, and not certain to refuse the length."""
    made = route(STRATEGY_BY_NAME[name].route, asked, *pools, draw=draw)
    known = by_id(pools)
    for engine_id in filter(None, (made.engine, made.prefill, made.decode)):
        chosen, home = known[engine_id]
        assert chosen.ready
        assert engine_id not in asked.excluded
        assert home.name not in asked.too_long_for
        leg = asked._replace(max_tokens=1) if engine_id == made.prefill else asked
        assert fit(leg, context_limit(chosen, home)) != Fit.TOO_LONG
        assert chosen.role != ("decode" if engine_id == made.prefill else "prefill")


@given(names, requests(), many_pools(), draws)
def test_a_route_is_complete_for_its_kind(name, asked, pools, draw):
    made = route(STRATEGY_BY_NAME[name].route, asked, *pools, draw=draw)
    assert made.reason in set(Reason)
    named = (made.engine is not None, made.prefill is not None, made.decode is not None)
    if made.kind == "refuse":
        assert named == (False, False, False)
        assert (made.status, made.retry_after_s is None) in {(400, True), (503, False)}
        return
    assert made.status == 0
    assert named == ((True, False, False) if made.kind == "whole" else (False, True, True))
    assert made.prefill != made.decode or made.kind == "whole"
    answering = made.engine or made.decode
    assert by_id(pools)[answering][1].name == made.pool
    assert made.uncached_tokens == uncached_tokens(asked, made.engine or made.prefill)


@given(names, requests(), many_pools(), draws, st.randoms(use_true_random=False))
def test_the_same_question_has_the_same_answer(name, asked, pools, draw, rng):
    """In whatever order engines are listed."""
    strategy = STRATEGY_BY_NAME[name].route
    made = route(strategy, asked, *pools, draw=draw)
    shuffled = [p._replace(engines=tuple(rng.sample(p.engines, len(p.engines)))) for p in pools]
    rng.shuffle(shuffled)
    again = route(strategy, asked, *shuffled, draw=draw)
    assert (again.kind, again.engine, again.prefill, again.decode) == (
        made.kind,
        made.engine,
        made.prefill,
        made.decode,
    )


@given(names, requests(), many_pools(), draws)
def test_a_request_is_refused_only_if_no_engine_could_serve_it(name, asked, pools, draw):
    made = route(STRATEGY_BY_NAME[name].route, asked, *pools, draw=draw)
    able = [
        e
        for e, p in by_id(pools).values()
        if e.role != "prefill"
        and p.name not in asked.too_long_for
        and fit(asked, context_limit(e, p)) != Fit.TOO_LONG
        and (name != "dedicated" or belongs(asked, e, p))
    ]
    ready = [e for e in able if e.ready and e.id not in asked.excluded]
    if ready:
        assert made.kind != "refuse"
    elif able:
        assert made.status in {0, 503}


@pytest.mark.parametrize("name", sorted(STRATEGY_BY_NAME))
def test_an_estimate_beyond_every_context_is_left_to_the_engine(name):
    """It goes where the context is largest, and never in two legs."""
    prefill = pool("p", role="prefill")
    small, large = pool("a", max_model_len=2_000), pool("b", max_model_len=9_000)
    made = route(STRATEGY_BY_NAME[name].route, request(50_000), small, large, prefill)
    assert (made.kind, made.engine) == ("whole", "b/h:1")


@pytest.mark.parametrize("name", sorted(STRATEGY_BY_NAME))
def test_refusals_say_what_is_wrong(name):
    def refusal(asked, *pools):
        made = route(STRATEGY_BY_NAME[name].route, asked, *pools)
        return made.status, made.reason

    place = pool("a", max_model_len=2_000)
    assert refusal(request(), pool("a", engine(ready=False))) == (503, Reason.NOT_READY)
    assert refusal(request()) == (503, Reason.NOT_READY)
    assert refusal(request(excluded={"a/h:1"}), place) == (503, Reason.ALL_FAILED)
    assert refusal(request(max_tokens=2_001), place) == (400, Reason.TOO_LONG)
    assert refusal(request(2_000, exact=True), place) == (400, Reason.TOO_LONG)
    assert refusal(request(too_long_for={"a"}), place) == (400, Reason.TOO_LONG)


# Unified


@given(requests(), many_pools(), draws)
def test_unified_never_splits(asked, pools, draw):
    assert route(unified, asked, *pools, draw=draw).kind != "split"


def test_unified_says_when_a_prefix_decided():
    places = pool("a", engine(port=1), engine(port=2))
    assert route(unified, request(), places).reason == Reason.LEAST_WORK
    made = route(unified, request(1_000, cached_tokens={"a/h:2": 900}), places)
    assert (made.engine, made.reason, made.uncached_tokens) == ("a/h:2", Reason.PREFIX, 100)


# Dedicated

SHORT = pool("short", max_prompt_tokens=1_000, max_model_len=4_000)
LONG = pool("long", max_model_len=100_000)


def sped(place, tokens_per_s, prefill_tokens=0):
    """The pool with engines of a known speed that have so much to do."""
    return place._replace(
        engines=tuple(
            e._replace(prefill_tokens_per_s=tokens_per_s, prefill_tokens=prefill_tokens)
            for e in place.engines
        )
    )


@given(st.integers(1, 3_000), draws)
def test_each_length_has_its_pool(tokens, draw):
    made = route(dedicated, request(tokens), LONG, SHORT, draw=draw)
    assert made.pool == ("short" if tokens <= 1_000 else "long")
    assert made.reason == Reason.FITS_POOL


@given(requests(), many_pools(), draws)
def test_a_long_prompt_never_goes_to_a_shorter_pool(asked, pools, draw):
    """Also when its own isn't ready. Only the largest takes what is beyond its range."""
    made = route(dedicated, asked, *pools, draw=draw)
    if made.kind == "refuse":
        return
    chosen, home = by_id(pools)[made.engine]
    serving = [p for p in pools if any(e.role != "prefill" for e in p.engines)]
    larger = [p for p in serving if (p.max_prompt_tokens or 1e9) > (home.max_prompt_tokens or 1e9)]
    assert belongs(asked, chosen, home) or not larger


def test_the_engine_with_the_prefix_may_be_in_the_short_pool():
    """And only that engine of it."""
    short = pool("short", *(engine("short", i) for i in (1, 2, 3)), max_prompt_tokens=1_000)
    asked = request(50_000, cached_tokens={"short/h:2": 49_500})
    made = route(dedicated, asked, short, LONG)
    assert (made.engine, made.uncached_tokens) == ("short/h:2", 500)


def test_it_moves_up_when_refused_or_not_ready_or_out_of_context():
    def why(asked, short=SHORT):
        made = route(dedicated, asked, short, LONG)
        assert made.pool == "long"
        return made.reason

    assert why(request(500, too_long_for={"short"})) == Reason.REFUSED_LENGTH
    assert why(request(500, max_tokens=3_900)) == Reason.CONTEXT_LIMIT
    down = pool("short", engine("short", ready=False), max_prompt_tokens=1_000)
    assert why(request(500), down) == Reason.POOL_NOT_READY
    assert why(request(500, excluded={"short/h:1"})) == Reason.POOL_NOT_READY


def test_a_long_prompt_waits_for_its_pool():
    down = pool("long", engine("long", ready=False))
    made = route(dedicated, request(5_000), SHORT, down)
    assert (made.kind, made.status) == ("refuse", 503)


@given(
    st.integers(0, 50_000),
    st.integers(0, 50_000),
    st.floats(0.1, 20),
    st.floats(0, 5),
    draws,
)
def test_it_spills_exactly_when_that_saves_the_first_token(behind, ahead, limit_s, waited_s, draw):
    asked = request(500, ttft_limit_s=limit_s, arrival_s=NOW_S - waited_s)
    short, long = sped(SHORT, 2_000.0, behind), sped(LONG, 2_000.0, ahead)
    made = route(dedicated, asked, short, long, draw=draw)
    left_s = limit_s - waited_s
    misses, meets = (behind + 500) / 2_000 > left_s, (ahead + 500) / 2_000 <= left_s
    if min(abs((n + 500) / 2_000 - left_s) for n in (behind, ahead)) > 1e-6:
        assert (made.reason == Reason.SPILL) == (misses and meets)
        assert made.pool == ("long" if misses and meets else "short")


def test_nothing_spills_on_a_guess():
    """Where a speed isn't known there is no prediction."""
    asked = request(500, ttft_limit_s=0.1)
    busy = sped(SHORT, 0.0, 10**6)
    assert route(dedicated, asked, busy, sped(LONG, 9e9)).pool == "short"
    assert route(dedicated, asked, sped(SHORT, 1.0), sped(LONG, 0.0)).pool == "short"


# Disaggregated

PREFILL = pool("p", engine("p", 1), engine("p", 2), role="prefill")
DECODE = pool("d", engine("d", 1), engine("d", 2), role="decode", max_model_len=8_000)


def test_each_leg_goes_where_its_own_work_is_least():
    prefill = pool("p", engine("p", 1, prefill_tokens=9_000), engine("p", 2), role="prefill")
    decode = pool("d", engine("d", 1), engine("d", 2, decodes=9), role="decode")
    made = route(disaggregated, request(), prefill, decode)
    assert (made.kind, made.prefill, made.decode, made.pool) == ("split", "p/h:2", "d/h:1", "d")
    assert made.reason == Reason.SPLIT


def test_it_stays_whole_on_a_decode_engine_where_it_can_not_be_split():
    def why(asked, *prefill, strategy=None):
        made = route(strategy or disaggregated, asked, *prefill, DECODE)
        assert (made.kind, made.pool) == ("whole", "d")
        return made.reason

    dead = pool("p", engine("p", ready=False), role="prefill")
    small = pool("p", role="prefill", max_model_len=500)
    assert why(request(splittable=False), PREFILL) == Reason.NOT_SPLITTABLE
    assert why(request(), dead) == Reason.NO_PREFILL_ENGINE
    assert why(request()) == Reason.NO_PREFILL_ENGINE
    assert why(request(excluded={"p/h:1", "p/h:2"}), PREFILL) == Reason.NO_PREFILL_ENGINE
    assert why(request(), small) == Reason.CONTEXT_LIMIT
    cached = request(1_000, cached_tokens={"d/h:2": 900})
    assert (
        why(cached, PREFILL, strategy=partial(disaggregated, split_tokens=200))
        == Reason.PROMPT_TOO_SHORT
    )


@given(requests(), many_pools(), draws)
def test_no_prefill_is_spent_on_what_the_decode_engine_may_refuse(asked, pools, draw):
    """Prompt and answer are checked against its context first."""
    made = route(disaggregated, asked, *pools, draw=draw)
    if made.kind == "split":
        assert asked.splittable
        assert fit(asked, context_limit(*by_id(pools)[made.decode])) == Fit.FITS


def test_without_a_decode_engine_nothing_is_prefilled():
    made = route(disaggregated, request(), PREFILL)
    assert (made.kind, made.status) == ("refuse", 503)


def test_one_engine_of_both_roles_is_not_split_from_itself():
    made = route(disaggregated, request(), pool("a"))
    assert (made.kind, made.engine) == ("whole", "a/h:1")


def test_ties_of_both_legs_are_broken_apart():
    """Every pair of equal engines is used."""
    pairs = {
        (made.prefill, made.decode)
        for i in range(200)
        for made in (route(disaggregated, request(), PREFILL, DECODE, draw=i * 0.618034 % 1),)
    }
    assert len(pairs) == 4


# Engines that are degraded


@given(names, requests(), many_pools(), draws, st.randoms())
def test_a_degraded_engine_gets_only_what_no_other_may_serve(name, asked, pools, draw, rng):
    shunned = {e.id for p in pools for e in p.engines if rng.random() < 0.5}

    def routed(**change):
        changed = [
            p._replace(
                engines=tuple(
                    e._replace(**{"degraded": False, **(change if e.id in shunned else {})})
                    for e in p.engines
                )
            )
            for p in pools
        ]
        return route(STRATEGY_BY_NAME[name].route, asked, *changed, draw=draw)

    degraded, gone, well = routed(degraded=True), routed(ready=False), routed()
    assert (degraded.kind == "refuse") == (well.kind == "refuse"), "it is there when it must be"
    assert degraded.prefill not in shunned, "the decode engine can prefill as well"
    if {degraded.engine, degraded.decode} & shunned and gone.kind != "refuse":
        other, home = by_id(pools)[gone.engine or gone.decode]
        assert fit(asked, context_limit(other, home)) is Fit.UNSURE


def test_a_short_prompt_goes_to_the_long_pool_while_its_own_engine_says_nothing():
    silent, long = engine("short", degraded=True), engine("long")
    asked = request(10)
    pools = (pool("short", silent, max_prompt_tokens=100), pool("long", long))
    assert route(dedicated, asked, *pools).engine == long.id
    assert route(dedicated, request(10, excluded=frozenset({long.id})), *pools).engine == silent.id
    assert route(dedicated, request(5_000), *pools).engine == long.id
    only = (pools[0], pool("long", engine("long", degraded=True)))
    assert route(dedicated, asked, *only).engine == silent.id
