"""Every engine does everything."""

from headway.core.routing.classify import uncached_tokens
from headway.core.routing.pick import pick
from headway.core.routing.places import best_fit, refuse, serving, whole
from headway.core.routing.route import Reason, Route
from headway.core.routing.views import PoolView, RequestView


def unified(request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float) -> Route:
    """Least outstanding work, prefix hits counted, over all engines that do everything."""
    del now_s
    open_to = serving(pools)
    places, fits = best_fit(open_to, request)
    engine = pick([e for _, e in places], request, draw)
    if engine is None:
        return refuse(open_to, request)
    reason = Reason.CONTEXT_LIMIT
    if fits:
        cached = 2 * uncached_tokens(request, engine.id) <= request.prompt_tokens
        reason = Reason.PREFIX if cached else Reason.LEAST_WORK
    return whole(engine, request, reason)
