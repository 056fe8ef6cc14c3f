"""Engines with the pools whose limits hold for them, and which of them suit a request."""

from collections.abc import Iterable

from headway.core.routing.classify import Fit, context_limit, fit, uncached_tokens
from headway.core.routing.route import RETRY_AFTER_S, Reason, Route
from headway.core.routing.views import EngineView, PoolView, RequestView

Place = tuple[PoolView, EngineView]
"""An engine and the pool whose limits hold for it."""


def fit_in(place: Place, request: RequestView) -> Fit:
    """Whether the request fits the context there; a length refused once is too long."""
    pool, engine = place
    if pool.name in request.too_long_for:
        return Fit.TOO_LONG
    return fit(request, context_limit(engine, pool))


def serving(pools: Iterable[PoolView]) -> list[Place]:
    """Where a whole request may go: never to an engine that only prefills."""
    return [(p, e) for p in pools for e in p.engines if e.role != "prefill"]


def best_fit(places: Iterable[Place], request: RequestView) -> tuple[list[Place], bool]:
    """Of those open to the request: where it fits, else where the context is largest.

    And whether it fits there; it fits all of them, or none. Degraded ones are left out as long as
    there are others.
    """
    fitting, unsure = [], []
    excluded = request.excluded
    for place in places:
        engine = place[1]
        if engine.ready and engine.id not in excluded:
            judged = fit_in(place, request)
            if judged is Fit.FITS:
                fitting.append(place)
            elif judged is Fit.UNSURE:
                unsure.append(place)
    if fitting or not unsure:
        return well(fitting), True
    largest = max(context_limit(e, p) or 0 for p, e in unsure)
    return well([(p, e) for p, e in unsure if context_limit(e, p) == largest]), False


def well(places: list[Place]) -> list[Place]:
    """Those that aren't degraded; all if all are."""
    return [place for place in places if not place[1].degraded] or places


def whole(engine: EngineView, request: RequestView, reason: Reason) -> Route:
    """The route of a request that one engine serves."""
    return Route(
        "whole",
        pool=engine.pool,
        reason=reason,
        engine=engine.id,
        uncached_tokens=uncached_tokens(request, engine.id),
    )


def refuse(places: list[Place], request: RequestView) -> Route:
    """The refusal of a request that none of these places is open to."""
    possible = [place for place in places if fit_in(place, request) is not Fit.TOO_LONG]
    if places and not possible:
        return Route("refuse", pool="", reason=Reason.TOO_LONG, status=400)
    failed = any(engine.ready for _, engine in possible)
    reason = Reason.ALL_FAILED if failed else Reason.NOT_READY
    return Route("refuse", pool="", reason=reason, status=503, retry_after_s=RETRY_AFTER_S)
