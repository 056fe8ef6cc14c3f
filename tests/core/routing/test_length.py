"""Tokens from bytes: learned, on neither side, and hard to mislead."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.length import PRIOR_BYTES_PER_TOKEN, LengthEstimator

MODEL, CHAT = "m", "chat"
sizes = st.integers(0, 10_000_000)
rates = st.floats(0.7, 16)
seeds = st.integers(0, 1_000)


def taught(bytes_per_token, overhead=0, noise=0.0, seed=0, count=60):
    """An estimator after requests of all sizes, most of them short."""
    rng = random.Random(seed)
    learned = LengthEstimator()
    for _ in range(count):
        nbytes = int(100 * 10 ** (3 * rng.random() ** 2))
        tokens = overhead + nbytes / bytes_per_token * (1 + rng.uniform(-noise, noise))
        learned.observe(MODEL, CHAT, nbytes, max(1, round(tokens)))
    return learned


@given(sizes)
def test_before_anything_is_known_the_prior_holds(nbytes):
    guess = LengthEstimator().estimate(MODEL, CHAT, nbytes)
    assert guess == pytest.approx(max(1, nbytes / PRIOR_BYTES_PER_TOKEN), abs=0.5)


@given(rates, st.integers(0, 60), seeds, st.integers(200, 100_000))
def test_a_steady_relation_is_learned(bytes_per_token, overhead, seed, nbytes):
    learned = taught(bytes_per_token, overhead, seed=seed)
    true = overhead + nbytes / bytes_per_token
    assert learned.estimate(MODEL, CHAT, nbytes) == pytest.approx(true, rel=0.15, abs=12)


@given(rates, seeds)
def test_noise_biases_it_to_neither_side(bytes_per_token, seed):
    """On average over many lessons."""
    guesses = [
        taught(bytes_per_token, noise=0.4, seed=seed * 50 + i).estimate(MODEL, CHAT, 20_000)
        for i in range(12)
    ]
    mean = sum(guesses) / len(guesses)
    assert mean == pytest.approx(20_000 / bytes_per_token, rel=0.12)


@given(rates, st.integers(1, 10_000_000), st.integers(1, 10_000_000), sizes)
def test_one_absurd_answer_changes_little(bytes_per_token, nbytes, tokens, asked):
    learned = taught(bytes_per_token)
    before = learned.estimate(MODEL, CHAT, asked)
    learned.observe(MODEL, CHAT, nbytes, tokens)
    assert learned.estimate(MODEL, CHAT, asked) == pytest.approx(before, rel=0.35, abs=30)


@given(rates, rates, seeds)
def test_other_content_is_learned_anew(first, then, seed):
    """After a few hundred requests, little of the mistake is left."""
    learned = taught(first, seed=seed)
    rng = random.Random(seed)
    for _ in range(300):
        nbytes = int(100 * 10 ** (3 * rng.random() ** 2))
        learned.observe(MODEL, CHAT, nbytes, max(1, round(nbytes / then)))
    mistake = math.log(learned.estimate(MODEL, CHAT, 20_000) * then / 20_000)
    assert abs(mistake) <= max(0.1, 0.3 * abs(math.log(then / first)))


@given(st.lists(st.tuples(sizes, sizes), max_size=30), sizes, sizes)
def test_more_bytes_are_never_fewer_tokens(lessons, one, other):
    """Whatever was observed; and an estimate is at least one token, at most a few a byte."""
    learned = LengthEstimator()
    for nbytes, tokens in lessons:
        learned.observe(MODEL, CHAT, nbytes, tokens)
    less, more = sorted((one, other))
    assert 1 <= learned.estimate(MODEL, CHAT, less) <= learned.estimate(MODEL, CHAT, more)


def test_short_chats_do_not_make_long_prompts_look_longer():
    """A template's tokens weigh much in a short prompt and nothing in a long one."""
    learned = LengthEstimator()
    for i in range(200):
        nbytes = 40 + 7 * (i % 40)
        learned.observe(MODEL, CHAT, nbytes, 30 + round(nbytes / 4))
    assert learned.estimate(MODEL, CHAT, 100_000) == pytest.approx(25_000, rel=0.1)


def test_long_stretches_of_short_prompts_forget_nothing_about_long_ones():
    learned = LengthEstimator()
    for _ in range(20):
        learned.observe(MODEL, CHAT, 80_000, 10_000)
    for _ in range(2_000):
        learned.observe(MODEL, CHAT, 200, 60)
    assert learned.estimate(MODEL, CHAT, 80_000) == pytest.approx(10_000, rel=0.1)


def test_models_and_endpoints_are_apart():
    learned = LengthEstimator()
    for _ in range(30):
        learned.observe("dense", CHAT, 8_000, 8_000)
    assert learned.estimate("dense", CHAT, 8_000) > 6_000
    assert learned.estimate("dense", "completions", 8_000) == 2_000
    assert learned.estimate("other", CHAT, 8_000) == 2_000


@given(st.lists(st.integers(0, 40), max_size=120), st.integers(1, 8))
def test_memory_is_bounded_and_the_latest_are_kept(models, most):
    learned = LengthEstimator(max_keys=most)
    for model in models:
        learned.observe(str(model), CHAT, 8_000, 4_000)
        assert len(learned) <= most
    for model in set(models[-most:]):
        assert learned.estimate(str(model), CHAT, 8_000) > 2_000


@given(st.integers(-5, 0), st.integers(-5, 5))
def test_sizes_that_mean_nothing_teach_nothing(nothing, other):
    learned = LengthEstimator()
    learned.observe(MODEL, CHAT, nothing, other)
    learned.observe(MODEL, CHAT, other, nothing)
    assert len(learned) == 0
