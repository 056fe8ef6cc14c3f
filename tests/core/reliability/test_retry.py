"""Who is tried again, and that retries stay a small share of the traffic."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.reliability.retry import (
    LEAST_S,
    MOST_ATTEMPTS,
    Attempts,
    RetryBudget,
    is_final,
)

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


class Failed(NamedTuple):
    engine_id: str = "a/1"
    pool_name: str = "a"
    status: int = 0
    too_long: bool = False
    lacks_model: bool = False
    stale: bool = False
    unsent: bool = False


failures = st.builds(
    Failed,
    st.sampled_from(["a/1", "a/2", "b/1"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([0, 200, 400, 404, 422, 500, 502, 503]),
    too_long=st.booleans(),
    lacks_model=st.booleans(),
    stale=st.booleans(),
    unsent=st.booleans(),
)


def attempts(tokens=50.0):
    """With a budget of so many retries."""
    budget = RetryBudget(1.0, min_per_s=0.0)
    for _ in range(int(tokens)):
        budget.earn()
    return Attempts(budget)


def may_follow(of, failure, left_s=10.0, **more):
    return of.may_follow(failure, now_s=0.0, left_s=left_s, **more)


@given(st.lists(failures, min_size=1, max_size=20))
def test_a_request_costs_at_most_three_attempts_on_engines_that_fail(found):
    of = attempts()
    paid = 0
    for failure in found:
        if not may_follow(of, failure):
            break
        paid += not (failure.too_long or failure.lacks_model or failure.unsent)
    assert paid < MOST_ATTEMPTS


@given(st.lists(failures, min_size=1, max_size=20))
def test_an_engine_that_failed_is_left_out_unless_nothing_is_known_against_it(found):
    of = attempts()
    for failure in found:
        before = of.excluded, of.too_long_for
        again = may_follow(of, failure)
        if is_final(failure):
            assert not again
            assert (of.excluded, of.too_long_for) == before
        elif failure.too_long:
            assert again
            assert failure.pool_name in of.too_long_for
        else:
            assert (failure.engine_id in of.excluded) or failure.stale


@given(st.lists(failures, min_size=1, max_size=20))
def test_the_client_is_told_a_judgement_of_its_request_if_there_is_one(found):
    of = attempts()
    for failure in found:
        if not may_follow(of, failure):
            break
        assert of.told is not None
    judged = [f for f in found if is_final(f)]
    if judged and of.told is not None and is_final(of.told):
        assert of.told in judged


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (Failed(status=400), False),
        (Failed(status=400, too_long=True), True),
        (Failed(status=404), False),
        (Failed(status=404, lacks_model=True), True),
        (Failed(stale=True), True),
        (Failed(unsent=True), True),
        (Failed(status=500), True),
        (Failed(status=0), True),
    ],
)
def test_each_row_of_the_table(failure, again):
    assert may_follow(attempts(), failure) is again


@pytest.mark.parametrize(
    "failure",
    [
        Failed(unsent=True),
        Failed(status=400, too_long=True),
        Failed(status=404, lacks_model=True),
    ],
)
def test_what_no_engine_computed_costs_nothing(failure):
    of = attempts(0)
    assert all(may_follow(of, failure) for _ in range(20))


@pytest.mark.parametrize("failure", [Failed(status=500), Failed(stale=True)])
def test_without_budget_nothing_that_was_sent_is_sent_again(failure):
    assert not may_follow(attempts(0), failure)


@pytest.mark.parametrize("failure", [Failed(status=500), Failed(stale=True), Failed(unsent=True)])
def test_without_time_nothing_is_sent_again(failure):
    assert not may_follow(attempts(), failure, left_s=LEAST_S / 2)


def test_what_cannot_be_sent_again_is_not():
    assert not may_follow(attempts(), Failed(unsent=True), repeatable=False)


@pytest.mark.parametrize(
    "first", [Failed(status=400, too_long=True), Failed(status=404, lacks_model=True)]
)
def test_the_first_failure_is_told_but_for_one_that_is_the_engines_own(first):
    of = attempts()
    second = Failed("b/1", "b", 502)
    may_follow(of, first)
    assert of.told is first
    may_follow(of, second)
    assert of.told is second
    may_follow(of, Failed("b/2", "b", 500))
    assert of.told is second
