"""What many cells of a capacity measurement say together."""

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.bench.judge import cells
from headway.bench.judge.cells import Cell
from headway.bench.judge.spread import Spread
from headway.bench.load.workload import LONG, SHORT
from headway.core.highest_rate import RatePoint


def cell(arm: str, beside: str, rate: float, met: int, sent: int = 20, longs: int = 2) -> Cell:
    """The first `met` requests were in time; the last `longs` are long."""
    return Cell(
        arm=arm,
        beside=beside,
        rate_per_s=rate,
        share=rate,
        duration_s=10.0,
        core=0,
        hits=tuple(n < met for n in range(sent)),
        classes=(*[SHORT] * (sent - longs), *[LONG] * longs),
        generator_lag_s=0.0,
        raw=[],
    )


def pair(rate: float, slo: int, stock: int) -> list[Cell]:
    return [cell("slo", "vllm", rate, slo), cell("vllm", "slo", rate, stock)]


MEASURED = [*pair(0.25, 20, 20), *pair(0.5, 20, 10), *pair(1.0, 20, 5), *pair(2.0, 16, 2)]


def test_points_pool_cells_of_a_rate_and_leave_out_empty_classes() -> None:
    both = [cell("slo", "vllm", 1.0, 20), cell("slo", "parallel", 1.0, 10)]
    assert cells.points(both) == [RatePoint(1.0, 0.75, 40)]
    assert cells.points(both, LONG) == [RatePoint(1.0, 0.5, 4)]
    assert cells.points([cell("slo", "vllm", 1.0, 1, longs=0)], LONG) == []


def test_ratios_compare_what_ran_side_by_side_only() -> None:
    elsewhere = [cell("slo", "parallel", 0.25, 0), cell("parallel", "slo", 0.25, 20)]
    found = cells.rate_ratio([*MEASURED, *elsewhere], "slo", "vllm", seed=1)
    assert found is not None
    assert math.isclose(found.value, 1.5 / 0.3)
    assert found.low <= found.value <= found.high
    assert cells.rate_ratio(MEASURED, "slo", "priority", seed=1) is None


def test_goodput_at_a_load() -> None:
    found = cells.goodput_ratio(MEASURED, "slo", "vllm", 0.5, seed=1)
    assert found is not None
    assert found.value == 2.0
    none_in_time = pair(1.0, 5, 0)
    against_none = cells.goodput_ratio(none_in_time, "slo", "vllm", 1.0, seed=1)
    assert against_none is not None
    assert against_none.value == 10.0


def test_equal_outcomes_of_the_same_requests_leave_no_doubt() -> None:
    found = cells.goodput_ratio(pair(1.0, 9, 9), "slo", "vllm", 1.0, seed=1)
    assert found == Spread(1.0, 1.0, 1.0)


def test_longs_are_compared_at_the_rate_the_arm_reaches() -> None:
    found = cells.long_ratio(MEASURED, "slo", "vllm", seed=1)
    assert found is not None
    assert found.value == 0.5 / (0.5 / 8)


@given(st.floats(0, 3))
def test_attainment_between_points_lies_between_them(rate) -> None:
    curve = [RatePoint(0.5, 1.0, 1), RatePoint(1.0, 0.6, 1), RatePoint(2.0, 0.2, 1)]
    found = cells.at_rate(curve, rate)
    assert found is not None
    assert 0.2 <= found <= 1.0
    assert cells.at_rate([], rate) is None


def test_a_point_has_its_own_attainment() -> None:
    curve = [RatePoint(0.5, 1.0, 1), RatePoint(1.0, 0.6, 1)]
    assert [cells.at_rate(curve, rate) for rate in (0.1, 0.5, 1.0, 9.0)] == [1.0, 1.0, 0.6, 0.6]
