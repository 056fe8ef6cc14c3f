"""How long a request is: to an engine, for its class, and against a context limit."""

from enum import IntEnum
from typing import Final, Literal

from headway.core.routing.views import EngineView, PoolView, RequestView

LengthClass = Literal["short", "long"]
SHORT: Final = "short"
LONG: Final = "long"


class Fit(IntEnum):
    """Whether an engine's context holds a request, best first."""

    FITS = 0
    """Prompt and answer fit, as far as is known."""
    UNSURE = 1
    """They may not; only the engine can tell. It refuses, or it cuts the answer's limit
    (vLLM 0.32 refuses only a prompt that alone fills the context)."""
    TOO_LONG = 2
    """The engine is certain to refuse."""


def uncached_tokens(request: RequestView, engine_id: str) -> int:
    """Prompt tokens that the engine would have to compute; its *length* in every decision.

    At least 1: an engine computes the last prompt token even if it has all KV.
    """
    tokens, known = request.prompt_tokens, request.cached_tokens
    if known:
        tokens -= max(0, known.get(engine_id, 0))
    return tokens if tokens > 0 else 1


def length_class(tokens: int, long_tokens: int) -> LengthClass:
    """`long` for more than `long_tokens` uncached tokens, else `short`."""
    return LONG if tokens > long_tokens else SHORT


def belongs(request: RequestView, engine: EngineView, pool: PoolView) -> bool:
    """Whether the request's length on this engine is in the pool's range."""
    most = pool.max_prompt_tokens
    return most is None or uncached_tokens(request, engine.id) <= most


def context_limit(engine: EngineView, pool: PoolView) -> int | None:
    """Tokens of prompt and answer that a request may have there; None if unknown."""
    own, pools = engine.max_model_len, pool.max_model_len
    if own is None or pools is None:
        return pools if own is None else own
    return min(own, pools)


def fit(request: RequestView, limit_tokens: int | None) -> Fit:
    """How the request compares with a context limit; an unknown limit holds everything.

    An estimate is never a reason to refuse: too long is a prompt that was counted, or
    an answer's limit that exceeds the context by itself.
    """
    if limit_tokens is None:
        return Fit.FITS
    answer_tokens = max(1, request.max_tokens or 1)
    if answer_tokens > limit_tokens:
        return Fit.TOO_LONG
    if request.exact and request.prompt_tokens >= limit_tokens:
        return Fit.TOO_LONG
    if request.prompt_tokens + answer_tokens > limit_tokens:
        return Fit.UNSURE
    return Fit.FITS
