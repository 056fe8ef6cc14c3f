"""Requests that no strategy routes go where they may, and where they wait least."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.classify import Fit, context_limit
from headway.core.routing.fallback import passed_on, puller
from headway.core.routing.places import fit_in

from .made import ENGINE_IDS, draws, engine, many_pools, pool, request, requests

excluded_ids = st.frozensets(st.sampled_from(ENGINE_IDS), max_size=3)


def open_to(pools, excluded):
    return [
        (p, e)
        for p in pools
        for e in p.engines
        if e.ready and e.role != "prefill" and e.id not in excluded
    ]


@given(many_pools(), excluded_ids, draws)
def test_what_is_passed_on_goes_to_an_engine_that_may_take_it(pools, excluded, draw):
    found = passed_on(pools, excluded=excluded, draw=draw)
    able = {e.id: e for _, e in open_to(pools, excluded)}
    assert (found is None) == (not able)
    if found is not None:
        assert not able[found].degraded or all(e.degraded for e in able.values())


def test_what_is_passed_on_goes_where_the_fewest_requests_are():
    busy, idle = engine("a", 1, requests=3), engine("a", 2, requests=1)
    assert passed_on([pool("a", busy, idle)], excluded=frozenset(), draw=0.0) == idle.id


def test_who_has_just_come_back_gets_less_of_what_is_passed_on():
    back, busy = engine("a", 1, requests=1, weight=0.1), engine("a", 2, requests=4)
    assert passed_on([pool("a", back, busy)], excluded=frozenset(), draw=0.0) == busy.id


@given(requests(), many_pools(), st.sampled_from((None, *ENGINE_IDS)), draws)
def test_another_engine_pulls_only_where_it_may(asked, pools, prefilled_on, draw):
    found = puller(pools, asked, meant=None, prefilled_on=prefilled_on, draw=draw)
    able = [(p, e) for p, e in open_to(pools, asked.excluded) if e.id != prefilled_on]
    able = [place for place in able if fit_in(place, asked) is not Fit.TOO_LONG]
    assert (found is None) == (not able)
    if found is not None:
        fits = {e.id: fit_in((p, e), asked) for p, e in able}
        assert fits[found] is min(fits.values()), "where it fits, if it does anywhere"
        limits = {e.id: context_limit(e, p) for p, e in able}
        alike = {e.id: e for _, e in able if fits[e.id] is fits[found]}
        if fits[found] is Fit.UNSURE:
            assert limits[found] == max(limits[name] for name in alike)
            alike = {name: e for name, e in alike.items() if limits[name] == limits[found]}
        assert not alike[found].degraded or all(e.degraded for e in alike.values())


@given(requests(), many_pools(), st.sampled_from(ENGINE_IDS), draws)
def test_the_engine_a_handoff_was_meant_for_pulls_it_unless_it_failed(asked, pools, meant, draw):
    found = puller(pools, asked, meant=meant, prefilled_on=None, draw=draw)
    if meant in asked.excluded:
        assert found == puller(pools, asked, meant=None, prefilled_on=None, draw=draw)
    else:
        assert found == meant


def test_another_engine_pulls_where_there_is_room():
    full = engine("d", 1, kv_tokens=99_000, kv_capacity_tokens=100_000)
    roomy = engine("d", 2, kv_tokens=5_000, decodes=3, kv_capacity_tokens=100_000)
    pools = [pool("d", full, roomy)]
    found = puller(pools, request(30_000), meant=None, prefilled_on=None, draw=0.0)
    assert found == roomy.id


def test_a_prefill_engine_of_both_roles_does_not_pull_from_itself():
    alone = pool("a", engine("a", 1))
    found = puller([alone], request(), meant=None, prefilled_on="a/h:1", draw=0.0)
    assert found is None
