"""Where a disaggregated request can be, and who holds its KV there."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class State(Enum):
    """Where the request is."""

    NEW = "new"
    PREFILLING = "prefilling"
    READY = "ready"
    PULLING = "pulling"
    DECODING = "decoding"
    FALLEN_BACK = "fallen_back"
    ABORTED = "aborted"
    """Ended without a whole answer: the client left, or an error was its answer."""
    DONE = "done"


class Event(Enum):
    """What happens to it."""

    START = "start"
    PREFILL_ANSWERED = "prefill_answered"
    PREFILL_FAILED = "prefill_failed"
    DECODE_SENT = "decode_sent"
    DECODE_FIRST_BYTE = "decode_first_byte"
    DECODE_FAILED = "decode_failed"
    DECODE_DONE = "decode_done"
    CLIENT_LEFT = "client_left"


TRANSITIONS: Final[Mapping[State, Mapping[Event, frozenset[State]]]] = {
    State.NEW: {
        Event.START: frozenset({State.PREFILLING}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.PREFILLING: {
        Event.PREFILL_ANSWERED: frozenset({State.READY, State.FALLEN_BACK}),
        Event.PREFILL_FAILED: frozenset({State.PREFILLING, State.FALLEN_BACK, State.ABORTED}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.READY: {
        Event.DECODE_SENT: frozenset({State.PULLING, State.FALLEN_BACK}),
        Event.DECODE_FAILED: frozenset({State.READY, State.FALLEN_BACK, State.ABORTED}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.PULLING: {
        Event.DECODE_FIRST_BYTE: frozenset({State.DECODING}),
        Event.DECODE_FAILED: frozenset({State.PREFILLING, State.ABORTED}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.FALLEN_BACK: {
        Event.DECODE_FIRST_BYTE: frozenset({State.DECODING}),
        Event.DECODE_FAILED: frozenset({State.FALLEN_BACK, State.ABORTED}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.DECODING: {
        Event.DECODE_DONE: frozenset({State.DONE}),
        Event.DECODE_FAILED: frozenset({State.ABORTED}),
        Event.CLIENT_LEFT: frozenset({State.ABORTED}),
    },
    State.ABORTED: {},
    State.DONE: {},
}
"""Where each event may lead. `release_ended` is legal while a release is under way."""


class Holder(Enum):
    """Which engines hold KV of this request."""

    NOBODY = "nobody"
    PREFILL = "prefill"
    BOTH = "both"
    DECODE = "decode"


class Releaser(Enum):
    """Who frees it."""

    PREFILL_LEG = "the prefill engine, when its leg is cut"
    ROUTER = "the router: it sends the decode leg or a release, or lets the lease run out"
    PULL = "the decode engine, by pulling the KV or giving up on it"
    DECODE_LEG = "the decode engine, when its leg ends or is cut"
    RELEASE = "the release under way"
    LEASE = "the prefill engine, when the lease runs out"


class Custody(NamedTuple):
    """The answer to the machine's question."""

    holder: Holder
    releasers: frozenset[Releaser]


CUSTODY: Final = {
    State.NEW: Custody(Holder.NOBODY, frozenset()),
    State.PREFILLING: Custody(Holder.PREFILL, frozenset({Releaser.PREFILL_LEG})),
    State.READY: Custody(Holder.PREFILL, frozenset({Releaser.ROUTER})),
    State.PULLING: Custody(Holder.BOTH, frozenset({Releaser.PULL, Releaser.DECODE_LEG})),
    State.DECODING: Custody(Holder.DECODE, frozenset({Releaser.DECODE_LEG})),
    State.FALLEN_BACK: Custody(Holder.DECODE, frozenset({Releaser.DECODE_LEG})),
    State.ABORTED: Custody(Holder.NOBODY, frozenset()),
    State.DONE: Custody(Holder.NOBODY, frozenset()),
}
AND_PREFILL: Final = {
    Holder.NOBODY: Holder.PREFILL,
    Holder.PREFILL: Holder.PREFILL,
    Holder.DECODE: Holder.BOTH,
    Holder.BOTH: Holder.BOTH,
}
