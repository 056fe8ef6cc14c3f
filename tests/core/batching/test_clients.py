"""What clients ask for changes their own requests, within the operator's range, and no others."""

import math

from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.budget import LEAST_STEP, PACE
from headway.core.batching.clients import grant
from headway.core.batching.settings import ORDERS, PRIORITY_LEVELS, parse
from headway.core.latency import StepShape
from headway.core.views import Prompt

from .made import MAX_MODEL_LEN, MODEL, make_order, make_policy

anything = st.one_of(
    st.none(),
    st.floats(),
    st.integers(),
    st.sampled_from((1e308, 1e-308, 10**400, -(10**400), True, "1", [1.0], {})),
)
factors = st.floats(1e-3, 1e3)


@given(
    anything,
    anything,
    st.integers(-(10**30), 10**30),
    st.floats(1e-3, 1e6),
    st.tuples(factors, factors).map(sorted),
    st.integers(-PRIORITY_LEVELS, PRIORITY_LEVELS),
)
def test_whatever_is_asked_what_is_granted_is_finite_and_in_range(
    ttft_s, tpot_s, priority, engine_s, span, level
):
    least, most = span
    settings = parse(
        {
            "min_client_slo_factor": least,
            "max_client_slo_factor": most,
            "min_client_priority": level,
        },
        MAX_MODEL_LEN,
    )
    granted = grant(ttft_s, tpot_s, priority, engine_s, settings)
    if granted.ttft_slo_s is not None:
        assert least * engine_s <= granted.ttft_slo_s <= most * engine_s
    own_s = settings.tpot_slo_s
    assert min(1, least) * own_s <= granted.tpot_slo_s <= max(1, most) * own_s
    assert level <= granted.priority <= PRIORITY_LEVELS
    assert math.isfinite(granted.tpot_slo_s)
    for kind, value, got in (
        ("ttft", ttft_s, granted.ttft_slo_s),
        ("tpot", tpot_s, granted.tpot_slo_s),
        ("priority", priority, granted.priority),
    ):
        if kind in granted.clamped:
            assert got != value
        elif kind == "priority" or (got is not None and isinstance(value, float) and value > 0):
            assert got == value or not math.isfinite(value)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(-100, 100))
def test_by_default_a_client_may_ask_for_less_than_the_engine_promises_and_not_for_more(
    ttft_s, tpot_s, priority
):
    granted = grant(ttft_s, tpot_s, priority, 2.0, parse({}, MAX_MODEL_LEN))
    assert 2.0 <= granted.ttft_slo_s <= 20.0
    assert 0.15 <= granted.tpot_slo_s <= 1.5
    assert granted.priority >= 0


@given(
    st.sampled_from(ORDERS),
    st.integers(1, 8_000),
    st.integers(1, 8_000),
    st.floats(0, 200),
    st.floats(1, 1e9),
)
def test_asking_for_a_wider_limit_never_puts_a_request_before_another(
    name, tokens, other_tokens, now_s, factor
):
    """Not even where the other is late, and it would be late later."""
    order = make_order(name)
    plain = Prompt("a", 0.0, tokens, 0, tokens)
    other = Prompt("b", 1.0, other_tokens, 0, other_tokens)
    wide = plain._replace(ttft_slo_s=factor * 1_000.0)
    if order.rank(other, now_s) < order.rank(plain, now_s):
        assert order.rank(other, now_s) < order.rank(wide, now_s)


@given(st.floats(1e-6, 10), st.integers(1, 512))
def test_a_tpot_limit_that_leaves_prefill_no_time_does_not_count(tpot_s, decodes):
    """Unless it is the engine's own."""
    policy = make_policy(policy="slo", min_client_slo_factor=1e-6)
    base_s = MODEL.predict(StepShape(decodes=decodes, decode_context_tokens=100 * decodes))
    least_s = policy.least_pace_s(decodes, 100 * decodes)
    assert least_s <= PACE * policy.settings.tpot_slo_s
    pace_s = PACE * policy.grant(None, tpot_s, 0, 100).tpot_slo_s
    if pace_s < min(LEAST_STEP * base_s, PACE * policy.settings.tpot_slo_s):
        assert pace_s < least_s
    else:
        assert pace_s >= least_s
