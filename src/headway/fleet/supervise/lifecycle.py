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

from collections.abc import Callable, Mapping
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.fleet.supervise.states import (
    RUNNING,
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
        before = self.open
        actions = _HANDLERS[type(event)](self, event, now_s)
        if self.open is before:
            return actions
        return (Action.OPEN if self.open else Action.CLOSE, *actions)

    def _go_to(
        self, state: LifecycleState, now_s: float, wait_s: float | None = None, reason: str = ""
    ) -> None:
        self.state = state
        self.since_s = now_s
        self.until_s = None if wait_s is None else now_s + wait_s
        self.reason = reason

    # Towards ready

    def _start(self, event: Start, now_s: float) -> Actions:
        if self.state in {LifecycleState.STOPPED, LifecycleState.FAILED, LifecycleState.BACKOFF}:
            return self._queue_anew(now_s)
        if (
            self.state in {LifecycleState.DRAINING, LifecycleState.STOPPING}
            and self._after is After.STOP
        ):
            self._after = After.START
        return ()

    def _queue_anew(self, now_s: float) -> Actions:
        self._failures = 0
        self._proved = False
        self._ready_s = None
        self._go_to(LifecycleState.QUEUED, now_s)
        return ()

    def _go(self, event: Go, now_s: float) -> Actions:
        if self.state is not LifecycleState.QUEUED:
            raise LifeError(f"Go, and it is {self.state.value}")
        self._go_to(LifecycleState.STARTING, now_s, self._limits.start_s)
        return (Action.LAUNCH,)

    def _ready(self, event: Ready, now_s: float) -> Actions:
        if self.state is LifecycleState.STARTING:
            self._go_to(LifecycleState.READY, now_s)
            self._ready_s = now_s
            self._proved = True
        return ()

    # What goes wrong

    def _exited(self, event: Exited, now_s: float) -> Actions:
        if self.state not in RUNNING:
            raise LifeError(f"Exited, and it is {self.state.value}")
        going = self.state in {LifecycleState.DRAINING, LifecycleState.STOPPING}
        if not going or self._after is After.RETRY:
            lasting = event.lasting and not self.reason
            return self._fail(now_s, self.reason or event.cause, lasting=lasting)
        if self._after is After.START:
            return self._queue_anew(now_s)
        self._go_to(LifecycleState.STOPPED, now_s)
        return ()

    def _fail(self, now_s: float, why: str, *, lasting: bool) -> Actions:
        if self._ready_s is not None and now_s - self._ready_s >= HEALTHY_S:
            self._failures = 0
        self._ready_s = None
        self._failures += 1
        if not self._proved and (lasting or self._failures >= STARTS):
            self._go_to(LifecycleState.FAILED, now_s, reason=why)
            return ()
        self.restarts += 1
        self._go_to(LifecycleState.BACKOFF, now_s, backoff_s(self._failures), why)
        return ()

    def _lost(self, event: Lost, now_s: float) -> Actions:
        self._break("", now_s, self._limits.stop_s)
        return ()

    def _hung(self, event: Hung, now_s: float) -> Actions:
        return (Action.KILL,) if self._break(event.why, now_s, KILL_S) else ()

    def _break(self, why: str, now_s: float, wait_s: float) -> bool:
        """It can't go on; whether it was at work until now."""
        if self.state not in {LifecycleState.READY, LifecycleState.DRAINING}:
            return False
        if self.state is LifecycleState.READY:
            self._after = After.RETRY
        self._go_to(LifecycleState.STOPPING, now_s, wait_s, why)
        return True

    # What the operator wants

    def _drain(self, event: Drain, now_s: float) -> Actions:
        self.held = True
        return ()

    def _undrain(self, event: Undrain, now_s: float) -> Actions:
        self.held = False
        return ()

    def _stop(self, event: Stop, now_s: float) -> Actions:
        if self.state not in RUNNING:
            self._go_to(LifecycleState.STOPPED, now_s)
            return ()
        if event.force:
            self._after = After.STOP
            self._go_to(LifecycleState.STOPPING, now_s, KILL_S)
            return (Action.KILL,)
        return self._leave(After.STOP, now_s)

    def _restart(self, event: Restart, now_s: float) -> Actions:
        if self.state not in RUNNING:
            return self._queue_anew(now_s)
        if self.leaving:
            return ()
        return self._leave(After.START, now_s)

    def _leave(self, after: After, now_s: float) -> Actions:
        self._after = after
        if self.state is LifecycleState.READY:
            self._go_to(LifecycleState.DRAINING, now_s, self._limits.drain_s)
        elif self.state is LifecycleState.STARTING:
            self._go_to(LifecycleState.STOPPING, now_s, self._limits.stop_s)
            return (Action.TERMINATE,)
        return ()

    # Towards the end

    def _idle(self, event: Idle, now_s: float) -> Actions:
        if self.state is not LifecycleState.DRAINING:
            return ()
        self._go_to(LifecycleState.STOPPING, now_s, self._limits.stop_s)
        return (Action.TERMINATE,)

    def _tick(self, event: Tick, now_s: float) -> Actions:
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


_HANDLERS: Final[Mapping[type[Event], Callable[[Life, Any, float], Actions]]] = {
    Start: Life._start,  # noqa: SLF001  the table belongs to the class
    Go: Life._go,  # noqa: SLF001
    Ready: Life._ready,  # noqa: SLF001
    Exited: Life._exited,  # noqa: SLF001
    Lost: Life._lost,  # noqa: SLF001
    Hung: Life._hung,  # noqa: SLF001
    Drain: Life._drain,  # noqa: SLF001
    Undrain: Life._undrain,  # noqa: SLF001
    Idle: Life._idle,  # noqa: SLF001
    Stop: Life._stop,  # noqa: SLF001
    Restart: Life._restart,  # noqa: SLF001
    Tick: Life._tick,  # noqa: SLF001
}
