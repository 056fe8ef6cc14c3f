"""What clients may ask for themselves: `[router.clients.NAME]`."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final

from headway.config.checks import Check, Choice, Items, Number, Text, Whole, bad, shown
from headway.core.client_range import (
    LEAST_PRIORITY,
    MOST_PRIORITY,
    UNASKED,
    ClientRange,
    default_priority,
)

EVERYONE: Final = "*"
"""The section for all clients without one of their own, with a key or without."""
CLIENT: Final = Text(r"\*|[A-Za-z0-9._-]{1,64}", 'the name of a client as its keys have it, or "*"')
"""What a section may be called."""
REFUSE: Final = "refuse"

_PRIORITY: Final = Whole(LEAST_PRIORITY, MOST_PRIORITY)
_SECONDS: Final = Number(most=7 * 24 * 3600)


@dataclass(frozen=True, slots=True)
class Ends:
    """Two values of one kind, the first no larger: from and to what something may be.

    example: a right pair, for the error.
    """

    item: Check
    example: str

    def read(self, value: object) -> tuple[Any, Any]:
        ends = Items(self.item, 1, self.example).read(value)
        if len(ends) != 2:
            raise bad(f"has {len(ends)} values; use two, the least and the most: {self.example}")
        if ends[0] > ends[1]:
            raise bad(f"starts at {shown(ends[0])}, above its end; use {self.example}")
        return ends[0], ends[1]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "minItems": 2, "maxItems": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What a client may ask for: NAME is that of its keys, or "*" for all others.

    A section stands alone: what it doesn't set is as if there were none.
    """

    priority: Annotated[
        tuple[int, int] | None,
        Ends(_PRIORITY, "[0, 10]"),
        "least and most `priority`; lower goes first; not set: from 0, so that nobody gets ahead",
    ] = None
    default_priority: Annotated[
        int | None,
        _PRIORITY,
        "of requests that ask for none; not set: 0, or the end of `priority` nearest to it",
    ] = None
    ttft_slo_s: Annotated[
        tuple[float, float] | None,
        Ends(_SECONDS, "[0.5, 30]"),
        "least and most `headway_ttft_slo_s`, seconds; not set: from router.slo.ttft_s",
    ] = None
    tpot_slo_s: Annotated[
        tuple[float, float] | None,
        Ends(_SECONDS, "[0.05, 1]"),
        "least and most `headway_tpot_slo_s`, seconds; not set: from router.slo.tpot_s",
    ] = None
    beyond: Annotated[
        str,
        Choice(("clamp", REFUSE)),
        "what is asked outside a range counts as its nearest end, or is answered with 400",
    ] = "clamp"

    def range(self, name: str, *, ttft_s: float, tpot_s: float) -> ClientRange:
        """In full. ttft_s, tpot_s: everyone's limits, which nobody's are below unless set."""
        priority = self.priority or (UNASKED, MOST_PRIORITY)
        default = self.default_priority
        return ClientRange(
            name,
            priority,
            self.ttft_slo_s or (ttft_s, math.inf),
            self.tpot_slo_s or (tpot_s, math.inf),
            default_priority(priority) if default is None else default,
            self.beyond == REFUSE,
        )
