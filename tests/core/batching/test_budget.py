"""The rules that size a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching import budget as rules
from headway.core.batching.budget import DeadlineBudget, FixedBudget
from headway.core.batching.settings import parse
from headway.core.latency import StepShape, StepTimeModel
from headway.core.views import Step

from .made import MAX_MODEL_LEN, MODEL

TPOT_S = 0.15
NOW_S = 100.0
BASE_S = MODEL.predict(StepShape(decodes=4, decode_context_tokens=1_000))


def alone_s(decodes):
    """What a step of so many decodes takes without prefill."""
    return MODEL.predict(StepShape(decodes=decodes, decode_context_tokens=250 * decodes))


def step(deadlines=(), tokens=100_000):
    decodes = len(deadlines)
    return Step(
        tokens=tokens,
        decodes=decodes,
        decode_context_tokens=250 * decodes,
        next_token_deadlines_s=[NOW_S + d for d in deadlines],
    )


def allow(
    deadlines=(), ttft_slo_s=1_000.0, gap_s=0.0, *, tpot_slo_s=TPOT_S, client_s=None, in_flight=1
):
    """What a step may spend; client_s: a client's TTFT limit, tighter than the engine's."""
    values = {"tpot_slo_s": tpot_slo_s, "ttft_slo_s": ttft_slo_s}
    made = DeadlineBudget(MODEL, parse(values, MAX_MODEL_LEN), in_flight)
    return made.allow(step(deadlines), NOW_S, client_s or ttft_slo_s, gap_s)


def limit_s(*deadlines, ttft_limit_s=1_000.0, gap_s=0.0, in_flight=1):
    return allow(deadlines, ttft_limit_s, gap_s, in_flight=in_flight).limit_s


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_fixed_budget_is_the_engines_own(tokens, ttft_limit_s):
    allowed = FixedBudget().allow(step(tokens=tokens), NOW_S, ttft_limit_s, 0.0)
    assert (allowed.tokens, allowed.limit_s) == (tokens, None)


@given(st.lists(st.floats(0.05, 0.4), min_size=1, max_size=8))
def test_a_step_may_spend_what_decodes_have_banked(ahead):
    """It may last until the first next-token deadline."""
    assert limit_s(*ahead) == pytest.approx(min(ahead), abs=1e-6)


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=8))
def test_no_stall_is_longer_than_a_few_tpot_limits(ahead):
    """However much decodes have banked."""
    assert limit_s(*ahead) <= max(rules.STALL_LIMIT * TPOT_S, 0.0) + 1e-9


@given(
    st.lists(st.floats(-5, 50), max_size=8),
    st.floats(0.05, 30),
)
def test_whoever_arrives_waits_for_a_short_step(ahead, ttft_limit_s):
    """With decodes or without, no step is longer than a share of the smallest TTFT limit."""
    least_s = rules.LEAST_STEP * alone_s(len(ahead))
    longest_s = max(least_s, rules.RESPONSIVE_SHARE * ttft_limit_s)
    assert limit_s(*ahead, ttft_limit_s=ttft_limit_s) <= longest_s


@given(st.lists(st.floats(0, 50), max_size=8), st.floats(0.05, 30), st.integers(1, 5))
def test_whoever_arrives_waits_as_long_however_many_steps_are_in_flight(
    ahead, ttft_limit_s, in_flight
):
    """Half of the running step and the others whole take no more than half a step would alone."""
    longest_s = limit_s(*ahead, ttft_limit_s=ttft_limit_s, in_flight=in_flight)
    share_s = rules.RESPONSIVE_SHARE * ttft_limit_s
    if longest_s > rules.LEAST_STEP * alone_s(len(ahead)):
        assert (in_flight - 0.5) * longest_s <= 0.5 * share_s + 1e-9
    assert longest_s <= limit_s(*ahead, ttft_limit_s=ttft_limit_s)


@given(st.integers(1, 64), st.floats(1e-6, 0.2))
def test_no_tpot_limit_starves_prefill(decodes, tpot_slo_s):
    """One below what the engine takes for decodes alone can't be met; the step stays useful."""
    base_s = alone_s(decodes)
    allowed = allow([-5.0] * decodes, tpot_slo_s=tpot_slo_s)
    assert allowed.seconds >= (rules.LEAST_STEP - 1) * base_s - 1e-9


@given(st.integers(0, 64), st.floats(0.05, 30), st.floats(1e-6, 0.9))
def test_a_client_shortens_steps_only_where_that_can_meet_its_limit(decodes, ttft_slo_s, share):
    """Not where even the shortest useful step would be too long for it."""
    ahead, client_s = [50.0] * decodes, share * ttft_slo_s
    usual_s = allow(ahead, ttft_slo_s).limit_s
    found_s = allow(ahead, ttft_slo_s, client_s=client_s).limit_s
    if rules.RESPONSIVE_SHARE * client_s < rules.LEAST_STEP * alone_s(decodes):
        assert found_s == usual_s
    else:
        assert found_s <= usual_s


@given(st.integers(0, 64), st.floats(1e-3, 30))
def test_prefill_moves_on_an_engine_that_is_slow_for_its_limit(decodes, ttft_limit_s):
    """Unless decodes are due, a part of every step is prefill, however short it should be."""
    allowed = allow([60.0] * decodes, ttft_limit_s)
    stall_s = rules.STALL_LIMIT * TPOT_S - alone_s(decodes) if decodes else float("inf")
    assert allowed.seconds >= min((rules.LEAST_STEP - 1) * alone_s(decodes), stall_s) - 1e-9


@given(st.floats(0.05, 30), st.floats(0, 1_000))
def test_where_few_arrive_steps_may_be_longer(ttft_limit_s, gap_s):
    """Shorter than the limit of whoever comes next, but where hardly anyone comes."""
    longest_s = limit_s(ttft_limit_s=ttft_limit_s, gap_s=gap_s)
    busy_s = limit_s(ttft_limit_s=ttft_limit_s)
    assert busy_s <= longest_s <= max(busy_s, rules.GAP_SHARE * gap_s)
    assert longest_s < ttft_limit_s or longest_s <= rules.IDLE_GAP_SHARE * gap_s
    assert longest_s <= rules.IDLE_RESPONSIVE_SHARE * ttft_limit_s


@given(st.floats(0.05, 30), st.floats(0, 1_000))
def test_running_decodes_keep_steps_short_however_few_arrive(ttft_limit_s, gap_s):
    busy_s = limit_s(50.0, ttft_limit_s=ttft_limit_s)
    assert limit_s(50.0, ttft_limit_s=ttft_limit_s, gap_s=gap_s) == busy_s


@given(st.floats(0.05, 0.4), st.floats(5, 1_000))
def test_a_decode_that_is_lost_no_longer_counts(ahead, behind):
    """One that can't catch up doesn't stop prefill for the others."""
    assert limit_s(ahead, -behind) == pytest.approx(limit_s(ahead, 50.0))


@given(st.floats(0.01, 0.05))
def test_a_decode_that_can_catch_up_still_counts(behind):
    """Prefill gets no more than the floor until it has."""
    allowed = allow((-behind, 1.0, 1.0, 1.0))
    assert allowed.seconds == 0.0
    assert allowed.floor_tokens == rules.FLOOR_TOKENS


@given(st.lists(st.floats(-5, 5), max_size=8), st.floats(0.05, 10))
def test_the_seconds_leave_room_for_the_decodes_themselves(ahead, ttft_limit_s):
    allowed = allow(ahead, ttft_limit_s)
    alone = StepShape(decodes=len(ahead), decode_context_tokens=250 * len(ahead))
    assert allowed.seconds >= 0.0
    assert allowed.seconds <= max(0.0, allowed.limit_s - MODEL.predict(alone)) + 1e-9


@given(st.lists(st.floats(0.05, 5), min_size=1, max_size=8), st.floats(0, 5))
def test_more_slack_never_means_a_smaller_step(ahead, extra):
    later = [d + extra for d in ahead]
    assert limit_s(*later) >= limit_s(*ahead) - 1e-9


def test_an_unknown_machine_starts_with_small_steps():
    cold = DeadlineBudget(StepTimeModel(), parse({}, MAX_MODEL_LEN), 1)
    allowed = cold.allow(step(tokens=8_192), NOW_S, 1.0, 0.0)
    assert 0 < allowed.tokens <= rules.COLD_TOKENS
    assert allowed.reason == "cold"


def test_what_decided_is_named():
    def reason(*ahead, ttft_limit_s):
        return allow(ahead, ttft_limit_s).reason

    assert reason(ttft_limit_s=1.0) == "responsive"
    assert reason(0.2, ttft_limit_s=1_000.0) == "slack"
    assert reason(20.0, ttft_limit_s=1_000.0) == "stall"
