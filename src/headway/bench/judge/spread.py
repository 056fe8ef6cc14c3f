"""Ratios with their spread, from measurements taken side by side."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

DRAWS: Final = 400
"""Bootstrap resamples."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A value and the interval it is known to within."""

    value: float
    low: float
    high: float


def spread(values: Sequence[float | None]) -> Spread | None:
    """Median, smallest and largest of the repeats that measured; None if none did."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """None where either is missing or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def ratios(
    numerators: Sequence[float | None], denominators: Sequence[float | None]
) -> Spread | None:
    """Spread of the ratios of repeats that ran side by side, pair by pair."""
    pairs = zip(numerators, denominators, strict=True)
    return spread([ratio(above, below) for above, below in pairs])


def lowest(spreads: Sequence[Spread | None]) -> Spread | None:
    """The one of smallest value: a ratio to the best of several; None if none measured."""
    known = [found for found in spreads if found is not None]
    return min(known, key=lambda found: found.value, default=None)


def bootstrap(
    statistic: Callable[[Callable[[int], list[int]]], float | None], seed: int
) -> Spread | None:
    """A statistic with its 5-95% bootstrap interval; None if it is undefined.

    statistic: called with a function that, for n items, gives the n indices to use:
        all of them in order for the value, resampled ones for the interval.
    """
    value = statistic(lambda count: list(range(count)))
    if value is None:
        return None
    rng = random.Random(seed)
    drawn = [
        statistic(lambda count: [rng.randrange(count) for _ in range(count)]) for _ in range(DRAWS)
    ]
    known = sorted(item for item in drawn if item is not None)
    if not known:
        return Spread(value, value, value)
    low = known[int(0.05 * (len(known) - 1))]
    high = known[round(0.95 * (len(known) - 1))]
    return Spread(value, min(low, value), max(high, value))
