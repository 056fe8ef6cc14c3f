"""The circuit breaker: when an engine is left alone and how it comes back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.reliability.breaker import Breaker, BreakerSettings

SETTINGS = BreakerSettings(failures=3, first_s=1.0, cap_s=8.0, ramp_s=10.0, ramp_from=0.1)
ENDS = ("succeeded", "failed", "cancelled", "neutral")


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    for _ in range(SETTINGS.failures):
        breaker.failed(at_s, breaker.allow(at_s))
    return breaker


events = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.3, 1.0, 2.5, 9.0)),
        st.sampled_from(("allow", *ENDS)),
        st.integers(0, 10),
    ),
    max_size=120,
)


@given(events)
def test_at_most_one_probe_and_its_place_always_comes_back(
    steps: list[tuple[float, str, int]],
) -> None:
    breaker, now_s = Breaker(SETTINGS), 0.0
    flying: dict[int, bool] = {}
    for gap_s, event, which in steps:
        now_s += gap_s
        state = breaker.state(now_s)
        probing = any(flying.values())
        if event == "allow":
            expected = state == "closed" or (state == "half_open" and not probing)
            assert breaker.would_allow(now_s) == expected
            ticket = breaker.allow(now_s)
            assert bool(ticket) == expected
            if ticket:
                flying[ticket] = state == "half_open"
        elif flying:
            ticket = sorted(flying)[which % len(flying)]
            was_probe = flying.pop(ticket)
            getattr(breaker, event)(now_s, ticket)
            after = breaker.state(now_s)
            if state != "closed" and not was_probe:
                assert after == state, "a request from before decides nothing"
            if was_probe:
                assert (after, event) in {
                    ("closed", "succeeded"),
                    ("open", "failed"),
                    ("half_open", "cancelled"),
                    ("half_open", "neutral"),
                }
                assert event == "failed" or breaker.would_allow(now_s)
        assert 0 < breaker.weight(now_s) <= 1
        assert sum(flying.values()) <= 1
    for ticket in flying:
        breaker.cancelled(now_s, ticket)
    assert breaker.would_allow(now_s + SETTINGS.cap_s)


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker(SETTINGS)
    for i in range(20):
        ticket = breaker.allow(float(i))
        (breaker.succeeded if i % 3 == 2 else breaker.failed)(float(i), ticket)
    assert breaker.state(20.0) == "closed"
    assert opened().state(0.0) == "open"


@pytest.mark.parametrize("end", ["cancelled", "neutral"])
def test_refusals_and_departures_say_nothing_of_health(end: str) -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(100):
        getattr(breaker, end)(0.0, breaker.allow(0.0))
    assert breaker.state(0.0) == "closed"
    breaker.failed(0.0, breaker.allow(0.0))
    getattr(breaker, end)(0.0, breaker.allow(0.0))
    for _ in range(2):
        breaker.failed(0.0, breaker.allow(0.0))
    assert breaker.state(0.0) == "open", "nor do they interrupt a row of failures"


def test_the_time_doubles_with_each_failed_probe_up_to_the_cap() -> None:
    breaker, now_s, waits = opened(), 0.0, []
    for _ in range(40):
        wait_s = next(t for t in itertools.count(0.0, 0.5) if breaker.would_allow(now_s + t))
        waits.append(wait_s)
        now_s += wait_s
        breaker.failed(now_s, breaker.allow(now_s))
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert set(waits[5:]) == {8.0}


def test_a_burst_of_failures_counts_once() -> None:
    breaker = Breaker(SETTINGS)
    tickets = [breaker.allow(0.0) for _ in range(500)]
    for ticket in tickets:
        breaker.failed(0.0, ticket)
    assert breaker.would_allow(SETTINGS.first_s)


def test_an_engine_that_fails_again_soon_stays_out_longer() -> None:
    breaker = opened()
    breaker.succeeded(1.0, breaker.allow(1.0))
    for _ in range(SETTINGS.failures):
        breaker.failed(2.0, breaker.allow(2.0))
    assert breaker.state(3.5) == "open"
    assert breaker.state(4.0) == "half_open"
    breaker.succeeded(4.0, breaker.allow(4.0))
    later_s = 4.0 + SETTINGS.cap_s
    for _ in range(SETTINGS.failures):
        breaker.failed(later_s, breaker.allow(later_s))
    assert breaker.state(later_s + SETTINGS.first_s) == "half_open", "that was long ago"


@pytest.mark.parametrize("end", ENDS)
def test_a_request_from_before_it_opened_decides_nothing(end: str) -> None:
    breaker = Breaker(SETTINGS)
    early = breaker.allow(0.0)
    for _ in range(SETTINGS.failures):
        breaker.failed(0.0, breaker.allow(0.0))
    probe = breaker.allow(1.0)
    getattr(breaker, end)(1.0, early)
    assert breaker.state(1.0) == "half_open"
    assert not breaker.would_allow(1.0), "the probe still has its place"
    breaker.succeeded(1.0, probe)
    assert breaker.state(1.0) == "closed"


def test_a_readmitted_engine_starts_with_a_clean_slate() -> None:
    breaker = opened()
    breaker.succeeded(1.0, breaker.allow(1.0))
    for _ in range(SETTINGS.failures - 1):
        breaker.failed(1.0, breaker.allow(1.0))
    assert breaker.state(1.0) == "closed"


def test_ends_without_a_ticket_count_as_the_probes() -> None:
    breaker = opened()
    assert breaker.allow(1.0)
    assert not breaker.allow(1.0)
    breaker.cancelled(1.0)
    assert breaker.allow(1.0)
    breaker.succeeded(1.0)
    assert breaker.state(1.0) == "closed"


@given(st.lists(st.floats(0, 30), min_size=2, max_size=20).map(sorted))
def test_a_readmitted_engine_gets_its_share_back_slowly(times_s: list[float]) -> None:
    breaker = opened()
    assert Breaker(SETTINGS).weight(0.0) == 1.0
    assert breaker.weight(0.5) == pytest.approx(0.1)
    breaker.succeeded(1.0, breaker.allow(1.0))
    weights = [breaker.weight(1.0 + t) for t in times_s]
    assert weights == sorted(weights)
    assert breaker.weight(1.0) == pytest.approx(0.1)
    assert breaker.weight(6.0) == pytest.approx(0.55)
    assert breaker.weight(11.0) == 1.0


def test_the_probe_is_one_of_the_next_requests() -> None:
    breaker = opened()
    assert breaker.weight(0.9) == pytest.approx(0.1)
    assert breaker.weight(1.0) == 1.0
    assert breaker.allow(1.0)
    assert breaker.weight(1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("now_s", [0.5, 1.0])
@pytest.mark.parametrize("probing", [False, True])
def test_readmission_closes_an_open_breaker(now_s: float, probing: bool) -> None:  # noqa: FBT001
    breaker = opened()
    probe = breaker.allow(now_s) if probing else 0
    breaker.readmitted(now_s)
    assert breaker.state(now_s) == "closed"
    assert breaker.weight(now_s) == pytest.approx(0.1)
    if probe:
        breaker.failed(now_s, probe)
    assert [breaker.allow(now_s) > 0 for _ in range(3)] == [True] * 3
    for _ in range(SETTINGS.failures):
        breaker.failed(now_s, breaker.allow(now_s))
    assert breaker.state(now_s + 1.0) == "open", "it fails again soon: longer"


def test_readmission_for_another_reason_is_slow_too() -> None:
    breaker = Breaker(SETTINGS)
    breaker.readmitted(100.0)
    assert breaker.weight(100.0) == pytest.approx(0.1)
    assert breaker.weight(110.0) == 1.0
    assert breaker.allow(100.0)


def test_without_a_ramp_an_engine_is_back_at_once() -> None:
    breaker = Breaker(BreakerSettings(ramp_s=0.0))
    breaker.readmitted(5.0)
    assert breaker.weight(5.0) == 1.0


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("failures", {"failures": 0}),
        ("first_s", {"first_s": 0.0}),
        ("first_s", {"first_s": 9.0, "cap_s": 8.0}),
        ("ramp_s", {"ramp_s": -1.0}),
        ("ramp_from", {"ramp_from": 0.0}),
        ("ramp_from", {"ramp_from": 1.1}),
    ],
)
def test_settings_that_make_no_sense_are_errors(key: str, values: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=key):
        BreakerSettings(**values)
