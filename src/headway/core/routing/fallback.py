"""Where a request goes that no strategy routes: passed on as it is, or with a KV that is waiting.

Like strategies these respect who is ready, weights of slow return, KV room, context and load, and
use a degraded engine only where there is no other.
"""

import math
from collections.abc import Iterable
from typing import Final

from headway.core.routing.pick import DECODE_AS_TOKENS, decode_work, pick, queued_tokens
from headway.core.routing.places import best_fit, serving
from headway.core.routing.views import EngineView, PoolView, RequestView

_UNREAD: Final = RequestView(
    id="", prompt_tokens=1, max_tokens=0, arrival_s=0.0, ttft_limit_s=math.inf
)
"""A request whose body nobody has read."""


def passed_on(
    pools: Iterable[PoolView], *, excluded: frozenset[str], draw: float
) -> EngineView | None:
    """For a request whose work isn't known: the engine with the least work.

    None: no engine that serves whole requests is ready and not in `excluded`.
    """
    request = _UNREAD._replace(excluded=excluded)
    places, _ = best_fit(serving(pools), request)
    return pick([engine for _, engine in places], request, draw, _all_work)


def puller(
    pools: Iterable[PoolView], request: RequestView, *, prefilled_on: str | None, draw: float
) -> EngineView | None:
    """Another decode engine for KV that waits on `prefilled_on`, when its own may not be sent to.

    Where prompt and answer fit, if they do anywhere. None: there is no other.
    """
    others = [place for place in serving(pools) if place[1].id != prefilled_on]
    places, _ = best_fit(others, request)
    return pick([engine for _, engine in places], request, draw, decode_work)


def _all_work(engine: EngineView, _request: RequestView, _tokens_per_s: float) -> float:
    """Each request counts as a decode, whatever it does there."""
    requests = DECODE_AS_TOKENS * (1 + max(0, engine.requests))
    return requests + max(0, engine.prefill_tokens) + queued_tokens(engine)
