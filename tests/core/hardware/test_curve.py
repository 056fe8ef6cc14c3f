"""Curves go through their points, and on beyond them as they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.hardware.curve import Curve, Surface

SIZES = st.lists(st.integers(1, 10_000), min_size=1, max_size=8, unique=True).map(sorted)


@given(SIZES, st.data())
def test_a_curve_goes_through_its_points(sizes, data):
    times = data.draw(st.lists(st.floats(0, 1e6), min_size=len(sizes), max_size=len(sizes)))
    curve = Curve(sizes, times)
    assert [curve(size) for size in sizes] == pytest.approx(times, abs=1e-3)


@given(SIZES, st.floats(0, 20_000))
def test_a_rising_curve_never_falls(sizes, x):
    curve = Curve(sizes, [2.0 * size for size in sizes])
    assert curve(x) <= curve(x + 1) + 1e-9


def test_before_its_first_point_a_curve_is_level():
    assert Curve([8, 16], [3.0, 5.0])(1) == 3.0


def test_beyond_its_last_point_a_curve_goes_straight_on():
    assert Curve([8, 16], [3.0, 5.0])(24) == 7.0


def test_beyond_its_last_point_a_curve_grows_with_its_power():
    assert Curve([8, 16], [3.0, 5.0], power=2)(32) == 20.0


@given(SIZES, SIZES, st.floats(1, 10_000))
def test_a_sum_is_what_its_parts_add_up_to(left, right, x):
    one, other = Curve(left, [float(s) for s in left]), Curve(right, [s**0.5 for s in right])
    x = min(x, left[-1], right[-1])
    assert one.plus(other)(x) == pytest.approx(one(x) + other(x))


@pytest.mark.parametrize("sizes", [[], [1, 1], [2, 1]])
def test_sizes_that_do_not_ascend_are_refused(sizes):
    with pytest.raises(SettingError, match="curve"):
        Curve(sizes, [0.0] * len(sizes))


def test_a_surface_is_linear_between_its_curves():
    surface = Surface([1, 3], [Curve([1, 2], [1.0, 2.0]), Curve([1, 2], [3.0, 6.0])])
    assert [surface(x, 2) for x in (0, 1, 2, 3, 4)] == [2.0, 2.0, 4.0, 6.0, 8.0]
