"""Prefill engines and decode engines, KV moved between them."""

import math
from collections.abc import Iterable

from headway.core.routing.classify import Fit, uncached_tokens
from headway.core.routing.pick import decode_work, pick
from headway.core.routing.places import Place, best_fit, fit_in, refuse, serving, whole
from headway.core.routing.route import Reason, Route
from headway.core.routing.views import EngineView, PoolView, RequestView


def disaggregated(
    request: RequestView,
    pools: tuple[PoolView, ...],
    now_s: float,
    draw: float,
    *,
    split_tokens: int = 0,
) -> Route:
    """Prefill on one engine, decode on another; whole on a decode engine where that can't be.

    A request that may exceed the decode engine's context isn't split, so that the engine
    can refuse it before a prefill is spent.

    split_tokens: prompts with fewer uncached tokens are served whole.
    """
    del now_s
    places, fits = best_fit(serving(pools), request)
    engines = [e for _, e in places]
    alone = pick(engines, request, draw)
    decode = pick(engines, request, draw, decode_work)
    if alone is None or decode is None:
        return refuse(serving(pools), request)
    why = _why_whole(alone, request, fits=fits, split_tokens=split_tokens)
    if why is not None:
        return whole(alone, request, why)
    # One draw serves two ties; its later digits are as good as another.
    second_draw = math.modf(max(0.0, draw) * 1e6)[0]
    prefilling = _prefilling(pools, request, decode)
    leg = request._replace(max_tokens=1)
    fitting = [place[1] for place in prefilling if fit_in(place, leg) is Fit.FITS]
    prefill = pick(fitting, leg, second_draw)
    if prefill is None:
        why = Reason.CONTEXT_LIMIT if prefilling else Reason.NO_PREFILL_ENGINE
        return whole(alone, request, why)
    return Route(
        "split",
        pool=decode.pool,
        reason=Reason.SPLIT,
        prefill=prefill.id,
        decode=decode.id,
        uncached_tokens=uncached_tokens(request, prefill.id),
    )


def _why_whole(
    alone: EngineView, request: RequestView, *, fits: bool, split_tokens: int
) -> Reason | None:
    if not request.splittable:
        return Reason.NOT_SPLITTABLE
    if not fits:
        return Reason.CONTEXT_LIMIT
    if uncached_tokens(request, alone.id) < split_tokens:
        return Reason.PROMPT_TOO_SHORT
    return None


def _prefilling(pools: Iterable[PoolView], request: RequestView, decode: EngineView) -> list[Place]:
    """Where the KV can be computed for a decode elsewhere.

    Not on a degraded engine: the decode engine can compute it too.
    """
    return [
        (p, e)
        for p in pools
        for e in p.engines
        if e.role != "decode"
        and e.id != decode.id
        and e.ready
        and not e.degraded
        and e.id not in request.excluded
    ]
