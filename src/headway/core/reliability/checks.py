"""Whether an engine may be sent to, as far as checks of its health tell.

An engine that says nothing isn't known to be dead. While it compiles, or computes one huge prompt
on the cores that its server answers from, it can be silent for minutes and well again in the next.
So silence never ejects. It makes an engine *degraded*: a last resort, to which a request goes only
where no other engine could serve it (`core.routing` knows which could). Requests that it doesn't
answer within their own limits are failures, and those are the circuit breaker's to count.

Dead is an engine that nobody listens for, that breaks connections, or that says it is unwell.
After some checks in a row without a good one, of which the last found it dead, it is *ejected*.

| state    | passed           | progress | silent              | dead               |
|----------|------------------|----------|---------------------|--------------------|
| starting | well             | starting | starting            | starting           |
| well     | well             | well     | degraded, `fails` * | ejected, `fails` * |
| degraded | well             | well     | degraded            | ejected, `fails` * |
| ejected  | well, `passes` * | ejected  | ejected             | ejected            |

(* after so many in a row)
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, Self


class HealthState(StrEnum):
    """What an engine counts as."""

    STARTING = "starting"
    """Not up since it became known."""
    WELL = "well"
    DEGRADED = "degraded"
    EJECTED = "ejected"


class HealthCheck(Enum):
    """What one check found."""

    PASSED = auto()
    PROGRESS = auto()
    """It failed, but the engine has visibly computed something since the one before."""
    SILENT = auto()
    """No answer in time."""
    DEAD = auto()


_USABLE: Final = (HealthState.WELL, HealthState.DEGRADED)
_FAILED: Final = (HealthCheck.SILENT, HealthCheck.DEAD)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """failed, passed: checks in a row, up to the latest."""

    state: HealthState = HealthState.STARTING
    failed: int = 0
    passed: int = 0

    @property
    def usable(self) -> bool:
        """Whether requests may go there, be it as a last resort."""
        return self.state in _USABLE

    def after(self, check: HealthCheck, *, fails: int, passes: int) -> Self:
        """What it is after another check.

        fails, passes: in a row, to lose confidence in it and to regain it once it was ejected.
        """
        failed = self.failed + 1 if check in _FAILED else 0
        passed = self.passed + 1 if check is HealthCheck.PASSED else 0
        state = self._next(check, failing=failed >= fails, passing=passed >= passes)
        return type(self)(state, failed, passed)

    def _next(self, check: HealthCheck, *, failing: bool, passing: bool) -> HealthState:
        if self.state is HealthState.EJECTED:
            return HealthState.WELL if passing else HealthState.EJECTED
        if check is HealthCheck.PASSED:
            return HealthState.WELL
        if self.state is HealthState.STARTING:
            return HealthState.STARTING
        if check is HealthCheck.PROGRESS:
            return HealthState.WELL
        if not failing:
            return self.state
        return HealthState.EJECTED if check is HealthCheck.DEAD else HealthState.DEGRADED

    def expected(self) -> Self:
        """Somebody who knows says that it is up: one good check is enough."""
        return type(self)() if self.state is HealthState.EJECTED else self
