"""What a strategy answers: where a request goes, and why."""

from enum import StrEnum
from typing import Final, Literal, NamedTuple

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
