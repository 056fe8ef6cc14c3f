"""Requests that no strategy routes go where they may, and where they wait least."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.classify import Fit
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
    able = [e for _, e in open_to(pools, excluded)]
    assert (found is None) == (not able)
    if found is not None:
        assert found in able
        assert not found.degraded or all(e.degraded for e in able)


def test_what_is_passed_on_goes_where_the_fewest_requests_are():
    busy, idle = engine("a", 1, requests=3), engine("a", 2, requests=1)
    assert passed_on([pool("a", busy, idle)], excluded=frozenset(), draw=0.0) == idle


def test_who_has_just_come_back_gets_less_of_what_is_passed_on():
    back, busy = engine("a", 1, requests=1, weight=0.1), engine("a", 2, requests=4)
    assert passed_on([pool("a", back, busy)], excluded=frozenset(), draw=0.0) == busy


@given(requests(), many_pools(), st.sampled_from((None, *ENGINE_IDS)), draws)
def test_another_engine_pulls_only_where_it_may(asked, pools, prefilled_on, draw):
    found = puller(pools, asked, prefilled_on=prefilled_on, draw=draw)
    able = [(p, e) for p, e in open_to(pools, asked.excluded) if e.id != prefilled_on]
    able = [place for place in able if fit_in(place, asked) is not Fit.TOO_LONG]
    assert (found is None) == (not able)
    if found is not None:
        [(of, _)] = [(p, e) for p, e in able if e == found][:1]
        assert found.id in {e.id for _, e in able}
        if any(fit_in(place, asked) is Fit.FITS for place in able):
            assert fit_in((of, found), asked) is Fit.FITS


def test_another_engine_pulls_where_there_is_room():
    full = engine("d", 1, kv_tokens=99_000, kv_capacity_tokens=100_000)
    roomy = engine("d", 2, kv_tokens=5_000, decodes=3, kv_capacity_tokens=100_000)
    found = puller([pool("d", full, roomy)], request(30_000), prefilled_on=None, draw=0.0)
    assert found is not None
    assert found.id == roomy.id


def test_a_prefill_engine_of_both_roles_does_not_pull_from_itself():
    alone = pool("a", engine("a", 1))
    assert puller([alone], request(), prefilled_on="a/h:1", draw=0.0) is None
