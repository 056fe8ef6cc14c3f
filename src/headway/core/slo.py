"""The measure of success: which requests met their limits, and how many a second.

Times are seconds on one clock, the client's. A request is judged from the
moment its client *meant* to send it, so time spent queueing anywhere counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

TARGET_ATTAINMENT: Final = 0.9
"""The attainment that the highest rate must keep."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request was promised.

    ttft_s: latest first token after the intended send time.
    tpot_s: longest mean time per output token after the first.
    """

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits for requests of any length; the TTFT limit grows with the prompt.

    ttft_floor_s: the TTFT limit of a prompt that prefills at once.
    ttft_factor: the TTFT limit as a multiple of the TTFT alone.
    tpot_s: the TPOT limit of every request.
    """

    ttft_floor_s: float
    ttft_factor: float
    tpot_s: float

    def limits(self, alone_ttft_s: float) -> Limits:
        """Limits of a request whose TTFT on an idle engine is `alone_ttft_s`."""
        return Limits(max(self.ttft_floor_s, self.ttft_factor * alone_ttft_s), self.tpot_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    length_class: the class it is counted in, for example `short`.
    intended_s: when the client meant to send it.
    token_times_s: arrival of each output token, ascending; tokens that came
        together have equal times.
    completed: whether every token asked for arrived; failed, refused and
        abandoned requests are False and count as missed.
    limits: what it was promised.
    """

    length_class: str
    intended_s: float
    token_times_s: tuple[float, ...]
    completed: bool
    limits: Limits


def ttft_s(outcome: Outcome) -> float | None:
    """First token minus intended send time; None without a token."""
    if not outcome.token_times_s:
        return None
    return outcome.token_times_s[0] - outcome.intended_s


def tpot_s(outcome: Outcome) -> float | None:
    """(last token - first token) / (tokens - 1); None below two tokens."""
    times = outcome.token_times_s
    if len(times) < 2:
        return None
    return (times[-1] - times[0]) / (len(times) - 1)


def itls_s(outcome: Outcome) -> tuple[float, ...]:
    """The gap before each output token but the first."""
    times = outcome.token_times_s
    return tuple(b - a for a, b in pairwise(times))


def met(outcome: Outcome) -> bool:
    """Whether the request completed within all of its limits."""
    first, each = ttft_s(outcome), tpot_s(outcome)
    if not outcome.completed or first is None or first > outcome.limits.ttft_s:
        return False
    return each is None or each <= outcome.limits.tpot_s


def attainment(outcomes: Sequence[Outcome]) -> float | None:
    """Share of the requests sent that met their limits; None if none was sent."""
    if not outcomes:
        return None
    return sum(map(met, outcomes)) / len(outcomes)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The `percent`-th percentile (0 to 100), linear between ranks; None if empty."""
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is {percent}; use 0 to 100")
    ranked = sorted(values)
    if not ranked:
        return None
    place = (len(ranked) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    step = ranked[above] - ranked[below]
    return min(ranked[below] + step * (place - below), ranked[above])


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics of a set of requests; None where no request defines the metric.

    Latency percentiles are over the requests that have the metric, so read
    them with `sent`, `completed` and `attainment` beside them.
    """

    sent: int
    completed: int
    met: int
    attainment: float | None
    goodput_per_s: float
    output_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_p99_s: float | None
    longest_stall_s: float | None


def summarise(outcomes: Sequence[Outcome], duration_s: float) -> Summary:
    """Metrics of `outcomes`, whose requests were offered during `duration_s` seconds."""
    if not duration_s > 0:
        raise ValueError(f"duration_s is {duration_s}; use a number above 0")
    ttfts = _defined(ttft_s, outcomes)
    tpots = _defined(tpot_s, outcomes)
    itls = [gap for outcome in outcomes for gap in itls_s(outcome)]
    hits = sum(map(met, outcomes))
    return Summary(
        sent=len(outcomes),
        completed=sum(outcome.completed for outcome in outcomes),
        met=hits,
        attainment=attainment(outcomes),
        goodput_per_s=hits / duration_s,
        output_tokens_per_s=sum(len(o.token_times_s) for o in outcomes) / duration_s,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        tpot_p50_s=percentile(tpots, 50),
        tpot_p99_s=percentile(tpots, 99),
        itl_p99_s=percentile(itls, 99),
        longest_stall_s=max(itls, default=None),
    )


def summarise_by_class(outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Summary]:
    """`summarise` for each length class, by name in order."""
    names = sorted({outcome.length_class for outcome in outcomes})
    return {
        name: summarise([o for o in outcomes if o.length_class == name], duration_s)
        for name in names
    }


def _defined(metric: Callable[[Outcome], float | None], outcomes: Iterable[Outcome]) -> list[float]:
    return [value for o in outcomes if (value := metric(o)) is not None]


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Attainment measured at one offered rate, from `sent` requests."""

    rate_per_s: float
    attainment: float
    sent: int


@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate that keeps the target attainment.

    bracket: where the crossing lies: `between` two measured rates, `below`
        the lowest one (the value leans on attainment 1 at rate 0, where every
        request is alone), or `above` the highest (the value is then a lower bound).
    """

    rate_per_s: float
    bracket: str


def highest_rate(points: Sequence[RatePoint], target: float = TARGET_ATTAINMENT) -> HighestRate:
    """The rate at which attainment crosses `target`, linear between measured rates.

    Attainment can only fall as the rate grows; the points are first fitted
    by the nearest falling curve (isotonic regression, weighted by requests), so
    that one lucky or unlucky point doesn't decide.
    """
    if not points:
        raise ValueError("no points; measure at least one rate")
    fitted = falling_fit(sorted(points, key=lambda point: point.rate_per_s))
    last_rate, last = 0.0, 1.0
    for index, point in enumerate(fitted):
        if point.attainment < target:
            share = (last - target) / (last - point.attainment)
            rate = last_rate + share * (point.rate_per_s - last_rate)
            return HighestRate(rate, "between" if index else "below")
        last_rate, last = point.rate_per_s, point.attainment
    return HighestRate(last_rate, "above")


def falling_fit(points: Sequence[RatePoint]) -> tuple[RatePoint, ...]:
    """The closest curve that never rises, by pool-adjacent-violators.

    points: in order of rate. The fit has the same rates and request counts.
    """
    groups: list[tuple[float, int, int]] = []  # attainment, requests, points
    for point in points:
        level, weight, size = point.attainment, max(point.sent, 1), 1
        while groups and groups[-1][0] < level:
            other, other_weight, other_size = groups.pop()
            level = (level * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        groups.append((level, weight, size))
    levels = [level for level, _, size in groups for _ in range(size)]
    return tuple(
        RatePoint(point.rate_per_s, level, point.sent)
        for point, level in zip(points, levels, strict=True)
    )
