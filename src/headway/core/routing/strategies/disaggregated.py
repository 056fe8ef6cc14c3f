"""Routing strategies: pure functions of a request and the pools.

A strategy names engines and a reason; the router sends, and asks again with
`excluded` or `too_long_for` filled in when an engine failed or refused the length.
No part of a request names a destination: engines are those of the pools.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from headway.core.routing.classify import Fit, belongs, context_limit, fit, uncached_tokens
from headway.core.routing.pick import decode_work, pick, ttft_s
from headway.core.routing.views import EngineView, PoolView, RequestView

RETRY_AFTER_S: Final = 2.0
"""When to try again after a refusal for want of an engine: health checks have run by then."""


class Reason(StrEnum):
    """Why a request went where it went; few, because metrics have one series for each."""

    LEAST_WORK = "least work"
    PREFIX = "prefix"
    """The engine has half of the prompt's KV or more."""
    FITS_POOL = "fits pool"
    POOL_NOT_READY = "pool not ready"
    REFUSED_LENGTH = "length refused"
    """An engine of a smaller pool refused the length."""
    CONTEXT_LIMIT = "context limit"
    """Prompt and answer may exceed an engine's context."""
    SPILL = "spill"
    """The pool of this length would miss the TTFT limit."""
    SPLIT = "split"
    NOT_SPLITTABLE = "not splittable"
    PROMPT_TOO_SHORT = "prompt too short"
    NO_PREFILL_ENGINE = "no prefill engine"
    NOT_READY = "no engine ready"
    ALL_FAILED = "every engine failed"
    TOO_LONG = "too long"


class Route(NamedTuple):
    """Where a request goes.

    kind: `whole`: all of it on `engine`. `split`: `prefill` computes the KV, `decode`
        fetches it and answers. `refuse`: nowhere.
    pool: the pool of the engine that answers; empty if refused.
    reason: a `Reason`.
    uncached_tokens: prompt tokens to compute, on `engine` or `prefill`; 0 if refused.
    status: of a refusal: 400 too long for every engine, 503 no engine to send it to.
    retry_after_s: with a 503.
    """

    kind: Literal["whole", "split", "refuse"]
    pool: str
    reason: str
    engine: str | None = None
    prefill: str | None = None
    decode: str | None = None
    uncached_tokens: int = 0
    status: int = 0
    retry_after_s: float | None = None


class Strategy(Protocol):
    """Decides for one request at a time, from what is in flight now."""

    def route(
        self, request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
    ) -> Route:
        """The route; the same for the same arguments.

        draw: uniform in [0, 1), breaks ties.
        """


class Unified:
    """Least outstanding work, prefix hits counted, over all engines that do everything."""

    def route(
        self, request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
    ) -> Route:
        serving = _serving(pools)
        places, fits = _best_fit(serving, request)
        engine = pick([e for _, e in places], request, draw)
        if engine is None:
            return _refuse(serving, request)
        reason = Reason.CONTEXT_LIMIT
        if fits:
            cached = 2 * uncached_tokens(request, engine.id) <= request.prompt_tokens
            reason = Reason.PREFIX if cached else Reason.LEAST_WORK
        return _whole(engine, request, reason)


class Dedicated:
    """The pool for the request's length; the next larger one where that can't serve it.

    A request goes to the smallest pool whose `max_prompt_tokens` holds its uncached
    tokens. It moves up if the pool's context is too small, an engine there refused its
    length, or none is ready; and if the TTFT limit would be missed there and met above.
    It never moves down: a long prompt would make short ones wait. The largest pool also
    takes prompts beyond its range: their length is an estimate, and its engines can judge it.
    """

    def route(
        self, request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
    ) -> Route:
        places = _serving(sorted(pools, key=_range))
        largest = places[-1][0] if places else None
        suited = [(p, e) for p, e in places if p is largest or belongs(request, e, p)]
        groups: dict[str, list[EngineView]] = {}
        for pool, open_engine in _best_fit(suited, request)[0]:
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
                return _whole(engine, request, Reason.SPILL)
        if home is None:
            return _refuse(suited, request)
        return _whole(home, request, _why_not_smaller(suited, home, request))


class Disaggregated:
    """Prefill on one engine, decode on another; whole on a decode engine where that can't be.

    A request that may exceed the decode engine's context isn't split, so that the engine
    can refuse it before a prefill is spent.
    """

    def __init__(self, split_tokens: int = 0) -> None:
        """split_tokens: prompts with fewer uncached tokens are served whole."""
        self._split_tokens = split_tokens

    def route(
        self, request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
    ) -> Route:
        places, fits = _best_fit(_serving(pools), request)
        engines = [e for _, e in places]
        alone = pick(engines, request, draw)
        decode = pick(engines, request, draw, decode_work)
        if alone is None or decode is None:
            return _refuse(_serving(pools), request)
        why = self._why_whole(alone, request, fits=fits)
        if why is not None:
            return _whole(alone, request, why)
        # One draw serves two ties; its later digits are as good as another.
        second_draw = math.modf(max(0.0, draw) * 1e6)[0]
        prefilling = _prefilling(pools, request, decode)
        leg = request._replace(max_tokens=1)
        fitting = [place[1] for place in prefilling if _fit(place, leg) is Fit.FITS]
        prefill = pick(fitting, leg, second_draw)
        if prefill is None:
            why = Reason.CONTEXT_LIMIT if prefilling else Reason.NO_PREFILL_ENGINE
            return _whole(alone, request, why)
        return Route(
            "split",
            pool=decode.pool,
            reason=Reason.SPLIT,
            prefill=prefill.id,
            decode=decode.id,
            uncached_tokens=uncached_tokens(request, prefill.id),
        )

    def _why_whole(self, alone: EngineView, request: RequestView, *, fits: bool) -> Reason | None:
        if not request.splittable:
            return Reason.NOT_SPLITTABLE
        if not fits:
            return Reason.CONTEXT_LIMIT
        if uncached_tokens(request, alone.id) < self._split_tokens:
            return Reason.PROMPT_TOO_SHORT
        return None


STRATEGY_BY_NAME: Final[Mapping[str, Callable[[], Strategy]]] = {
    "unified": Unified,
    "dedicated": Dedicated,
    "disaggregated": Disaggregated,
}


_Place = tuple[PoolView, EngineView]
"""An engine and the pool whose limits hold for it."""


def _fit(place: _Place, request: RequestView) -> Fit:
    """Whether the request fits the context there; a length refused once is too long."""
    pool, engine = place
    if pool.name in request.too_long_for:
        return Fit.TOO_LONG
    return fit(request, context_limit(engine, pool))


def _serving(pools: Iterable[PoolView]) -> list[_Place]:
    """Where a whole request may go: never to an engine that only prefills."""
    return [(p, e) for p in pools for e in p.engines if e.role != "prefill"]


def _best_fit(places: Iterable[_Place], request: RequestView) -> tuple[list[_Place], bool]:
    """Of those open to the request: where it fits, else where the context is largest.

    And whether it fits there; it fits all of them, or none. Degraded ones are left out as long as
    there are others.
    """
    fitting, unsure = [], []
    excluded = request.excluded
    for place in places:
        engine = place[1]
        if engine.ready and engine.id not in excluded:
            judged = _fit(place, request)
            if judged is Fit.FITS:
                fitting.append(place)
            elif judged is Fit.UNSURE:
                unsure.append(place)
    if fitting or not unsure:
        return _well(fitting), True
    largest = max(context_limit(e, p) or 0 for p, e in unsure)
    return _well([(p, e) for p, e in unsure if context_limit(e, p) == largest]), False


def _well(places: list[_Place]) -> list[_Place]:
    """Those that aren't degraded; all if all are."""
    return [place for place in places if not place[1].degraded] or places


def _prefilling(
    pools: Iterable[PoolView], request: RequestView, decode: EngineView
) -> list[_Place]:
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


def _range(pool: PoolView) -> tuple[float, float, str]:
    """Smallest range first, then smallest context; without a limit last."""
    sizes = (pool.max_prompt_tokens, pool.max_model_len)
    prompt, context = (math.inf if size is None else size for size in sizes)
    return (prompt, context, pool.name)


def _why_not_smaller(places: Iterable[_Place], home: EngineView, request: RequestView) -> Reason:
    """Why `home` and no pool before it; `places` in order of their pools' ranges."""
    for place in places:
        pool = place[0]
        if pool.name == home.pool:
            break
        if pool.name in request.too_long_for:
            return Reason.REFUSED_LENGTH
        if _fit(place, request) is not Fit.FITS:
            return Reason.CONTEXT_LIMIT
        return Reason.POOL_NOT_READY
    return Reason.FITS_POOL


def _whole(engine: EngineView, request: RequestView, reason: Reason) -> Route:
    return Route(
        "whole",
        pool=engine.pool,
        reason=reason,
        engine=engine.id,
        uncached_tokens=uncached_tokens(request, engine.id),
    )


def _refuse(places: list[_Place], request: RequestView) -> Route:
    """The refusal of a request that none of these places is open to."""
    possible = [place for place in places if _fit(place, request) is not Fit.TOO_LONG]
    if places and not possible:
        return Route("refuse", pool="", reason=Reason.TOO_LONG, status=400)
    failed = any(engine.ready for _, engine in possible)
    reason = Reason.ALL_FAILED if failed else Reason.NOT_READY
    return Route("refuse", pool="", reason=reason, status=503, retry_after_s=RETRY_AFTER_S)
