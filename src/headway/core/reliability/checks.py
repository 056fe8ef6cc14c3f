"""What checks of an engine's health tell: the part of `engine_health` that only they move.

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

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple, Self


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


class _Needs(Enum):
    """How many checks in a row a transition takes."""

    ONE = auto()
    FAILS = auto()
    PASSES = auto()


class _To(NamedTuple):
    state: HealthState
    needs: _Needs = _Needs.ONE


_WELL: Final = _To(HealthState.WELL)
TRANSITIONS: Final[Mapping[HealthState, Mapping[HealthCheck, _To]]] = {
    HealthState.STARTING: {HealthCheck.PASSED: _WELL},
    HealthState.WELL: {
        HealthCheck.SILENT: _To(HealthState.DEGRADED, _Needs.FAILS),
        HealthCheck.DEAD: _To(HealthState.EJECTED, _Needs.FAILS),
    },
    HealthState.DEGRADED: {
        HealthCheck.PASSED: _WELL,
        HealthCheck.PROGRESS: _WELL,
        HealthCheck.DEAD: _To(HealthState.EJECTED, _Needs.FAILS),
    },
    HealthState.EJECTED: {HealthCheck.PASSED: _To(HealthState.WELL, _Needs.PASSES)},
}
"""Where each check may lead; the state stays what it is for those that aren't listed."""
_FAILED: Final = (HealthCheck.SILENT, HealthCheck.DEAD)


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of one engine, summed up.

    failed, passed: how many in a row did, up to the latest.
    """

    state: HealthState = HealthState.STARTING
    failed: int = 0
    passed: int = 0

    def after(self, check: HealthCheck, *, fails: int, passes: int) -> Self:
        """What they are with another one.

        fails, passes: in a row, to lose confidence in an engine and to regain it once it was
        ejected.
        """
        failed = self.failed + 1 if check in _FAILED else 0
        passed = self.passed + 1 if check is HealthCheck.PASSED else 0
        to = TRANSITIONS[self.state].get(check)
        enough = {
            _Needs.ONE: True,
            _Needs.FAILS: failed >= fails,
            _Needs.PASSES: passed >= passes,
        }
        state = to.state if to is not None and enough[to.needs] else self.state
        return type(self)(state, failed, passed)

    def expected(self) -> Self:
        """Somebody who knows says that the engine is up: one good check is enough."""
        return type(self)() if self.state is HealthState.EJECTED else self
