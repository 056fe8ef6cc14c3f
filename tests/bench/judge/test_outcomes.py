"""Judging samples: limits by length, what was cut off, what failed."""

import math

from headway.bench.judge import outcomes
from headway.bench.judge.outcomes import Alone
from headway.bench.load.exchange import CUT_OFF, Sample
from headway.core.slo import Slo, met

ALONE = Alone(((50, 0.2), (1_000, 2.0), (2_000, 5.0)), 0.04, 0.05, 0.06)
SLO = Slo(1.0, 4.0, 0.15)


def sample(name="short", prompt=50, tokens=20, error=None, gap=0.1) -> Sample:
    times = tuple(0.5 + gap * n for n in range(tokens))
    return Sample(name, prompt, 20, 0.0, 0.01, times, error)


def test_alone_is_linear_between_lengths() -> None:
    assert ALONE.ttft_s(10) == 0.2
    assert ALONE.ttft_s(1_000) == 2.0
    assert math.isclose(ALONE.ttft_s(1_500), 3.5)
    assert math.isclose(ALONE.ttft_s(3_000), 8.0)
    assert Alone(((50, 0.2),), 0.04, 0.05, 0.06).ttft_s(999) == 0.2


def test_the_limit_follows_the_length() -> None:
    short, long = outcomes.judge([sample(), sample("long", 2_000)], SLO, ALONE)
    assert short.limits.ttft_s == 1.0
    assert long.limits.ttft_s == 20.0
    assert met(short)


def test_errors_count_as_missed() -> None:
    (failed,) = outcomes.judge([sample(error="status 503")], SLO, ALONE)
    assert not met(failed)
    (cut,) = outcomes.judge([sample(error=CUT_OFF)], SLO, ALONE)
    assert not met(cut)


def test_a_running_decode_cut_off_is_judged_on_what_it_had() -> None:
    kept = outcomes.judge(
        [
            sample("running", tokens=18, error=CUT_OFF),
            sample("running", tokens=3, error=CUT_OFF),
            sample("running", tokens=18, error="status 503"),
        ],
        SLO,
        ALONE,
    )
    assert [met(outcome) for outcome in kept] == [True, False]


def test_totals() -> None:
    samples = [sample(), sample(prompt=80), sample(tokens=0, error="x"), sample(error="x")]
    assert outcomes.errors(samples) == {"x": 2}
    assert outcomes.generator_lag_s(samples) == 0.01
    rate = outcomes.tokens_per_s(samples)
    assert rate is not None
    assert math.isclose(rate, (50 + 20 + 80 + 20) / 2.4)
    assert outcomes.tokens_per_s([sample(error="x")]) is None
    records = outcomes.raw(samples)
    assert [record["received_tokens"] for record in records] == [20, 20, 0, 20]
    assert records[2]["first_token_s"] is None
