"""Percentiles of histograms that only say how many lie below a bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.judge.histogram import bucket_percentile, buckets

METRICS = """\
# TYPE added_seconds histogram
added_seconds_bucket{le="0.001",where="between legs"} 50.0
added_seconds_bucket{le="0.002",where="between legs"} 98.0
added_seconds_bucket{le="0.005",where="between legs"} 100.0
added_seconds_bucket{le="+Inf",where="between legs"} 100.0
added_seconds_bucket{le="0.001",where="before first leg"} 7.0
other_bucket{le="0.001",where="between legs"} 3.0
"""


def test_a_histogram_is_read_by_its_label() -> None:
    found = buckets(METRICS, "added_seconds", "between legs")
    assert found == {0.001: 50.0, 0.002: 98.0, 0.005: 100.0, float("inf"): 100.0}


def test_a_percentile_counts_only_what_came_between_the_two_looks() -> None:
    after = buckets(METRICS, "added_seconds", "between legs")
    assert bucket_percentile({}, after, 99) == pytest.approx(0.0035)
    assert bucket_percentile({}, after, 25) == pytest.approx(0.0005)
    assert bucket_percentile({0.001: 50.0, 0.002: 50.0}, after, 50) is not None
    assert bucket_percentile(after, after, 99) is None
    assert bucket_percentile({}, {}, 99) is None


def test_a_percentile_beyond_all_bounds_is_the_largest_bound() -> None:
    assert bucket_percentile({}, {0.1: 1.0, float("inf"): 100.0}, 99) == 0.1


@given(
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.floats(0, 100),
)
def test_a_percentile_of_buckets_lies_within_its_bucket(counts: list[int], percent: float) -> None:
    after, total = {}, 0
    for bound, count in zip((1.0, 2.0, 4.0), counts, strict=True):
        total += count
        after[bound] = float(total)
    after[float("inf")] = float(total)
    value = bucket_percentile({}, after, percent)
    assert (value is None) == (total == 0)
    assert value is None or 0 <= value <= 4.0
