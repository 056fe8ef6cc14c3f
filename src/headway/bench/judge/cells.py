"""Cells of a capacity measurement: one arm at one rate, and what many of them say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from headway.bench.judge.spread import Spread, bootstrap
from headway.bench.load.workload import LONG
from headway.core.highest_rate import RatePoint, highest_rate
from headway.core.slo import Outcome, met

Pick = Callable[[int], list[int]]
"""For n items, the n indices to use: in order, or resampled for an interval."""
Draws = Sequence[list[int]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one offered rate.

    beside: the arm that got the same requests at the same time.
    share: the rate as a share of the saturation rate.
    core: where the arm ran.
    hits: for each request, whether it met its limits.
    classes: its length class.
    generator_lag_s: the worst delay of a send, which is not the engine's doing.
    """

    arm: str
    beside: str
    rate_per_s: float
    share: float
    duration_s: float
    core: int
    hits: tuple[bool, ...]
    classes: tuple[str, ...]
    generator_lag_s: float
    raw: list[dict[str, Any]]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], **fields: Any) -> Self:
        """A cell of judged requests."""
        hits = tuple(met(outcome) for outcome in outcomes)
        return cls(hits=hits, classes=tuple(o.length_class for o in outcomes), **fields)

    @property
    def share_met(self) -> float:
        """Attainment; 1 if nothing was sent."""
        return sum(self.hits) / len(self.hits) if self.hits else 1.0


def points(
    cells: Iterable[Cell], name: str | None = None, draws: Draws | None = None
) -> list[RatePoint]:
    """Attainment by rate, pooled over cells of the same rate; rates without requests are left out.

    name: a length class; None for all requests.
    draws: for each cell, which of its requests to use; None for all.
    """
    pooled: dict[float, list[bool]] = {}
    for position, cell in enumerate(cells):
        indices = range(len(cell.hits)) if draws is None else draws[position]
        hits = [cell.hits[i] for i in indices if name in {None, cell.classes[i]}]
        pooled.setdefault(cell.rate_per_s, []).extend(hits)
    return [
        RatePoint(rate, sum(hits) / len(hits), len(hits))
        for rate, hits in sorted(pooled.items())
        if hits
    ]


def at_rate(curve: Sequence[RatePoint], rate_per_s: float) -> float | None:
    """Attainment at a rate, linear between points and level outside them; None if empty."""
    if not curve:
        return None
    if rate_per_s <= curve[0].rate_per_s:
        return curve[0].attainment
    for low, high in pairwise(curve):
        if rate_per_s <= high.rate_per_s:
            share = (rate_per_s - low.rate_per_s) / (high.rate_per_s - low.rate_per_s)
            return low.attainment + share * (high.attainment - low.attainment)
    return curve[-1].attainment


def rate_ratio(cells: Sequence[Cell], arm: str, other: str, seed: int) -> Spread | None:
    """Highest rate of `arm` over that of `other`, from the cells where they ran side by side."""
    mine, theirs = _side_by_side(cells, arm, other)

    def statistic(pick: Pick) -> float | None:
        draws = _draws(mine, pick)
        above, below = points(mine, draws=draws), points(theirs, draws=draws)
        if not above or not below:
            return None
        # Attainment 1 at rate 0 keeps every highest rate above 0.
        return highest_rate(above).rate_per_s / highest_rate(below).rate_per_s

    return bootstrap(statistic, seed)


def long_ratio(cells: Sequence[Cell], arm: str, other: str, seed: int) -> Spread | None:
    """Attainment of long prompts, `arm` over `other`, at the highest rate of `arm`.

    Where `other` serves none in time it is counted as half a request in time, so that
    the ratio stays finite.
    """
    mine, theirs = _side_by_side(cells, arm, other)

    def statistic(pick: Pick) -> float | None:
        draws = _draws(mine, pick)
        whole = points(mine, draws=draws)
        if not whole:
            return None
        rate_per_s = highest_rate(whole).rate_per_s
        curve = points(theirs, LONG, draws)
        above, below = at_rate(points(mine, LONG, draws), rate_per_s), at_rate(curve, rate_per_s)
        if above is None or below is None:
            return None
        least = 0.5 / sum(point.sent for point in curve)
        return above / max(below, least)

    return bootstrap(statistic, seed)


def goodput_ratio(
    cells: Sequence[Cell], arm: str, other: str, share: float, seed: int
) -> Spread | None:
    """Goodput of `arm` over `other` at one load, side by side; none in time counts as half one."""
    mine, theirs = _side_by_side([c for c in cells if c.share == share], arm, other)

    def statistic(pick: Pick) -> float | None:
        if not mine or not theirs:
            return None
        draws = _draws(mine, pick)
        return _hits(mine, draws) / max(_hits(theirs, draws), 0.5)

    return bootstrap(statistic, seed)


def _draws(cells: Iterable[Cell], pick: Pick) -> Draws:
    """One draw a cell, for both arms: they got the same requests, so these are pairs."""
    return [pick(len(cell.hits)) for cell in cells]


def _hits(cells: Iterable[Cell], draws: Draws) -> int:
    return sum(cell.hits[i] for cell, draw in zip(cells, draws, strict=True) for i in draw)


def _side_by_side(cells: Iterable[Cell], arm: str, other: str) -> tuple[list[Cell], list[Cell]]:
    """The cells of each, in the same order of repeats and rates."""
    both = list(cells)
    mine = [cell for cell in both if (cell.arm, cell.beside) == (arm, other)]
    return mine, [cell for cell in both if (cell.arm, cell.beside) == (other, arm)]
