"""What the machine tells its host to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Params: TypeAlias = Mapping[str, Any]
"""An engine's `kv_transfer_params`: single use, passed on unchanged."""

CountName: TypeAlias = Literal[
    "started", "used", "released", "expired", "stranded", "failed", "aborted", "fallback"
]
"""What is counted. Every `started` prefill leg ends as exactly one of the next six.

started: a prefill leg was asked for.
used: the decode engine pulled the KV.
released: the KV wasn't needed and the prefill engine was told so.
expired: it got too old before a decode leg could be sent.
stranded: it stays on the prefill engine until the lease ends.
failed: the prefill leg ended without a handoff.
aborted: the client left during prefill.
fallback: the request was served whole instead (once a request).
"""

WholeReason: TypeAlias = Literal[
    "no handoff", "bad handoff", "handoff too old", "prefill failed", "prefill refused length"
]


@dataclass(frozen=True, slots=True)
class SendPrefill:
    """Send a prefill leg. With no engine to send it to: `prefill_failed(503)`."""


@dataclass(frozen=True, slots=True)
class SendDecode:
    """Send the decode leg with `params`; `decode_sent` before its first byte leaves."""

    params: Params


@dataclass(frozen=True, slots=True)
class SendWhole:
    """Send the client's request to a decode engine, without a handoff."""

    reason: WholeReason


@dataclass(frozen=True, slots=True)
class AbortPrefill:
    """Cut the prefill leg."""


@dataclass(frozen=True, slots=True)
class AbortDecode:
    """Cut the decode leg or the whole request, even where it is still connecting."""


@dataclass(frozen=True, slots=True)
class Release:
    """Tell the prefill engine, through a decode engine, that nobody will pull this.

    vLLM does so for a completion that carries `params` and that its API server turns away
    before the scheduler, for example because it names an unknown model; nothing is moved
    or computed. Report the outcome with `release_ended`.
    """

    params: Params


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the handoff; its KV stays where it is until the lease runs out. `why` is for logs."""

    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell the client that it failed.

    status: the engine's, whose answer is passed on; or 502/504 where it gave none.
    in_band: output had come; where some of it has left, the error goes into the stream.
    """

    status: int
    in_band: bool


@dataclass(frozen=True, slots=True)
class Count:
    """Count one of `name`."""

    name: CountName


Action: TypeAlias = (
    SendPrefill
    | SendDecode
    | SendWhole
    | AbortPrefill
    | AbortDecode
    | Release
    | Drop
    | Answer
    | Count
)
Actions: TypeAlias = tuple[Action, ...]
