"""What can happen to an engine, where it can be, and what can be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias


class LifecycleState(Enum):
    """Where an engine is."""

    STOPPED = "stopped"
    QUEUED = "queued"
    """To be started as soon as there is room."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """About to be stopped: what runs there may end."""
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


RUNNING: Final = frozenset(
    {
        LifecycleState.STARTING,
        LifecycleState.READY,
        LifecycleState.DRAINING,
        LifecycleState.STOPPING,
    }
)
"""States with a process."""
OVER: Final = frozenset({LifecycleState.STOPPED, LifecycleState.FAILED})
"""States that only an operator ends."""


class After(Enum):
    """What follows the end of a process that is being stopped."""

    STOP = "stop"
    START = "start"
    RETRY = "retry"
    """It has failed."""


# Events


@dataclass(frozen=True, slots=True)
class Start:
    """It is wanted; what failed before is forgotten."""


@dataclass(frozen=True, slots=True)
class Go:
    """There is room for a queued engine."""


@dataclass(frozen=True, slots=True)
class Ready:
    """It answers."""


@dataclass(frozen=True, slots=True)
class Exited:
    """All of it has ended. cause: in words. lasting: another start would end the same way."""

    status: int
    cause: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A part has ended without which it can't go on; the rest is about to."""


@dataclass(frozen=True, slots=True)
class Hung:
    """It must be ended by force. why: "" where its own last words will tell."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """The operator wants no new requests there, until Undrain, whatever else happens."""


@dataclass(frozen=True, slots=True)
class Undrain:
    """The operator takes Drain back."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing runs there any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """It isn't wanted any more."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop it, then start it, as it is described now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """`until_s` may have come."""


Event: TypeAlias = (
    Start | Go | Ready | Exited | Lost | Hung | Drain | Undrain | Idle | Stop | Restart | Tick
)


_ANY_TIME: Final = (Drain, Undrain)
_AT_REST: Final[Mapping[type[Event], frozenset[LifecycleState]]] = {
    Start: frozenset({LifecycleState.QUEUED}),
    Restart: frozenset({LifecycleState.QUEUED}),
    Stop: frozenset({LifecycleState.STOPPED}),
}
_ENDED: Final = frozenset({LifecycleState.BACKOFF, LifecycleState.FAILED})
_AT_WORK: Final[Mapping[type[Event], frozenset[LifecycleState]]] = {
    Lost: frozenset({LifecycleState.STOPPING}),
    Hung: frozenset({LifecycleState.STOPPING}),
    Stop: frozenset({LifecycleState.DRAINING, LifecycleState.STOPPING}),
    Restart: frozenset({LifecycleState.DRAINING}),
}
_MOVES: Final[Mapping[LifecycleState, Mapping[type[Event], frozenset[LifecycleState]]]] = {
    LifecycleState.STOPPED: _AT_REST,
    LifecycleState.FAILED: _AT_REST,
    LifecycleState.BACKOFF: {
        **_AT_REST,
        Tick: frozenset({LifecycleState.BACKOFF, LifecycleState.QUEUED}),
    },
    LifecycleState.QUEUED: {
        Go: frozenset({LifecycleState.STARTING}),
        Restart: frozenset({LifecycleState.QUEUED}),
        Stop: frozenset({LifecycleState.STOPPED}),
    },
    LifecycleState.STARTING: {
        Ready: frozenset({LifecycleState.READY}),
        Exited: _ENDED,
        Stop: frozenset({LifecycleState.STOPPING}),
        Restart: frozenset({LifecycleState.STOPPING}),
        Tick: frozenset({LifecycleState.STARTING, LifecycleState.STOPPING}),
    },
    LifecycleState.READY: {**_AT_WORK, Exited: _ENDED},
    LifecycleState.DRAINING: {
        **_AT_WORK,
        Start: frozenset({LifecycleState.DRAINING}),
        Exited: frozenset({LifecycleState.STOPPED, LifecycleState.QUEUED}),
        Idle: frozenset({LifecycleState.STOPPING}),
        Tick: frozenset({LifecycleState.DRAINING, LifecycleState.STOPPING}),
    },
    LifecycleState.STOPPING: {
        Start: frozenset({LifecycleState.STOPPING}),
        Exited: _ENDED | {LifecycleState.STOPPED, LifecycleState.QUEUED},
        Stop: frozenset({LifecycleState.STOPPING}),
        Restart: frozenset({LifecycleState.STOPPING}),
        Tick: frozenset({LifecycleState.STOPPING}),
    },
}
TRANSITIONS: Final[Mapping[LifecycleState, Mapping[type[Event], frozenset[LifecycleState]]]] = {
    state: {**dict.fromkeys(_ANY_TIME, frozenset({state})), **moves}
    for state, moves in _MOVES.items()
}
"""Where each event may lead. One that isn't listed came too late and changes nothing; if it is in
`FAULTS`, whoever told it is at fault.
"""
FAULTS: Final = (Go, Exited)


class Action(Enum):
    """What the host must do, in this order, before the next event."""

    OPEN = "open"
    """Tell the router that requests may go there."""
    CLOSE = "close"
    """Tell the router that none may."""
    LAUNCH = "launch"
    TERMINATE = "terminate"
    """Ask the process to end."""
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class LifecycleLimits:
    """start_s: to be ready. drain_s: for running requests. stop_s: to end once asked to."""

    start_s: float
    drain_s: float
    stop_s: float


Actions: TypeAlias = tuple[Action, ...]
