"""Piecewise linear functions through measured points."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Self

from headway.core.errors import SettingError

_TWO: Final = 2


class Curve:
    """A time that grows with a size: linear between points, level before the first.

    Beyond the last point it goes on with the slope of the last two, or, with `power`, as that
    power of the size (attention over a prompt grows with its square).
    """

    __slots__ = ("_power", "_xs", "_ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float], *, power: float = 0.0) -> None:
        """xs: sizes, ascending. ys: their times, any unit. Raises SettingError."""
        if len(xs) != len(ys) or not xs:
            raise SettingError("curve", f"has {len(xs)} sizes and {len(ys)} times; use as many")
        if any(b <= a for a, b in pairwise(xs)):
            raise SettingError("curve", "has sizes that don't ascend; sort them, each once")
        self._xs = tuple(xs)
        self._ys = tuple(ys)
        self._power = power

    def __call__(self, x: float) -> float:
        xs, ys = self._xs, self._ys
        if x <= xs[0]:
            return ys[0]
        if x > xs[-1] and self._power:
            return float(ys[-1] * (x / xs[-1]) ** self._power)
        if len(xs) < _TWO:
            return ys[0]
        i = min(bisect_right(xs, x), len(xs) - 1)
        share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + share * (ys[i] - ys[i - 1])

    @property
    def sizes(self) -> tuple[float, ...]:
        """Where it was measured."""
        return self._xs

    def times(self, factor: float) -> Self:
        """The same curve, each time multiplied."""
        return type(self)(self._xs, [factor * y for y in self._ys], power=self._power)

    def plus(self, other: "Curve") -> "Curve":
        """The sum of both, exact at every point of either."""
        xs = sorted({*self._xs, *other.sizes})
        return Curve(xs, [self(x) + other(x) for x in xs])


class Surface:
    """A time by two sizes: curves over the second, linear between them over the first."""

    __slots__ = ("_curves", "_xs")

    def __init__(self, xs: Sequence[float], curves: Sequence[Curve]) -> None:
        """xs: first sizes, ascending, one for each curve. Raises SettingError."""
        Curve(xs, [0.0] * len(curves))
        self._xs = tuple(xs)
        self._curves = tuple(curves)

    def __call__(self, x: float, y: float) -> float:
        xs, curves = self._xs, self._curves
        if x <= xs[0] or len(xs) < _TWO:
            return curves[0](y)
        i = min(bisect_right(xs, x), len(xs) - 1)
        low, high = curves[i - 1](y), curves[i](y)
        return low + (x - xs[i - 1]) / (xs[i] - xs[i - 1]) * (high - low)

    def times(self, factor: float) -> "Surface":
        """The same surface, each time multiplied."""
        return Surface(self._xs, [curve.times(factor) for curve in self._curves])
