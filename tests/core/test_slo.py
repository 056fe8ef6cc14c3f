"""The metric definitions, as invariants."""

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import (
    Limits,
    Outcome,
    RatePoint,
    Slo,
    falling_fit,
    highest_rate,
    itls_s,
    met,
    percentile,
    summarise,
    summarise_by_class,
    tpot_s,
)

seconds = st.floats(0, 1e4, allow_nan=False)
positive = st.floats(0.001, 1e4, allow_nan=False)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    intended = draw(seconds)
    gaps = draw(st.lists(seconds, max_size=8))
    times, now = [], intended
    for gap in gaps:
        now += gap
        times.append(now)
    return Outcome(
        length_class=draw(st.sampled_from(["short", "long"])),
        intended_s=intended,
        token_times_s=tuple(times),
        completed=draw(st.booleans()),
        limits=Limits(draw(positive), draw(positive)),
    )


def request(first_s: float, gap_s: float, tokens: int, *, completed: bool = True) -> Outcome:
    times = tuple(first_s + i * gap_s for i in range(tokens))
    return Outcome("short", 0.0, times, completed, Limits(1.0, 0.1))


@given(outcomes())
def test_tpot_is_the_mean_gap_and_the_stall_the_largest(outcome: Outcome) -> None:
    gaps = itls_s(outcome)
    each = tpot_s(outcome)
    assert (each is None) == (len(outcome.token_times_s) < 2)
    if each is not None:
        assert math.isclose(each, statistics.fmean(gaps), rel_tol=1e-6, abs_tol=1e-6)
        stall = summarise([outcome], 1.0).longest_stall_s
        assert stall == max(gaps)


@given(outcomes())
def test_what_did_not_complete_is_missed(outcome: Outcome) -> None:
    if not outcome.completed or not outcome.token_times_s:
        assert not met(outcome)


def test_each_limit_alone_decides() -> None:
    assert met(request(1.0, 0.1, 1))
    assert met(request(1.0, 0.05, 5))
    assert not met(request(1.001, 0.05, 5))
    assert not met(request(0.5, 0.11, 5))
    assert not met(request(0.5, 0.05, 5, completed=False))


def test_one_token_has_no_tpot_to_miss() -> None:
    assert tpot_s(request(0.5, 9.0, 1)) is None
    assert met(request(0.5, 9.0, 1))


@given(positive, positive, positive, seconds)
def test_the_ttft_limit_grows_with_length_above_a_floor(
    floor: float, factor: float, tpot: float, alone: float
) -> None:
    limits = Slo(floor, factor, tpot).limits(alone)
    assert limits.ttft_s == max(floor, factor * alone)
    assert limits.tpot_s == tpot


@given(st.lists(outcomes(), max_size=20), positive)
def test_classes_add_up_to_the_whole(requests: list[Outcome], duration_s: float) -> None:
    whole = summarise(requests, duration_s)
    parts = summarise_by_class(requests, duration_s)
    assert whole.sent == sum(part.sent for part in parts.values())
    assert whole.met == sum(part.met for part in parts.values())
    assert whole.met <= whole.completed <= whole.sent
    assert math.isclose(whole.goodput_per_s * duration_s, whole.met, abs_tol=1e-6)
    if whole.sent:
        assert whole.attainment == whole.met / whole.sent
    else:
        assert whole.attainment is None


def test_goodput_needs_a_duration() -> None:
    with pytest.raises(ValueError, match="duration_s"):
        summarise([], 0.0)


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_are_ordered_and_within_the_data(
    values: list[float], one: float, other: float
) -> None:
    low = percentile(values, min(one, other))
    high = percentile(values, max(one, other))
    assert low is not None
    assert high is not None
    assert min(values) <= low <= high <= max(values)
    median = percentile(values, 50)
    assert median is not None
    assert math.isclose(median, statistics.median(values), abs_tol=1e-9)


def test_percentile_of_nothing_and_out_of_range() -> None:
    assert percentile([], 99) is None
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], 101)


rate_points = st.lists(
    st.builds(RatePoint, st.floats(0.01, 10), st.floats(0, 1), st.integers(1, 200)),
    min_size=1,
    max_size=12,
    unique_by=lambda point: point.rate_per_s,
)


@given(rate_points)
def test_the_fit_never_rises_and_keeps_the_weighted_mean(points: list[RatePoint]) -> None:
    ordered = sorted(points, key=lambda point: point.rate_per_s)
    fitted = falling_fit(ordered)
    levels = [point.attainment for point in fitted]
    assert all(a >= b - 1e-12 for a, b in pairwise(levels))
    assert math.isclose(
        sum(p.attainment * p.sent for p in ordered),
        sum(p.attainment * p.sent for p in fitted),
        abs_tol=1e-6,
    )


@given(rate_points, st.floats(0.05, 1.0))
def test_the_highest_rate_lies_where_its_bracket_says(
    points: list[RatePoint], target: float
) -> None:
    found = highest_rate(points, target)
    rates = sorted(point.rate_per_s for point in points)
    if found.bracket == "above":
        assert found.rate_per_s == rates[-1]
    elif found.bracket == "below":
        assert 0 <= found.rate_per_s <= rates[0] + 1e-9
    else:
        assert found.bracket == "between"
        assert rates[0] - 1e-9 <= found.rate_per_s <= rates[-1] + 1e-9


def test_the_highest_rate_is_interpolated() -> None:
    points = [RatePoint(1.0, 1.0, 10), RatePoint(2.0, 0.8, 10), RatePoint(3.0, 0.1, 10)]
    found = highest_rate(points)
    assert found.bracket == "between"
    assert math.isclose(found.rate_per_s, 1.5)


def test_one_lucky_point_does_not_decide() -> None:
    points = [RatePoint(1.0, 0.6, 100), RatePoint(2.0, 0.95, 5), RatePoint(3.0, 0.2, 100)]
    assert highest_rate(points).bracket == "below"


def test_no_points_is_an_error() -> None:
    with pytest.raises(ValueError, match="no points"):
        highest_rate([])
