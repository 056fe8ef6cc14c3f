"""Which engine may be sent to, as its checks tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.reliability.engine_health import Check, EngineHealth, HealthState

STARTING, WELL = HealthState.STARTING, HealthState.WELL
DEGRADED, EJECTED = HealthState.DEGRADED, HealthState.EJECTED
FAILS, PASSES = 3, 2

ONE_MORE = {
    # After the last check that is borne, one more of the kind.
    (STARTING, Check.PASSED): WELL,
    (STARTING, Check.PROGRESS): STARTING,
    (STARTING, Check.SILENT): STARTING,
    (STARTING, Check.DEAD): STARTING,
    (WELL, Check.PASSED): WELL,
    (WELL, Check.PROGRESS): WELL,
    (WELL, Check.SILENT): DEGRADED,
    (WELL, Check.DEAD): EJECTED,
    (DEGRADED, Check.PASSED): WELL,
    (DEGRADED, Check.PROGRESS): WELL,
    (DEGRADED, Check.SILENT): DEGRADED,
    (DEGRADED, Check.DEAD): EJECTED,
    (EJECTED, Check.PASSED): WELL,
    (EJECTED, Check.PROGRESS): EJECTED,
    (EJECTED, Check.SILENT): EJECTED,
    (EJECTED, Check.DEAD): EJECTED,
}

checks = st.lists(st.sampled_from(Check), max_size=40)


def after(health: EngineHealth, *found: Check) -> EngineHealth:
    for check in found:
        health = health.after(check, fails=FAILS, passes=PASSES)
    return health


def test_the_table_is_complete() -> None:
    assert set(ONE_MORE) == {(state, check) for state in HealthState for check in Check}


@pytest.mark.parametrize(("state", "check"), ONE_MORE)
def test_each_state_after_each_check(state: HealthState, check: Check) -> None:
    at_the_edge = EngineHealth(state, failed=FAILS - 1, passed=PASSES - 1)
    assert after(at_the_edge, check).state is ONE_MORE[state, check]
    assert at_the_edge == EngineHealth(state, FAILS - 1, PASSES - 1), "nothing is changed in place"
    if check is not Check.PROGRESS and state not in {STARTING, DEGRADED}:
        assert after(EngineHealth(state), check).state is state, "once is never"


@given(checks)
def test_silence_alone_never_takes_the_last_resort_away(found: list[Check]) -> None:
    found = [Check.SILENT if check is Check.DEAD else check for check in found]
    assert after(EngineHealth(WELL), *found).usable


@given(checks)
def test_who_is_ejected_was_found_dead_at_the_end_of_a_row(found: list[Check]) -> None:
    health = EngineHealth(WELL)
    for count, check in enumerate(found):
        before, health = health, after(health, check)
        if before.usable and not health.usable:
            row = found[max(0, count + 1 - FAILS) : count + 1]
            assert len(row) == FAILS
            assert set(row) <= {Check.SILENT, Check.DEAD}
            assert row[-1] is Check.DEAD


@given(checks)
def test_the_dead_are_ejected_and_the_well_come_back_whatever_was_before(
    found: list[Check],
) -> None:
    health = after(EngineHealth(), Check.PASSED, *found)
    assert after(health, *[Check.DEAD] * FAILS).state is EJECTED
    assert after(health, *[Check.PASSED] * PASSES).state is WELL


@given(checks)
def test_one_good_check_is_enough_for_whoever_was_only_silent(found: list[Check]) -> None:
    health = after(EngineHealth(), *found)
    if health.state is not EJECTED:
        assert after(health, Check.PASSED).state is WELL
    assert after(health.expected(), Check.PASSED).state is WELL
