"""A budget that keeps retries a small share of the traffic.

Retries without one multiply the load exactly when engines fail under it. As in Finagle's
retry budget (https://twitter.github.io/finagle/): each request earns a part of a retry, and a
trickle beside it lets a router with little traffic retry too.
"""

from typing import Final

from headway.core.errors import SettingError

ROUNDING: Final = 1e-9
"""Ten tenths are one."""


class RetryBudget:
    """A token bucket; a retry costs one token.

    ratio: tokens that a request earns.
    min_per_s: tokens that come with time.
    most: tokens it can hold, so that a quiet hour doesn't pay for a storm. It starts with
        what `min_per_s` brings in ten seconds, if it holds that.
    """

    def __init__(self, ratio: float = 0.2, min_per_s: float = 1.0, most: float = 50.0) -> None:
        for key, value in (("ratio", ratio), ("min_per_s", min_per_s)):
            if not 0 <= value < float("inf"):
                raise SettingError(key, f"is {value}; use a finite number from 0")
        if not 1 <= most < float("inf"):
            raise SettingError("most", f"is {most}; use a finite number from 1")
        self._ratio = ratio
        self._min_per_s = min_per_s
        self._most = most
        self._tokens = min(10 * min_per_s, most)
        self._seen_s: float | None = None

    def earn(self) -> None:
        """A request was sent for the first time."""
        self._tokens = min(self._tokens + self._ratio, self._most)

    def tokens(self, now_s: float) -> float:
        """What could be spent now."""
        if self._seen_s is None:
            return self._tokens
        trickle = self._min_per_s * max(now_s - self._seen_s, 0.0)
        return min(self._tokens + trickle, self._most)

    def spend(self, now_s: float) -> bool:
        """Whether a retry may be sent; takes its token."""
        self._tokens = self.tokens(now_s)
        self._seen_s = now_s if self._seen_s is None else max(self._seen_s, now_s)
        if self._tokens < 1 - ROUNDING:
            return False
        self._tokens = max(self._tokens - 1, 0.0)
        return True
