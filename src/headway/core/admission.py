"""Ceilings on concurrent requests and on their bytes, and when to come back beyond them."""

import math
from dataclasses import dataclass
from typing import Final

from headway.core.errors import SettingError

MEMORY_S: Final = 10.0
"""Time constant with which completions are forgotten."""
SHORTEST_S: Final = 1.0
LONGEST_S: Final = 60.0
"""Bounds of a Retry-After."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may run; `release` when it has ended, however it did."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The ceiling is reached. `retry_after_s` lies in [SHORTEST_S, LONGEST_S]."""

    retry_after_s: float


ADMITTED: Final = Admitted()


class Ceiling:
    """At most `max_concurrent` requests at once.

    Whoever is refused is told when a seat should be free, at the rate at which requests
    ended of late. Each further one is told a later time, as in a queue, so that they don't
    all come back at once.
    """

    def __init__(self, max_concurrent: int) -> None:
        self._in_flight = 0
        self._ended = 0.0
        self._told = 0.0
        self._from_s: float | None = None
        self._seen_s = 0.0
        self.resize(max_concurrent)

    @property
    def in_flight(self) -> int:
        """Admitted and not released."""
        return self._in_flight

    def resize(self, max_concurrent: int) -> None:
        """A new ceiling. Whoever is in flight stays, even beyond it."""
        if max_concurrent < 1:
            raise SettingError("max_concurrent", f"is {max_concurrent}; use 1 or more")
        self._max_concurrent = max_concurrent

    def admit(self, now_s: float) -> Admitted | Refused:
        """Take a seat, or hear when to come back."""
        if self._from_s is None:
            self._from_s = self._seen_s = now_s
        if self._in_flight < self._max_concurrent:
            self._in_flight += 1
            return ADMITTED
        self._age(now_s)
        return Refused(self._retry_after_s(now_s))

    def release(self, now_s: float) -> None:
        """A request ended. One release too many changes nothing."""
        self._age(now_s)
        if self._in_flight:
            self._in_flight -= 1
            self._ended += 1

    def _retry_after_s(self, now_s: float) -> float:
        """As if every seat were freed once in SHORTEST_S until a first request has ended."""
        rate = self._rate(now_s) or self._max_concurrent / SHORTEST_S
        self._told = min(self._told + 1, LONGEST_S * rate)
        return min(max(self._told / rate, SHORTEST_S), LONGEST_S)

    def _rate(self, now_s: float) -> float:
        """Requests that end a second; the mean over MEMORY_S, or over what was seen so far."""
        since_s = now_s - (now_s if self._from_s is None else self._from_s)
        seen_s = MEMORY_S * -math.expm1(-since_s / MEMORY_S)
        return self._ended / seen_s if seen_s > 0 else 0.0

    def _age(self, now_s: float) -> None:
        """Forget a little, and let those told to come back have their turn."""
        passed_s = now_s - self._seen_s
        if passed_s <= 0:
            return
        if self._told:
            self._told = max(self._told - passed_s * self._rate(now_s), 0.0)
        self._ended *= math.exp(-passed_s / MEMORY_S)
        self._seen_s = now_s


class ByteCeiling:
    """At most `most_bytes` at once, of all requests together."""

    def __init__(self, most_bytes: int) -> None:
        self.held_bytes = 0
        self.most_bytes = most_bytes

    def fits(self, size: int) -> bool:
        """Whether so many more would be within it."""
        return self.held_bytes + size <= self.most_bytes

    def take(self, size: int) -> bool:
        """Count so many more if they fit; whether they do."""
        fits = self.fits(size)
        if fits:
            self.held_bytes += size
        return fits

    def give(self, size: int) -> None:
        """So many that were taken are held no more."""
        self.held_bytes -= size
