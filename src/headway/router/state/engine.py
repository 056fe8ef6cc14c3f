"""What the router knows of its engines: its own work there, their health, what they report.

The router's own outstanding work is exact: it is claimed before a request is sent and
given back when the request ends, whatever ends it. What engines report refines it and
never replaces it.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from headway.config import EngineAddress, TimeoutSettings
from headway.core.reliability.breaker import Breaker
from headway.core.reliability.checks import EngineHealth, HealthState
from headway.core.routing.views import EngineView, PoolView
from headway.router.wire.engine_pool import UpstreamPool

RATE_MEMORY: Final = 0.9
"""What is kept of an engine's measured prefill when another measurement joins it."""
STALE_S: Final = 5.0
"""What an engine reported longer ago no longer counts."""


@dataclass(slots=True)
class EngineReport:
    """What an engine last said on /metrics.

    waiting, running: its requests, whoever sent them. kv_capacity_tokens: size of its KV cache,
    None where unknown. progress: grows while it computes. kv_bytes: KV it has received.
    """

    at_s: float = -math.inf
    waiting: int = 0
    running: int = 0
    kv_capacity_tokens: int | None = None
    progress: float = 0.0
    kv_bytes: float = 0.0


@dataclass(slots=True)
class Work:
    """The router's own requests on an engine; every figure is a sum over live claims."""

    requests: int = 0
    prefill_tokens: int = 0
    decodes: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


class EngineState:
    """One engine behind the router.

    id: `pool/host:port`. models: what it serves, empty until it was asked.
    max_model_len: tokens, the pool's setting or what the engine says.
    """

    def __init__(
        self,
        engine_id: str,
        pool: "PoolState",
        address: EngineAddress,
        upstream: UpstreamPool,
        breaker: Breaker,
    ) -> None:
        self.id = engine_id
        self.pool = pool
        self.tls = address.tls
        self.upstream = upstream
        self.breaker = breaker
        self.work = Work()
        self.claims: set[Claim] = set()
        self.report = EngineReport()
        self.see(EngineHealth())
        self.draining = False
        self.expected = asyncio.Event()
        """Set: somebody says that it is well, so it is to be checked now."""
        self.models: tuple[dict[str, object], ...] = ()
        self.max_model_len = pool.max_model_len
        self.prefill_tokens_per_s = 0.0
        self._measured = (0.0, 0.0)
        self.last_byte_s = -math.inf
        """Of the good answers that have ended, when the latest byte came."""

    def move(self, pool: "PoolState") -> None:
        """Its pool as a new configuration describes it."""
        self.pool = pool
        self.learn_models(self.models)

    def undrain(self, now_s: float) -> None:
        """Requests may go there again. Who drained it may have restarted it and knows that it is
        up, so it is checked at once, and one good check is enough.
        """
        if self.draining:
            self.draining = False
            self.see(self.health.expected())
            self.breaker.readmitted(now_s)
            self.expected.set()

    def see(self, health: EngineHealth) -> None:
        """What is known of its health from now on.

        degraded: requests go there only where no other engine can serve them.
        """
        self.health = health
        self.usable = health.usable
        self.degraded = health.state is HealthState.DEGRADED

    def heard_s(self) -> float:
        """When it last sent a part of a good answer: an engine that makes progress isn't dead."""
        return max(self.last_byte_s, self.upstream.last_byte_s())

    def ready(self, now_s: float) -> bool:
        """Whether new requests may go there."""
        return self.usable and not self.draining and self.breaker.would_allow(now_s)

    def view(self, now_s: float) -> EngineView:
        """The engine as strategies see it."""
        work, report = self.work, self.report
        queued = 0
        if now_s - report.at_s <= STALE_S:
            queued = max(0, report.waiting + report.running - work.requests)
        pool = self.pool
        return EngineView(
            self.id,
            pool.name,
            pool.role,
            self.ready(now_s),
            self.max_model_len,
            work.prefill_tokens,
            work.decodes,
            work.decode_tokens,
            work.kv_tokens,
            pool.kv_capacity_tokens or report.kv_capacity_tokens,
            queued,
            self.prefill_tokens_per_s,
            self.breaker.weight(now_s),
            self.degraded,
        )

    def patience_s(self, limits: TimeoutSettings) -> float:
        """How long it may be silent over the request that may take longest; 0 without one.

        However a request is answered, that is as long as a stream's next byte may take.
        """
        return max((claim.patience_s(limits) for claim in self.claims), default=0.0)

    def claim(self, *, prefill_tokens: int, kv_tokens: int) -> "Claim":
        """Count a request that is about to be sent there."""
        return Claim(self, prefill_tokens, kv_tokens)

    def learn_models(self, models: tuple[dict[str, object], ...]) -> None:
        """What /v1/models said; the smallest context counts where the pool sets none."""
        self.models = models
        lengths = [n for m in models if isinstance(n := m.get("max_model_len"), int)]
        self.max_model_len = self.pool.max_model_len or min(lengths, default=None)

    def learn_rate(self, tokens: int, seconds: float) -> None:
        """`tokens` of prefill, those before it included, took `seconds` until a first token.

        A ratio of sums: short prompts, of which most of the time is overhead, weigh little.
        """
        if tokens <= 0 or seconds <= 0:
            return
        old_tokens, old_s = self._measured
        all_tokens, all_s = RATE_MEMORY * old_tokens + tokens, RATE_MEMORY * old_s + seconds
        self._measured = all_tokens, all_s
        self.prefill_tokens_per_s = all_tokens / all_s


class Claim:
    """One request's share of an engine's work: prefilling, then decoding, then nothing.

    ahead_tokens: prefill that was to be done when it came, its own included; 0 if it has none.
    `release` may be called any number of times; only the first counts.
    """

    __slots__ = (
        "_decode_tokens",
        "_engine",
        "_kv_tokens",
        "_late",
        "_prefill_tokens",
        "ahead_tokens",
    )

    def __init__(self, engine: EngineState, prefill_tokens: int, kv_tokens: int) -> None:
        self._engine: EngineState | None = engine
        self._prefill_tokens = prefill_tokens
        self._decode_tokens = 0
        self._kv_tokens = kv_tokens
        work = engine.work
        work.requests += 1
        work.prefill_tokens += prefill_tokens
        work.kv_tokens += kv_tokens
        self.ahead_tokens = work.prefill_tokens if prefill_tokens else 0
        self._late = engine.degraded
        engine.claims.add(self)

    def patience_s(self, limits: TimeoutSettings) -> float:
        """How long the engine may be silent over it; what came when it was silent changes nothing.

        Its KV is as long as its prompt, and a little longer.
        """
        if self._late:
            return 0.0
        if self._decode_tokens:
            return limits.idle_s
        return limits.first_byte_s + limits.first_byte_s_per_1k_tokens * self._kv_tokens / 1000

    def prefilled(self, context_tokens: int) -> None:
        """Its prompt is computed; from now on it decodes."""
        engine = self._engine
        if engine is None or self._decode_tokens:
            return
        work = engine.work
        work.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0
        self._decode_tokens = max(1, context_tokens)
        work.decodes += 1
        work.decode_tokens += self._decode_tokens

    def release(self) -> None:
        """The request has left the engine."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.claims.discard(self)
        work = engine.work
        work.requests -= 1
        work.prefill_tokens -= self._prefill_tokens
        work.kv_tokens -= self._kv_tokens
        if self._decode_tokens:
            work.decodes -= 1
            work.decode_tokens -= self._decode_tokens


@dataclass(slots=True)
class PoolState:
    """Engines of one kind; a reload replaces the limits and keeps engines that stay."""

    name: str
    role: str
    max_prompt_tokens: int | None = None
    max_model_len: int | None = None
    kv_capacity_tokens: int | None = None
    kv_lease_s: float = 30.0
    engines: list[EngineState] = field(default_factory=list)

    def view(self, now_s: float) -> PoolView:
        """The pool as strategies see it."""
        return PoolView(
            self.name,
            self.role,
            tuple([engine.view(now_s) for engine in self.engines]),
            self.max_prompt_tokens,
            self.max_model_len,
        )
