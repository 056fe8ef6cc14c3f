"""A circuit breaker for one engine: passive health, with slow readmission.

*closed*: requests pass. After `failures` failures in a row it is *open*: none pass until a
time that doubles with each failed probe. Then it is *half open*: one request passes as a
probe, and its end decides. A readmitted engine gets little work at first (`weight`): it has
lost its caches, and what felled it may have been load.

Failures are refused connections, timeouts, deaths and 5xx. Refusals that say nothing of an
engine's health (4xx, 429, 503) are neutral, and a request cancelled by its client says nothing
either; both give a probe's place back.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from headway.core.errors import SettingError

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]

UNTRACKED: Final = 0
"""A ticket for ends whose start isn't known: they count as the probe's where there is one."""
DOUBLINGS: Final = 30
"""Beyond these the time doesn't double any more; the cap has long been reached."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """failures: in a row, that open it.

    first_s, cap_s: the time it stays open, at first and at most.
    ramp_s: how long a readmitted engine takes to its full share.
    ramp_from: the share it starts with, in (0, 1].
    """

    failures: int = 5
    first_s: float = 1.0
    cap_s: float = 30.0
    ramp_s: float = 10.0
    ramp_from: float = 0.1

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise SettingError("failures", f"is {self.failures}; use 1 or more")
        if not 0 < self.first_s <= self.cap_s:
            raise SettingError("first_s", f"is {self.first_s}; use more than 0, at most cap_s")
        if not self.ramp_s >= 0:
            raise SettingError("ramp_s", f"is {self.ramp_s}; use 0 or more")
        if not 0 < self.ramp_from <= 1:
            raise SettingError("ramp_from", f"is {self.ramp_from}; use more than 0, at most 1")


class Breaker:
    """Ask `allow`, send, then say how it went, for every request allowed.

    A first byte is enough to call it a success; that it failed later may be told as well.

    `allow` answers with a ticket. With it, a request that was sent before the breaker opened
    and ends during a probe neither decides nor frees the probe's place.
    """

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._failed = 0
        self._opened = 0
        self._retry_s: float | None = None
        self._closed_s: float | None = None
        self._ticket = UNTRACKED
        self._probe: int | None = None

    def state(self, now_s: float) -> BreakerState:
        """Which of the three it is in."""
        if self._retry_s is None:
            return "closed"
        return "half_open" if now_s >= self._retry_s else "open"

    def would_allow(self, now_s: float) -> bool:
        """What `allow` would say; takes nothing."""
        return self._retry_s is None or (now_s >= self._retry_s and self._probe is None)

    def allow(self, now_s: float) -> int:
        """A ticket if a request may be sent, 0 if not. Half open, it takes the probe's place."""
        if not self.would_allow(now_s):
            return 0
        self._ticket += 1
        if self._retry_s is not None:
            self._probe = self._ticket
        return self._ticket

    def succeeded(self, now_s: float, ticket: int = UNTRACKED) -> None:
        """The engine answered well."""
        if self._retry_s is None:
            self._failed = 0
        elif self._free(ticket):
            self._retry_s, self._failed = None, 0
            self._closed_s = now_s

    def failed(self, now_s: float, ticket: int = UNTRACKED) -> None:
        """The engine failed. While open this is old news: a burst of failures counts once."""
        if self._retry_s is None:
            self._failed += 1
            if self._failed >= self._settings.failures:
                self._open(now_s)
        elif self._free(ticket):
            self._open(now_s)

    def cancelled(self, now_s: float, ticket: int = UNTRACKED) -> None:
        """The client left, or the other leg failed: nothing is known of the engine."""
        self._free(ticket)

    def neutral(self, now_s: float, ticket: int = UNTRACKED) -> None:
        """The engine refused the request (4xx, 429, 503)."""
        self._free(ticket)

    def readmitted(self, now_s: float) -> None:
        """Somebody else saw the engine come back (health checks, the end of draining).

        It may well be another process by now, so what it was open for is settled: the breaker is
        closed, and the engine's share grows slowly all the same.
        """
        self._retry_s, self._failed, self._probe = None, 0, None
        self._closed_s = now_s

    def weight(self, now_s: float) -> float:
        """The share of work it should get, from `ramp_from` to 1; 1 if it was never away.

        Half open it is 1 too: the probe is to be one of the next requests, or an engine that is
        well would stay out as long as the others aren't busy, and be missing when they fail.
        """
        start, ramp_s = self._settings.ramp_from, self._settings.ramp_s
        if self._retry_s is not None:
            return 1.0 if self.would_allow(now_s) else start
        if self._closed_s is None or now_s - self._closed_s >= ramp_s:
            return 1.0
        return start + (1 - start) * max(now_s - self._closed_s, 0.0) / ramp_s

    def _free(self, ticket: int) -> bool:
        """Give the probe's place back if it is this one's; whether it was."""
        if self._probe is None or ticket not in {UNTRACKED, self._probe}:
            return False
        self._probe = None
        return True

    def _open(self, now_s: float) -> None:
        """An engine that fails again soon after it was readmitted goes on where it stopped."""
        settings = self._settings
        lasted = self._retry_s is None and (
            self._closed_s is None or now_s - self._closed_s >= settings.cap_s
        )
        self._opened = 0 if lasted else min(self._opened + 1, DOUBLINGS)
        self._retry_s = now_s + min(settings.first_s * 2**self._opened, settings.cap_s)
