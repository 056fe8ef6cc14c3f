"""The step-time model: what it learns, how soon, and what it withstands."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.latency import (
    READY_SAMPLES,
    SETTLED_SAMPLES,
    StepShape,
    StepTimeModel,
    attention_work,
    solve_nonnegative,
)

TRUTH = (0.03, 2e-4, 3e-8, 2e-6, 4e-4, 2e-8)
"""Seconds: a step, a prefill token, a token pair, a token of prefill context, a decode, a token
of decode context."""

seeds = st.integers(0, 10_000)
machines = st.tuples(
    st.floats(0.002, 0.06),
    st.floats(2e-5, 3e-3),
    st.floats(0, 3e-7),
    st.floats(0, 3e-6),
    st.floats(1e-5, 3e-3),
    st.floats(0, 1e-6),
)


def true_s(shape: StepShape, machine: tuple[float, ...] = TRUTH) -> float:
    terms = (1.0, *shape)
    return sum(c * x for c, x in zip(machine, terms, strict=True))


def some_step(rng: random.Random) -> StepShape:
    tokens = rng.choice((0, rng.randint(1, 64), rng.randint(64, 1024)))
    decodes = rng.randint(0, 64)
    context = rng.randint(0, 16_000) if tokens else 0
    work = attention_work(tokens, context)
    return StepShape(tokens, work, context, decodes, decodes * rng.randint(16, 4_000))


def taught(
    rng: random.Random,
    steps: int,
    machine: tuple[float, ...] = TRUTH,
    spoil: Callable[[float], float] = lambda seconds: seconds,
) -> StepTimeModel:
    model = StepTimeModel()
    teach(model, rng, steps, machine, spoil)
    return model


def teach(
    model: StepTimeModel,
    rng: random.Random,
    steps: int,
    machine: tuple[float, ...] = TRUTH,
    spoil: Callable[[float], float] = lambda seconds: seconds,
) -> None:
    for _ in range(steps):
        shape = some_step(rng)
        model.observe(shape, spoil(true_s(shape, machine) * rng.gauss(1.0, 0.03)))


def mean_error(
    model: StepTimeModel, rng: random.Random, machine: tuple[float, ...] = TRUTH
) -> float:
    shapes = [some_step(rng) for _ in range(100)]
    return sum(abs(model.predict(s) / true_s(s, machine) - 1) for s in shapes) / len(shapes)


@given(machines, seeds)
def test_noisy_steps_teach_any_machine(machine, seed):
    """After 400 steps with 3% noise the mean error on new steps is below 5%."""
    rng = random.Random(seed)
    assert mean_error(taught(rng, 400, machine), rng, machine) < 0.05


@given(seeds)
def test_known_coefficients_are_recovered(seed):
    rng = random.Random(seed)
    model = taught(rng, 600)
    for name, found, true in zip("012345", model.coefficients, TRUTH, strict=True):
        # Decode context is 1% of these steps' time, less than their noise.
        rel = 0.75 if name == "5" else 0.1
        assert found * model.drift == pytest.approx(true, rel=rel), f"c{name}"


@given(seeds)
def test_a_handful_of_diverse_steps_is_enough_to_start(seed):
    """Both kinds of steps, of several sizes: mean error below 25% from then on."""
    rng = random.Random(seed)
    model = StepTimeModel()
    for tokens, context, decodes, decode_context in (
        (0, 0, 1, 100),
        (128, 0, 2, 8_000),
        (512, 512, 4, 4_000),
        (0, 0, 16, 60_000),
        (256, 8_000, 0, 0),
        (16, 100, 32, 1_000),
        (1024, 2_000, 8, 4_000),
        (0, 0, 60, 9_000),
        (300, 0, 4, 300),
    ):
        work = attention_work(tokens, context)
        shape = StepShape(tokens, work, context, decodes, decode_context)
        model.observe(shape, true_s(shape) * rng.gauss(1.0, 0.03))
    assert model.ready
    assert mean_error(model, rng) < 0.25


def test_not_ready_before_steps_with_prefill():
    """Pure decoding says nothing about what a chunk costs."""
    model = StepTimeModel()
    for _ in range(100):
        model.observe(StepShape(decodes=4, decode_context_tokens=100), 0.03)
    assert not model.ready
    for _ in range(READY_SAMPLES):
        model.observe(StepShape(64, attention_work(64, 0), 0, 4, 100), 0.05)
    assert model.ready


@given(seeds)
def test_rare_outliers_do_not_spoil_predictions(seed):
    """5% of the steps take ten times as long (a page fault, a compilation, a noisy neighbour)."""
    rng = random.Random(seed)
    model = taught(rng, 500, spoil=lambda s: s * (10 if rng.random() < 0.05 else 1))
    assert mean_error(model, rng) < 0.15


@given(seeds, st.sampled_from((1.5, 1 / 1.5)))
def test_a_machine_that_changes_speed_is_followed(seed, factor):
    """Within 60 steps, errors are below 15% again."""
    rng = random.Random(seed)
    model = taught(rng, 400)
    teach(model, rng, 60, spoil=lambda s: s * factor)
    assert mean_error(model, rng, tuple(c * factor for c in TRUTH)) < 0.15


@settings(max_examples=20)
@given(seeds, st.sampled_from((0.01, 1 / 8, 1 / 3, 3, 8, 100)))
def test_whatever_the_factor_a_changed_speed_is_learned(seed, factor):
    """Within 200 steps, errors are as small as they were."""
    rng = random.Random(seed)
    model = taught(rng, 400)
    teach(model, rng, 200, spoil=lambda s: s * factor)
    assert mean_error(model, rng, tuple(c * factor for c in TRUTH)) < 0.15
    teach(model, rng, 200)
    assert mean_error(model, rng) < 0.15


@settings(max_examples=20)
@given(seeds, st.sampled_from((0.01, 0.1, 10, 1_000)))
def test_one_outlier_hardly_moves_predictions(seed, factor):
    """However far off it is: a suspended process, a clock that jumped."""
    rng = random.Random(seed)
    model = taught(rng, 400)
    shape = StepShape(512, attention_work(512, 1_000), 1_000, 16, 16_000)
    before_s = model.predict(shape)
    model.observe(shape, factor * before_s)
    assert model.predict(shape) == pytest.approx(before_s, rel=0.05)
    teach(model, rng, 8)
    assert model.predict(shape) == pytest.approx(before_s, rel=0.1)


def gpu_s(shape: StepShape) -> float:
    """A machine that isn't linear: reading the weights hides computing a few tokens."""
    computing_s = 7e-5 * (shape.prefill_tokens + shape.decodes)
    reading_s = 1e-9 * shape.prefill_work + 3e-8 * shape.decode_context_tokens
    return math.hypot(0.0137, computing_s) + reading_s + 2e-5 * shape.decodes + 0.0016


@given(seeds)
@settings(max_examples=10)
def test_what_the_model_gets_wrong_of_a_machine_does_not_count_as_its_speed(seed):
    """Stretches of decoding and of prefill take turns, and it is a little off in each.

    The first steps of prefill after decoding are the ones that could go wrong.
    """
    rng, model, off = random.Random(seed), StepTimeModel(), []
    for turn, place in itertools.product(range(30), range(360)):
        prefills = place < 60
        decodes = rng.randint(4, 40)
        tokens = prefills * rng.choice((300, 500, 1_000, 2_000))
        context = prefills * rng.choice((0, 0, 20_000, 60_000))
        work = attention_work(tokens, context)
        shape = StepShape(tokens, work, context, decodes, decodes * rng.randint(500, 2_000))
        if place < 4 and turn > 10:
            off.append(abs(model.predict(shape) / gpu_s(shape) - 1))
        model.observe(shape, gpu_s(shape) * rng.gauss(1.0, 0.03))
    assert sum(off) / len(off) < 0.15


def test_long_stretches_of_decoding_do_not_wash_out_prefill():
    rng = random.Random(1)
    model = taught(rng, 300)
    for _ in range(5_000):
        shape = StepShape(decodes=8, decode_context_tokens=4_000)
        model.observe(shape, true_s(shape) * rng.gauss(1.0, 0.03))
    shape = StepShape(512, attention_work(512, 2_000), 2_000, 8, 4_000)
    assert model.predict(shape) == pytest.approx(true_s(shape), rel=0.15)


@given(machines, seeds, st.integers(1, 60))
def test_predictions_are_never_negative_and_grow_with_every_term(machine, seed, steps):
    """Whatever little or much has been seen: more work is never predicted to take less time."""
    rng = random.Random(seed)
    model = taught(rng, steps, machine, spoil=lambda s: s * rng.choice((0.2, 1, 5)))
    for _ in range(20):
        shape = some_step(rng)
        seconds = model.predict(shape)
        assert seconds >= 0.0
        for term in StepShape._fields:
            more = shape._replace(**{term: getattr(shape, term) + rng.randint(1, 500)})
            assert model.predict(more) >= seconds


@given(machines, seeds, st.floats(0, 2), st.integers(0, 100_000), st.integers(0, 20_000))
def test_largest_chunk_is_the_exact_inverse(machine, seed, seconds, context, at_most):
    """The chunk fits the target and one token more doesn't, up to what was allowed."""
    model = taught(random.Random(seed), SETTLED_SAMPLES + 100, machine)
    chunk = model.largest_chunk(seconds, context, at_most)
    slip = 1e-9 * max(1.0, seconds)
    assert 0 <= chunk <= at_most
    assert model.chunk_s(chunk, context) <= seconds + slip
    if chunk < at_most:
        assert model.chunk_s(chunk + 1, context) > seconds - slip


@given(seeds, st.integers(0, 1000), st.integers(1, 4_096))
def test_no_limit_and_no_time_are_answered_plainly(seed, context, at_most):
    model = taught(random.Random(seed), SETTLED_SAMPLES + 1)
    assert model.largest_chunk(math.inf, context, at_most) == at_most
    assert model.largest_chunk(0.0, context, at_most) == 0
    assert model.largest_chunk(-1.0, context, at_most) == 0


def test_an_early_guess_cannot_make_a_huge_step():
    """While little is known a chunk is at most twice the largest one seen."""
    model = StepTimeModel()
    for _ in range(READY_SAMPLES):
        model.observe(StepShape(100, attention_work(100, 0), 0, 1, 10), 0.04)
    assert model.largest_chunk(100.0, 0, 10_000) <= 200


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_durations_teach_nothing(seconds):
    model = StepTimeModel()
    model.observe(StepShape(10, 50.0, 0, 1, 1), seconds)
    assert model.samples == 0
    assert model.predict(StepShape(10, 50.0, 0, 1, 1)) == 0.0


@given(seeds)
def test_time_alone_is_that_of_its_steps(seed):
    """Prefill in several steps pays the fixed cost and the context of each."""
    model = taught(random.Random(seed), 200)
    steps_s = 0.0
    for done in range(0, 1_000, 256):
        chunk = min(256, 1_000 - done)
        steps_s += model.predict(StepShape(chunk, attention_work(chunk, done), done))
    assert model.alone_s(1_000, 0, 256) == pytest.approx(steps_s, rel=0.05)


@given(seeds, st.integers(2, 5), st.integers(3, 30))
def test_nonnegative_least_squares_is_close_to_the_best_subset(seed, terms, rows):
    """Compared with every choice of terms: no negative coefficient, and nearly the least error."""
    rng = random.Random(seed)
    xs = [[rng.uniform(0, 1) for _ in range(terms)] for _ in range(rows + terms)]
    true = [rng.choice((0.0, rng.uniform(0.1, 2))) for _ in range(terms)]
    ys = [sum(c * v for c, v in zip(true, x, strict=True)) + rng.gauss(0, 0.05) for x in xs]
    matrix = [[sum(x[i] * x[j] for x in xs) for j in range(terms)] for i in range(terms)]
    rhs = [sum(x[i] * y for x, y in zip(xs, ys, strict=True)) for i in range(terms)]
    found = solve_nonnegative([row[:] for row in matrix], rhs[:])
    assert min(found) >= 0
    assert _loss(found, xs, ys) <= 1.15 * _least_loss(matrix, rhs, xs, ys) + 1e-6


def _loss(coefficients: list[float], xs: list[list[float]], ys: list[float]) -> float:
    predicted = [sum(c * v for c, v in zip(coefficients, x, strict=True)) for x in xs]
    return sum((y - p) ** 2 for y, p in zip(ys, predicted, strict=True))


def _least_loss(
    matrix: list[list[float]], rhs: list[float], xs: list[list[float]], ys: list[float]
) -> float:
    """Over all subsets of terms whose unconstrained solution has no negative coefficient."""
    terms = range(len(rhs))
    losses = [_loss([0.0] * len(rhs), xs, ys)]
    for size in range(1, len(rhs) + 1):
        for chosen in itertools.combinations(terms, size):
            part = _cramer(
                [[matrix[i][j] for j in chosen] for i in chosen], [rhs[i] for i in chosen]
            )
            if part is not None and min(part) >= 0:
                full = [0.0] * len(rhs)
                for i, value in zip(chosen, part, strict=True):
                    full[i] = value
                losses.append(_loss(full, xs, ys))
    return min(losses)


def _cramer(matrix: list[list[float]], rhs: list[float]) -> list[float] | None:
    whole = _determinant(matrix)
    if abs(whole) < 1e-12:
        return None
    return [
        _determinant([[*row[:i], y, *row[i + 1 :]] for row, y in zip(matrix, rhs, strict=True)])
        / whole
        for i in range(len(rhs))
    ]


def _determinant(matrix: list[list[float]]) -> float:
    if not matrix:
        return 1.0
    minors = ([row[:j] + row[j + 1 :] for row in matrix[1:]] for j in range(len(matrix)))
    return sum(
        (-1) ** j * value * _determinant(minor)
        for j, (value, minor) in enumerate(zip(matrix[0], minors, strict=True))
    )


def test_terms_without_data_are_zero():
    assert solve_nonnegative([[4.0, 0.0], [0.0, 0.0]], [8.0, 0.0]) == [pytest.approx(2.0), 0.0]
