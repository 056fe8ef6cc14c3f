"""Schedules: determinism and distribution."""

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.load import workload
from headway.bench.load.workload import LONG, MIXED, SHORT, Arrival, ClosedLoop

SHORTS, LONGS = MIXED


@given(st.integers(0, 2**32), st.floats(0.1, 5), st.floats(1, 200))
def test_a_schedule_is_its_seed_and_within_its_bounds(seed, rate, duration_s) -> None:
    one = workload.poisson(rate, duration_s, MIXED, seed)
    assert one == workload.poisson(rate, duration_s, MIXED, seed)
    times = [arrival.at_s for arrival in one.arrivals]
    assert times == sorted(times)
    assert all(0 < at_s < duration_s for at_s in times)
    for arrival in one.arrivals:
        item = SHORTS if arrival.length_class == SHORT else LONGS
        assert item.prompt_tokens[0] <= arrival.prompt_tokens <= item.prompt_tokens[1]
        assert item.output_tokens[0] <= arrival.output_tokens <= item.output_tokens[1]


@given(st.integers(0, 2**32))
def test_any_schedule_has_its_share_of_longs(seed) -> None:
    arrivals = workload.poisson(2.0, 300, MIXED, seed).arrivals
    longs = sum(arrival.length_class == LONG for arrival in arrivals)
    assert abs(longs - 0.08 * len(arrivals)) <= 2


def test_arrivals_are_poisson() -> None:
    arrivals = workload.poisson(10.0, 1_000, MIXED, 1).arrivals
    gaps = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.05)


def test_different_seeds_differ() -> None:
    assert workload.poisson(1, 60, MIXED, 1) != workload.poisson(1, 60, MIXED, 2)


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match="add up"):
        workload.poisson(1, 60, [SHORTS], 1)
    with pytest.raises(ValueError, match="above 0"):
        workload.poisson(0, 60, MIXED, 1)


def test_a_burst_has_exactly_what_was_asked_at_once() -> None:
    burst = workload.burst([(SHORTS, 7), (LONGS, 2)], 3)
    names = [arrival.length_class for arrival in burst.arrivals]
    assert sorted(names) == [LONG] * 2 + [SHORT] * 7
    assert {arrival.at_s for arrival in burst.arrivals} == {0.0}


def test_contention_has_shorts_before_during_and_after_the_long() -> None:
    mixed = workload.contention(
        short=SHORTS,
        short_rate_per_s=1.0,
        long_prompts_at_s=[5.0],
        long_tokens=(4_608, 24),
        running=ClosedLoop(4, "running", 32, 192),
        duration_s=30.0,
        seed=1,
    )
    assert [a.at_s for a in mixed.arrivals if a.length_class == LONG] == [5.0]
    shorts = [a.at_s for a in mixed.arrivals if a.length_class == SHORT]
    assert min(shorts) < 5.0 < max(shorts)
    assert list(mixed.arrivals) == sorted(mixed.arrivals, key=lambda a: a.at_s)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=10), st.text(max_size=5))
def test_prompts_have_exact_lengths_and_share_nothing(lengths, seed) -> None:
    arrivals = [Arrival(0.0, SHORT, length, 1) for length in lengths]
    made = list(workload.prompts(arrivals, seed))
    assert [len(ids) for ids in made] == lengths
    assert made == list(workload.prompts(arrivals, seed))
    starts = [tuple(ids[:16]) for ids in made if len(ids) >= 16]
    assert len(set(starts)) == len(starts)
    other = {tuple(ids[:16]) for ids in workload.prompts(arrivals, f"{seed}x")}
    assert not other & set(starts)


def test_equal_prefix_blocks_give_equal_tokens() -> None:
    one = Arrival(0.0, LONG, 100, 1, prefix_blocks=(1, 2), block_tokens=32)
    two = replace(one, prompt_tokens=50, prefix_blocks=(1, 3))
    first, second = workload.prompts([one, two], "s")
    assert (len(first), len(second)) == (100, 50)
    assert first[:32] == second[:32]
    assert first[32:50] != second[32:50]
