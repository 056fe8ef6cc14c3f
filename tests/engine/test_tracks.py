"""When running answers' next tokens are due, whatever holds the engine up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.budget import PACE, STALL_LIMIT
from headway.core.batching.policy import Policy
from headway.core.batching.settings import parse
from headway.core.latency import StepTimeModel
from headway.engine.tracks import Tracks

from .conftest import teach
from .harness import make_request

TPOT_S = 0.05
PACE_S = PACE * TPOT_S


def answering(now_s=100.0, **asked):
    """Tracks of one request that has just had its first token."""
    settings = parse({"tpot_slo_s": TPOT_S, "min_client_slo_factor": 0.1}, 4_096)
    tracks = Tracks(Policy(settings, StepTimeModel(), 512))
    request = make_request(40, 1_000, extra_args=asked, block_hasher=None)
    tracks.of(request, 40, now_s)
    request.num_computed_tokens = 40
    assert tracks.deadlines_s([request], now_s, 0.0) == [math.inf]
    request.append_output_token_ids(7)
    tracks.got_first_token(request, now_s)
    return tracks, request


@given(
    st.lists(st.one_of(st.floats(0, 0.1), st.sampled_from((0.2, 1.0, 30.0))), max_size=40),
    st.sampled_from((None, 1e-9, 0.02, 0.3, 1e308)),
)
def test_every_deadline_is_finite_and_none_is_further_behind_than_a_stall(steps_s, tpot_s):
    now_s = 100.0
    tracks, request = answering(now_s, headway_tpot_slo_s=tpot_s)
    for step_s in steps_s:
        now_s += step_s
        (due_s,) = tracks.deadlines_s([request], now_s, 0.0)
        assert math.isfinite(due_s)
        assert due_s >= now_s - STALL_LIMIT * TPOT_S - 1e-9
        request.num_computed_tokens += 1


@given(st.floats(0, STALL_LIMIT * TPOT_S - 1e-6), st.integers(1, 50))
def test_a_decode_a_little_behind_keeps_its_deadlines(behind_s, tokens):
    """They are absolute: what one step took too long, the next ones make up for."""
    tracks, request = answering()
    request.num_computed_tokens += tokens - 1
    due_s = 100.0 + tokens * PACE_S
    assert tracks.deadlines_s([request], due_s + behind_s, 0.0) == [pytest.approx(due_s)]


@given(st.floats(STALL_LIMIT * TPOT_S + 1e-3, 1e4))
def test_a_decode_that_is_far_behind_is_paced_anew(behind_s):
    """Its next token is due a token's time from now, and the one after that another later."""
    tracks, request = answering()
    now_s = 100.0 + PACE_S + behind_s
    assert tracks.deadlines_s([request], now_s, 0.0) == [pytest.approx(now_s + PACE_S)]
    request.num_computed_tokens += 1
    assert tracks.deadlines_s([request], now_s, 0.0) == [pytest.approx(now_s + 2 * PACE_S)]


def test_a_decode_that_is_to_be_quicker_than_the_least_pace_has_no_deadline():
    tracks, request = answering(headway_tpot_slo_s=TPOT_S / 2)
    assert tracks.deadlines_s([request], 100.0, PACE_S / 2)
    assert not tracks.deadlines_s([request], 100.0, 0.9 * PACE_S)


@pytest.mark.parametrize("mishap", ["pause", "reset"])
def test_answers_keep_their_pace_after_a_hiccup(drive, mishap):
    """A pause, or all of them preempted, while prompts keep the engine busy."""
    driver = drive("slo", tpot_slo_s=0.1, budget=2_048)
    teach(driver.scheduler)
    clock = driver.clock
    for i in range(8):
        driver.add(make_request(50, 400, name=f"answer{i}", arrival_time=clock.time()))
    for _ in range(60):
        driver.add(make_request(6_000, 1, arrival_time=clock.time()))
    while driver.tokens.get("answer0", 0) < 50:
        driver.step()
    if mishap == "pause":
        clock.now_s += 5.0
    else:
        driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    while driver.tokens["answer0"] < 70:
        driver.step()
    begin_s = clock.now_s
    while driver.tokens["answer0"] < 170:
        driver.step()
    assert (clock.now_s - begin_s) / 100 <= 0.1
