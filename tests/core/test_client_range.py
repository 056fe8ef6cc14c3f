"""What a client may ask for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.client_range import MOST_PRIORITY, default_priority, nearest, told

priorities = st.integers(-(2**63), 2**63 - 1)
ends = st.tuples(priorities, priorities).map(sorted).map(tuple)


@given(asked=st.integers(), ends=ends)
def test_what_counts_is_in_the_range_and_nothing_in_it_is_nearer(asked, ends):
    granted = nearest(asked, ends)
    assert ends[0] <= granted <= ends[1]
    if granted != asked:
        assert granted == min(ends, key=lambda end: abs(end - asked))


@given(ends=ends)
def test_who_asks_for_none_is_in_the_range_too(ends):
    assert ends[0] <= default_priority(ends) <= ends[1]
    assert default_priority(ends) == 0 or not ends[0] <= 0 <= ends[1]


@pytest.mark.parametrize(
    ("ends", "unit", "words"),
    [
        ((0, 10), "", "from 0 to 10"),
        ((-5, MOST_PRIORITY), "", "-5 or more"),
        ((0.5, 30.0), " s", "from 0.5 to 30 s"),
        ((1.0, math.inf), " s", "1 s or more"),
    ],
)
def test_a_range_in_words(ends, unit, words):
    assert told(ends, unit) == words
