"""Whether, and how much, an engine may be sent to: all that is known of its health, as one machine.

Three things move it, each with a table of its own:

| what                | its states                        | moved by                     |
|---------------------|-----------------------------------|------------------------------|
| checks (`checks`)   | starting, well, degraded, ejected | what each check finds        |
| breaker (`breaker`) | closed, open, half open           | how requests end there       |
| draining            | no, yes                           | an operator, or a supervisor |

| it is                                   | new requests                                           |
|-----------------------------------------|--------------------------------------------------------|
| draining, starting or ejected           | none                                                   |
| well or degraded, its breaker open      | none; half open: one, which decides                    |
| degraded                                | those that no other engine can serve                   |
| well, back for less than `ramp_s`       | a share that grows from `ramp_from` to its full one    |
| well                                    | its full share                                         |

Whoever comes back comes back slowly, from an ejection, an open breaker or from being drained: it
has lost its caches, and what felled it may have been load.
"""

from headway.core.reliability.breaker import UNTRACKED, Breaker, BreakerSettings
from headway.core.reliability.checks import Checks, HealthCheck, HealthState

__all__ = ["UNTRACKED", "Breaker", "BreakerSettings", "EngineHealth", "HealthCheck", "HealthState"]


class EngineHealth:
    """One engine's health. Times are seconds on one monotonic clock.

    state: as checks tell. usable: requests may go there, be it as a last resort, as far as checks
    tell. degraded: only as a last resort. breaker: asked and told by every request that is sent.
    draining: it finishes what it has, and gets nothing new.
    """

    __slots__ = ("breaker", "checks", "degraded", "draining", "state", "usable")

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self.breaker = Breaker(settings)
        self.draining = False
        self.see(Checks())

    def see(self, checks: Checks) -> None:
        """What is known of its checks from now on."""
        self.checks = checks
        self.state = checks.state
        self.degraded = checks.state is HealthState.DEGRADED
        self.usable = self.degraded or checks.state is HealthState.WELL

    def ready(self, now_s: float) -> bool:
        """Whether new requests may go there."""
        return self.usable and not self.draining and self.breaker.would_allow(now_s)

    def may_end_there(self, now_s: float) -> bool:
        """Whether a request may that is on its way there already: draining doesn't stop it."""
        return self.usable and self.breaker.would_allow(now_s)

    def weight(self, now_s: float) -> float:
        """The share of work it should get, in (0, 1]."""
        return self.breaker.weight(now_s)

    def why(self, now_s: float) -> str:
        """Why new requests do or don't go there, in a few words."""
        if self.draining:
            return "draining"
        if self.state is HealthState.EJECTED:
            return f"{self.checks.failed} health checks failed"
        if not self.usable:
            return "not up yet"
        if not self.ready(now_s):
            return "circuit breaker open"
        if self.degraded:
            return f"degraded: {self.checks.failed} health checks unanswered"
        return "ready"

    def checked(self, check: HealthCheck, now_s: float, *, fails: int, passes: int) -> bool:
        """Take what a check found; whether the state is another one now.

        fails, passes: checks in a row that it takes to lose confidence, and to regain it.
        """
        before = self.state
        self.see(self.checks.after(check, fails=fails, passes=passes))
        if before is HealthState.EJECTED and self.usable:
            self.breaker.readmitted(now_s)
        return self.state is not before

    def undrain(self, now_s: float) -> bool:
        """Requests may go there again; whether it was draining.

        Who drained it may have restarted it and knows that it is up: one good check is enough.
        """
        if not self.draining:
            return False
        self.draining = False
        self.see(self.checks.expected())
        self.breaker.readmitted(now_s)
        return True
