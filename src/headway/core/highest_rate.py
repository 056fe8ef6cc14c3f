"""The highest rate of requests at which enough of them meet their limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TARGET_ATTAINMENT: Final = 0.9
"""The attainment that the highest rate must keep."""


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
