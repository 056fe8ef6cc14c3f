"""What the router knows of its engines: its own work there, their health, what they report.

What engines report refines what the router has in flight there, and never replaces it.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from headway.config import EngineAddress, TimeoutSettings
from headway.core.engine_metrics import EngineMetrics
from headway.core.reliability.engine_health import EngineHealth
from headway.core.routing.load import Claim, Load
from headway.core.routing.views import EngineView, PoolView
from headway.router.wire.engines.pool import UpstreamPool

STALE_S: Final = 5.0
"""What an engine reported longer ago no longer counts."""


class EngineState:
    """One engine behind the router.

    id: `pool/host:port`. models: what it serves, empty until it was asked.
    max_model_len: tokens, the pool's setting or what the engine says. report: what it last said on
    /metrics, at `reported_s`.
    """

    def __init__(
        self,
        engine_id: str,
        pool: "PoolState",
        address: EngineAddress,
        upstream: UpstreamPool,
    ) -> None:
        self.id = engine_id
        self.pool = pool
        self.tls = address.tls
        self.upstream = upstream
        self.load = Load()
        self.report = EngineMetrics()
        self.reported_s = -math.inf
        self.health = EngineHealth()
        self.expected = asyncio.Event()
        """Set: somebody says that it is well, so it is to be checked now."""
        self.models: tuple[dict[str, object], ...] = ()
        self.max_model_len = pool.max_model_len
        self.last_byte_s = -math.inf
        """Of the good answers that have ended, when the latest byte came."""

    def move(self, pool: "PoolState") -> None:
        """Its pool as a new configuration describes it."""
        self.pool = pool
        self.learn_models(self.models)

    def undrain(self, now_s: float) -> None:
        """Requests may go there again, once a check has found it well; that happens at once."""
        if self.health.undrain(now_s):
            self.expected.set()

    def heard_s(self) -> float:
        """When it last sent a part of a good answer: an engine that makes progress isn't dead."""
        return max(self.last_byte_s, self.upstream.last_byte_s())

    def ready(self, now_s: float) -> bool:
        """Whether new requests may go there."""
        return self.health.ready(now_s)

    def view(self, now_s: float) -> EngineView:
        """The engine as strategies see it."""
        load, report, health = self.load, self.report, self.health
        work = load.work
        queued = 0
        if now_s - self.reported_s <= STALE_S:
            queued = max(0, report.waiting + report.running - work.requests)
        pool = self.pool
        # Fields by position: by keyword a view takes twice as long, and each request asks for one
        # of each engine. A test holds each to its place.
        return EngineView(
            self.id,
            pool.name,
            pool.role,
            health.ready(now_s),
            self.max_model_len,
            work.prefill_tokens,
            work.decodes,
            work.decode_tokens,
            work.kv_tokens,
            pool.kv_capacity_tokens or report.kv_capacity_tokens,
            queued,
            load.prefill_tokens_per_s,
            health.weight(now_s),
            health.degraded,
            work.requests,
        )

    def patience_s(self, limits: TimeoutSettings) -> float:
        """How long it may be silent over the request that may take longest; 0 without one."""
        return self.load.patience_s(
            idle_s=limits.idle_s,
            first_byte_s=limits.first_byte_s,
            s_per_1k_tokens=limits.first_byte_s_per_1k_tokens,
        )

    def claim(self, *, prefill_tokens: int, kv_tokens: int) -> Claim:
        """Count a request that is about to be sent there."""
        return Claim(self.load, prefill_tokens, kv_tokens, late=self.health.degraded)

    def model_names(self) -> tuple[str, ...]:
        """Of the models that it serves."""
        return tuple([str(model.get("id")) for model in self.models])

    def learn_models(self, models: tuple[dict[str, object], ...]) -> None:
        """What /v1/models said; the smallest context counts where the pool sets none."""
        self.models = models
        lengths = [n for m in models if isinstance(n := m.get("max_model_len"), int)]
        self.max_model_len = self.pool.max_model_len or min(lengths, default=None)


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
