"""One engine's life: events in, actions out, no clock and no I/O.

```
stopped ─Start▶ queued ─Go▶ starting ─Ready▶ ready ─Stop, Restart▶ draining ─Idle▶ stopping
                  ▲            │ Exited        │ Exited                              │ Exited
                  └── backoff ◀┴───────────────┴─ Lost, Hung ─▶ stopping             ▼
                        └─ third start in a row that failed ─▶ failed      stopped, or queued again
                           (the first, where another would too)
```

Whether the router may send requests there is `open`; `Open` and `Close` follow its changes and
come before every other action. The router's own process has the same life.
"""

from functools import singledispatchmethod
from typing import Final

from headway.core.errors import HeadwayError
from headway.fleet.supervise.states import (
    FAULTS,
    RUNNING,
    TRANSITIONS,
    Action,
    Actions,
    After,
    Drain,
    Event,
    Exited,
    Go,
    Hung,
    Idle,
    LifecycleLimits,
    LifecycleState,
    Lost,
    Ready,
    Restart,
    Start,
    Stop,
    Tick,
    Undrain,
)

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0
HEALTHY_S: Final = 300.0
"""After so long a time ready, what failed before no longer counts."""
STARTS: Final = 3
"""So many failed starts in a row, and none before that succeeded: it isn't tried again. One is
enough where the cause lasts."""
KILL_S: Final = 20.0
"""Between two attempts to end it by force."""


class LifeError(HeadwayError):
    """An event that can't happen in the present state: a fault of the host."""


class Life:
    """State of one engine. Times are seconds on one monotonic clock.

    reason: in words, why it is where it is; "" where that needs none.
    since_s: when it came there. until_s: when the next Tick is due, None if none is.
    restarts: how often it was, or will be, started again by itself.
    held: the operator has it drained.
    """

    def __init__(self, limits: LifecycleLimits) -> None:
        self.state = LifecycleState.STOPPED
        self.reason = ""
        self.since_s = 0.0
        self.until_s: float | None = None
        self.restarts = 0
        self.held = False
        self._limits = limits
        self._after = After.RETRY
        self._failures = 0
        self._proved = False
        """Whether it has been ready since it was last described anew."""
        self._ready_s: float | None = None

    @property
    def open(self) -> bool:
        """Whether new requests may go there."""
        return self.state is LifecycleState.READY and not self.held

    @property
    def leaving(self) -> bool:
        """Whether it is on its way to be stopped for good."""
        return (
            self.state in {LifecycleState.DRAINING, LifecycleState.STOPPING}
            and self._after is After.STOP
        )

    def on(self, event: Event, now_s: float) -> Actions:
        """Take an event; what is to be done. Events that came too late change nothing.

        Raises LifeError for Go and Exited where they can't happen; nothing has changed then.
        """
        if type(event) not in TRANSITIONS[self.state]:
            if isinstance(event, FAULTS):
                raise LifeError(f"{type(event).__name__}, and it is {self.state.value}")
            return ()
        before = self.open
        actions = self._take(event, now_s)
        if self.open is before:
            return actions
        return (Action.OPEN if self.open else Action.CLOSE, *actions)

    @singledispatchmethod
    def _take(self, event: Event, now_s: float) -> Actions:
        """An event that the table lists for the present state."""
        raise NotImplementedError(type(event).__name__)

    def _go_to(
        self, state: LifecycleState, now_s: float, wait_s: float | None = None, reason: str = ""
    ) -> None:
        self.state = state
        self.since_s = now_s
        self.until_s = None if wait_s is None else now_s + wait_s
        self.reason = reason

    # Towards ready

    @_take.register
    def _start(self, _event: Start, now_s: float) -> Actions:
        if self.state not in RUNNING:
            self._queue_anew(now_s)
        elif self._after is After.STOP:
            self._after = After.START
        return ()

    @_take.register
    def _go(self, _event: Go, now_s: float) -> Actions:
        self._go_to(LifecycleState.STARTING, now_s, self._limits.start_s)
        return (Action.LAUNCH,)

    def _queue_anew(self, now_s: float) -> None:
        self._failures = 0
        self._proved = False
        self._ready_s = None
        self._go_to(LifecycleState.QUEUED, now_s)

    @_take.register
    def _ready(self, _event: Ready, now_s: float) -> Actions:
        self._go_to(LifecycleState.READY, now_s)
        self._ready_s = now_s
        self._proved = True
        return ()

    # What goes wrong

    @_take.register
    def _exited(self, event: Exited, now_s: float) -> Actions:
        going = self.state in {LifecycleState.DRAINING, LifecycleState.STOPPING}
        if not going or self._after is After.RETRY:
            lasting = event.lasting and not self.reason
            self._fail(now_s, self.reason or event.cause, lasting=lasting)
        elif self._after is After.START:
            self._queue_anew(now_s)
        else:
            self._go_to(LifecycleState.STOPPED, now_s)
        return ()

    def _fail(self, now_s: float, why: str, *, lasting: bool) -> None:
        if self._ready_s is not None and now_s - self._ready_s >= HEALTHY_S:
            self._failures = 0
        self._ready_s = None
        self._failures += 1
        if not self._proved and (lasting or self._failures >= STARTS):
            self._go_to(LifecycleState.FAILED, now_s, reason=why)
            return
        self.restarts += 1
        self._go_to(LifecycleState.BACKOFF, now_s, backoff_s(self._failures), why)

    @_take.register
    def _lost(self, _event: Lost, now_s: float) -> Actions:
        self._break("", now_s, self._limits.stop_s)
        return ()

    @_take.register
    def _hung(self, event: Hung, now_s: float) -> Actions:
        self._break(event.why, now_s, KILL_S)
        return (Action.KILL,)

    def _break(self, why: str, now_s: float, wait_s: float) -> None:
        """It can't go on, and was at work until now."""
        if self.state is LifecycleState.READY:
            self._after = After.RETRY
        self._go_to(LifecycleState.STOPPING, now_s, wait_s, why)

    # What the operator wants

    @_take.register
    def _drain(self, _event: Drain, now_s: float) -> Actions:
        del now_s
        self.held = True
        return ()

    @_take.register
    def _undrain(self, _event: Undrain, now_s: float) -> Actions:
        del now_s
        self.held = False
        return ()

    @_take.register
    def _stop(self, event: Stop, now_s: float) -> Actions:
        if self.state not in RUNNING:
            self._go_to(LifecycleState.STOPPED, now_s)
            return ()
        if event.force:
            self._after = After.STOP
            self._go_to(LifecycleState.STOPPING, now_s, KILL_S)
            return (Action.KILL,)
        return self._leave(After.STOP, now_s)

    @_take.register
    def _restart(self, _event: Restart, now_s: float) -> Actions:
        if self.state not in RUNNING:
            self._queue_anew(now_s)
            return ()
        return () if self.leaving else self._leave(After.START, now_s)

    def _leave(self, after: After, now_s: float) -> Actions:
        self._after = after
        if self.state is LifecycleState.READY:
            self._go_to(LifecycleState.DRAINING, now_s, self._limits.drain_s)
        elif self.state is LifecycleState.STARTING:
            self._go_to(LifecycleState.STOPPING, now_s, self._limits.stop_s)
            return (Action.TERMINATE,)
        return ()

    # Towards the end

    @_take.register
    def _idle(self, _event: Idle, now_s: float) -> Actions:
        self._go_to(LifecycleState.STOPPING, now_s, self._limits.stop_s)
        return (Action.TERMINATE,)

    @_take.register
    def _tick(self, _event: Tick, now_s: float) -> Actions:
        if self.until_s is None or now_s < self.until_s:
            return ()
        if self.state is LifecycleState.BACKOFF:
            self._go_to(LifecycleState.QUEUED, now_s, reason=self.reason)
            return ()
        if self.state is LifecycleState.DRAINING:
            return self._idle(Idle(), now_s)
        reason = self.reason
        if self.state is LifecycleState.STARTING:
            self._after = After.RETRY
            reason = f"not ready within {self._limits.start_s:g} s"
        self._go_to(LifecycleState.STOPPING, now_s, KILL_S, reason)
        return (Action.KILL,)


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row, of which there is at least one."""
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30))
