"""Whether a request may be tried again, on another engine, and what its client is told at the end.

An attempt of which nothing has reached the client has failed in one of these ways:

| the attempt                         | left out   | tried again                      |
|-------------------------------------|------------|----------------------------------|
| judged: a 4xx, but for the length   |            | no: it is the answer             |
| refused the prompt's length         | its pool   | yes                              |
| lacks a model that others have      | its engine | any number, within time          |
| stale: a connection closed at rest  |            | within attempts, budget and time |
| unsent: no connection, breaker open | its engine | any number, within time          |
| no whole answer, or a 5xx           | its engine | within attempts, budget and time |

What no engine got is no more load, so it costs neither attempts nor budget: each engine is asked
once. Retries beyond those multiply the load exactly when engines fail under it, hence the budget,
as in Finagle (https://twitter.github.io/finagle/): each request earns a part of a retry, and a
trickle beside it lets a router with little traffic retry too.
"""

from typing import Final, Generic, Protocol, TypeVar

from headway.core.errors import SettingError

ROUNDING: Final = 1e-9
"""Ten tenths are one."""
MOST_ATTEMPTS: Final = 3
"""What a request may cost on engines that fail."""
LEAST_S: Final = 0.01
"""With less time left a request isn't tried again. Timers are early by less than this."""


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


class Failure(Protocol):
    """An attempt of which nothing has reached the client."""

    @property
    def engine_id(self) -> str:
        """Where it failed."""

    @property
    def pool_name(self) -> str:
        """That engine's pool."""

    @property
    def status(self) -> int:
        """The engine's, 0 where it gave no answer."""

    @property
    def too_long(self) -> bool:
        """The engine refused the prompt's length."""

    @property
    def lacks_model(self) -> bool:
        """The engine has no such model, and another that is ready says that it has it."""

    @property
    def stale(self) -> bool:
        """The engine may have closed a connection at rest just when the request went out on it, so
        nothing is known against it.
        """

    @property
    def unsent(self) -> bool:
        """Nothing went out."""


F = TypeVar("F", bound=Failure)


def is_final(failure: Failure) -> bool:
    """The engine judged the request itself, so this is its answer whatever failed before."""
    return 400 <= failure.status < 500 and not _is_its_own(failure)


def _is_its_own(failure: Failure) -> bool:
    """The refusal says something of the engine, and another may well take the request."""
    return failure.too_long or failure.lacks_model


class Attempts(Generic[F]):
    """The attempts of one request. Ask `may_follow` after each that failed.

    excluded: ids of engines that failed it. too_long_for: names of pools that refused its length.
    told: the failure that says most to the client, None while nothing has failed.
    """

    __slots__ = ("_budget", "_failed", "excluded", "told", "too_long_for")

    def __init__(self, budget: "RetryBudget") -> None:
        self.excluded: frozenset[str] = frozenset()
        self.too_long_for: frozenset[str] = frozenset()
        self.told: F | None = None
        self._budget = budget
        self._failed = 0

    def may_follow(
        self, failure: F, *, now_s: float, left_s: float, repeatable: bool = True
    ) -> bool:
        """Whether another attempt may follow this one; takes its cost from the budget.

        left_s: of the time that the request may take. repeatable: its body can be sent again, and
        nothing of an answer has left.
        """
        # The first failure is what went wrong; the next ones may be its consequence. But whether
        # a prompt is too long, the largest pool knows best, and a judgement of the request itself
        # says more than an engine's death.
        if self.told is None or _is_its_own(self.told) or is_final(failure):
            self.told = failure
        if not repeatable or is_final(failure):
            return False
        if failure.too_long:
            self.too_long_for |= {failure.pool_name}
            return True
        if not failure.stale:
            self.excluded |= {failure.engine_id}
        if left_s < LEAST_S:
            return False
        if failure.unsent or failure.lacks_model:
            return True
        self._failed += 1
        return self._failed < MOST_ATTEMPTS and self._budget.spend(now_s)
