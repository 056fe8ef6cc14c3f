"""What an engine counts as, as its checks tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.reliability.checks import Checks, HealthCheck, HealthState

STARTING, WELL = HealthState.STARTING, HealthState.WELL
DEGRADED, EJECTED = HealthState.DEGRADED, HealthState.EJECTED
FAILS, PASSES = 3, 2

ONE_MORE = {
    # After the last check that is borne, one more of the kind.
    (STARTING, HealthCheck.PASSED): WELL,
    (STARTING, HealthCheck.PROGRESS): STARTING,
    (STARTING, HealthCheck.SILENT): STARTING,
    (STARTING, HealthCheck.DEAD): STARTING,
    (WELL, HealthCheck.PASSED): WELL,
    (WELL, HealthCheck.PROGRESS): WELL,
    (WELL, HealthCheck.SILENT): DEGRADED,
    (WELL, HealthCheck.DEAD): EJECTED,
    (DEGRADED, HealthCheck.PASSED): WELL,
    (DEGRADED, HealthCheck.PROGRESS): WELL,
    (DEGRADED, HealthCheck.SILENT): DEGRADED,
    (DEGRADED, HealthCheck.DEAD): EJECTED,
    (EJECTED, HealthCheck.PASSED): WELL,
    (EJECTED, HealthCheck.PROGRESS): EJECTED,
    (EJECTED, HealthCheck.SILENT): EJECTED,
    (EJECTED, HealthCheck.DEAD): EJECTED,
}

checks = st.lists(st.sampled_from(HealthCheck), max_size=40)


def after(health: Checks, *found: HealthCheck) -> Checks:
    for check in found:
        health = health.after(check, fails=FAILS, passes=PASSES)
    return health


def test_the_table_is_complete() -> None:
    assert set(ONE_MORE) == {(state, check) for state in HealthState for check in HealthCheck}


@pytest.mark.parametrize(("state", "check"), ONE_MORE)
def test_each_state_after_each_check(state: HealthState, check: HealthCheck) -> None:
    at_the_edge = Checks(state, failed=FAILS - 1, passed=PASSES - 1)
    assert after(at_the_edge, check).state is ONE_MORE[state, check]
    assert at_the_edge == Checks(state, FAILS - 1, PASSES - 1), "nothing is changed in place"
    if check is not HealthCheck.PROGRESS and state not in {STARTING, DEGRADED}:
        assert after(Checks(state), check).state is state, "once is never"


@given(checks)
def test_silence_alone_never_takes_the_last_resort_away(found: list[HealthCheck]) -> None:
    found = [HealthCheck.SILENT if check is HealthCheck.DEAD else check for check in found]
    assert after(Checks(WELL), *found).state in {WELL, DEGRADED}


@given(checks)
def test_who_is_ejected_was_found_dead_at_the_end_of_a_row(found: list[HealthCheck]) -> None:
    health = Checks(WELL)
    for count, check in enumerate(found):
        before, health = health, after(health, check)
        if before.state in {WELL, DEGRADED} and health.state is EJECTED:
            row = found[max(0, count + 1 - FAILS) : count + 1]
            assert len(row) == FAILS
            assert set(row) <= {HealthCheck.SILENT, HealthCheck.DEAD}
            assert row[-1] is HealthCheck.DEAD


@given(checks)
def test_the_dead_are_ejected_and_the_well_come_back_whatever_was_before(
    found: list[HealthCheck],
) -> None:
    health = after(Checks(), HealthCheck.PASSED, *found)
    assert after(health, *[HealthCheck.DEAD] * FAILS).state is EJECTED
    assert after(health, *[HealthCheck.PASSED] * PASSES).state is WELL


@given(checks)
def test_one_good_check_is_enough_for_whoever_was_only_silent(found: list[HealthCheck]) -> None:
    health = after(Checks(), *found)
    if health.state is not EJECTED:
        assert after(health, HealthCheck.PASSED).state is WELL
    assert after(health.expected(), HealthCheck.PASSED).state is WELL
