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


def passed_on(pools: Iterable[PoolView], *, excluded: frozenset[str], draw: float) -> str | None:
    """For a request whose work isn't known: the id of the engine with the least work.

    None: no engine that serves whole requests is ready and not in `excluded`.
    """
    request = _UNREAD._replace(excluded=excluded)
    places, _ = best_fit(serving(pools), request)
    found = pick([engine for _, engine in places], request, draw, _all_work)
    return found.id if found else None


def puller(
    pools: Iterable[PoolView],
    request: RequestView,
    *,
    meant: str | None,
    prefilled_on: str | None,
    draw: float,
) -> str | None:
    """The id of the decode engine for KV that waits on `prefilled_on`.

    meant: whom it was prefilled for, as long as what is under way may end there. Unless that one
    failed the request it is the one, and `pools` isn't read; the work is counted there already.

    Otherwise another, where prompt and answer fit if they do anywhere. None: there is no other.
    """
    if meant is not None and meant not in request.excluded:
        return meant
    others = [place for place in serving(pools) if place[1].id != prefilled_on]
    places, _ = best_fit(others, request)
    found = pick([engine for _, engine in places], request, draw, decode_work)
    return found.id if found else None


def _all_work(engine: EngineView, _request: RequestView, _tokens_per_s: float) -> float:
    """Each request counts as a decode, whatever it does there."""
    requests = DECODE_AS_TOKENS * (1 + max(0, engine.requests))
    return requests + max(0, engine.prefill_tokens) + queued_tokens(engine)
