"""Which of several engines: the one with the least outstanding work.

The router's own outstanding counts decide. What was scraped from an engine is seconds
old and the same for every request until the next scrape, so it may add only a bounded
amount; otherwise all requests of one interval would go to the same engine.
"""

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from headway.core.routing.classify import uncached_tokens
from headway.core.routing.views import EngineView, RequestView

Work = Callable[[EngineView, RequestView, float], float]
"""Outstanding work if the request joins, above 0; the third argument is the engine's prefill
speed, tokens/s."""

GUESSED_TOKENS_PER_S: Final = 10_000.0
"""Prefill speed while no engine's is known; it only weighs work against itself."""
DECODE_AS_TOKENS: Final = 64.0
"""A decode slows prefill for as long as it lasts, a little each step; counted as this many
prefill tokens, so that decodes are spread too where prefill is light."""
CONTEXT_AS_TOKENS: Final = 0.01
"""A token of a decode's context, read in every step, in prefill tokens."""
QUEUED_AS_TOKENS: Final = 256
"""A request of somebody else that waits in the engine, in prefill tokens."""
MOST_QUEUED: Final = 16
"""More of these add nothing."""
ANSWER_TOKENS: Final = 256
"""KV room asked for an answer of unknown or larger limit: engines allocate it as it grows."""
_ID: Final = attrgetter("id")
LEAST_WEIGHT: Final = 0.01
TIE: Final = 1.05
"""Loads up to this many times the least are equal."""
SPARED_TOKENS: Final = 1_024
"""So many more cached tokens than elsewhere make no difference."""


def pick(
    engines: Iterable[EngineView], request: RequestView, draw: float, work: Work | None = None
) -> EngineView | None:
    """The ready engine, not excluded for this request, with the least `work` over weight.

    Engines without KV room for the request come after all others. Loads within 5% of
    the least are a tie. Of these come first engines where the request drives out less of what is
    cached for others, then those that have less of it: whoever comes back to a warm engine isn't to
    find a cold 80k prompt there that another could have taken. Then `draw` in [0, 1) decides.

    work: `prefill_work` by default.

    None: there is no such engine.
    """
    excluded = request.excluded
    peers = [e for e in engines if e.ready and e.id not in excluded]
    if len(peers) < 2:
        return peers[0] if peers else None
    roomy = [e for e in peers if e.kv_capacity_tokens is None or has_room(e, request)] or peers
    measure = work or prefill_work
    usual = 0.0
    loads = []
    for engine in roomy:
        speed = engine.prefill_tokens_per_s
        if not 0 < speed < math.inf:
            usual = speed = usual or usual_tokens_per_s(peers) or GUESSED_TOKENS_PER_S
        weight = engine.weight
        load = measure(engine, request, speed)
        loads.append(load if weight >= 1 else load / max(LEAST_WEIGHT, weight))
    most = TIE * min(loads)
    tied = [e for e, load in zip(roomy, loads, strict=True) if load <= most]
    if len(tied) > 1:
        if request.kept_tokens:
            tied = _sparing(tied, request)
        tied.sort(key=_ID)
    return tied[max(0, min(len(tied) - 1, int(draw * len(tied))))]


def _sparing(engines: list[EngineView], request: RequestView) -> list[EngineView]:
    """Those where least is driven out of what is cached for others; of these, where least is."""
    stakes = [_at_stake(engine, request) for engine in engines]
    most = min(stakes)[0] + SPARED_TOKENS
    spared = [(o, e) for (driven, o), e in zip(stakes, engines, strict=True) if driven <= most]
    most = min([others for others, _ in spared]) + SPARED_TOKENS
    return [engine for others, engine in spared if others <= most]


def _at_stake(engine: EngineView, request: RequestView) -> tuple[int, int]:
    """Tokens cached for others: those whose place the request's KV takes, and all of them."""
    name, capacity = engine.id, engine.kv_capacity_tokens
    kept = max(0, request.kept_tokens.get(name, 0))
    others = max(0, kept - max(0, request.cached_tokens.get(name, 0)))
    wanted = uncached_tokens(request, name)
    if capacity is not None:
        free = capacity - max(0, engine.kv_tokens) - kept
        wanted = max(0, wanted - max(0, free))
        others = min(others, capacity)
    return min(others, wanted), others


def prefill_work(engine: EngineView, request: RequestView, tokens_per_s: float) -> float:
    """Seconds of work there, the request's own uncached tokens included (prefix affinity)."""
    ahead: float = _tokens_ahead(engine, request)
    decodes, decode_tokens = engine.decodes, engine.decode_tokens
    if decodes > 0:
        ahead += DECODE_AS_TOKENS * decodes
    if decode_tokens > 0:
        ahead += CONTEXT_AS_TOKENS * decode_tokens
    return ahead / tokens_per_s


def decode_work(engine: EngineView, request: RequestView, _tokens_per_s: float) -> float:
    """Work of a decode engine, in prefill tokens: decodes, KV, and any prefill in their way.

    Speeds don't enter: a decode engine prefills too rarely to have a reliable one. All KV
    counts, not only that of running decodes: what is staged decodes next.
    """
    decodes = DECODE_AS_TOKENS * (1 + max(0, engine.decodes))
    kv_tokens = max(0, engine.kv_tokens) + kv_need_tokens(request)
    work = decodes + CONTEXT_AS_TOKENS * kv_tokens
    return work + max(0, engine.prefill_tokens) + queued_tokens(engine)


def queued_tokens(engine: EngineView) -> int:
    """What others have waiting in the engine, in prefill tokens."""
    return QUEUED_AS_TOKENS * min(MOST_QUEUED, max(0, engine.queued))


def ttft_s(engine: EngineView, request: RequestView, peers: Iterable[EngineView]) -> float | None:
    """Predicted seconds to the first token: all prefill ahead, then the request's own.

    peers: engines whose speed stands in where the engine's own is unknown.

    None: no speed is known. Infinite without KV room: it waits until a request ends.
    """
    if not has_room(engine, request):
        return math.inf
    tokens_per_s = _known(engine) or usual_tokens_per_s(peers)
    return _tokens_ahead(engine, request) / tokens_per_s if tokens_per_s else None


def kv_need_tokens(request: RequestView) -> int:
    """KV tokens the request is sure to take, and some of its answer's."""
    answer = ANSWER_TOKENS if request.max_tokens is None else max(0, request.max_tokens)
    return max(1, request.prompt_tokens) + min(answer, ANSWER_TOKENS)


def has_room(engine: EngineView, request: RequestView) -> bool:
    """Whether the engine can hold the request's KV beside what it has."""
    capacity = engine.kv_capacity_tokens
    return capacity is None or max(0, engine.kv_tokens) + kv_need_tokens(request) <= capacity


def usual_tokens_per_s(engines: Iterable[EngineView]) -> float:
    """The median of the known prefill speeds; 0.0 if none is."""
    speeds = sorted([s for e in engines if (s := _known(e))])
    if not speeds:
        return 0.0
    return (speeds[(len(speeds) - 1) // 2] + speeds[len(speeds) // 2]) / 2


def _tokens_ahead(engine: EngineView, request: RequestView) -> float:
    ahead = uncached_tokens(request, engine.id)
    queued, prefill = engine.queued, engine.prefill_tokens
    if queued > 0:
        ahead += QUEUED_AS_TOKENS * min(MOST_QUEUED, queued)
    return ahead + prefill if prefill > 0 else ahead


def _known(engine: EngineView) -> float:
    """Its prefill speed, 0.0 if unknown."""
    speed = engine.prefill_tokens_per_s
    return speed if 0 < speed < math.inf else 0.0
