"""The metric definitions, as invariants."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import (
    Ending,
    Limits,
    Outcome,
    Slo,
    Verdict,
    itls_s,
    judge,
    met,
    percentile,
    summarise,
    summarise_by_class,
    tpot_s,
    verdict,
)

TOKENS = ("least_tokens", "most_tokens")
CLIENTS = (400, 401, 403, 404, 405, 408, 413, 422)
seconds = st.floats(0, 1e4, allow_nan=False)
positive = st.floats(0.001, 1e4, allow_nan=False)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    intended = draw(seconds)
    gaps = draw(st.lists(seconds, max_size=8))
    times, now = [], intended
    for gap in gaps:
        now += gap
        times.append(now)
    return Outcome(
        length_class=draw(st.sampled_from(["short", "long"])),
        intended_s=intended,
        token_times_s=tuple(times),
        completed=draw(st.booleans()),
        limits=Limits(draw(positive), draw(positive)),
    )


def request(first_s: float, gap_s: float, tokens: int, *, completed: bool = True) -> Outcome:
    times = tuple(first_s + i * gap_s for i in range(tokens))
    return Outcome("short", 0.0, times, completed, Limits(1.0, 0.1))


@given(outcomes())
def test_tpot_is_the_mean_gap_and_the_stall_the_largest(outcome: Outcome) -> None:
    gaps = itls_s(outcome)
    each = tpot_s(outcome)
    assert (each is None) == (len(outcome.token_times_s) < 2)
    if each is not None:
        assert math.isclose(each, statistics.fmean(gaps), rel_tol=1e-6, abs_tol=1e-6)
        stall = summarise([outcome], 1.0).longest_stall_s
        assert stall == max(gaps)


@given(outcomes())
def test_what_did_not_complete_is_missed(outcome: Outcome) -> None:
    if not outcome.completed or not outcome.token_times_s:
        assert not met(outcome)


def test_each_limit_alone_decides() -> None:
    assert met(request(1.0, 0.1, 1))
    assert met(request(1.0, 0.05, 5))
    assert not met(request(1.001, 0.05, 5))
    assert not met(request(0.5, 0.11, 5))
    assert not met(request(0.5, 0.05, 5, completed=False))


def test_one_token_has_no_tpot_to_miss() -> None:
    assert tpot_s(request(0.5, 9.0, 1)) is None
    assert met(request(0.5, 9.0, 1))


@given(positive, positive, positive, seconds)
def test_the_ttft_limit_grows_with_length_above_a_floor(
    floor: float, factor: float, tpot: float, alone: float
) -> None:
    limits = Slo(floor, factor, tpot).limits(alone)
    assert limits.ttft_s == max(floor, factor * alone)
    assert limits.tpot_s == tpot


@given(st.lists(outcomes(), max_size=20), positive)
def test_classes_add_up_to_the_whole(requests: list[Outcome], duration_s: float) -> None:
    whole = summarise(requests, duration_s)
    parts = summarise_by_class(requests, duration_s)
    assert whole.sent == sum(part.sent for part in parts.values())
    assert whole.met == sum(part.met for part in parts.values())
    assert whole.met <= whole.completed <= whole.sent
    assert math.isclose(whole.goodput_per_s * duration_s, whole.met, abs_tol=1e-6)
    if whole.sent:
        assert whole.attainment == whole.met / whole.sent
    else:
        assert whole.attainment is None


def test_goodput_needs_a_duration() -> None:
    with pytest.raises(ValueError, match="duration_s"):
        summarise([], 0.0)


@given(st.lists(seconds, min_size=1, max_size=50), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_are_ordered_and_within_the_data(
    values: list[float], one: float, other: float
) -> None:
    low = percentile(values, min(one, other))
    high = percentile(values, max(one, other))
    assert low is not None
    assert high is not None
    assert min(values) <= low <= high <= max(values)
    median = percentile(values, 50)
    assert median is not None
    assert math.isclose(median, statistics.median(values), abs_tol=1e-9)


def test_percentile_of_nothing_and_out_of_range() -> None:
    assert percentile([], 99) is None
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], 101)


LIMITS = Limits(ttft_s=1.0, tpot_s=0.1)
WHOLE = {"limits": LIMITS}
STREAM = {"limits": LIMITS, "streamed": True}
LEFT = {"left": True, "limits": LIMITS}
VERDICTS = [
    # Streams: the first token, then the mean of the others; how long the end takes is nobody's.
    (Verdict.MET, 200, 9.0, {**STREAM, "first_s": 1.0, "last_s": 5.0, **dict.fromkeys(TOKENS, 41)}),
    (
        Verdict.TTFT,
        200,
        9.0,
        {**STREAM, "first_s": 1.1, "last_s": 5.0, **dict.fromkeys(TOKENS, 90)},
    ),
    (
        Verdict.TPOT,
        200,
        9.0,
        {**STREAM, "first_s": 1.0, "last_s": 5.2, **dict.fromkeys(TOKENS, 41)},
    ),
    (Verdict.MET, 200, 9.0, {**STREAM, "first_s": 1.0, "last_s": 8.0, **dict.fromkeys(TOKENS, 1)}),
    (Verdict.MET, 200, 1.0, STREAM),
    (Verdict.TTFT, 200, 1.1, STREAM),
    (Verdict.UNKNOWN, 200, 9.0, {**STREAM, "first_s": 1.0, "last_s": 2.0, "most_tokens": 16}),
    (Verdict.TPOT, 200, 9.0, {**STREAM, "first_s": 1.0, "last_s": 2.6, "most_tokens": 16}),
    # Not streamed: as a whole.
    (Verdict.MET, 200, 2.5, {**WHOLE, **dict.fromkeys(TOKENS, 16)}),
    (Verdict.TOTAL, 200, 2.6, {**WHOLE, **dict.fromkeys(TOKENS, 16)}),
    (Verdict.TOTAL, 200, 1.1, {**WHOLE, **dict.fromkeys(TOKENS, 1)}),
    (Verdict.TOTAL, 200, 1.1, {**WHOLE, **dict.fromkeys(TOKENS, 0)}),
    (Verdict.MET, 200, 1.0, WHOLE),
    (Verdict.UNKNOWN, 200, 1.1, WHOLE),
    (Verdict.UNKNOWN, 200, 2.5, {**WHOLE, "most_tokens": 16}),
    (Verdict.TOTAL, 200, 2.6, {**WHOLE, "most_tokens": 16}),
    # Refused and failed.
    *(
        (Verdict.REFUSED, status, 0.0, more)
        for status in (429, 503)
        for more in ({}, WHOLE, STREAM)
    ),
    *((Verdict.ERROR, status, 0.0, WHOLE) for status in (302, 500, 502, 504)),
    *((Verdict.ERROR, status, 0.0, {**WHOLE, "by_engine": True}) for status in (401, 403, 500)),
    *((Verdict.CLIENT_ERROR, s, 9.0, more) for s in CLIENTS for more in ({}, WHOLE, STREAM)),
    (Verdict.CLIENT_ERROR, 400, 0.0, {**WHOLE, "by_engine": True}),
    (Verdict.TRUNCATED, 200, 0.1, {**STREAM, "truncated": True, "first_s": 0.1}),
    (Verdict.TRUNCATED, 200, 0.1, {"truncated": True}),
    # Left: missed only where a token was due.
    (Verdict.CLIENT_LEFT, 0, 99.0, {"left": True}),
    (Verdict.CLIENT_LEFT, 0, 1.0, {**LEFT, "streamed": True}),
    (Verdict.LEFT_WAITING, 0, 1.1, {**LEFT, "streamed": True}),
    (Verdict.CLIENT_LEFT, 0, 2.5, {**LEFT, "most_tokens": 16}),
    (Verdict.LEFT_WAITING, 0, 2.6, {**LEFT, "most_tokens": 16}),
    (Verdict.CLIENT_LEFT, 0, 99.0, LEFT),
    (Verdict.CLIENT_LEFT, 200, 1.9, {**LEFT, **STREAM, "first_s": 1.0, "least_tokens": 9}),
    (Verdict.TPOT, 200, 2.0, {**LEFT, **STREAM, "first_s": 1.0, "least_tokens": 9}),
    (Verdict.CLIENT_LEFT, 200, 99.0, {**LEFT, **STREAM, "first_s": 1.0, "by_itself": False}),
    (Verdict.TTFT, 200, 1.2, {**LEFT, **STREAM, "first_s": 1.1, "least_tokens": 9}),
    # What doesn't generate has no limits, however it ends.
    *((Verdict.NO_LIMITS, s, 9.0, {"generates": False}) for s in (200, 404, 429, 500, 503)),
    (Verdict.NO_LIMITS, 200, 9.0, {"generates": False, "truncated": True}),
    (Verdict.CLIENT_LEFT, 0, 9.0, {"generates": False, "left": True}),
]


@pytest.mark.parametrize(("right", "status", "ended_s", "more"), VERDICTS)
def test_each_way_to_end_has_its_verdict(
    right: Verdict, status: int, ended_s: float, more: dict[str, Any]
) -> None:
    assert judge(Ending(status, ended_s, **more)) is right


def test_every_verdict_is_met_missed_or_neither() -> None:
    assert [v for v in Verdict if v.met] == [Verdict.MET]
    assert {v for v in Verdict if v.met is None} == {
        Verdict.CLIENT_LEFT,
        Verdict.CLIENT_ERROR,
        Verdict.UNKNOWN,
        Verdict.NO_LIMITS,
    }


tokens = st.integers(0, 50)
endings = st.builds(
    Ending,
    st.sampled_from([0, 200, 204, 302, 400, 401, 404, 429, 500, 503, 504]),
    st.floats(0, 20),
    generates=st.booleans(),
    limits=st.none() | st.builds(Limits, st.floats(0.01, 5), st.floats(0.01, 1)),
    left=st.booleans(),
    by_itself=st.booleans(),
    truncated=st.booleans(),
    by_engine=st.booleans(),
    streamed=st.booleans(),
    first_s=st.none() | st.floats(0, 20),
    last_s=st.none() | st.floats(0, 20),
    least_tokens=tokens,
    most_tokens=tokens | st.just(math.inf),
)
GRADE = {True: 2, None: 1, False: 0}


@given(endings, st.floats(0, 5))
def test_longer_waits_are_never_judged_better(ending: Ending, more_s: float) -> None:
    later = ending._replace(ended_s=ending.ended_s + more_s)
    assert GRADE[judge(later).met] <= GRADE[judge(ending).met]
    if ending.first_s is not None and ending.last_s is not None:
        later = later._replace(first_s=ending.first_s + more_s, last_s=ending.last_s + more_s)
        assert GRADE[judge(later).met] <= GRADE[judge(ending).met]


@given(endings, st.floats(1, 3))
def test_wider_limits_are_never_harder_to_meet(ending: Ending, times: float) -> None:
    limits = ending.limits
    if limits is not None:
        wider = ending._replace(limits=Limits(limits.ttft_s * times, limits.tpot_s * times))
        assert GRADE[judge(wider).met] >= GRADE[judge(ending).met]


@given(endings)
def test_only_a_whole_answer_can_meet_limits(ending: Ending) -> None:
    if judge(ending) is Verdict.MET:
        assert 200 <= ending.status < 300
        assert ending.generates
        assert ending.limits is not None
        assert not ending.left
        assert not ending.truncated


@given(outcomes())
def test_a_benchmark_and_a_router_judge_alike(outcome: Outcome) -> None:
    times = outcome.token_times_s
    if not (outcome.completed and times):
        assert verdict(outcome).met is False
        return
    first_s, last_s = times[0] - outcome.intended_s, times[-1] - outcome.intended_s
    seen = Ending(200, last_s, limits=outcome.limits, streamed=True, first_s=first_s, last_s=last_s)
    count = len(times)
    assert judge(seen._replace(least_tokens=count, most_tokens=count)) is verdict(outcome)


def test_a_clients_own_limits_come_first() -> None:
    slo = Slo(ttft_floor_s=1.0, ttft_factor=4.0, tpot_s=0.1)
    assert slo.limits(0.1) == Limits(1.0, 0.1)
    assert slo.limits(1.0) == Limits(4.0, 0.1)
    assert slo.limits(1.0, own_ttft_s=0.5) == Limits(0.5, 0.1)
    assert slo.limits(1.0, own_tpot_s=0.2) == Limits(4.0, 0.2)
