"""One request served in two legs: prefilled on one engine, decoded on another.

The machine owns a question: *who holds this request's KV, and who must release it?* It
does no I/O: the host tells it events, performs the actions it answers with, in order, and
asks `custody` at any time. An event that can't happen in the present state raises
`HandoffError` and changes nothing.

Every prefill leg makes at most one handoff, and a handoff is used at most once:

- *prefilling*: the prefill engine holds the KV; cutting the leg frees it.
- *ready*: the engine keeps it for `lease_s`; nothing of the decode leg has left the router.
  From here the handoff is pulled by a decode leg, released, or dropped.
- *pulling*: the decode leg may have reached its engine, which also holds blocks for the whole
  prompt now. It frees the prefill engine's by pulling, or by being cut (vLLM tells the
  prefill engine then).
- *decoding*: output came, so the KV was pulled (or computed here); it goes when the leg ends.
- *fallen back*: served whole by a decode engine; the prefill engine is out of it.

A handoff must not be tried late: beyond the lease its blocks belong to other prompts, and
engines have answered with those. So it is sent before `safe_age_s` or never.
"""

from headway.core.handoff.actions import (
    AbortDecode,
    AbortPrefill,
    Action,
    Actions,
    Answer,
    Count,
    CountName,
    Drop,
    Params,
    Release,
    SendDecode,
    SendPrefill,
    SendWhole,
    WholeReason,
)
from headway.core.handoff.machine import Handoff, HandoffError
from headway.core.handoff.params import valid_params
from headway.core.handoff.states import Custody, Event, Holder, Releaser, State

__all__ = [
    "AbortDecode",
    "AbortPrefill",
    "Action",
    "Actions",
    "Answer",
    "Count",
    "CountName",
    "Custody",
    "Drop",
    "Event",
    "Handoff",
    "HandoffError",
    "Holder",
    "Params",
    "Release",
    "Releaser",
    "SendDecode",
    "SendPrefill",
    "SendWhole",
    "State",
    "WholeReason",
    "valid_params",
]
