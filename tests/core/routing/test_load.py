"""What is in flight on an engine is the sum over its claims, whatever order they end in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.load import Claim, Load, Work

PATIENCE = {"idle_s": 30.0, "first_byte_s": 60.0, "s_per_1k_tokens": 2.0}

steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 9_000), st.integers(0, 9_000)),
        st.tuples(st.just("prefilled"), st.integers(0, 20), st.integers(0, 9_000)),
        st.tuples(st.just("release"), st.integers(0, 20), st.just(0)),
    ),
    max_size=60,
)


def claim(load, prefill_tokens, kv_tokens):
    return Claim(load, prefill_tokens, kv_tokens, late=False)


@given(steps)
def test_every_figure_is_a_sum_over_live_claims(happened):
    load, live, every = Load(), {}, []
    for kind, first, second in happened:
        if kind == "claim":
            every.append(claim(load, first, second))
            live[len(every) - 1] = [first, 0, second]
        elif kind == "prefilled" and first < len(every):
            every[first].prefilled(second)
            if first in live and not live[first][1]:
                live[first][:2] = 0, max(1, second)
        elif kind == "release" and first < len(every):
            every[first].release()
            live.pop(first, None)
        shares = list(live.values())
        assert load.work == Work(
            requests=len(shares),
            prefill_tokens=sum(share[0] for share in shares),
            decodes=sum(bool(share[1]) for share in shares),
            decode_tokens=sum(share[1] for share in shares),
            kv_tokens=sum(share[2] for share in shares),
        )
        assert len(load.claims) == len(shares)
    for each in every:
        each.release()
        each.release()
        each.prefilled(5)
    assert load.work == Work()
    assert load.patience_s(**PATIENCE) == 0.0


def test_what_is_ahead_of_a_prompt_is_its_own_and_what_came_before():
    load = Load()
    assert claim(load, 100, 100).ahead_tokens == 100
    assert claim(load, 50, 50).ahead_tokens == 150
    assert claim(load, 0, 50).ahead_tokens == 0


@given(st.lists(st.tuples(st.integers(-5, 10_000), st.floats(-1, 100)), max_size=50))
def test_a_learned_speed_is_between_those_measured(measured):
    load = Load()
    for tokens, seconds in measured:
        load.learn_rate(tokens, seconds)
    speeds = [tokens / seconds for tokens, seconds in measured if tokens > 0 and seconds > 0]
    if speeds:
        assert min(speeds) * 0.999 <= load.prefill_tokens_per_s <= max(speeds) * 1.001
    else:
        assert load.prefill_tokens_per_s == 0.0


def test_a_long_prompt_says_more_of_a_speed_than_short_ones():
    load = Load()
    load.learn_rate(100_000, 10.0)
    for _ in range(5):
        load.learn_rate(10, 0.1)
    assert load.prefill_tokens_per_s > 9_000


@pytest.mark.parametrize(
    ("late", "answering", "patience_s"),
    [(False, False, 80.0), (False, True, 30.0), (True, False, 0.0), (True, True, 0.0)],
)
def test_an_engine_may_be_silent_as_long_as_its_slowest_request_takes(late, answering, patience_s):
    load = Load()
    made = Claim(load, 10_000, 10_000, late=late)
    if answering:
        made.prefilled(10_000)
    assert load.patience_s(**PATIENCE) == patience_s


def test_of_several_requests_the_one_that_may_take_longest_counts():
    load = Load()
    claim(load, 1_000, 1_000).prefilled(1_000)
    claim(load, 500, 500)
    claim(load, 70_000, 70_000)
    assert load.patience_s(**PATIENCE) == 200.0
