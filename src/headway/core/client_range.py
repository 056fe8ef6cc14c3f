"""What clients may ask for themselves of what all share: priorities and latency limits.

Whoever runs the router sets a range for each client, and one for all others. An engine has a
range of its own (`batching.clients`), the same for whoever asks.
"""

import math
from dataclasses import dataclass
from typing import Final, TypeVar

MOST_PRIORITY: Final = 2**63 - 1
"""The largest number vLLM takes. Lower goes first, and a request that asks for none has 0."""
LEAST_PRIORITY: Final = -(2**63)
UNASKED: Final = 0

N = TypeVar("N", int, float)
Whole = tuple[int, int]
Seconds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ClientRange:
    """From and to what one client may ask; both ends are in it, and the first is no larger.

    name: whose it is, for metrics.
    default_priority: of requests that ask for none.
    refuses: a request that asks for more or less is refused; otherwise the nearest end counts.
    """

    name: str
    priority: Whole = (UNASKED, MOST_PRIORITY)
    ttft_slo_s: Seconds = (0.0, math.inf)
    tpot_slo_s: Seconds = (0.0, math.inf)
    default_priority: int = UNASKED
    refuses: bool = False


def nearest(asked: N, ends: tuple[N, N]) -> N:
    """What counts for it, within the ends."""
    return max(ends[0], min(ends[1], asked))


def default_priority(priority: Whole) -> int:
    """What a request that asks for none has where nothing else is set: 0, or the end nearest."""
    return nearest(UNASKED, priority)


def told(ends: tuple[float, float], unit: str = "") -> str:
    """A range in words: `from 0.5 to 30 s`, `0.5 s or more`."""
    least, most = (str(end) if isinstance(end, int) else f"{end:.12g}" for end in ends)
    if ends[1] in {math.inf, MOST_PRIORITY}:
        return f"{least}{unit} or more"
    return f"from {least} to {most}{unit}"
