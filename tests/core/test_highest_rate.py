"""The highest rate that keeps an attainment, as invariants."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.highest_rate import RatePoint, falling_fit, highest_rate

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
