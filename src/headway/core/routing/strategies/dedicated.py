"""Pools by length of prompt."""

import math
from collections.abc import Iterable

from headway.core.routing.classify import Fit, belongs
from headway.core.routing.pick import pick, ttft_s
from headway.core.routing.places import Place, best_fit, fit_in, refuse, serving, whole
from headway.core.routing.route import Reason, Route
from headway.core.routing.views import EngineView, PoolView, RequestView


def dedicated(
    request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
) -> Route:
    """The pool for the request's length; the next larger one where that can't serve it.

    A request goes to the smallest pool whose `max_prompt_tokens` holds its uncached
    tokens. It moves up if the pool's context is too small, an engine there refused its
    length, or none is ready; and if the TTFT limit would be missed there and met above.
    It never moves down: a long prompt would make short ones wait. The largest pool also
    takes prompts beyond its range: their length is an estimate, and its engines can judge it.
    """
    places = serving(sorted(pools, key=_range))
    largest = places[-1][0] if places else None
    suited = [(p, e) for p, e in places if p is largest or belongs(request, e, p)]
    groups: dict[str, list[EngineView]] = {}
    for pool, open_engine in best_fit(suited, request)[0]:
        groups.setdefault(pool.name, []).append(open_engine)
    left_s = request.arrival_s + request.ttft_limit_s - now_s
    home: EngineView | None = None
    for engines in groups.values():
        engine = pick(engines, request, draw)
        if engine is None:
            continue
        first_s = ttft_s(engine, request, engines)
        if home is None:
            home = engine
            if first_s is None or first_s <= left_s:
                break
        elif first_s is not None and first_s <= left_s:
            return whole(engine, request, Reason.SPILL)
    if home is None:
        return refuse(suited, request)
    return whole(home, request, _why_not_smaller(suited, home, request))


def _range(pool: PoolView) -> tuple[float, float, str]:
    """Smallest range first, then smallest context; without a limit last."""
    sizes = (pool.max_prompt_tokens, pool.max_model_len)
    prompt, context = (math.inf if size is None else size for size in sizes)
    return (prompt, context, pool.name)


def _why_not_smaller(places: Iterable[Place], home: EngineView, request: RequestView) -> Reason:
    """Why `home` and no pool before it; `places` in order of their pools' ranges."""
    for place in places:
        pool = place[0]
        if pool.name == home.pool:
            break
        if pool.name in request.too_long_for:
            return Reason.REFUSED_LENGTH
        if fit_in(place, request) is not Fit.FITS:
            return Reason.CONTEXT_LIMIT
        return Reason.POOL_NOT_READY
    return Reason.FITS_POOL
