"""Checks, breaker and draining as one machine: who may be sent to, and how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.reliability.checks import Checks
from headway.core.reliability.engine_health import (
    BreakerSettings,
    EngineHealth,
    HealthCheck,
    HealthState,
)

SETTINGS = BreakerSettings(failures=2, first_s=1.0, cap_s=8.0, ramp_s=10.0, ramp_from=0.1)
FAILS, PASSES = 3, 2

events = st.lists(
    st.one_of(
        st.sampled_from(HealthCheck),
        st.sampled_from(["succeeded", "failed", "neutral", "cancelled", "drain", "undrain"]),
    ),
    max_size=40,
)
gaps = st.lists(st.floats(0.0, 5.0), min_size=40, max_size=40)


def well():
    health = EngineHealth(SETTINGS)
    health.see(Checks(HealthState.WELL))
    return health


def tell(health, event, now_s):
    if isinstance(event, HealthCheck):
        health.checked(event, now_s, fails=FAILS, passes=PASSES)
    elif event == "drain":
        health.draining = True
    elif event == "undrain":
        health.undrain(now_s)
    elif ticket := health.breaker.allow(now_s):
        getattr(health.breaker, event)(now_s, ticket)


@given(events, gaps)
def test_whoever_gets_requests_is_well_enough_for_them(happened, waits):
    health, now_s = EngineHealth(SETTINGS), 0.0
    for event, wait_s in zip(happened, waits, strict=False):
        now_s += wait_s
        tell(health, event, now_s)
        if health.ready(now_s):
            assert health.state in {HealthState.WELL, HealthState.DEGRADED}
            assert not health.draining
            assert health.breaker.state(now_s) != "open"
            assert health.may_end_there(now_s)
            assert health.why(now_s) == "ready" or health.degraded
        else:
            assert health.why(now_s) not in {"ready", ""}
        assert 0 < health.weight(now_s) <= 1
        assert health.degraded == (health.state is HealthState.DEGRADED)


@given(events, gaps)
def test_an_engine_that_answers_again_always_gets_its_full_share_back(happened, waits):
    health, now_s = EngineHealth(SETTINGS), 0.0
    for event, wait_s in zip(happened, waits, strict=False):
        now_s += wait_s
        tell(health, event, now_s)
    health.undrain(now_s)
    for _ in range(PASSES):
        tell(health, HealthCheck.PASSED, now_s)
    for _ in range(3):
        now_s += SETTINGS.cap_s
        tell(health, "succeeded", now_s)
    now_s += SETTINGS.ramp_s
    assert health.ready(now_s)
    assert health.weight(now_s) == 1.0


def test_whoever_was_ejected_comes_back_slowly():
    health = well()
    for _ in range(FAILS):
        tell(health, HealthCheck.DEAD, 1.0)
    assert health.why(1.0) == "3 health checks failed"
    for _ in range(PASSES):
        tell(health, HealthCheck.PASSED, 2.0)
    assert health.ready(2.0)
    assert health.weight(2.0) == SETTINGS.ramp_from
    assert health.weight(12.0) == 1.0


def test_whoever_was_only_silent_was_never_away():
    health = well()
    for _ in range(FAILS):
        tell(health, HealthCheck.SILENT, 1.0)
    assert health.why(1.0) == "degraded: 3 health checks unanswered"
    tell(health, HealthCheck.PASSED, 2.0)
    assert health.weight(2.0) == 1.0


def test_an_ejection_settles_what_the_breaker_was_open_for():
    health = well()
    tell(health, "failed", 1.0)
    tell(health, "failed", 1.0)
    assert health.why(1.0) == "circuit breaker open"
    for _ in range(FAILS):
        tell(health, HealthCheck.DEAD, 1.0)
    for _ in range(PASSES):
        tell(health, HealthCheck.PASSED, 1.5)
    assert health.ready(1.5)


def test_a_request_may_end_where_an_engine_drains():
    health = well()
    health.draining = True
    assert not health.ready(1.0)
    assert health.why(1.0) == "draining"
    assert health.may_end_there(1.0)


@pytest.mark.parametrize(("drained", "checks_needed"), [(True, 1), (False, PASSES)])
def test_who_undrains_an_engine_knows_that_it_is_up(drained, checks_needed):
    health = EngineHealth(SETTINGS)
    health.see(Checks(HealthState.EJECTED))
    health.draining = drained
    assert health.undrain(1.0) is drained
    for _ in range(checks_needed):
        assert not health.ready(1.0), "it is asked, not believed"
        tell(health, HealthCheck.PASSED, 1.0)
    assert health.ready(1.0)


def test_undraining_what_does_not_drain_changes_nothing():
    health = well()
    assert health.undrain(1.0) is False
    assert health.weight(1.0) == 1.0
