"""Retries stay a small share of the traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.reliability.retry import RetryBudget

ratios = st.sampled_from((0.0, 0.1, 0.2, 1.0)) | st.floats(0, 2)
rates = st.sampled_from((0.0, 1.0, 10.0)) | st.floats(0, 20)
steps = st.lists(
    st.tuples(st.sampled_from((0.0, 0.001, 0.5, 20.0)), st.sampled_from(("earn", "spend"))),
    max_size=200,
)


@given(ratios, rates, st.floats(1, 100), steps)
def test_retries_never_exceed_what_was_earned(
    ratio: float, min_per_s: float, most: float, events: list[tuple[float, str]]
) -> None:
    budget, now_s = RetryBudget(ratio, min_per_s, most), 0.0
    first = budget.tokens(0.0)
    earned = spent = 0
    for gap_s, event in events:
        now_s += gap_s
        if event == "earn":
            budget.earn()
            earned += 1
        else:
            before = budget.tokens(now_s)
            allowed = budget.spend(now_s)
            assert allowed == (before >= 1 - 1e-9)
            assert budget.tokens(now_s) == pytest.approx(max(before - allowed, 0.0))
            spent += allowed
        assert 0 <= budget.tokens(now_s) <= most
        assert spent <= first + ratio * earned + min_per_s * now_s + 1e-6


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.25, 1.0])
def test_each_request_earns_its_part_of_a_retry(ratio: float) -> None:
    budget = RetryBudget(ratio, min_per_s=0.0)
    for _ in range(20):
        assert not budget.spend(0.0)
        for _ in range(round(1 / ratio)):
            budget.earn()
        assert budget.spend(0.0)


def test_total_failure_costs_no_more_than_the_ratio() -> None:
    budget = RetryBudget(0.2, min_per_s=0.0)
    retried = 0
    for _ in range(10_000):
        budget.earn()
        retried += budget.spend(0.0)
    assert 1_990 <= retried <= 2_000


def test_a_quiet_hour_does_not_pay_for_a_storm() -> None:
    budget = RetryBudget(0.2, min_per_s=1.0, most=50.0)
    budget.spend(0.0)
    for _ in range(100_000):
        budget.earn()
    assert sum(budget.spend(3_600.0) for _ in range(1_000)) == 50


def test_little_traffic_can_retry_too() -> None:
    budget = RetryBudget(0.2, min_per_s=1.0)
    assert sum(budget.spend(0.0) for _ in range(100)) == 10
    assert not budget.spend(0.5)
    assert budget.spend(1.0)


def test_a_clock_that_stands_still_or_steps_back_earns_nothing() -> None:
    budget = RetryBudget(0.0, min_per_s=1.0)
    while budget.spend(100.0):
        pass
    assert not any(budget.spend(now_s) for now_s in (100.0, 50.0, 100.0, 99.0, 100.5))
    assert budget.spend(101.0)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("ratio", {"ratio": -0.1}),
        ("ratio", {"ratio": float("nan")}),
        ("min_per_s", {"min_per_s": float("inf")}),
        ("most", {"most": 0.5}),
    ],
)
def test_settings_that_make_no_sense_are_errors(key: str, values: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=key):
        RetryBudget(**values)
