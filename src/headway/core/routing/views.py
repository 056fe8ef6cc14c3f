"""What a routing strategy may see: plain, frozen descriptions that the router fills in.

Times are seconds on one monotonic clock of the router's choosing. Token counts of
prompts are estimates unless said otherwise: a wrong one costs time, never correctness.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

NOTHING_CACHED: Final[Mapping[str, int]] = MappingProxyType({})


class EngineView(NamedTuple):
    """One vLLM server, as the router knows it. Negative counts are read as 0.

    id: `pool/host:port`, unique.
    pool: the name of its pool.
    role: `both`, `prefill` (only ever computes the KV of a handoff) or `decode`.
    ready: requests may go there: its circuit breaker is closed, it isn't ejected or draining.
    max_model_len: its context, tokens of prompt and answer; None if unknown.
    prefill_tokens: uncached prompt tokens that this router sent and that aren't computed yet.
    decodes: this router's requests decoding there, handoffs on their way there included.
    decode_tokens: the context of these, tokens.
    kv_tokens: KV of all that this router has in flight there, staged handoffs included.
    kv_capacity_tokens: KV tokens the engine can hold; None if unknown.
    queued: requests waiting in the engine as last scraped, beyond the router's own; 0 if stale.
    prefill_tokens_per_s: learned; 0 while unknown.
    weight: 0 to 1, below 1 during slow readmission; the engine's load is divided by it.
    degraded: it doesn't answer checks, and may be busy or hung: only where no other engine will do.
    requests: this router's requests there, whatever they ask for.
    """

    id: str
    pool: str
    role: str = "both"
    ready: bool = True
    max_model_len: int | None = None
    prefill_tokens: int = 0
    decodes: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0
    kv_capacity_tokens: int | None = None
    queued: int = 0
    prefill_tokens_per_s: float = 0.0
    weight: float = 1.0
    degraded: bool = False
    requests: int = 0


class PoolView(NamedTuple):
    """Engines of one kind.

    max_prompt_tokens: the longest prompt, in uncached tokens, that belongs here; None: any.
    max_model_len: the context limit set for the pool, tokens; an engine's own may be smaller.
    """

    name: str
    role: str
    engines: tuple[EngineView, ...]
    max_prompt_tokens: int | None = None
    max_model_len: int | None = None


class RequestView(NamedTuple):
    """A request that is to be sent somewhere.

    prompt_tokens: an estimate, unless `exact`.
    max_tokens: the client's limit on the answer, tokens; None if it set none.
    ttft_limit_s: the first token is due this long after `arrival_s`.
    splittable: prefill and decode may happen on different engines.
    cached_tokens: by engine id, an estimate of the prompt tokens whose KV is there.
    excluded: ids of engines that failed this request already.
    too_long_for: names of pools of which an engine refused this request's length.
    exact: `prompt_tokens` was counted and no engine will truncate the prompt.
    kept_tokens: by engine id, an estimate of all that is cached there, whose it may be; left empty
        for a prompt that is too short to drive any of it out.
    """

    id: str
    prompt_tokens: int
    max_tokens: int | None
    arrival_s: float
    ttft_limit_s: float
    splittable: bool = True
    cached_tokens: Mapping[str, int] = NOTHING_CACHED
    excluded: frozenset[str] = frozenset()
    too_long_for: frozenset[str] = frozenset()
    exact: bool = False
    kept_tokens: Mapping[str, int] = NOTHING_CACHED
