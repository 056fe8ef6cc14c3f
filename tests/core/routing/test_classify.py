"""What length means, and what a context limit is compared with."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.classify import (
    Fit,
    belongs,
    context_limit,
    fit,
    length_class,
    uncached_tokens,
)

from .made import engine, pool, request, requests

counts = st.integers(0, 200_000)


@given(requests(), st.sampled_from(("a/h:1", "elsewhere")))
def test_length_is_what_is_not_cached_and_at_least_the_last_token(asked, engine_id):
    length = uncached_tokens(asked, engine_id)
    assert 1 <= length <= max(1, asked.prompt_tokens)


def test_a_follow_up_with_a_cached_prompt_is_short():
    asked = request(100_000, cached_tokens={"a/h:1": 99_000})
    assert length_class(uncached_tokens(asked, "a/h:1"), 10_000) == "short"
    assert length_class(uncached_tokens(asked, "a/h:2"), 10_000) == "long"


@given(counts, counts)
def test_longer_is_never_of_a_shorter_class(tokens, long_tokens):
    assert (length_class(tokens, long_tokens) == "long") == (tokens > long_tokens)


@given(st.none() | counts, st.none() | counts)
def test_the_smaller_of_two_context_limits_holds(engines_own, pools_own):
    place = engine(max_model_len=engines_own)
    limit = context_limit(place, pool("a", place, max_model_len=pools_own))
    assert limit == min((n for n in (engines_own, pools_own) if n is not None), default=None)


@given(requests())
def test_an_unknown_limit_holds_everything(asked):
    assert fit(asked, None) == Fit.FITS


@given(requests(), st.integers(1, 200_000), counts)
def test_a_larger_context_never_fits_worse(asked, limit, extra):
    assert fit(asked, limit + extra) <= fit(asked, limit)


@given(requests(), st.integers(1, 200_000))
def test_an_estimate_alone_is_never_too_long(asked, limit):
    """Whatever the estimate: the engine would count, and might serve it."""
    estimated = asked._replace(exact=False, max_tokens=min(asked.max_tokens or 1, limit))
    assert fit(estimated, limit) != Fit.TOO_LONG


def test_certain_and_possible_excess_differ():
    assert fit(request(1_000, max_tokens=1_000), 2_000) == Fit.FITS
    assert fit(request(1_000, max_tokens=1_001), 2_000) == Fit.UNSURE
    assert fit(request(1_000, max_tokens=2_001), 2_000) == Fit.TOO_LONG
    assert fit(request(2_000, exact=True), 2_000) == Fit.TOO_LONG
    assert fit(request(2_000), 2_000) == Fit.UNSURE
    assert fit(request(1_999), 2_000) == Fit.FITS


def test_a_pools_range_is_of_uncached_tokens():
    short = pool("a", max_prompt_tokens=500)
    assert belongs(request(500), short.engines[0], short)
    assert not belongs(request(501), short.engines[0], short)
    assert belongs(request(501, cached_tokens={"a/h:1": 400}), short.engines[0], short)
    assert belongs(request(10**9), engine("b"), pool("b"))
